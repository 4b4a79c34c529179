"""Small projects for tests."""

import csv

import numpy as np

from batchbalance.project import Project

CLASSES = ("ant", "bee", "cow")
FOREST = {"kind": "committee", "size": 4, "max_depth": 3}
ODD = (
    "a,b",
    "two\nlines",
    "=cmd|' /C calc'!A0",
    "@x",
    "+1+2",
    "-5",
    "'quoted",
    "😀",
    'say "hi"',
    " blank ",
    "tab\there",
)


def points(num=80, dim=4, seed=0):
    """Embeddings of three classes, and the classes."""
    rng = np.random.default_rng(seed)
    y = rng.integers(3, size=num)
    return (rng.normal(size=(num, dim)) + 2 * np.eye(dim)[y]).astype(np.float32), y


def make(folder, num=80, **settings):
    """A project of bare embeddings; ids are row numbers."""
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / "e.npy", points(num)[0])
    settings = {"model": FOREST, "classes": CLASSES, **settings}
    return Project.create(folder / "p", embeddings=folder / "e.npy", **settings)


def truth(ids, num=80):
    """The labels of some ids of such a project."""
    y = points(num)[1]
    return {name: CLASSES[y[int(name)]] for name in ids}


def answered(project, n, num=80, **options):
    """Ask and tell; what was asked."""
    batch = project.ask(n, **options)
    project.tell(truth(batch.ids, num), options.get("annotator"))
    return list(batch.ids)


def shades(batch):
    """An encoder of images: the mean of each channel."""
    return np.stack([np.asarray(image, dtype=np.float32).mean(axis=(0, 1)) / 255 for image in batch])


shades.kind = "images"


def write_texts(path, num=30, names=None):
    """A CSV file of texts with the columns id and body."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "body", "price"])
        for i in range(num):
            name = names[i] if names is not None and i < len(names) else f"t{i}"
            writer.writerow([name, f"{'good fine nice' if i % 2 else 'bad poor awful'} number {i % 7}", 1 + i % 3])

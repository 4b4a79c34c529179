"""The data of the suite: ``python results/suite/embeddings.py --data-dir DATA``.

Writes `x`, `y`, `x_test` and `y_test` of each set as a ``.npz`` file, leaves files that are there alone, and writes
what they hold into ``sets.json``, or compares it with what is there. Labels, split, texts, pixels and the version of
the encoder must be the same to the bit. Features differ in the last digits between processors, so a sketch of them must
agree to a thousandth of a row's length.

Images: the first 10,000 training and 2,000 test images of MNIST, Fashion-MNIST and CIFAR-10 by EfficientNet-Lite0 at
128 pixels. Texts by WordLlama: all of Banking77, its first ten categories, TREC, and customer reviews, of which the
last 1,000 of a shuffle are the test set. The other sets are made of these (`VARIANTS`). Test sets have the skew of the
pool; they have no copies, no points from elsewhere and no wrong labels.
"""

import argparse
import csv
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from batchbalance.encoders import embed, encoder
from batchbalance.lab.data import load

OWN = Path(__file__).parent
FOLDER = OWN / "embeddings"
SETS = OWN / "sets.json"
SEED = 36
SKETCHED, TOLERANCE = 32, 1e-3  # rows, and a share of the mean length of a row
Arrays = dict[str, Any]


@dataclass(frozen=True)
class Raw:
    """A published set: the inputs and classes of the pool and of the test set, and what embeds them."""

    encoder: Any
    parts: dict[str, tuple[list[Any], Any]]

    def embedded(self) -> Arrays:
        """Return the arrays of the set."""
        arrays = {}
        for part, (inputs, labels) in self.parts.items():
            arrays[f"x{part}"] = np.asarray(embed(inputs, self.encoder, progress=True).vectors)
            arrays[f"y{part}"] = np.asarray(labels)
        return arrays

    def facts(self) -> dict[str, str]:
        """Return the version of the encoder, and a hash of the inputs."""
        digest = hashlib.sha256()
        for inputs, _ in self.parts.values():
            for each in inputs:
                digest.update(each.encode() if isinstance(each, str) else each.tobytes())
        return {"encoder": self.encoder.fingerprint.partition("/torch ")[0], "inputs": digest.hexdigest()}


def images(name: str, data_dir: Path) -> Raw:
    """Return a published set of images."""
    data = load(name, data_dir=data_dir, partial=name == "cifar-10")
    found = {}
    for part, pixels, labels in (("", data.train_x[:10_000], data.train_y), ("_test", data.test_x[:2000], data.test_y)):
        pictures = [Image.fromarray(np.moveaxis(image.numpy(), 0, -1).squeeze()) for image in pixels]
        found[part] = pictures, labels[: len(pixels)].numpy()
    return Raw(encoder("efficientnet-lite0", image_size=128), found)


def texts(folder: str, column: str, num_classes: int | None, data_dir: Path) -> Raw:
    """Return the texts in CSV files: of all classes, or of the first ones of ``categories.json``."""
    listed, found = data_dir / folder / "categories.json", {}
    for part, name in (("", "train.csv"), ("_test", "test.csv")):
        path = data_dir / folder / name
        if path.is_file():
            with path.open(encoding="utf-8", newline="") as lines:
                found[part] = list(csv.DictReader(lines))
    if not found:
        with (data_dir / folder / "reviews.csv").open(encoding="utf-8", newline="") as lines:
            rows = list(csv.DictReader(lines))
        order = np.random.default_rng(SEED).permutation(len(rows))
        found = {"": [rows[i] for i in order[:-1000]], "_test": [rows[i] for i in order[-1000:]]}
    classes = sorted({row[column] for row in found[""]})
    if listed.is_file():
        classes = json.loads(listed.read_text(encoding="utf-8"))[:num_classes]
    kept = {part: [row for row in rows if row[column] in classes] for part, rows in found.items()}
    named = {
        part: ([row["text"] for row in rows], np.array([classes.index(row[column]) for row in rows]))
        for part, rows in kept.items()
    }
    return Raw(encoder("wordllama"), named)


def rare(base: str, positive: list[int], share: float) -> Arrays:
    """Return one class out of some, thinned to a share of the points, against all others."""
    rng, found = np.random.default_rng(SEED), {}
    for part, (x, y) in parts(base).items():
        is_positive = np.isin(y, positive)
        wanted = round(share / (1 - share) * int((~is_positive).sum()))
        kept = np.flatnonzero(is_positive)
        kept = np.sort(rng.permutation(kept)[: min(wanted, len(kept))])
        others = np.flatnonzero(~is_positive)
        others = np.sort(rng.permutation(others)[: round(len(kept) * (1 - share) / share)])
        rows = np.sort(np.concatenate([kept, others]))
        found |= {f"x{part}": x[rows], f"y{part}": is_positive[rows].astype(np.int64)}
    return found


def long_tail(base: str, ratio: float) -> Arrays:
    """Return classes whose counts fall geometrically, from the first to the last by `ratio`, in pool and test set."""
    rng, found = np.random.default_rng(SEED), {}
    for part, (x, y) in parts(base).items():
        num_classes, rows = int(y.max()) + 1, []
        for label in range(num_classes):
            of_class = np.flatnonzero(y == label)
            share = ratio ** (-label / max(1, num_classes - 1))
            rows.append(rng.permutation(of_class)[: max(2, round(share * len(of_class)))])
        kept = np.sort(np.concatenate(rows))
        found |= {f"x{part}": x[kept], f"y{part}": y[kept]}
    return found


def with_others(base: str, other: str) -> Arrays:
    """Return a set with points from elsewhere, a tenth of the pool, whose class "none of these" the test set lacks."""
    (x, y), test = parts(base)[""], parts(base)["_test"]
    foreign = parts(other)[""][0]
    rows = np.sort(np.random.default_rng(SEED).permutation(len(foreign))[: len(x) // 9])
    labels = np.full(len(rows), int(y.max()) + 1)
    return {
        "x": np.concatenate([x, foreign[rows]]),
        "y": np.concatenate([y, labels]),
        "x_test": test[0],
        "y_test": test[1],
    }


def with_copies(base: str) -> Arrays:
    """Return 1,500 points three times: as they are, an exact copy, and one with noise of 2 % of its length."""
    (x, y), test = parts(base)[""], parts(base)["_test"]
    rng = np.random.default_rng(SEED)
    x, y = x[:1500], y[:1500]
    noise = rng.normal(size=x.shape).astype(x.dtype)
    near = x + 0.02 * np.linalg.norm(x, axis=1, keepdims=True) * noise / np.linalg.norm(noise, axis=1, keepdims=True)
    return {"x": np.concatenate([x, x, near]), "y": np.tile(y, 3), "x_test": test[0], "y_test": test[1]}


def with_wrong_labels(base: str, share: float) -> Arrays:
    """Return a set of whose labels a share is another class at random."""
    (x, y), test = parts(base)[""], parts(base)["_test"]
    rng, num_classes = np.random.default_rng(SEED), int(y.max()) + 1
    wrong = rng.random(len(y)) < share
    moved = (y + rng.integers(1, num_classes, size=len(y))) % num_classes
    return {"x": x, "y": np.where(wrong, moved, y), "x_test": test[0], "y_test": test[1]}


def parts(name: str) -> dict[str, tuple[Any, Any]]:
    """Return the pool and the test set of a file that has been made."""
    with np.load(FOLDER / f"{name}.npz") as file:
        return {part: (file[f"x{part}"], file[f"y{part}"]) for part in ("", "_test")}


PUBLISHED: dict[str, Callable[[Path], Raw]] = {
    "banking77": partial(texts, "banking77", "category", None),
    "banking10": partial(texts, "banking77", "category", 10),
    "trec": partial(texts, "trec", "label", None),
    "reviews": partial(texts, "customer-reviews", "label", None),
    "cifar-10": partial(images, "cifar-10"),
    "fashion-mnist": partial(images, "fashion-mnist"),
    "mnist": partial(images, "mnist"),
}
VARIANTS: dict[str, Callable[[], Arrays]] = {
    "banking77-rare5": partial(rare, "banking77", list(range(8)), 0.05),
    "cifar-10-rare5": partial(rare, "cifar-10", [3], 0.05),
    "fashion-mnist-rare2": partial(rare, "fashion-mnist", [6], 0.02),
    "banking77-tail": partial(long_tail, "banking77", 20.0),
    "cifar-10-tail": partial(long_tail, "cifar-10", 50.0),
    "fashion-mnist-tail": partial(long_tail, "fashion-mnist", 50.0),
    "banking10-others": partial(with_others, "banking10", "trec"),
    "cifar-10-others": partial(with_others, "cifar-10", "fashion-mnist"),
    "fashion-mnist-copies": partial(with_copies, "fashion-mnist"),
    "banking10-wrong": partial(with_wrong_labels, "banking10", 0.1),
    "cifar-10-wrong": partial(with_wrong_labels, "cifar-10", 0.1),
}


def facts_of(path: Path) -> dict[str, Any]:
    """Return what a set holds, a hash of its labels, and how well always answering its most frequent class does."""
    with np.load(path) as file:
        arrays = {name: file[name] for name in ("x", "y", "x_test", "y_test")}
    digest = hashlib.sha256(b"".join(arrays[name].astype("<i8").tobytes() for name in ("y", "y_test")))
    counts = np.bincount(arrays["y_test"])
    share, present = float(counts.max() / counts.sum()), int((counts > 0).sum())
    return {
        "points": len(arrays["x"]), "test": len(arrays["x_test"]), "features": arrays["x"].shape[1],
        "classes": int(arrays["y"].max()) + 1, "majority accuracy": round(share, 4),
        "majority macro_f1": round(2 * share / (1 + share) / present, 4),
        "majority balanced_accuracy": round(1 / present, 4), "labels": digest.hexdigest(),
        "sketch": [sketch(arrays[name]) for name in ("x", "x_test")],
    }  # fmt: skip


def sketch(x: Any) -> list[list[float]]:
    """Return two projections of some rows, evenly spread, in units of the mean length of a row."""
    rows = x[np.linspace(0, len(x) - 1, SKETCHED).astype(int)].astype(np.float64)
    directions = np.cos(np.outer(np.arange(x.shape[1]), (1.0, 2.0)))
    length = np.linalg.norm(x.astype(np.float64), axis=1).mean()
    return np.round(rows @ directions / length, 6).tolist()


def differences(found: dict[str, Any], known: dict[str, Any]) -> list[str]:
    """Return the facts in which a set differs; a sketch may differ by `TOLERANCE`."""
    exact = [name for name in known if name != "sketch" and found.get(name) != known[name]]
    sketches = [np.asarray(each["sketch"]) for each in (found, known)]
    is_close = sketches[0].shape == sketches[1].shape and np.allclose(*sketches, rtol=0, atol=TOLERANCE)
    return exact + ["features"] * (not is_close)


def main() -> None:
    """Make what is missing, and compare it with `sets.json`."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--only", action="append", choices=[*PUBLISHED, *VARIANTS], help="a set; repeatable")
    options = parser.parse_args()
    FOLDER.mkdir(exist_ok=True)
    differ = False
    known = json.loads(SETS.read_text(encoding="utf-8")) if SETS.is_file() else {}
    for name in options.only or (*PUBLISHED, *VARIANTS):
        path = FOLDER / f"{name}.npz"
        raw = PUBLISHED[name](options.data_dir) if name in PUBLISHED else None
        if not path.exists():
            np.savez(path.with_suffix(".part.npz"), **(VARIANTS[name]() if raw is None else raw.embedded()))
            path.with_suffix(".part.npz").rename(path)
        found = facts_of(path) | ({} if raw is None else raw.facts())
        differing = differences(found, known.setdefault(name, found))
        told = f"DIFFERS from sets.json in {', '.join(differing)}" if differing else "as in sets.json"
        print(f"{path.name}: {found['points']:,} + {found['test']:,} × {found['features']}, {told}")
        differ = differ or bool(differing)
    lines = ",\n".join(f" {json.dumps(name)}: {json.dumps(facts)}" for name, facts in known.items())
    SETS.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")
    raise SystemExit("delete the sets that differ and make them again, or look for another version" if differ else 0)


if __name__ == "__main__":
    main()

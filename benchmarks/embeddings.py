"""`python -m benchmarks.embeddings`: how fast the default encoders are, and how good logistic regression is on them.

Texts: Banking77 by WordLlama, all labels. Images: CIFAR-10 by EfficientNet-Lite0, few labels.
"""

import csv
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from batchbalance.cli.app import out, reported_errors
from batchbalance.encoders import embed, encoder, open_items
from batchbalance.lab.data.formats import read_cifar

Array = NDArray[Any]

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


@app.command()
def embeddings_command(
    data_dir: Annotated[Path, typer.Option(help="Holds banking77/*.csv and cifar-10-batches-bin/*.bin.")],
    image_size: Annotated[int, typer.Option(help="Pixels of the square that the encoder sees.")] = 128,
    train: Annotated[int, typer.Option(help="Training images to embed.")] = 4000,
    test: Annotated[int, typer.Option(help="Test images to embed.")] = 1000,
    trials: Annotated[int, typer.Option(help="Sets of labels that an accuracy is the mean of.")] = 5,
) -> None:
    """Time the default encoders and fit logistic regression on what they give."""
    with reported_errors():
        texts(data_dir / "banking77")
        with tempfile.TemporaryDirectory() as folder:
            images(data_dir / "cifar-10-batches-bin", Path(folder), image_size, (train, test), trials)


def texts(folder: Path) -> None:
    """Embed Banking77 and fit all its labels."""
    vectors, labels = {}, {}
    for part in ("train", "test"):
        path = folder / f"{part}.csv"
        started, cpu = time.perf_counter(), time.process_time()
        vectors[part] = embed(open_items(path), encoder("wordllama")).vectors
        if part == "train":
            told(f"{len(vectors[part]):,} texts by wordllama, model loaded and file read", started, cpu)
        with path.open(encoding="utf-8", newline="") as file:
            labels[part] = np.array([row["category"] for row in csv.DictReader(file)])
    score = accuracy(vectors["train"], labels["train"], vectors["test"], labels["test"])
    out.print(f"  accuracy with {len(labels['train']):,} labels on {len(labels['test']):,} test texts: {score:.3f}")


def images(folder: Path, work: Path, image_size: int, counts: tuple[int, int], trials: int) -> None:
    """Embed CIFAR-10 as PNG files and fit some labels."""
    from PIL import Image

    using = encoder("efficientnet-lite0", image_size=image_size)
    vectors, labels = [], []
    for name, count in zip(("data_batch_1.bin", "test_batch.bin"), counts, strict=True):
        pixels, classes = read_cifar(folder / name, 1)
        (work / name).mkdir()
        for i, image in enumerate(pixels[:count]):
            Image.fromarray(np.ascontiguousarray(image.transpose(1, 2, 0))).save(work / name / f"{i:06d}.png")
        started, cpu = time.perf_counter(), time.process_time()
        vectors.append(embed(work / name, using, output=work / f"{name}.npy", progress=True).vectors)
        labels.append(classes[:count])
        told(f"{len(vectors[-1]):,} images of {image_size} pixels by efficientnet-lite0", started, cpu)
    for num_labels in (100, 500, 2000):
        if num_labels > len(labels[0]):
            break
        scores = []
        for seed in range(trials):
            rows = np.random.default_rng(seed).permutation(len(labels[0]))[:num_labels]
            scores.append(accuracy(vectors[0][rows], labels[0][rows], vectors[1], labels[1]))
        spread = f"{min(scores):.3f} to {max(scores):.3f}"
        out.print(
            f"  accuracy with {num_labels:,} labels on {len(labels[1]):,} test images: {np.mean(scores):.3f} ({spread})"
        )


def accuracy(x: Array, y: Array, test_x: Array, test_y: Array) -> float:
    """Of scikit-learn's logistic regression as it comes, with enough steps."""
    from sklearn.linear_model import LogisticRegression

    return float(LogisticRegression(max_iter=1000).fit(x, y).score(test_x, test_y))


def told(what: str, started: float, cpu: float) -> None:
    """One line about some work that ends now."""
    out.print(f"{what}: {time.perf_counter() - started:.1f} s, {time.process_time() - cpu:.1f} s of CPU")


if __name__ == "__main__":
    app()

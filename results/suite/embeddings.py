"""The embeddings of the suite: ``python results/suite/embeddings.py --data-dir DATA``.

Writes `x`, `y`, `x_test` and `y_test` of each data set as a ``.npz`` file, and leaves files that are there alone.
Images: the first 10,000 training and 2,000 test images of MNIST, Fashion-MNIST and CIFAR-10 by EfficientNet-Lite0 at
128 pixels. Texts: all of Banking77, and its first ten categories, by WordLlama.
"""

import argparse
import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from batchbalance.encoders import embed, encoder
from batchbalance.lab.data import load

IMAGES = ("cifar-10", "fashion-mnist", "mnist")
TEXTS = {"banking77": None, "banking10": 10}  # how many of the categories
FOLDER = Path(__file__).parent / "embeddings"


def images(name: str, data_dir: Path) -> dict[str, Any]:
    """The arrays of a published set of images."""
    data = load(name, data_dir=data_dir, partial=name == "cifar-10")
    lite = encoder("efficientnet-lite0", image_size=128)
    arrays = {}
    for part, pixels, labels in (("", data.train_x[:10_000], data.train_y), ("_test", data.test_x[:2000], data.test_y)):
        pictures = [Image.fromarray(np.moveaxis(image.numpy(), 0, -1).squeeze()) for image in pixels]
        arrays[f"x{part}"] = np.asarray(embed(pictures, lite, progress=True).vectors)
        arrays[f"y{part}"] = labels[: len(pixels)].numpy()
    return arrays


def texts(num_categories: int | None, data_dir: Path) -> dict[str, Any]:
    """The arrays of Banking77, or of its first categories."""
    folder = data_dir / "banking77"
    categories = json.loads((folder / "categories.json").read_text(encoding="utf-8"))[:num_categories]
    arrays = {}
    for part, file in (("", "train.csv"), ("_test", "test.csv")):
        with (folder / file).open(encoding="utf-8", newline="") as lines:
            rows = [row for row in csv.DictReader(lines) if row["category"] in categories]
        arrays[f"x{part}"] = np.asarray(embed([row["text"] for row in rows], encoder("wordllama")).vectors)
        arrays[f"y{part}"] = np.array([categories.index(row["category"]) for row in rows])
    return arrays


def main() -> None:
    """Make what is missing."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data-dir", type=Path, required=True)
    data_dir = parser.parse_args().data_dir
    FOLDER.mkdir(exist_ok=True)
    for name in (*TEXTS, *IMAGES):
        path = FOLDER / f"{name}.npz"
        if not path.exists():
            arrays = texts(TEXTS[name], data_dir) if name in TEXTS else images(name, data_dir)
            np.savez(path.with_suffix(".part.npz"), **arrays)
            path.with_suffix(".part.npz").rename(path)
            print(f"{path.name}: {len(arrays['x']):,} + {len(arrays['x_test']):,} × {arrays['x'].shape[1]}")


if __name__ == "__main__":
    main()

"""Play a labelling project with published labels, as the tutorials do.

Three commands: ``images DATA photos truth.csv`` writes 3,000 images of Fashion-MNIST as PNG files, and their labels;
``texts train.csv queries.csv truth.csv`` splits Banking77's file into queries and labels; ``answer project/batch.csv
truth.csv`` fills in a batch, as a person would.
"""

import csv
import sys
from pathlib import Path

CLOTHES = ("top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "boot")


def images(data_dir: str, folder: str, truth: str, count: int = 3000) -> None:
    """Write images as PNG files, and a CSV of their labels."""
    from PIL import Image

    from batchbalance.lab.data import load

    data = load("fashion-mnist", data_dir=data_dir)
    Path(folder).mkdir(parents=True, exist_ok=True)
    labels = {}
    for number, (pixels, label) in enumerate(zip(data.train_x[:count], data.train_y[:count], strict=True)):
        name = f"{number:04d}.png"
        Image.fromarray(pixels[0].numpy()).save(Path(folder) / name)
        labels[name] = CLOTHES[int(label)]
    write(truth, ["id", "label"], labels.items())


def texts(published: str, queries: str, truth: str) -> None:
    """Split a CSV of texts and categories into one of texts and one of labels."""
    with Path(published).open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    write(queries, ["id", "text"], ((number, row["text"]) for number, row in enumerate(rows)))
    write(truth, ["id", "label"], ((number, row["category"]) for number, row in enumerate(rows)))


def answer(batch: str, truth: str) -> None:
    """Fill in the column `label` of a batch."""
    with Path(truth).open(newline="", encoding="utf-8") as file:
        labels = {row["id"]: row["label"] for row in csv.DictReader(file)}
    with Path(batch).open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    answered = ([labels[row["id"]] if key == "label" else value for key, value in row.items()] for row in rows)
    write(batch, list(rows[0]), list(answered))


def write(path, columns, rows):
    """Write a CSV file."""
    with Path(path).open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([columns, *rows])


if __name__ == "__main__":
    {"images": images, "texts": texts, "answer": answer}[sys.argv[1]](*sys.argv[2:])

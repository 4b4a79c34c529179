"""The models that a project had: what each said about the fixed set, one file for each.

Everything in them can be computed from the labels of the time; they are kept because each look at the accuracy is a
look at another model.
"""

import time
from pathlib import Path

import numpy as np

from batchbalance.project.stopping import UNKNOWN, Round
from batchbalance.system.sealed import read_sealed, write_sealed

FOLDER = "rounds"


def save_round(folder: Path, key: int, found: Round, rows: np.ndarray) -> None:
    """Store what the model trained after event `key` predicts for some rows."""
    (folder / FOLDER).mkdir(exist_ok=True)
    content = {
        "num_labels": found.num_labels, "when": found.when, "rows": rows.tolist(),
        "predicted": found.predicted.tolist(), "audit": [found.audit_correct, found.audit_total],
        "test": [found.test_correct, found.test_total], "about": found.about,
    }  # fmt: skip
    write_sealed(folder / FOLDER / f"{key:09d}.json", content)


def has_round(folder: Path, key: int) -> bool:
    """Return whether the round of the model trained after event `key` is stored."""
    return (folder / FOLDER / f"{key:09d}.json").is_file()


def read_rounds(folder: Path, rows: np.ndarray) -> list[Round]:
    """Return all rounds, oldest first, with its predictions for these rows; −1 where it has none."""
    place = {int(row): i for i, row in enumerate(rows)}
    return [_round(path, place) for path in sorted((folder / FOLDER).glob("*.json"))]


def _round(path: Path, place: dict[int, int]) -> Round:
    content = read_sealed(path, "delete it: the model of that time is then not counted")
    predicted = np.full(len(place), UNKNOWN, dtype=np.int64)
    for row, said in zip(content["rows"], content["predicted"], strict=True):
        if row in place:
            predicted[place[row]] = said
    counts = (*content["audit"], *content["test"], content["about"])
    return Round(int(content["num_labels"]), float(content["when"]), predicted, *counts)


def now() -> float:
    """Return the time in seconds since 1970."""
    return round(time.time(), 3)

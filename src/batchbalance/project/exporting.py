"""Labels and predictions as a table, for a CSV file or for another tool."""

import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from batchbalance.project.learning import ProjectModel
from batchbalance.project.model import class_probs
from batchbalance.project.sheets import write_sheet
from batchbalance.project.state import ItemView, State
from batchbalance.project.store import ProjectStore

COLUMNS = ("id", "label", "state", "annotators", "flags", "comments", "asked_for")
MORE_COLUMNS = ("prediction", "probability")
LABELLED, DISPUTED, SKIPPED, OPEN, UNLABELLED = "labelled", "disputed", "skipped", "open", "unlabelled"


@dataclass(frozen=True)
class Exported:
    """One item, as it is exported.

    Attributes:
        id: of the item.
        label: its label; "" if it has none.
        state: "labelled", "disputed", "skipped", "open" or "unlabelled".
        annotators: who answered, one a line.
        flags: notes of flags, one a line.
        comments: other notes, one a line.
        asked_for: why it was asked: "audit", "random", "found", or the name of a strategy; one a line.
        prediction: the most probable class, by the model; "" without one.
        probability: of that class.
    """

    id: str
    label: str
    state: str
    annotators: str
    flags: str
    comments: str
    asked_for: str = ""
    prediction: str = ""
    probability: float | None = None

    def cells(self, *, predictions: bool) -> list[str]:
        """Return the cells of a row of a CSV file."""
        found = [self.id, self.label, self.state, self.annotators, self.flags, self.comments, self.asked_for]
        if predictions:
            found += [self.prediction, "" if self.probability is None else f"{self.probability:.4f}"]
        return found


def state_of(view: ItemView) -> str:
    """Return the state of an item in one word."""
    if view.label is not None:
        return LABELLED
    if view.is_disputed:
        return DISPUTED
    if view.skipped:
        return SKIPPED
    return OPEN if view.open else UNLABELLED


def exported_items(store: ProjectStore, model: ProjectModel, vectors: np.ndarray | None) -> list[Exported]:
    """Return what is known about items: of those with an event, or of all with the model's predictions.

    Args:
        store: items and events.
        model: of the project.
        vectors: (N, D) the embeddings of all items, to predict all of them; None for those with an event.
    """
    state = store.snapshot()
    if vectors is None:
        rows = sorted(state.items)
        return [_exported(state, row, name) for row, name in zip(rows, store.ids(rows), strict=True)]
    probs = class_probs(model.required(state, vectors).posterior, vectors)
    return [_exported(state, row, name, p) for row, (name, p) in enumerate(zip(store.ids(), probs, strict=True))]


def _exported(state: State, row: int, name: str, probs: np.ndarray | None = None) -> Exported:
    view = state.view(row)
    return Exported(
        name,
        "" if view.label is None else state.classes[view.label],
        state_of(view),
        "\n".join(who or "" for who in view.answers).strip(),
        "\n".join(note.text or "flagged" for note in view.flags),
        "\n".join(note.text for note in view.comments),
        "\n".join(dict.fromkeys(view.reasons)),
        "" if probs is None else state.classes[int(probs.argmax())],
        None if probs is None else float(probs.max()),
    )


def write_items(path: str | os.PathLike[str], rows: Sequence[Exported], *, predictions: bool) -> int:
    """Write items to a CSV file; return their number."""
    columns = (*COLUMNS, *(MORE_COLUMNS if predictions else ()))
    write_sheet(path, columns, (each.cells(predictions=predictions) for each in rows))
    return len(rows)

"""Labels and predictions as a table, for a CSV file or for another tool."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from batchbalance.project.state import ItemView, State

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
        """As a row of a CSV file."""
        found = [self.id, self.label, self.state, self.annotators, self.flags, self.comments, self.asked_for]
        if predictions:
            found += [self.prediction, "" if self.probability is None else f"{self.probability:.4f}"]
        return found


def state_of(view: ItemView) -> str:
    """What became of an item, in a word."""
    if view.label is not None:
        return LABELLED
    if view.is_disputed:
        return DISPUTED
    if view.skipped:
        return SKIPPED
    return OPEN if view.open else UNLABELLED


def exported(
    state: State, rows: Sequence[int], names: Sequence[str], probs: np.ndarray | None = None
) -> Iterator[Exported]:
    """Items as they are exported; `probs` (n, C) by the model, if there is one."""
    for i, (row, name) in enumerate(zip(rows, names, strict=True)):
        view = state.items.get(row, ItemView())
        said, sure = ("", None) if probs is None else (state.classes[int(probs[i].argmax())], float(probs[i].max()))
        yield Exported(
            name,
            "" if view.label is None else state.classes[view.label],
            state_of(view),
            "\n".join(who or "" for who in view.answers).strip(),
            "\n".join(note.text or "flagged" for note in view.flags),
            "\n".join(note.text for note in view.comments),
            "\n".join(dict.fromkeys(view.reasons)),
            said,
            sure,
        )

"""Export: items with their labels and predictions, as objects and as CSV files."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from batchbalance.project.answers import write_sheet
from batchbalance.project.batch import COLUMNS, Batch
from batchbalance.project.learning import class_probs
from batchbalance.project.state import ItemView

if TYPE_CHECKING:
    from batchbalance.project.facts import SuspectLabel
    from batchbalance.project.project import Project


@dataclass(frozen=True)
class Exported:
    """An exported item.

    Attributes:
        id: the item's id.
        label: its label; "" if it has none.
        view: its answers, flags, comments, and why it was asked.
        content: its text, the path of its file, its row as JSON, or None for a bare embedding.
        is_audit: whether it measures the model.
        prediction: the class that the model predicts; "" without a model.
        probability: the probability of that class.
    """

    id: str
    label: str
    view: ItemView
    content: str | None
    is_audit: bool
    prediction: str = ""
    probability: float | None = None


def exported_items(project: "Project", *, predictions: bool) -> list[Exported]:
    """Return the items to export: those with an event, or all of them with the model's predictions."""
    store, state = project.store, project.store.snapshot()
    rows = list(range(store.num_items)) if predictions else sorted(state.items)
    views = [state.view(row) for row in rows]
    labels = ["" if view.label is None else state.classes[view.label] for view in views]
    aside = store.set_aside(state)[rows].tolist()
    parts = zip(store.ids(rows), labels, views, store.contents(rows), aside, strict=True)
    found = [Exported(*each) for each in parts]
    if not predictions:
        return found
    vectors = project.embeddings.array()
    probs = class_probs(project.model.required(state, vectors).posterior, vectors)
    said = zip(found, probs.argmax(axis=1).tolist(), probs.max(axis=1).tolist(), strict=True)
    return [replace(each, prediction=state.classes[label], probability=p) for each, label, p in said]


def export_items(project: "Project", path: str | os.PathLike[str], *, predictions: bool, every: bool) -> int:
    """Write items to a CSV file, with their texts or files; return their number.

    Args:
        project: the project.
        path: the file.
        predictions: write all items, with the model's predictions.
        every: write items without a label too that were asked, skipped, flagged or commented on.
    """
    found = exported_items(project, predictions=predictions)
    items = found if predictions or every else [each for each in found if each.view.outcome == "labelled"]
    columns = ["id", "label", "state", "annotators", "flags", "comments", "asked_for"]
    rows = [
        [
            each.id,
            each.label,
            each.view.outcome,
            "\n".join(who or "" for who in each.view.answers).strip(),
            "\n".join(note.text or "flagged" for note in each.view.flags),
            "\n".join(note.text for note in each.view.comments),
            "\n".join(dict.fromkeys(each.view.reasons)),
        ]
        for each in items
    ]
    if predictions:
        columns += ["prediction", "probability"]
        rows = [[*row, each.prediction, f"{each.probability:.4f}"] for row, each in zip(rows, items, strict=True)]
    kind = project.settings.data.kind
    if kind in COLUMNS:
        contents = tuple(each.content for each in items)
        shown = Batch(tuple(each.id for each in items), contents, kind, (), root=project.root)
        columns.append(COLUMNS[kind])
        rows = [[*row, *shown.cells(i)] for i, row in enumerate(rows)]
    write_sheet(path, columns, rows)
    return len(items)


def write_suspects(path: str | os.PathLike[str], found: "Sequence[SuspectLabel]") -> int:
    """Write labels that are probably wrong to a CSV file; return their number."""
    rows = ([x.item.id, x.label, x.suggested, f"{x.wrong:.4f}", "yes" if x.is_audit else "no"] for x in found)
    write_sheet(path, ("id", "label", "suggested", "probability_wrong", "audit"), rows)
    return len(found)

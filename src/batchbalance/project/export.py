"""Export: items with their labels and predictions, as objects and as CSV files."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from batchbalance.project.answers import write_sheet
from batchbalance.project.batch import COLUMNS, Batch
from batchbalance.project.labelling import listed
from batchbalance.project.state import ItemView
from batchbalance.project.suggestions import PEOPLE

if TYPE_CHECKING:
    from batchbalance.project.accepting import Accepted
    from batchbalance.project.facts import SuspectLabel
    from batchbalance.project.project import Project


@dataclass(frozen=True)
class Exported:
    """An exported item.

    Attributes:
        id: the item's id.
        label: its label, or several as `a;b`; "" if it has none, and `none` if it has none of the classes.
        view: its answers, flags, comments, and why it was asked.
        content: its text, the path of its file, its row as JSON, or None for a bare embedding.
        is_audit: whether it measures the model.
        prediction: the class that the model predicts; "" without a model.
        probability: the probability of that prediction; several labels are taken as independent.
        source: whose label it is: "people", or the machine whose label was accepted; "" without a label.
    """

    id: str
    label: str
    view: ItemView
    content: str | None
    is_audit: bool
    prediction: str = ""
    probability: float | None = None
    source: str = ""


def exported_items(project: "Project", *, predictions: bool, accepted: "Accepted | None" = None) -> list[Exported]:
    """Return the items to export: those with an event or an accepted label, or all with the model's predictions."""
    store, state = project.store, project.store.snapshot()
    machine = {} if accepted is None else {row: int(accepted.labels[row]) for row in accepted.rows.tolist()}
    rows = list(range(store.num_items)) if predictions else sorted({*state.items, *machine})
    views = [state.view(row) for row in rows]
    labelling = state.labelling
    shown = [machine.get(row) if view.label is None else view.label for row, view in zip(rows, views, strict=True)]
    labels = ["" if label is None else labelling.text(label) for label in shown]
    aside = store.set_aside(state)[rows].tolist()
    parts = zip(store.ids(rows), labels, views, store.contents(rows), aside, strict=True)
    found = [Exported(*each, source=PEOPLE if each[1] else "") for each in parts]
    if accepted is not None:
        found = [
            replace(x, source=accepted.source) if row in machine else x for row, x in zip(rows, found, strict=True)
        ]
    if not predictions:
        return found
    vectors = project.embeddings.array()
    probs = project.model.required(state, vectors).probs(vectors)
    said = zip(found, labelling.values(labelling.predicted(probs)), labelling.confidence(probs).tolist(), strict=True)
    return [replace(each, prediction=labelling.text(value), probability=p) for each, value, p in said]


def export_items(
    project: "Project",
    path: str | os.PathLike[str],
    *,
    predictions: bool,
    every: bool,
    accepted: "Accepted | None" = None,
) -> int:
    """Write items to a CSV file, with their texts or files; return their number.

    Args:
        project: the project.
        path: the file.
        predictions: write all items, with the model's predictions.
        every: write items without a label too that were asked, skipped, flagged or commented on.
        accepted: machine labels to write for items that nobody labelled, with the column `source`.
    """
    found = exported_items(project, predictions=predictions, accepted=accepted)
    items = found if predictions or every else [each for each in found if each.label]
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
    if accepted is not None:
        columns.append("source")
        rows = [[*row, each.source] for row, each in zip(rows, items, strict=True)]
    if project.settings.multi_label:
        classes = project.classes
        taken = {*columns, *COLUMNS.values()}
        columns += [f"{name}_" if name in taken else name for name in classes]
        for row, each in zip(rows, items, strict=True):
            named = listed(each.label)
            row += [str(int(name in named)) if each.label else "" for name in classes]
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

"""Tasks of Label Studio as JSON, and the answers in them.

A task has `data` (ours: `item_id` and `text` or `image`), `annotations` and `predictions`. An annotation with
`was_cancelled` is a skip. Label Studio serves tasks by ascending score of predictions.
"""

import base64
import json
import mimetypes
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from batchbalance.errors import FileFormatError
from batchbalance.project import Project
from batchbalance.project.answers import Answer
from batchbalance.project.facts import Exported
from batchbalance.project.state import ItemView, Who

ITEM = "item_id"  # the key of an item's id; these tools use `id` for their own ids


@dataclass(frozen=True)
class ExportItem:
    """An item to export, with its state.

    Attributes:
        row: its exported values.
        view: its state.
        content: its text, the path of its file, its row as JSON, or None for a bare embedding.
        is_audit: whether it is in the audit set.
        is_open: whether it was asked and still needs an answer.
    """

    row: Exported
    view: ItemView
    content: str | None
    is_audit: bool
    is_open: bool

    def answers(self, classes: list[str]) -> list[tuple[Who, str]]:
        """Return the people who answered, with their answers."""
        return [(who, classes[number]) for who, number in self.view.answers.items()]


def items_of(project: Project, *, predictions: bool, only_open: bool) -> list[ExportItem]:
    """Return the items to export: open questions first, in the order they were asked, then the others."""
    views, wanted = project.views(), project.settings.annotators_per_item
    asked = {name: min(view.open.values()) for name, view in views.items() if view.open}
    turns = {name: turn for name, turn in asked.items() if not views[name].is_complete(wanted)}
    rows = [row for row in project.exported(predictions=predictions) if row.id in turns or not only_open]
    rows.sort(key=lambda row: (row.id not in turns, turns.get(row.id, 0)))
    names = [row.id for row in rows]
    return [
        ExportItem(row, views.get(row.id, ItemView()), content, is_audit, row.id in turns)
        for row, content, is_audit in zip(rows, project.contents(names), project.is_audit(names), strict=True)
    ]


def shown_data(project: Project, image: Callable[[Path], str]) -> Callable[[str | None], dict[str, str]]:
    """Return a function from an item's content to the data that a tool shows: {"text": …} or {"image": …}.

    Raises:
        ValueError: for bare embeddings, which cannot be shown.
    """
    kind, root = project.settings.data.kind, project.root
    if kind == "embeddings":
        raise ValueError("bare embeddings have nothing to show to people; label them with ask and tell")
    if kind == "images" and root is not None:
        return lambda content: {"image": image(root / (content or ""))}
    if kind == "table":
        return lambda content: {
            "text": "\n".join(
                f"{name}: {'' if value is None else value}" for name, value in json.loads(content or "{}").items()
            )
        }
    return lambda content: {"text": content or ""}


def image_source(root: Path | None, url: str | None) -> Callable[[Path], str]:
    """Return a function from an image to its address: below `url`, or a data URL."""
    if url is None or root is None:
        return data_address
    return lambda path: f"{url.rstrip('/')}/{quote(path.relative_to(root).as_posix())}"


def data_address(path: Path) -> str:
    """Return a data URL of the image."""
    kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    return f"data:{kind};base64,{base64.b64encode(path.read_bytes()).decode('ascii')}"


def one_choice(choices: Iterable[Any], where: str) -> str:
    """Return the label of an answer that must be one choice."""
    found = list(choices)
    if len(found) != 1:
        raise ValueError(
            f"{where}: an answer must be one class, got {', '.join(map(str, found)) or 'none'}; "
            "let people choose one at a time"
        )
    return str(found[0])


CONTROL = "label"  # the name of the choices in the labelling config that we propose
MODEL_VERSION = "batchbalance"
CHOICES = "choices"
MOST_SECONDS = 1e9  # upper limit for the duration of an answer


@dataclass(frozen=True)
class Annotation:
    """One person's annotation of a task.

    Attributes:
        where: the annotation, for messages.
        item: the item's id.
        key: its number; None in a file without numbers.
        moment: when it was last changed.
        who: the person.
        seconds: how long it took.
        choices: what was chosen.
        is_skip: whether the task was skipped.
    """

    where: str
    item: str
    key: int | None
    moment: str
    who: str | None
    seconds: float | None
    choices: tuple[str, ...]
    is_skip: bool

    def answer(self) -> Answer:
        """Return the annotation as an answer; it must be one choice."""
        return Answer(self.where, self.item, one_choice(self.choices, self.where), self.who, self.seconds)


def choice(control: str, about: str, label: str, annotator: str | None = None) -> list[dict[str, Any]]:
    """Return a choice in the format of annotations and predictions."""
    found = {"from_name": control, "to_name": about, "type": CHOICES, "value": {CHOICES: [label]}}
    return [found if annotator is None else {**found, "meta": {"annotator": annotator}}]


def rank_score(rank: int, count: int) -> float:
    """Return the score of the task at position `rank`, from 0."""
    return rank / count


def as_task(
    item: ExportItem, data: dict[str, str], about: str, classes: list[str], rank: int, count: int
) -> dict[str, Any]:
    """Return an item as a task to import; open questions have a score for their order, others their answers."""
    answers = [{"result": choice(CONTROL, about, label, who or "")} for who, label in item.answers(classes)]
    skips = [{"result": [], "was_cancelled": True} for _ in item.view.skipped]
    task: dict[str, Any] = {"data": {ITEM: item.row.id, **data}, "annotations": answers + skips}
    guess = item.row.prediction if not item.is_audit else ""
    if item.is_open or guess:
        result = choice(CONTROL, about, guess) if guess else []
        score = rank_score(rank, count) if item.is_open else item.row.probability
        task["predictions"] = [{"model_version": MODEL_VERSION, "score": score, "result": result}]
    return task


def annotations_of(
    tasks: Iterable[Any], users: Mapping[int, str], where: str, control: str | None = None
) -> Iterator[Annotation]:
    """Yield the annotations of tasks, in the order of tasks.

    Args:
        tasks: tasks in Label Studio's format.
        users: the names of users by their numbers.
        where: the file or the server, for messages.
        control: the name of the choices; None if there is only one set.

    Raises:
        FileFormatError: if they are not tasks.
    """
    for task in tasks:
        try:
            number, data, found = task.get("id"), task["data"], task.get("annotations") or []
            item = data.get(ITEM, data.get("id"))
            at = f"{where}, task {item if number is None else number}"
            for each in found:
                yield _annotation(each, item, users, at, control)
        except (KeyError, TypeError, AttributeError) as error:
            raise FileFormatError(f"{where} must hold tasks of Label Studio, got {_short(task)}") from error


def _annotation(
    given: Mapping[str, Any], item: Any, users: Mapping[int, str], where: str, control: str | None
) -> Annotation:
    if item is None:
        raise FileFormatError(
            f"{where}: `data` must have the item's id under {ITEM!r}; export tasks with batchbalance, or add it"
        )
    chosen, noted = _choices(given["result"], control, where)
    who = noted if noted is not None else _person(given.get("completed_by"), users)
    took = given.get("lead_time")
    return Annotation(
        where,
        str(item),
        given.get("id"),
        str(given.get("updated_at") or given.get("created_at") or ""),
        who or None,
        float(took) if isinstance(took, int | float) and 0 <= took <= MOST_SECONDS else None,
        chosen,
        bool(given.get("was_cancelled")) or not chosen,
    )


def _choices(result: Sequence[Mapping[str, Any]], control: str | None, where: str) -> tuple[tuple[str, ...], Any]:
    """Return the choices, and the person who made them if the export has it."""
    parts = [part for part in result if part.get("type") == CHOICES and control in (None, part["from_name"])]
    controls = sorted({part["from_name"] for part in parts})
    if len(controls) > 1:
        raise FileFormatError(f"{where} must have one set of choices, got {', '.join(controls)}; name it with --label")
    chosen = tuple(str(choice) for part in parts for choice in part["value"][CHOICES])
    notes = [part["meta"]["annotator"] for part in parts if "annotator" in (part.get("meta") or {})]
    return chosen, notes[0] if notes else None


def _person(completed_by: Any, users: Mapping[int, str]) -> str | None:
    if isinstance(completed_by, Mapping):
        return str(completed_by.get("email") or f"user {completed_by.get('id')}")
    return None if completed_by is None else users.get(completed_by, f"user {completed_by}")


def flat_annotations(rows: Iterable[Any], where: str, control: str | None = None) -> Iterator[Annotation]:
    """Yield the annotations of Label Studio's JSON_MIN export, which has no skips."""
    name = control or CONTROL
    for row in rows:
        try:
            item, value, number = row.get(ITEM), row.get(name), row["annotation_id"]
        except (KeyError, AttributeError) as error:
            raise FileFormatError(f"{where} must hold tasks of Label Studio, got {_short(row)}") from error
        at = f"{where}, annotation {number}"
        if item is None or value is None:
            missing = ITEM if item is None else name
            raise FileFormatError(f"{at} must have {missing!r}, got {', '.join(row)}; name the choices with --label")
        chosen = value[CHOICES] if isinstance(value, Mapping) else [value]
        took = row.get("lead_time")
        seconds = float(took) if isinstance(took, int | float) and took >= 0 else None
        who = _person(row.get("annotator"), {})
        yield Annotation(
            at, str(item), number, str(row.get("updated_at") or ""), who, seconds, tuple(map(str, chosen)), False
        )


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 80 else f"{text[:79]}…"

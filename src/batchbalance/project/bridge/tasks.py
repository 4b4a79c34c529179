"""Tasks of Label Studio: its JSON, and the answers in it.

A task has `data` (ours: `item_id` and `text` or `image`), `annotations` and `predictions`. An annotation with
`was_cancelled` is a skip. Label Studio serves tasks by ascending score of predictions.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from batchbalance.errors import FileFormatError
from batchbalance.project.bridge.items import ITEM, ExportItem, one_choice

CONTROL = "label"  # the name of the choices in the labelling config that we propose
MODEL_VERSION = "batchbalance"
CHOICES = "choices"
MOST_SECONDS = 1e9  # that an answer can have taken


@dataclass(frozen=True)
class Names:
    """What a labelling config calls its parts: the choices, and what they are about."""

    control: str
    object: str

    def result(self, label: str, annotator: str | None = None) -> list[dict[str, Any]]:
        """Return a choice, as annotations and predictions hold it."""
        about = {"from_name": self.control, "to_name": self.object, "type": CHOICES, "value": {CHOICES: [label]}}
        return [about if annotator is None else {**about, "meta": {"annotator": annotator}}]


@dataclass(frozen=True)
class Annotation:
    """What one person said about one task.

    Attributes:
        where: the annotation, for messages.
        item: the item's id.
        key: its number; None in a file that does not say.
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

    @property
    def label(self) -> str:
        """The one choice."""
        return one_choice(self.choices, self.where)


def rank_score(rank: int, count: int) -> float:
    """Return the score of the task that comes `rank`-th, from 0."""
    return rank / count


def as_task(
    item: ExportItem, data: dict[str, str], names: Names, classes: list[str], rank: int, count: int
) -> dict[str, Any]:
    """Return an item as a task to import; open questions carry their order, others their answers."""
    answers = [{"result": names.result(label, who or "")} for who, label in item.answers(classes)]
    skips = [{"result": [], "was_cancelled": True} for _ in item.view.skipped]
    task: dict[str, Any] = {"data": {ITEM: item.id, **data}, "annotations": answers + skips}
    guess = item.row.prediction if not item.is_audit else ""
    if item.is_open or guess:
        result = names.result(guess) if guess else []
        score = rank_score(rank, count) if item.is_open else item.row.probability
        task["predictions"] = [{"model_version": MODEL_VERSION, "score": score, "result": result}]
    return task


def annotations_of(
    tasks: Iterable[Any], users: Mapping[int, str], where: str, control: str | None = None
) -> Iterator[Annotation]:
    """Yield the annotations of tasks, in the order of tasks.

    Args:
        tasks: as Label Studio gives them.
        users: the names of users by their numbers.
        where: the file or the server, for messages.
        control: the name of the choices; None takes the only ones there are.

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
    """Return what was chosen, and by whom if that was exported with it."""
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

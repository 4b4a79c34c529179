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
from batchbalance.project.labelling import NONE, as_text, listed

ITEM = "item_id"  # the key of an item's id; these tools use `id` for their own ids
CONTROL = "label"  # the name of the choices in the labelling config that we propose
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
        choices: what was chosen; None for a skip.
    """

    where: str
    item: str
    key: int | None
    moment: str
    who: str | None
    seconds: float | None
    choices: tuple[str, ...] | None

    def answer(self, *, is_multi: bool) -> Answer:
        """Return the annotation as an answer or as a skip; no choice is an answer only where several are allowed."""
        is_skip = self.choices is None or not (self.choices or is_multi)
        label = None if is_skip else chosen_label(self.choices or (), self.where, is_multi=is_multi)
        return Answer(self.where, self.item, label, self.who, self.seconds)


def shown_data(project: Project, image: Callable[[Path], str]) -> Callable[[str | None], dict[str, str]]:
    """Return a function from an item's content to the data that a tool shows: {"text": …} or {"image": …}.

    Raises:
        ValueError: for bare embeddings, which cannot be shown.
    """
    kind, root = project.settings.data.kind, project.root
    if kind == "embeddings":
        raise ValueError("bare embeddings have nothing to show to people; label them with ask and tell")

    def shown(content: str | None) -> dict[str, str]:
        if kind == "images" and root is not None:
            return {"image": image(root / (content or ""))}
        if kind == "texts":
            return {"text": content or ""}
        cells = json.loads(content or "{}").items()
        return {"text": "\n".join(f"{name}: {'' if value is None else value}" for name, value in cells)}

    return shown


def image_source(root: Path | None, url: str | None) -> Callable[[Path], str]:
    """Return a function from an image to its address: below `url`, or a data URL."""

    def address(path: Path) -> str:
        if url is not None and root is not None:
            return f"{url.rstrip('/')}/{quote(path.relative_to(root).as_posix())}"
        kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
        return f"data:{kind};base64,{base64.b64encode(path.read_bytes()).decode('ascii')}"

    return address


def chosen_label(choices: Sequence[Any], where: str, *, is_multi: bool) -> str:
    """Return the label of an answer: its one choice or, where several are allowed, all of them."""
    names = [str(each) for each in choices]
    if is_multi:
        return NONE if names in ([], [NONE]) else as_text(names)
    if len(names) != 1:
        raise ValueError(
            f"{where}: an answer must be one class, got {', '.join(names) or 'none'}; let people choose one at a time, "
            "or create a project with `init --multi-label`"
        )
    return names[0]


def choices_of(label: str, *, is_multi: bool) -> list[str]:
    """Return the choices that stand for a label; where several are allowed, "none" stands for none of the classes."""
    return (listed(label) or [NONE]) if is_multi else [label]


def choice(control: str, about: str, choices: Sequence[str], annotator: str | None = None) -> list[dict[str, Any]]:
    """Return choices in the format of annotations and predictions."""
    found = {"from_name": control, "to_name": about, "type": CHOICES, "value": {CHOICES: list(choices)}}
    return [found if annotator is None else {**found, "meta": {"annotator": annotator}}]


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
            number, data = task.get("id"), task["data"]
            item = data.get(ITEM, data.get("id"))
            at = f"{where}, task {item if number is None else number}"
            for each in task.get("annotations") or []:
                if item is None:
                    raise FileFormatError(
                        f"{at}: `data` must have the item's id under {ITEM!r}; export tasks with batchbalance, or "
                        "add it"
                    )
                chosen, noted = _choices(each["result"], control, at)
                who = noted if noted is not None else _person(each.get("completed_by"), users)
                moment = str(each.get("updated_at") or each.get("created_at") or "")
                given = None if each.get("was_cancelled") else chosen
                yield Annotation(at, str(item), each.get("id"), moment, who or None, _seconds(each), given)
        except (KeyError, TypeError, AttributeError) as error:
            raise FileFormatError(f"{where} must hold tasks of Label Studio, got {str(task)[:80]}") from error


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


def _seconds(given: Mapping[str, Any]) -> float | None:
    took = given.get("lead_time")
    return float(took) if isinstance(took, int | float) and 0 <= took <= MOST_SECONDS else None

"""Lines of JSON (ours, doccano's, Prodigy's) and records of Argilla, and the answers in them."""

import json
import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from batchbalance.errors import FileFormatError
from batchbalance.project.bridge.items import ITEM, ExportItem, one_choice
from batchbalance.project.sheets import Answer
from batchbalance.project.state import Who

QUESTION = "label"  # the name of Argilla's question
PEOPLE = uuid.UUID("6a1d3c53-6d0a-4f0a-8f0e-0e5b0c8b7a11")  # names of people become Argilla's ids of users below it
IGNORED = ("ignore", "reject")  # Prodigy's answers that are not labels

Skip = tuple[str, Who]


def as_line(item: ExportItem, data: Mapping[str, Any], classes: list[str], *, predictions: bool) -> dict[str, Any]:
    """Return an item as a line of JSON; `label` is omitted if there is none."""
    row = item.row
    line: dict[str, Any] = {ITEM: item.id, **data}
    if row.label:
        line["label"] = row.label
    line |= {
        "state": row.state,
        "answers": [{"annotator": who, "label": label} for who, label in item.answers(classes)],
        "skipped": list(item.view.skipped),
        "flags": [note.text for note in item.view.flags],
        "comments": [note.text for note in item.view.comments],
    }
    if predictions:
        line |= {"prediction": row.prediction, "probability": row.probability}
    return line


def answers_of_lines(lines: Iterable[tuple[int, Any]], where: str) -> Iterator[Answer | Skip]:
    """Yield the answers in lines of JSON: ours, those of doccano (labels in a list), those of Prodigy (`answer`)."""
    for number, line in lines:
        at = f"{where} line {number}"
        item = line.get(ITEM, line.get("id")) if isinstance(line, Mapping) else None
        if item is None:
            raise FileFormatError(f"{at} must be an object with {ITEM!r} or 'id'")
        yield from _answers_of(line, str(item), at)


def _answers_of(line: Mapping[str, Any], item: str, at: str) -> Iterator[Answer | Skip]:
    label = line.get("label")
    if "answer" in line:  # Prodigy
        who = line.get("_annotator_id") or None
        if line["answer"] in IGNORED:
            yield item, who
        else:
            yield Answer(at, item, one_choice(line.get("accept") or [label], at), who)
    elif isinstance(label, list):  # doccano
        if label:
            yield Answer(at, item, one_choice(label, at))
    elif line.get("answers") or line.get("skipped"):
        for each in line.get("answers") or ():
            yield Answer(at, item, str(each["label"]), each.get("annotator"))
        for who in line.get("skipped") or ():
            yield item, who
    elif label not in (None, ""):
        yield Answer(at, item, str(label), line.get("annotator"), line.get("seconds"))


def user_id(who: Who) -> str:
    """Return the id of a person in Argilla."""
    return str(uuid.uuid5(PEOPLE, who or ""))


def as_record(item: ExportItem, data: dict[str, str], classes: list[str]) -> dict[str, Any]:
    """Return an item as a record of Argilla, as `dataset.records.to_json` writes them."""
    guess = item.row.prediction if not item.is_audit else ""
    suggestion = {"value": guess, "score": item.row.probability, "agent": "batchbalance"}
    responses = [{"value": label, "user_id": user_id(who)} for who, label in item.answers(classes)]
    return {
        "id": item.id,
        "fields": data,
        "metadata": {"state": item.row.state},
        "suggestions": {QUESTION: suggestion} if guess else {},
        "responses": {QUESTION: responses} if responses else {},
        "vectors": {},
    }


def answers_of_records(
    records: Iterable[Any], where: str, people: Iterable[Who], question: str | None = None
) -> Iterator[Answer]:
    """Yield the answers in records of Argilla. Ids of `people` become their names, other ids stay."""
    names = {user_id(who): who for who in people}
    for record in records:
        try:
            at = f"{where}, record {record['id']}"
            for each in record.get("responses", {}).get(question or QUESTION, ()):
                who = each.get("user_id")
                label = each["value"] if isinstance(each["value"], list) else [each["value"]]
                yield Answer(at, str(record["id"]), one_choice(label, at), names.get(who, who))
        except (KeyError, TypeError, AttributeError) as error:
            raise FileFormatError(f"{where} must hold records of Argilla, got {str(record)[:80]}") from error


def parsed_lines(text: str, where: str) -> Iterator[tuple[int, Any]]:
    """Yield the lines that are not blank, each with its number."""
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            try:
                yield number, json.loads(line)
            except ValueError as error:
                raise FileFormatError(f"{where} line {number} must be JSON, got {line.strip()[:80]!r}") from error

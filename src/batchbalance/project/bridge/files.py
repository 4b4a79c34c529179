"""Files for other labelling tools: export items and labels, and import answers."""

import json
import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args

from batchbalance.errors import FileFormatError, UnknownNameError
from batchbalance.project import Project
from batchbalance.project.answers import Answer, Told, record_answers
from batchbalance.project.bridge.tasks import (
    ITEM,
    Annotation,
    ExportItem,
    annotations_of,
    as_task,
    flat_annotations,
    image_source,
    items_of,
    one_choice,
    shown_data,
)
from batchbalance.project.state import Who
from batchbalance.system.files import check_is_file, replacing

QUESTION = "label"  # the name of Argilla's question
PEOPLE = uuid.UUID("6a1d3c53-6d0a-4f0a-8f0e-0e5b0c8b7a11")  # namespace of Argilla's user ids, derived from names
IGNORED = ("ignore", "reject")  # Prodigy's answers that are not labels

Skip = tuple[str, Who]


def as_line(item: ExportItem, data: Mapping[str, Any], classes: list[str], *, predictions: bool) -> dict[str, Any]:
    """Return an item as an object for a line of JSON; `label` is omitted if there is none."""
    row = item.row
    line: dict[str, Any] = {ITEM: item.row.id, **data}
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
    """Yield the answers in lines of JSON in our format, doccano's (labels in a list) or Prodigy's (`answer`)."""
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
        "id": item.row.id,
        "fields": data,
        "metadata": {"state": item.row.state},
        "suggestions": {QUESTION: suggestion} if guess else {},
        "responses": {QUESTION: responses} if responses else {},
        "vectors": {},
    }


def answers_of_records(
    records: Iterable[Any], where: str, people: Iterable[Who], question: str | None = None
) -> Iterator[Answer]:
    """Yield the answers in records of Argilla. Ids of `people` become their names; other ids are kept."""
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


Format = Literal["csv", "jsonl", "label-studio", "argilla"]
FORMATS: tuple[Format, ...] = get_args(Format)
JSON_SUFFIXES = (".json", ".jsonl", ".ndjson")


def write_export(
    project: Project,
    path: str | os.PathLike[str],
    form: str = "csv",
    *,
    predictions: bool = False,
    only_open: bool = False,
    every: bool = False,
    image_url: str | None = None,
) -> int:
    """Write items and labels for another tool; return the number of items.

    Args:
        project: the project.
        path: the file.
        form: one of `FORMATS`.
        predictions: write all items, with the model's predictions; files for labelling tools omit those of audit items.
        only_open: write only unanswered questions, in their order.
        every: for csv: items without a label too that were asked, skipped, flagged or commented on.
        image_url: the address of the folder of images for the labelling tool; if omitted, the file embeds the images.
    """
    if form not in FORMATS:
        raise UnknownNameError("format", form, FORMATS)
    if form == "csv":
        if only_open or image_url is not None:
            raise ValueError("`only_open` and `image_url` must not be given for format csv; batch.csv has what is open")
        return project.export(path, predictions=predictions, every=every)
    items = items_of(project, predictions=predictions, only_open=only_open)
    classes = project.classes
    written: Iterable[str]
    if form == "jsonl":
        kind = project.settings.data.kind
        data = (lambda _: {}) if kind == "embeddings" else shown_data(project, _address(project, image_url))
        lines = (as_line(item, data(item.content), classes, predictions=predictions) for item in items)
        written = (json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    else:
        data = shown_data(project, image_source(project.root, image_url))
        count = max(sum(item.is_open for item in items), 1)
        about = "image" if project.settings.data.kind == "images" else "text"
        made = (
            as_task(item, data(item.content), about, classes, rank, count)
            if form == "label-studio"
            else as_record(item, data(item.content), classes)
            for rank, item in enumerate(items)
        )
        written = _json_list(made)
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8", errors="replace") as file:
        file.writelines(written)
    return len(items)


def _address(project: Project, image_url: str | None) -> Callable[[Path], str]:
    """Return a function that names an image in a line of JSON: by its address below `image_url`, or by its path."""
    return image_source(project.root, image_url) if image_url is not None else lambda path: path.resolve().as_posix()


def _json_list(made: Iterable[dict[str, Any]]) -> Iterator[str]:
    yield "["
    for i, each in enumerate(made):
        yield (",\n" if i else "\n") + json.dumps(each, ensure_ascii=False)
    yield "\n]\n"


def tell_file(
    project: Project,
    path: str | os.PathLike[str],
    annotator: str | None = None,
    *,
    id_column: str | None = None,
    label_column: str | None = None,
    sample: str | None = None,
) -> Told:
    """Add the answers in a file. If one is invalid, none is added.

    Args:
        project: the project.
        path: a CSV file; or, ending in `.json` or `.jsonl`, an export of Label Studio (JSON, JSON_MIN) or Argilla, or
            JSON lines in our format, doccano's or Prodigy's.
        annotator: who answered; taken from the file if omitted.
        id_column: the column of ids in a CSV file.
        label_column: the column of labels in a CSV file; else the name of the choices or of the question.
        sample: as ``Project.tell`` takes it.
    """
    path = Path(path)
    if path.suffix.lower() not in JSON_SUFFIXES:
        return project.tell(path, annotator, id_column=id_column, label_column=label_column, sample=sample)
    if id_column is not None:
        raise ValueError(f"`id_column` is for CSV files, got {path}; omit it")
    found = list(_given(path, project, label_column))
    answers = [each for each in found if isinstance(each, Answer)]
    skips = [each for each in found if not isinstance(each, Answer)]
    if annotator is not None:
        answers = [replace(each, annotator=annotator) for each in answers]
        skips = [(item, annotator) for item, _ in skips]
    return record_answers(project.store, answers, with_askers(project, skips), sample=sample)


def with_askers(project: Project, skips: Iterable[Skip]) -> list[Skip]:
    """Return skips, also for the people who were asked: a file may name others as having skipped."""
    views = project.views()
    found = list(skips)
    return found + [(item, None) for item, _ in found if item in views and None in views[item].open]


def _given(path: Path, project: Project, label: str | None) -> Iterator[Answer | Skip]:
    text = _text(path)
    if not text.strip():
        raise FileFormatError(f"{path} must hold answers in JSON, got an empty file; export it again")
    content = list(_parsed(path, text))
    first = content[0][1] if content else {}
    keys = first if isinstance(first, dict) else {}
    rows = [row for _, row in content]
    if "fields" in keys:
        people = {who for view in project.views().values() for who in view.answers}
        yield from answers_of_records(rows, str(path), people, label)
    elif "data" in keys:
        yield from latest(annotations_of(rows, {}, str(path), label))
    elif "annotation_id" in keys:
        yield from latest(flat_annotations(rows, str(path), label))
    else:
        yield from answers_of_lines(content, str(path))


def latest(annotations: Iterable[Annotation]) -> Iterator[Answer | Skip]:
    """Yield one answer per person and task: the annotation that was changed last."""
    last: dict[tuple[str, Who], Annotation] = {}
    for each in annotations:
        before = last.get((each.item, each.who))
        if before is None or each.moment >= before.moment:
            last[each.item, each.who] = each
    for each in last.values():
        yield (each.item, each.who) if each.is_skip else each.answer()


def _text(path: Path) -> str:
    check_is_file(path)
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FileFormatError(f"{path} must be a text file in UTF-8, got other bytes") from error


def _parsed(path: Path, text: str) -> Iterator[tuple[int, Any]]:
    """Yield the objects of a list in JSON, or of lines of JSON, each with its number."""
    if path.suffix.lower() != ".json":
        yield from parsed_lines(text, str(path))
        return
    try:
        content = json.loads(text)
    except ValueError as error:
        raise FileFormatError(f"{path} must be JSON, got damaged content: {error}") from error
    if not isinstance(content, list):
        raise FileFormatError(f"{path} must hold a list of tasks or records, got {type(content).__name__}")
    yield from enumerate(content, start=1)

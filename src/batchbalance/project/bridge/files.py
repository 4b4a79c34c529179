"""Files for other labelling tools: writing items and labels, and taking answers in."""

import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args

from batchbalance.errors import FileFormatError, UnknownNameError
from batchbalance.project import Project
from batchbalance.project.answers import Told, record_answers
from batchbalance.project.bridge.items import image_source, items_of, shown_data
from batchbalance.project.bridge.records import (
    Skip,
    answers_of_lines,
    answers_of_records,
    as_line,
    as_record,
    parsed_lines,
)
from batchbalance.project.bridge.tasks import CONTROL, Annotation, Names, annotations_of, as_task, flat_annotations
from batchbalance.project.sheets import Answer
from batchbalance.project.state import Who
from batchbalance.system.files import check_is_file, replacing

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
    image_url: str | None = None,
) -> int:
    """Write items and labels for another tool; return the number of items.

    Args:
        project: the project.
        path: the file.
        form: one of `FORMATS`.
        predictions: all items, with what the model predicts; never for audit items that are to be shown to people.
        only_open: only what was asked and has no answer yet, in its order.
        image_url: where the folder of images can be seen by people who label; else images are written into the file.
    """
    if form not in FORMATS:
        raise UnknownNameError("format", form, FORMATS)
    if form == "csv":
        if only_open or image_url is not None:
            raise ValueError("`only_open` and `image_url` must not be given for format csv; batch.csv has what is open")
        return project.export(path, predictions=predictions)
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
        names = Names(CONTROL, "image" if project.settings.data.kind == "images" else "text")
        made = (
            as_task(item, data(item.content), names, classes, rank, count)
            if form == "label-studio"
            else as_record(item, data(item.content), classes)
            for rank, item in enumerate(items)
        )
        written = _json_list(made)
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8", errors="replace") as file:
        file.writelines(written)
    return len(items)


def _address(project: Project, image_url: str | None) -> Callable[[Path], str]:
    """Return how a line of JSON names an image: by its address below `image_url`, or by its path."""
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
    """Add the answers in a file: all of them or, if one is not valid, none.

    Args:
        project: the project.
        path: a CSV file; or, ending in `.json` or `.jsonl`, an export of Label Studio (JSON, JSON_MIN) or Argilla, or
            lines of JSON of ours, of doccano or of Prodigy.
        annotator: who answered; where it is omitted, what the file says.
        id_column: of a CSV file.
        label_column: of a CSV file; else the name of the choices or of the question.
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
    """Return skips, also for those who were asked without being the one who skipped: a file may name others."""
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
    """Yield what holds if one person annotated a task more than once: the annotation that was changed last."""
    last: dict[tuple[str, Who], Annotation] = {}
    for each in annotations:
        before = last.get((each.item, each.who))
        if before is None or each.moment >= before.moment:
            last[each.item, each.who] = each
    for each in last.values():
        yield (each.item, each.who) if each.is_skip else as_answer(each)


def as_answer(each: Annotation) -> Answer:
    """Return an annotation as an answer."""
    return Answer(each.where, each.item, each.label, each.who, each.seconds)


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
        raise FileFormatError(f"{path} must be JSON, got damage: {error}") from error
    if not isinstance(content, list):
        raise FileFormatError(f"{path} must hold a list of tasks or records, got {type(content).__name__}")
    yield from enumerate(content, start=1)

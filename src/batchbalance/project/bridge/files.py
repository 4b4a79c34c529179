"""Files for other labelling tools: export items and labels, and import answers."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args

from batchbalance.errors import FileFormatError, UnknownNameError
from batchbalance.project import Project
from batchbalance.project.accepting import Accepted
from batchbalance.project.answers import Answer, Told, record_answers
from batchbalance.project.bridge.tasks import (
    CONTROL,
    ITEM,
    Annotation,
    annotations_of,
    choice,
    choices_of,
    chosen_label,
    image_source,
    shown_data,
)
from batchbalance.project.export import Exported
from batchbalance.project.labelling import Labelling
from batchbalance.project.state import Who
from batchbalance.system.files import check_is_file, replacing

IGNORED = ("ignore", "reject")  # Prodigy's answers that are not labels
MODEL_VERSION = "batchbalance"
JSON_SUFFIXES = (".json", ".jsonl", ".ndjson")

Format = Literal["csv", "jsonl", "label-studio"]
FORMATS: tuple[Format, ...] = get_args(Format)


def write_export(
    project: Project,
    path: str | os.PathLike[str],
    form: str = "csv",
    *,
    predictions: bool = False,
    only_open: bool = False,
    every: bool = False,
    image_url: str | None = None,
    accepted: Accepted | None = None,
) -> int:
    """Write items and labels for another tool; return the number of items. Open questions come first, in their order.

    Args:
        project: the project.
        path: the file.
        form: one of `FORMATS`.
        predictions: write all items, with the model's predictions; files for labelling tools omit those of audit items.
        only_open: write only unanswered questions.
        every: for csv: items without a label too that were asked, skipped, flagged or commented on.
        image_url: the address of the folder of images for the labelling tool; if omitted, the file embeds the images.
        accepted: for csv: machine labels to write too, as returned by ``Project.accept``.
    """
    if form not in FORMATS:
        raise UnknownNameError("format", form, FORMATS)
    if form == "csv":
        if only_open or image_url is not None:
            raise ValueError("`only_open` and `image_url` must not be given for format csv; batch.csv has what is open")
        return project.export(path, predictions=predictions, every=every, accepted=accepted)
    if accepted is not None:
        raise ValueError(f"machine labels can only be accepted for format csv, got {form!r}; omit one of the two")
    items, wanted = project.exported(predictions=predictions), project.settings.annotators_per_item
    asked = [each for each in items if each.view.open and not each.view.is_complete(wanted)]
    turns = {each.id: min(each.view.open.values()) for each in asked}
    items = [each for each in items if each.id in turns or not only_open]
    items.sort(key=lambda each: (each.id not in turns, turns.get(each.id, 0)))
    kind, labelling, source = project.settings.data.kind, project.labelling, image_source(project.root, image_url)
    if form == "jsonl":
        named = (lambda file: file.resolve().as_posix()) if image_url is None else source
        data = (lambda _: {}) if kind == "embeddings" else shown_data(project, named)
        lines = (as_line(each, data(each.content), labelling, predictions=predictions) for each in items)
        written: Iterable[str] = (json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    else:
        data, about = shown_data(project, source), "image" if kind == "images" else "text"
        scores = {name: rank / len(turns) for rank, name in enumerate(each.id for each in items[: len(turns)])}
        made = (as_task(each, data(each.content), about, labelling, scores.get(each.id)) for each in items)
        written = _json_list(made)
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8", errors="replace") as file:
        file.writelines(written)
    return len(items)


def _json_list(made: Iterable[dict[str, Any]]) -> Iterator[str]:
    yield "["
    for i, each in enumerate(made):
        yield (",\n" if i else "\n") + json.dumps(each, ensure_ascii=False)
    yield "\n]\n"


def _answers(item: Exported, labelling: Labelling) -> list[tuple[Who, str]]:
    """Return the people who answered, with their answers."""
    return [(who, labelling.text(value)) for who, value in item.view.answers.items()]


def as_line(item: Exported, data: Mapping[str, Any], labelling: Labelling, *, predictions: bool) -> dict[str, Any]:
    """Return an item as an object for a line of JSON; `label` is omitted if there is none."""
    line: dict[str, Any] = {ITEM: item.id, **data}
    if item.label:
        line["label"] = item.label
    line |= {
        "state": item.view.outcome,
        "answers": [{"annotator": who, "label": label} for who, label in _answers(item, labelling)],
        "skipped": list(item.view.skipped),
        "flags": [note.text for note in item.view.flags],
        "comments": [note.text for note in item.view.comments],
    }
    if predictions:
        line |= {"prediction": item.prediction, "probability": item.probability}
    return line


def as_task(
    item: Exported, data: dict[str, str], about: str, labelling: Labelling, score: float | None
) -> dict[str, Any]:
    """Return an item as a task of Label Studio; open questions have a score for their order, others their answers."""

    def chosen(label: str, who: str | None = None) -> list[dict[str, Any]]:
        return choice(CONTROL, about, choices_of(label, is_multi=labelling.is_multi), who)

    answers = [{"result": chosen(label, who or "")} for who, label in _answers(item, labelling)]
    skips = [{"result": [], "was_cancelled": True} for _ in item.view.skipped]
    task: dict[str, Any] = {"data": {ITEM: item.id, **data}, "annotations": answers + skips}
    guess = item.prediction if not item.is_audit else ""
    if score is not None or guess:
        result = chosen(guess) if guess else []
        score = item.probability if score is None else score
        task["predictions"] = [{"model_version": MODEL_VERSION, "score": score, "result": result}]
    return task


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
        path: a CSV file; or, ending in `.json` or `.jsonl`, an export of Label Studio, or JSON lines in our
            format, doccano's or Prodigy's.
        annotator: who answered; taken from the file if omitted.
        id_column: the column of ids in a CSV file.
        label_column: the column of labels in a CSV file; else the name of the choices.
        sample: as ``Project.tell`` takes it.
    """
    path = Path(path)
    if path.suffix.lower() not in JSON_SUFFIXES:
        return project.tell(path, annotator, id_column=id_column, label_column=label_column, sample=sample)
    if id_column is not None:
        raise ValueError(f"`id_column` is for CSV files, got {path}; omit it")
    views = project.views()
    answers = list(_answers_in(path, label_column, is_multi=project.labelling.is_multi))
    if annotator is not None:
        answers = [replace(each, annotator=annotator) for each in answers]
    # Items may have been asked of nobody in particular, and a file names who skipped them.
    skips = [each for each in answers if each.label is None and each.id in views and None in views[each.id].open]
    return record_answers(project.store, [*answers, *(replace(each, annotator=None) for each in skips)], sample=sample)


def _answers_in(path: Path, label: str | None, *, is_multi: bool) -> Iterator[Answer]:
    """Yield the answers and skips in a file, whose format is that of its first object."""
    content = list(_parsed(path))
    first = content[0][1] if content else {}
    if isinstance(first, dict) and "data" in first:
        yield from latest(annotations_of([task for _, task in content], {}, str(path), label), is_multi=is_multi)
        return
    for number, line in content:
        yield from answers_of_line(line, f"{path} line {number}", is_multi=is_multi)


def _parsed(path: Path) -> Iterator[tuple[int, Any]]:
    """Yield the objects of a list in JSON, or of lines of JSON, each with its number."""
    check_is_file(path)
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FileFormatError(f"{path} must be a text file in UTF-8, got other bytes") from error
    if not text.strip():
        raise FileFormatError(f"{path} must hold answers in JSON, got an empty file; export it again")
    if path.suffix.lower() == ".json":
        content = _decoded(text, str(path))
        if not isinstance(content, list):
            raise FileFormatError(f"{path} must hold a list of tasks, got {type(content).__name__}")
        yield from enumerate(content, start=1)
        return
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield number, _decoded(line, f"{path} line {number}")


def _decoded(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise FileFormatError(f"{where} must be JSON, got {text.strip()[:80]!r}") from error


def answers_of_line(line: Any, at: str, *, is_multi: bool = False) -> Iterator[Answer]:
    """Yield the answers in a line of JSON in our format, doccano's (labels in a list) or Prodigy's (`answer`)."""
    item = line.get(ITEM, line.get("id")) if isinstance(line, Mapping) else None
    if item is None:
        raise FileFormatError(f"{at} must be an object with {ITEM!r} or 'id'")
    if "annotation_id" in line:
        raise FileFormatError(f"{at} must be of Label Studio's format JSON, got JSON_MIN; export again as JSON")
    item, label = str(item), line.get("label")
    if "answer" in line:  # Prodigy
        is_skip = line["answer"] in IGNORED
        given = line["accept"] if is_multi and "accept" in line else line.get("accept") or [label]
        chosen = None if is_skip else chosen_label(given, at, is_multi=is_multi)
        yield Answer(at, item, chosen, line.get("_annotator_id") or None)
    elif isinstance(label, list):  # doccano
        if label:
            yield Answer(at, item, chosen_label(label, at, is_multi=is_multi))
    elif line.get("answers") or line.get("skipped"):
        for each in line.get("answers") or ():
            yield Answer(at, item, str(each["label"]), each.get("annotator"))
        for who in line.get("skipped") or ():
            yield Answer(at, item, None, who)
    elif label not in (None, ""):
        yield Answer(at, item, str(label), line.get("annotator"), line.get("seconds"))


def latest(annotations: Iterable[Annotation], *, is_multi: bool) -> Iterator[Answer]:
    """Yield one answer per person and task: the annotation that was changed last."""
    last: dict[tuple[str, Who], Annotation] = {}
    for each in annotations:
        before = last.get((each.item, each.who))
        if before is None or each.moment >= before.moment:
            last[each.item, each.who] = each
    return (each.answer(is_multi=is_multi) for each in last.values())

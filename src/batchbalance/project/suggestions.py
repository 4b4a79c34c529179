"""Labels that machines suggest: read from a file, and kept as one event of the log, never as anybody's answer."""

import base64
import os
import re
import unicodedata
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from batchbalance.encoders.rows import Row, open_rows
from batchbalance.errors import FileFormatError, UnknownNameError
from batchbalance.learner.labels import NewEvent
from batchbalance.project.answers import check_name
from batchbalance.project.state import State
from batchbalance.project.store import ProjectStore, normal_id
from batchbalance.system.spreadsheets import meanings

MODEL, PEOPLE, COPY = "model", "people", "copy"  # sources of labels that no file can have the name of
COLUMNS = {"id": ("id",), "label": ("label", "prediction"), "confidence": ("confidence", "probability")}
NONE = -1  # the class of an item without a suggestion
NUM_SHOWN = 3  # examples in a message
SUM_TOLERANCE = 0.01  # of the probabilities of all classes, which files round


@dataclass(frozen=True, eq=False)
class Source:
    """The newest suggestions of one source.

    Attributes:
        name: the source.
        labels: (N,) the class suggested for each item; −1 for none.
        confidence: (N,) the source's probability that it is right; None if its file had none.
        version: how many files of this name there have been.
    """

    name: str
    labels: np.ndarray
    confidence: np.ndarray | None
    version: int = 1


@dataclass(frozen=True)
class Suggested:
    """What a file of suggestions added.

    Attributes:
        source: the name of the source.
        num_items: items with a suggestion.
        is_new: whether they differ from those before.
        notes: remarks on what was ignored or is missing.
    """

    source: str
    num_items: int
    is_new: bool
    notes: tuple[str, ...]


def add_suggestions(store: ProjectStore, path: str | os.PathLike[str], by: str) -> Suggested:
    """Read a file of suggestions and keep it; a newer file of the same name replaces the older one.

    Args:
        store: items and events.
        path: CSV, TSV, JSONL or Parquet with the columns id, label and possibly confidence; or, instead of these two, a
            column of probabilities for each class.
        by: the name of the source.
    """
    name = check_name(by)
    if name is None or name in (MODEL, PEOPLE, COPY):
        raise ValueError(f"`by` must name the source, such as gpt, got {by!r}; that name is reserved")
    with store.reading() as state:
        if state.is_multi:
            raise ValueError(
                "suggestions must be of one class for each item; a project with several labels has none yet"
            )
        labels, confidence, notes = read_suggestions(Path(path), state.classes, store.ids())
    value = {"by": name, "labels": packed(labels), "confidence": None if confidence is None else packed(confidence)}
    with store.writing() as state:
        is_new = value != (state.suggested.get(name) or [None])[-1]
        store.append([NewEvent("suggested", value=value)] if is_new else [])
    return Suggested(name, int((labels != NONE).sum()), is_new, tuple(notes))


def sources_of(state: State, num_items: int) -> dict[str, Source]:
    """Return the newest suggestions of each source; items that were added later have none."""
    found = {}
    for name, values in state.suggested.items():
        labels, sure = unpacked(values[-1]["labels"]), values[-1]["confidence"]
        more = (0, num_items - len(labels))
        confidence = None if sure is None else np.pad(unpacked(sure), more)
        found[name] = Source(name, np.pad(labels, more, constant_values=NONE), confidence, len(values))
    return found


def source_named(state: State, name: str, num_items: int) -> Source:
    """Return the suggestions of one source."""
    found = sources_of(state, num_items)
    if not found:
        raise ValueError(f"no source {name!r}: the project has no suggestions; add some with batchbalance suggest")
    if name not in found:
        raise UnknownNameError("source", name, list(found))
    return found[name]


def packed(array: np.ndarray) -> str:
    """Return an array of whole numbers or of probabilities as text."""
    is_whole = array.dtype.kind == "i"
    return base64.b64encode(
        (b"i" if is_whole else b"f") + zlib.compress(array.astype("<i4" if is_whole else "<f4").tobytes())
    ).decode()


def unpacked(text: str) -> np.ndarray:
    """Return the array that was packed."""
    content = base64.b64decode(text)
    whole = content[:1] == b"i"
    return np.frombuffer(zlib.decompress(content[1:]), dtype="<i4" if whole else "<f4").astype(
        np.int64 if whole else np.float64
    )


def read_suggestions(
    path: Path, classes: Sequence[str], ids: Sequence[str]
) -> tuple[np.ndarray, np.ndarray | None, list[str]]:
    """Return (N,) classes, −1 for none, (N,) confidences or None, and remarks on what the file has and has not.

    Raises:
        FileFormatError: if nothing in it is a suggestion, or something contradicts something else.
    """
    file = open_rows(path)
    columns, of_class = _columns(path, file.columns, classes)
    positions = {name: row for row, name in enumerate(ids)}
    labels = np.full(len(ids), NONE, dtype=np.int64)
    confidence = np.zeros(len(ids)) if "confidence" in columns or of_class else None
    num_rows, num_twice, strange_ids, strange_labels = 0, 0, list[str](), Counter[str]()
    for number, row in enumerate(file, start=1):
        num_rows, where = number, f"{path} row {number}"
        item = _item(row.get(columns["id"]), positions)
        label, sure = (
            _by_class(row, of_class, where) if of_class else (_class(row.get(columns["label"]), classes, where), 0.0)
        )
        if item is None:
            strange_ids.append(str(row.get(columns["id"])))
        elif isinstance(label, str):
            strange_labels.update([label] if label else [])
        elif labels[item] not in (NONE, label):
            raise FileFormatError(f"{where}: {ids[item]!r} must have one label, got two that differ; keep one")
        else:
            num_twice += labels[item] == label
            labels[item] = label
            if confidence is not None:
                confidence[item] = sure if of_class else _probability(row.get(columns["confidence"]), where)
    return labels, confidence, _remarks(path, labels, num_rows, num_twice, strange_ids, strange_labels)


def _remarks(
    path: Path, labels: np.ndarray, num_rows: int, num_twice: int, strange_ids: list[str], strange_labels: Counter[str]
) -> list[str]:
    """Return remarks on what was ignored and what is missing; refuse a file without any suggestion."""
    count, notes = int((labels != NONE).sum()), []
    if strange_ids:
        some = ", ".join(map(repr, strange_ids[:NUM_SHOWN])) + (", …" if len(strange_ids) > NUM_SHOWN else "")
        notes.append(f"{len(strange_ids):,} of {num_rows:,} ids are not of items in this project: {some}")
    if strange_labels:
        some = ", ".join(f"{name!r} ({num:,})" for name, num in strange_labels.most_common(NUM_SHOWN))
        more = ", …" if len(strange_labels) > NUM_SHOWN else ""
        notes.append(f"{strange_labels.total():,} labels are not classes of this project: {some}{more}")
    if not count:
        raise FileFormatError(
            f"{path} must suggest labels for items of this project, got none; {'; '.join(notes) or 'it has none'}"
        )
    notes = [f"{each}; ignored" for each in notes]
    if num_twice:
        notes.append(f"{num_twice:,} rows repeat an id with the same label")
    if count < len(labels):
        notes.append(f"{len(labels) - count:,} of {len(labels):,} items have no suggestion")
    return notes


def _columns(path: Path, names: Sequence[str], classes: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Return the column of the id, label and confidence, and those of all classes if there is no label."""
    lower = {name.strip().lower(): name for name in reversed(names)}
    found = dict[str, str]()
    for role, known in COLUMNS.items():
        name = next((lower[each] for each in known if each in lower), None)
        found |= {} if name is None else {role: name}
    if "id" not in found:
        raise FileFormatError(
            f"{path} must have a column 'id', got columns {', '.join(names)}; rename the one of the ids"
        )
    if "label" in found:
        return found, []
    stripped = {unicodedata.normalize("NFC", name.strip()): name for name in names}
    missing = [each for each in classes if each not in stripped]
    if missing:
        raise FileFormatError(
            f"{path} must have a column 'label', or a column for each class, got no column for "
            f"{', '.join(map(repr, missing[:NUM_SHOWN]))}; add it"
        )
    return found, [stripped[each] for each in classes]


def _item(cell: Any, positions: dict[str, int]) -> int | None:
    """Return the row of an id, as a person may have saved it; None if there is none."""
    names = (normal_id(each) for each in meanings("" if cell is None else str(cell)))
    return next((positions[each] for each in names if each in positions), None)


def _class(cell: Any, classes: Sequence[str], where: str) -> int | str:
    """Return the number of the class in a cell, or the text of a cell that names none."""
    parts = cell if isinstance(cell, list) else [part for part in re.split("[;|,]", str(cell or "")) if part.strip()]
    text = "" if cell is None else str(cell).strip()
    for meaning in meanings(text):
        name = unicodedata.normalize("NFC", meaning)
        if name in classes:
            return classes.index(name)
    if isinstance(cell, list) or (len(parts) > 1 and {part.strip() for part in parts} <= set(classes)):
        raise FileFormatError(
            f"{where} must suggest one class, got {text!r}; several labels for an item are not supported"
        )
    return text


def _by_class(row: Row, columns: Sequence[str], where: str) -> tuple[int, float]:
    """Return the most probable class of a row with a probability for each, and this probability."""
    probs = [_probability(row.get(each), where) for each in columns]
    if abs(sum(probs) - 1) > SUM_TOLERANCE:
        raise FileFormatError(
            f"{where}: the probabilities of all classes must add up to 1, got {sum(probs):g}; normalise them"
        )
    return int(np.argmax(probs)), max(probs)


def _probability(cell: Any, where: str) -> float:
    """Return a number from 0 to 1."""
    try:
        value = float(cell)
    except (TypeError, ValueError):
        value = -1.0
    if not 0 <= value <= 1:
        raise FileFormatError(
            f"{where}: a confidence must be a number from 0 to 1, got {cell!r}; fill it in, or omit the column"
        )
    return value

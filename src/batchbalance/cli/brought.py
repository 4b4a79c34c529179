"""Labels, classes and ids in a file of items, for `batchbalance init`."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from batchbalance.errors import FileFormatError

MOST_COLUMNS = 30  # largest number of columns to search for ids


def brought(source: Path | None, given: str, id_column: str | None) -> Path | dict[str, str]:
    """Return existing labels: a file, or the labels by id in a column of the items."""
    from batchbalance.encoders import open_items
    from batchbalance.learner.labels.names import is_blank

    if Path(given).is_file():
        return Path(given)
    values = values_in(source, given)
    items = open_items(str(source), kind="rows", columns=[given], id_column=id_column)
    return {item.id: value for item, value in zip(items, values, strict=True) if not is_blank(value)}


def values_in(source: Path | None, column: str) -> list[str]:
    """Return the values in a column of a file of items."""
    from batchbalance.encoders.rows import open_rows

    if source is None or source.is_dir():
        raise FileNotFoundError(f"{column!r} must be a file, or a column of --texts or --table, got neither")
    file = open_rows(source)
    if column not in file.columns:
        raise FileFormatError(
            f"{source} must have a column {column!r}, got columns {', '.join(file.columns)}; name one of these, or a "
            "file that exists"
        )
    return [str(row[column] or "").strip() for row in file]


def class_names(given: str | None, file: Path | None, values: Iterable[str] | None, multi: bool = False) -> list[str]:
    """Return the classes: as given, from a file with one per line, or the distinct values of a column.

    With `multi`, a value may name several classes, as `a;b`.
    """
    from batchbalance.lab.data.own import ordered
    from batchbalance.learner.labels.names import is_blank
    from batchbalance.system.ids import read_ids

    if given is not None and file is not None:
        raise ValueError("`classes` and `classes_file` must not be given together; omit one of them")
    if given is not None:
        return [name for name in given.split(",") if name.strip()]
    if file is not None:
        if not file.is_file():
            raise FileNotFoundError(f"no such file of classes: {file}")
        return [name for name in read_ids(file) if name.strip()]
    if values is None:
        raise ValueError(
            "`classes` must be given, such as cat,dog,neither; or `classes_file`, `classes_from`, `labels_from`"
        )
    from batchbalance.project.labelling import listed

    found = ordered(name for value in values if not is_blank(value) for name in (listed(value) if multi else [value]))
    joined = next((name for name in found if set(re.split(r"\s*[;|]\s*", name)) & (set(found) - {name})), None)
    if joined is not None:
        raise ValueError(
            f"an item must have one class, got {joined!r}, which looks like several; give --multi-label for items "
            "with several classes separated by ;"
        )
    return found


def id_note(source: Path, id_column: str | None, used: Sequence[str]) -> str:
    """Return a note on the ids of a file and, if they are row numbers, on columns that could be used instead."""
    from batchbalance.encoders.items import ID_COLUMN
    from batchbalance.encoders.rows import open_rows
    from batchbalance.system.ids import repeated_id

    if source.is_dir():
        return "ids: paths in the folder"
    file = open_rows(source)
    if id_column is not None or ID_COLUMN in file.columns:
        return f"ids: column {id_column or ID_COLUMN!r}"
    could = [
        name
        for name in file.columns[:MOST_COLUMNS]
        if name not in used and repeated_id([str(row[name] or "") for row in file]) is None
    ]
    advice = f"; suitable columns for --id: {', '.join(could)}" if could else ""
    return f"ids: row numbers from 0{advice}"

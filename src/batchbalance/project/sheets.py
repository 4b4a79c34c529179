"""CSV files that people fill in with a spreadsheet."""

import csv
import io
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from batchbalance.errors import FileFormatError
from batchbalance.system.files import check_is_file, replacing
from batchbalance.system.ids import mended
from batchbalance.system.spreadsheets import csv_text, meanings

DELIMITERS = (",", ";", "\t")
ID, LABEL, ANNOTATOR, SECONDS = "id", "label", "annotator", "seconds"
OURS = (ID, LABEL, ANNOTATOR, SECONDS)  # what `tell` reads; matched in any case


@dataclass(frozen=True)
class Answer:
    """A row with a label.

    Attributes:
        where: the row, for messages.
        id: the cell of the id, as it stands there.
        label: the cell of the label, as it stands there.
        annotator: who gave it, if a column says so.
        seconds: how long it took, if a column says so.
    """

    where: str
    id: str
    label: str
    annotator: str | None = None
    seconds: float | None = None


def beside_ours(names: Iterable[str]) -> dict[str, str]:
    """Return what each column of a user's table is called in a sheet of ours: an underscore sets it apart from OURS."""
    found = dict.fromkeys(names, "")
    for name in found:
        new = name
        while new.strip().lower() in OURS or (new != name and new in found):
            new += "_"
        found[name] = new
    return found


def write_sheet(
    path: str | os.PathLike[str], columns: Sequence[str], rows: Iterable[Sequence[str]], *, mark: bool = False
) -> None:
    """Write a CSV file atomically.

    With `mark`, one that is not plain ASCII begins with a byte order mark, by which spreadsheets know UTF-8.
    """
    text = mended(csv_text(columns, rows))  # of a folder's name, which may be in any encoding
    with replacing(path) as temporary:
        temporary.write_bytes(text.encode("utf-8-sig" if mark and not text.isascii() else "utf-8"))


def read_answers(
    path: str | os.PathLike[str], id_column: str | None = None, label_column: str | None = None
) -> list[Answer]:
    """Return the rows of a CSV file whose label is filled in.

    Args:
        path: the file, separated by commas, semicolons or tabs.
        id_column: the column of the ids; `id` if omitted.
        label_column: the column of the labels; `label` if omitted.

    Raises:
        FileFormatError: if it is not such a file.
    """
    path = Path(path)
    id_column, label_column = (meanings(name)[0] for name in (id_column or ID, label_column or LABEL))
    rows = list(_rows(path, id_column))
    header = [meanings(name.strip())[0] for name in rows[0][1]] if rows else []
    places = _places(path, header, {ID: id_column, LABEL: label_column})
    answers = []
    for line, row in rows[1:]:
        cells = row + [""] * (len(header) - len(row))
        if any(cell.strip() for cell in cells[len(header) :]):
            raise FileFormatError(
                f"{path} line {line} must have {len(header)} cells, got {len(row)}; quote cells that hold the separator"
            )
        label = cells[places[LABEL]]
        if not label.strip():
            continue
        name = cells[places[ID]]
        if not name:
            raise FileFormatError(f"{path} line {line} must have an id, got a label without one")
        who = cells[places[ANNOTATOR]].strip() or None if ANNOTATOR in places else None
        took = _seconds(cells[places[SECONDS]], f"{path} line {line}") if SECONDS in places else None
        answers.append(Answer(f"{path} line {line}", name, label, who, took))
    return answers


def _places(path: Path, header: Sequence[str], wanted: dict[str, str]) -> dict[str, int]:
    """Return where the columns are; names match in any case."""
    lower = [name.lower() for name in header]
    found = {}
    for role, name in wanted.items():
        if name.lower() not in lower:
            raise FileFormatError(f"{path} must have a column {name!r}, got columns {', '.join(header) or 'none'}")
        found[role] = header.index(name) if name in header else lower.index(name.lower())
    # A column that was named for ids or labels is not who answered as well.
    more = {role: lower.index(role) for role in (ANNOTATOR, SECONDS) if role in lower}
    found |= {role: place for role, place in more.items() if place not in found.values()}
    for place in found.values():
        if header.count(header[place]) > 1:
            raise FileFormatError(f"{path} must have one column {header[place]!r}, got several; rename the others")
    return found


def _rows(path: Path, id_column: str) -> Iterable[tuple[int, list[str]]]:
    """Return the rows that are not blank, each with the number of its line."""
    text = _decoded(path)
    limit = csv.field_size_limit(2**31 - 1)  # texts may be longer than its default
    try:
        delimiter = _delimiter(text, id_column)
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
        return [(reader.line_num, row) for row in reader if any(cell.strip() for cell in row)]
    except csv.Error as error:
        raise FileFormatError(f"{path} must be a CSV file, got damage: {error}") from error
    finally:
        csv.field_size_limit(limit)


def _delimiter(text: str, id_column: str) -> str:
    """Return the separator that gives a column of ids, and the most columns."""
    best, most = DELIMITERS[0], (False, 0)
    for delimiter in DELIMITERS:
        header = next(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter), [])
        found = (id_column.lower() in [meanings(name.strip())[0].lower() for name in header], len(header))
        if found > most:
            best, most = delimiter, found
    return best


def _decoded(path: Path) -> str:
    check_is_file(path)
    content = path.read_bytes()
    is_wide = content[:2] in (b"\xff\xfe", b"\xfe\xff")
    try:
        return content.decode("utf-16" if is_wide else "utf-8-sig")
    except UnicodeDecodeError as error:
        raise FileFormatError(f"{path} must be a text file in UTF-8, got other bytes; save it as CSV UTF-8") from error


def _seconds(cell: str, where: str) -> float | None:
    if not cell.strip():
        return None
    try:
        seconds = float(cell)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise FileFormatError(f"{where}: seconds must be a number of at least 0, got {cell!r}")
    return seconds

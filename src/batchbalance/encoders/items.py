"""Items to embed: files in a folder, rows of a file, or objects in memory, each with its own id."""

import hashlib
import json
import os
import unicodedata
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from batchbalance.encoders.contract import Kind
from batchbalance.encoders.images import IMAGE_ENDINGS, read_image, require_pillow
from batchbalance.encoders.rows import Row, RowFile, open_rows
from batchbalance.errors import FileFormatError
from batchbalance.system.ids import check_unicode, repeated_id

TEXT_ENDING = ".txt"
TEXT_COLUMN, ID_COLUMN = "text", "id"


@dataclass(frozen=True)
class Item:
    """One item to embed.

    Attributes:
        id: its name.
        key: changes whenever its content may have changed.
        read: gives the image, the text or the row; raises FileFormatError if it is damaged or empty.
        path: its file; None if it is not a separate file.
    """

    id: str
    key: str
    read: Callable[[], Any]
    path: Path | None = None


class Items(ABC):
    """Items to embed, in order. They can be iterated over more than once, without reading their contents.

    Attributes:
        name: where they come from, for messages.
        kind: "images", "texts" or "rows".
        notes: remarks for the user about how they were found.
    """

    name: str
    kind: Kind
    notes: tuple[str, ...] = ()

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of items, damaged ones included."""

    @abstractmethod
    def __iter__(self) -> Iterator[Item]:
        """Yield all items, in order."""


class FileItems(Items):
    """The images or the ``.txt`` files of a folder and the folders in it, in the order of their ids.

    An id is the path within the folder, with ``/`` and in Unicode's normal form C. Hidden files are ignored.
    """

    def __init__(self, root: Path, paths: Sequence[Path], kind: Kind, notes: tuple[str, ...] = ()) -> None:
        self.name, self.kind, self.notes = str(root), kind, notes
        if kind == "images":
            require_pillow()
        named = [(unicodedata.normalize("NFC", path.relative_to(root).as_posix()), path) for path in paths]
        self._paths = sorted(named, key=lambda pair: (pair[0], str(pair[1])))
        check_ids(self.name, [name for name, _ in self._paths])

    def __len__(self) -> int:
        return len(self._paths)

    def __iter__(self) -> Iterator[Item]:
        read = read_image if self.kind == "images" else read_text
        for name, path in self._paths:
            try:
                stat = path.stat()
                key = f"{name}\0{stat.st_size}\0{stat.st_mtime_ns}"
            except OSError:  # reported when it is read
                key = f"{name}\0gone"
            yield Item(name, key, lambda read=read, path=path: read(path), path)  # type: ignore[misc]


class RowItems(Items):
    """The rows of a file: a column of texts, or some columns of a table.

    Args:
        file: the file.
        kind: "texts" or "rows".
        columns: the columns to take; one for texts.
        id_column: the column of the ids; None numbers the rows from 0.
    """

    def __init__(self, file: RowFile, kind: Kind, columns: Sequence[str], id_column: str | None) -> None:
        self.name, self.kind = str(file.path), kind
        self._file, self._columns, self._id_column = file, list(columns), id_column
        if kind == "rows":
            self.notes = (f"columns taken: {', '.join(columns)}",)
        self._length = sum(1 for _ in file)
        if id_column is not None:
            check_ids(f"column {id_column!r} of {file.path}", _Ids(self))

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Item]:
        for i, row in enumerate(self._file):
            cells = {name: row.get(name) for name in self._columns}
            value = cells[self._columns[0]] if self.kind == "texts" else cells
            name = str(i) if self._id_column is None else self._id(i, row)
            key = json.dumps([name, value], default=str)
            yield Item(name, key, lambda i=i, value=value: self._checked(i, value))  # type: ignore[misc]

    def _id(self, i: int, row: Row) -> str:
        value = row.get(self._id_column or "")
        if value is None or not str(value).strip():
            raise FileFormatError(f"row {i} of {self.name} must have an id in column {self._id_column!r}, got none")
        return str(value)

    def _checked(self, i: int, value: Any) -> Any:
        if self.kind == "rows":
            return checked_row(value, f"row {i} of {self.name}")
        return checked_text(value, f"row {i} of {self.name}, column {self._columns[0]!r},")


class ListItems(Items):
    """Images, texts or rows (dicts) in a list; their ids are their numbers from 0."""

    def __init__(self, values: Sequence[Any]) -> None:
        self.name, self._values = "the list", values
        kinds = {_kind_of(value) for value in values}
        if len(kinds) != 1:
            found = ", ".join(sorted(kinds)) or "nothing"
            raise TypeError(f"the list must hold images of Pillow, texts or dicts, all of one kind, got {found}")
        (self.kind,) = kinds

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[Item]:
        for i, value in enumerate(self._values):
            content = hashlib.sha256(value.tobytes()).hexdigest() if self.kind == "images" else value
            yield Item(str(i), json.dumps(content, default=str), lambda i=i, value=value: self._checked(i, value))  # type: ignore[misc]

    def _checked(self, i: int, value: Any) -> Any:
        if self.kind == "texts":
            return checked_text(value, f"text {i}")
        return value.convert("RGB") if self.kind == "images" else checked_row(value, f"row {i}")


def _kind_of(value: Any) -> Kind:
    if isinstance(value, str):
        return "texts"
    if isinstance(value, dict):
        return "rows"
    if hasattr(value, "convert") and hasattr(value, "tobytes"):
        return "images"
    raise TypeError(f"the list must hold images of Pillow, texts or dicts, got {type(value).__name__}")


class _Ids:
    """The ids of items, which can be iterated over more than once."""

    def __init__(self, items: Items) -> None:
        self._items = items

    def __iter__(self) -> Iterator[str]:
        return (item.id for item in self._items)


def open_items(
    source: str | os.PathLike[str] | Sequence[Any],
    *,
    kind: Kind | None = None,
    columns: Sequence[str] = (),
    id_column: str | None = None,
    drop: Sequence[str] = (),
) -> Items:
    """Open the items of a path or a list.

    Args:
        source: a folder of images or of ``.txt`` files, an image, a file of rows (CSV, TSV, JSON lines, Parquet, plain
            text with one text a line), or a list of texts, of images or of dicts.
        kind: the kind that the encoder reads; inferred if omitted.
        columns: of a file of rows: the column of the texts, or those of a table.
        id_column: the column of the ids; a column `id` if there is one, else rows are numbered from 0.
        drop: columns of a table to omit, such as the label.

    Raises:
        FileFormatError: if there is no item of that kind, or a file is damaged.
    """
    if not isinstance(source, str | os.PathLike):
        items: Items = ListItems(list(source))
    else:
        path = Path(source)
        if not path.exists():
            raise FileNotFoundError(f"no such data: {path} is neither a file nor a folder")
        is_image = path.suffix.lower() in IMAGE_ENDINGS
        if not path.is_dir() and not is_image:
            return _rows(open_rows(path), kind, columns, id_column, drop)
        items = FileItems(path.parent, [path], "images") if is_image and not path.is_dir() else _files(path, kind)
    if columns or id_column is not None or drop:
        raise ValueError(f"columns are for files of rows, got {items.name}; omit --column, --id and --drop")
    return items


def read_text(path: Path) -> str:
    """Read the text of a file; raise FileFormatError if it is empty or not UTF-8."""
    try:
        return checked_text(path.read_text(encoding="utf-8-sig"), f"text {path}")
    except UnicodeDecodeError as error:
        raise FileFormatError(f"text {path} must be in UTF-8, got other bytes: {error}") from error


def checked_text(value: Any, where: str) -> str:
    """Return a text, or raise FileFormatError if it is empty."""
    if value is not None and not isinstance(value, str):
        raise FileFormatError(f"{where} must be a text, got {type(value).__name__}")
    if value is None or not value.strip():
        raise FileFormatError(f"{where} must not be empty, got {value!r}")
    return check_unicode(where, value)


def checked_row(value: dict[str, Any], where: str) -> dict[str, Any]:
    """Return a row of a table, or raise FileFormatError unless its names and cells are valid Unicode."""
    check_unicode(where, json.dumps(value, ensure_ascii=False, default=str))
    return value


def check_ids(where: str, names: Any) -> None:
    """Raise FileFormatError if an id occurs twice or has a lone surrogate."""
    for name in names:
        check_unicode(f"an id or the name of a file in {where}", name)
    twice = repeated_id(names)
    if twice is not None:
        raise FileFormatError(f"{where} must have distinct ids, got {twice!r} more than once")


def _rows(
    file: RowFile, kind: Kind | None, columns: Sequence[str], id_column: str | None, drop: Sequence[str]
) -> RowItems:
    for name in (*columns, *drop, *([] if id_column is None else [id_column])):
        if name not in file.columns:
            raise FileFormatError(f"{file.path} must have a column {name!r}, got columns {', '.join(file.columns)}")
    if id_column is None and ID_COLUMN in file.columns:
        id_column = ID_COLUMN
    if kind is None:
        kind = "texts" if columns or TEXT_COLUMN in file.columns else "rows"
    if kind == "rows":
        left_out = {*drop, id_column} if not columns else set(drop)
        taken = [name for name in (columns or file.columns) if name not in left_out]
        if not taken:
            raise FileFormatError(f"{file.path} must have columns beside the id, got {', '.join(file.columns)}")
        return RowItems(file, kind, taken, id_column)
    if kind == "images":
        raise FileFormatError(f"{file.path} must be a folder of images or an image, got a file of rows")
    if drop or len(columns) > 1:
        raise ValueError(
            f"texts come from one column, got {', '.join(columns)} to take and {', '.join(drop) or 'none'} to drop; "
            "give one --column, or --encoder table"
        )
    if not columns and TEXT_COLUMN not in file.columns:
        raise FileFormatError(
            f"{file.path} must have a column {TEXT_COLUMN!r}, got columns {', '.join(file.columns)}; name the column "
            "of the texts with --column"
        )
    return RowItems(file, kind, columns or [TEXT_COLUMN], id_column)


def _files(folder: Path, kind: Kind | None) -> FileItems:
    paths = list(_walk(folder, ()))
    by_kind: dict[Kind, list[Path]] = {
        "images": [path for path in paths if path.suffix.lower() in IMAGE_ENDINGS],
        "texts": [path for path in paths if path.suffix.lower() == TEXT_ENDING],
    }
    if kind is None:
        found: list[Kind] = [each for each, there in by_kind.items() if there]
        if len(found) == 2:
            raise FileFormatError(f"{folder} must hold images or .txt files, got both; name an encoder for one of them")
        kind = found[0] if found else "images"
    if not by_kind.get(kind):
        wanted = {"images": "images", "texts": ".txt files", "rows": "nothing: a table is one file"}[kind]
        raise FileFormatError(f"{folder} must hold {wanted}, got none in {len(paths)} files; give another path")
    others = Counter(path.suffix.lower() or "no extension" for path in set(paths) - set(by_kind[kind]))
    told = ", ".join(f"{count} × {ending}" for ending, count in sorted(others.items()))
    return FileItems(folder, by_kind[kind], kind, (f"other files ignored: {told}",) if others else ())


def _walk(folder: Path, above: tuple[Path, ...]) -> Iterator[Path]:
    """Yield all files that are not hidden; links are followed, but not in circles."""
    real = folder.resolve()
    if real in above:
        return
    for path in folder.iterdir():
        if path.name.startswith("."):
            continue
        if path.is_dir():
            yield from _walk(path, (*above, real))
        elif path.exists():
            yield path

"""Items to embed: files in a folder, rows of a file, or objects in memory, each with its own id."""

import hashlib
import json
import os
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from batchbalance.encoders.contract import Kind
from batchbalance.encoders.images import IMAGE_ENDINGS, read_image, require_pillow
from batchbalance.encoders.rows import RowFile, open_rows
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
        read: returns the image, the text or the row; raises FileFormatError if it is damaged or empty.
        path: its file; None if it is not a separate file.
    """

    id: str
    key: str
    read: Callable[[], Any]
    path: Path | None = None


class Items:
    """Items to embed, in order. They can be iterated over more than once, without reading their contents.

    Attributes:
        name: where they come from, for messages.
        kind: "images", "texts" or "rows".
        notes: remarks for the user about how they were found.
    """

    name: str
    kind: Kind
    notes: tuple[str, ...] = ()

    def __init__(
        self, name: str, kind: Kind, length: int, items: Callable[[], Iterator[Item]], notes: tuple[str, ...] = ()
    ) -> None:
        self.name, self.kind, self.notes = name, kind, notes
        self._length, self._items = length, items

    def __len__(self) -> int:
        """Return the number of items, including damaged ones."""
        return self._length

    def __iter__(self) -> Iterator[Item]:
        """Yield all items, in order."""
        return self._items()


def _files(root: Path, paths: Sequence[Path], kind: Kind, notes: tuple[str, ...] = ()) -> Items:
    """Return images or ``.txt`` files as items, in the order of their ids.

    An id is the path within the folder `root`, with ``/`` and in Unicode's normal form C.
    """
    if kind == "images":
        require_pillow()
    named = [(unicodedata.normalize("NFC", path.relative_to(root).as_posix()), path) for path in paths]
    named.sort(key=lambda pair: (pair[0], str(pair[1])))
    _check_ids(str(root), [name for name, _ in named])
    read = read_image if kind == "images" else _read_text

    def items() -> Iterator[Item]:
        for name, path in named:
            try:
                stat = path.stat()
                key = f"{name}\0{stat.st_size}\0{stat.st_mtime_ns}"
            except OSError:  # reported when it is read
                key = f"{name}\0gone"
            yield Item(name, key, partial(read, path), path)

    return Items(str(root), kind, len(named), items, notes)


def _column_items(file: RowFile, kind: Kind, columns: Sequence[str], id_column: str | None) -> Items:
    """Return the rows of a file as items: a column of texts, or some columns of a table.

    Args:
        file: the file.
        kind: "texts" or "rows".
        columns: the columns to take; one for texts.
        id_column: the column of the ids; None numbers the rows from 0.
    """

    def items() -> Iterator[Item]:
        for i, row in enumerate(file):
            name = str(i if id_column is None else row.get(id_column))
            if id_column is not None and (row.get(id_column) is None or not name.strip()):
                raise FileFormatError(f"row {i} of {file.path} must have an id in column {id_column!r}, got none")
            value = row.get(columns[0]) if kind == "texts" else {column: row.get(column) for column in columns}
            where = f"row {i} of {file.path}" + (f", column {columns[0]!r}," if kind == "texts" else "")
            yield Item(name, json.dumps([name, value], default=str), partial(_checked, kind, value, where))

    notes = (f"columns taken: {', '.join(columns)}",) if kind == "rows" else ()
    if id_column is None:
        return Items(str(file.path), kind, sum(1 for _ in file), items, notes)
    ids = [item.id for item in items()]
    _check_ids(f"column {id_column!r} of {file.path}", ids)
    return Items(str(file.path), kind, len(ids), items, notes)


def _listed(values: Sequence[Any]) -> Items:
    """Return images, texts or rows (dicts) in a list as items; their ids are their numbers from 0."""
    kinds: set[Kind] = set()
    for value in values:
        if isinstance(value, str | dict):
            kinds.add("texts" if isinstance(value, str) else "rows")
        elif hasattr(value, "convert") and hasattr(value, "tobytes"):
            kinds.add("images")
        else:
            raise TypeError(f"the list must hold Pillow images, texts or dicts, got {type(value).__name__}")
    if len(kinds) != 1:
        found = ", ".join(sorted(kinds)) or "nothing"
        raise TypeError(f"the list must hold Pillow images, texts or dicts, all of one kind, got {found}")
    (kind,) = kinds

    def items() -> Iterator[Item]:
        for i, value in enumerate(values):
            content = hashlib.sha256(value.tobytes()).hexdigest() if kind == "images" else value
            where = f"text {i}" if kind == "texts" else f"row {i}"
            yield Item(str(i), json.dumps(content, default=str), partial(_checked, kind, value, where))

    return Items("the list", kind, len(values), items)


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
            text with one text per line), or a list of texts, of images or of dicts.
        kind: the kind that the encoder reads; inferred if omitted.
        columns: for a file of rows: the column of the texts, or the columns of a table.
        id_column: the column of the ids; a column `id` if there is one, else rows are numbered from 0.
        drop: columns of a table to omit, such as the label.

    Raises:
        FileFormatError: if there is no item of that kind, or a file is damaged.
    """
    if not isinstance(source, str | os.PathLike):
        items = _listed(list(source))
    else:
        path = Path(source)
        if not path.exists():
            raise FileNotFoundError(f"no such data: {path} is neither a file nor a folder")
        is_image = path.suffix.lower() in IMAGE_ENDINGS
        if not path.is_dir() and not is_image:
            return _rows(open_rows(path), kind, columns, id_column, drop)
        items = _folder(path, kind) if path.is_dir() else _files(path.parent, [path], "images")
    if columns or id_column is not None or drop:
        raise ValueError(f"columns are for files of rows, got {items.name}; omit --column, --id and --drop")
    return items


def _read_text(path: Path) -> str:
    """Read the text of a file; raise FileFormatError if it is empty or not UTF-8."""
    try:
        text: str = _checked("texts", path.read_text(encoding="utf-8-sig"), f"text {path}")
    except UnicodeDecodeError as error:
        raise FileFormatError(f"text {path} must be in UTF-8, got other bytes: {error}") from error
    return text


def _checked(kind: Kind, value: Any, where: str) -> Any:
    """Return an image in RGB, or a text or row if it is valid Unicode and the text is not empty."""
    if kind == "images":
        return value.convert("RGB")
    if kind == "rows":
        check_unicode(where, json.dumps(value, ensure_ascii=False, default=str))
        return value
    if value is not None and not isinstance(value, str):
        raise FileFormatError(f"{where} must be a text, got {type(value).__name__}")
    if value is None or not value.strip():
        raise FileFormatError(f"{where} must not be empty, got {value!r}")
    return check_unicode(where, value)


def _check_ids(where: str, names: Sequence[str]) -> None:
    """Raise FileFormatError if an id occurs twice or has a lone surrogate."""
    for name in names:
        check_unicode(f"an id or the name of a file in {where}", name)
    twice = repeated_id(names)
    if twice is not None:
        raise FileFormatError(f"{where} must have distinct ids, got {twice!r} more than once")


def _rows(
    file: RowFile, kind: Kind | None, columns: Sequence[str], id_column: str | None, drop: Sequence[str]
) -> Items:
    """Return the rows of a file as items, after deciding their kind and which columns to take."""
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
            raise FileFormatError(f"{file.path} must have columns besides the id, got {', '.join(file.columns)}")
        return _column_items(file, kind, taken, id_column)
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
    return _column_items(file, kind, columns or [TEXT_COLUMN], id_column)


def _folder(folder: Path, kind: Kind | None) -> Items:
    """Return the images or the ``.txt`` files of a folder and the folders in it; hidden files are ignored."""
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
    ignored = ", ".join(f"{count} × {ending}" for ending, count in sorted(others.items()))
    return _files(folder, by_kind[kind], kind, (f"other files ignored: {ignored}",) if others else ())


def _walk(folder: Path, above: tuple[Path, ...]) -> Iterator[Path]:
    """Yield all files that are not hidden; links are followed, except in cycles."""
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

"""Files of rows: CSV, TSV, JSON lines, Parquet, and plain text with one text per line. Read row by row."""

import csv
import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from batchbalance.errors import FileFormatError, MissingExtraError

Row = dict[str, Any]  # cells by column

DELIMITERS = {".csv": ",", ".tsv": "\t"}
JSON_LINES = (".jsonl", ".ndjson")
ROW_ENDINGS = (*DELIMITERS, *JSON_LINES, ".parquet", ".txt")
PARQUET_ROWS = 1024  # read at a time


@dataclass(frozen=True)
class RowFile:
    """A file of rows that can be iterated over more than once.

    Attributes:
        path: the file.
        columns: the names of its columns.
        read: yields the rows in order.
    """

    path: Path
    columns: list[str]
    read: Callable[[Path], Iterator[Row]]

    def __iter__(self) -> Iterator[Row]:
        return self.read(self.path)


def open_rows(path: Path) -> RowFile:
    """Open a file of rows by its extension; all but Parquet may be gzipped."""
    ending = _ending(path)
    if ending in DELIMITERS:
        header = next(_cells(path), [])
        if not header:
            raise FileFormatError(f"{path} must start with a row of column names, got an empty file")
        twice = next((name for name in header if header.count(name) > 1), None)
        if twice is not None:
            raise FileFormatError(f"{path} must have distinct column names, got {twice!r} more than once")
        return RowFile(path, header, _delimited)
    if ending in JSON_LINES:  # a row need not have all columns
        return RowFile(path, list(dict.fromkeys(name for row in _json_lines(path) for name in row)), _json_lines)
    if ending == ".txt":
        return RowFile(path, ["text"], _plain_lines)
    if ending == ".parquet" and path.suffix != ".gz":
        with _parquet(path) as file:
            return RowFile(path, [str(name) for name in file.schema_arrow.names], _parquet_rows)
    raise FileFormatError(
        f"{path} must be a folder, an image, or end in {', '.join(ROW_ENDINGS)}, got {path.suffix or 'no extension'!r}"
    )


def _delimited(path: Path) -> Iterator[Row]:
    """Yield the rows of a CSV or TSV file below its header; blank lines are skipped."""
    cells = _cells(path)
    header = next(cells, [])
    return (dict(zip(header, row, strict=True)) for row in cells)


def _cells(path: Path) -> Iterator[list[str]]:
    """Yield the rows of a CSV or TSV file, the header first."""
    limit = csv.field_size_limit(2**31 - 1)  # texts may be longer than the default limit
    try:
        with _text(path) as file:
            delimiter, header = DELIMITERS[_ending(path)], next(filter(str.strip, file), "")
            if delimiter == "," and ";" in header and "," not in header:  # as some spreadsheets write
                delimiter = ";"
            file.seek(0)
            reader = csv.reader(file, delimiter=delimiter, strict=True)
            width = None
            for row in reader:
                if row and width not in (None, len(row)):
                    raise FileFormatError(
                        f"{path} line {reader.line_num} must have {width} cells, got {len(row)}; "
                        "quote cells that hold the separator"
                    )
                if row:
                    width = len(row)
                    yield row
    except csv.Error as error:
        raise FileFormatError(f"{path} must be a CSV file, got damaged content: {error}") from error
    finally:
        csv.field_size_limit(limit)


def _json_lines(path: Path) -> Iterator[Row]:
    """Yield one JSON object for each line; blank lines are skipped."""
    with _text(path) as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise FileFormatError(f"{path} line {number} must be JSON, got damaged content: {error}") from error
            if not isinstance(row, dict):
                raise FileFormatError(
                    f"{path} line {number} must be a JSON object, got {type(row).__name__}; "
                    'write {"text": …} on each line'
                )
            yield row


def _plain_lines(path: Path) -> Iterator[Row]:
    """Yield the lines of a text file; blank lines are skipped."""
    with _text(path) as file:
        for line in file:
            if line.strip():
                yield {"text": line.rstrip("\r\n")}


def _parquet_rows(path: Path) -> Iterator[Row]:
    """Yield the rows of a Parquet file."""
    with _parquet(path) as file:
        for batch in file.iter_batches(batch_size=PARQUET_ROWS):
            yield from batch.to_pylist()


@contextmanager
def _parquet(path: Path) -> Iterator[Any]:
    """Open a Parquet file (extra `parquet`)."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise MissingExtraError("reading a Parquet file", "parquet") from error
    try:
        with parquet.ParquetFile(path, page_checksum_verification=True) as file:
            yield file
    except (pyarrow.ArrowException, OSError) as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise FileFormatError(f"{path} must be a Parquet file, got other content: {error}") from error


def _ending(path: Path) -> str:
    """Return the extension in lower case, or the one before ``.gz`` if a file is compressed."""
    return Path(path.stem if path.suffix == ".gz" else path.name).suffix.lower()


@contextmanager
def _text(path: Path) -> Iterator[TextIO]:
    """Open a text file, compressed or not."""
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8-sig", newline="") as file:
            yield file
    except UnicodeDecodeError as error:
        raise FileFormatError(f"{path} must be a text file in UTF-8, got other bytes: {error}") from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise FileFormatError(f"{path} is truncated or damaged: {error}") from error

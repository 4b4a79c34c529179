"""Files of rows: CSV, TSV, JSON lines, Parquet, and plain text with one text a line. Read row by row, never whole."""

import csv
import gzip
import json
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from batchbalance.errors import FileFormatError, MissingExtraError

Row = dict[str, Any]  # cells by column

DELIMITERS = {".csv": ",", ".tsv": "\t"}
JSON_LINES = (".jsonl", ".ndjson")
ROW_ENDINGS = (*DELIMITERS, *JSON_LINES, ".parquet", ".txt")
PARQUET_ROWS = 1024  # read at a time


class RowFile(ABC):
    """A file of rows that can be gone through more than once.

    Attributes:
        path: the file.
        columns: the names of its columns.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.columns = self._columns()

    @abstractmethod
    def _columns(self) -> list[str]:
        """Return the names of the columns."""

    @abstractmethod
    def __iter__(self) -> Iterator[Row]:
        """Yield the rows in order."""


class Delimited(RowFile):
    """A CSV or TSV file with a header row; blank lines do not count."""

    def _columns(self) -> list[str]:
        header = next(self._cells(), [])
        if not header:
            raise FileFormatError(f"{self.path} must start with a row of column names, got an empty file")
        twice = next((name for name in header if header.count(name) > 1), None)
        if twice is not None:
            raise FileFormatError(f"{self.path} must have distinct column names, got {twice!r} more than once")
        return header

    def __iter__(self) -> Iterator[Row]:
        cells = self._cells()
        next(cells, None)
        for row in cells:
            yield dict(zip(self.columns, row, strict=True))

    def _cells(self) -> Iterator[list[str]]:
        limit = csv.field_size_limit(2**31 - 1)  # texts may be longer than its default
        try:
            with _text(self.path) as file:
                reader = csv.reader(file, delimiter=self._delimiter(file), strict=True)
                width = None
                for row in reader:
                    if row and width not in (None, len(row)):
                        raise FileFormatError(
                            f"{self.path} line {reader.line_num} must have {width} cells, got {len(row)}; "
                            "quote cells that hold the separator"
                        )
                    if row:
                        width = len(row)
                        yield row
        except csv.Error as error:
            raise FileFormatError(f"{self.path} must be a CSV file, got damage: {error}") from error
        finally:
            csv.field_size_limit(limit)

    def _delimiter(self, file: TextIO) -> str:
        """Return the separator: a semicolon if only that is in the header, as some spreadsheets write."""
        usual = DELIMITERS[_ending(self.path)]
        header = next(filter(str.strip, file), "")
        file.seek(0)
        return ";" if usual == "," and ";" in header and "," not in header else usual


class JsonLines(RowFile):
    """One JSON object a line; blank lines do not count. A row need not have all columns."""

    def _columns(self) -> list[str]:
        return list(dict.fromkeys(name for row in self for name in row))

    def __iter__(self) -> Iterator[Row]:
        with _text(self.path) as file:
            for number, line in enumerate(file, start=1):
                if not line.strip():
                    continue
                try:
                    row = json.loads(line)
                except (ValueError, RecursionError) as error:
                    raise FileFormatError(f"{self.path} line {number} must be JSON, got damage: {error}") from error
                if not isinstance(row, dict):
                    raise FileFormatError(
                        f"{self.path} line {number} must be a JSON object, got {type(row).__name__}; "
                        'write {"text": …} on each line'
                    )
                yield row


class PlainLines(RowFile):
    """A text file with one text a line, its column `text`; blank lines do not count."""

    def _columns(self) -> list[str]:
        return ["text"]

    def __iter__(self) -> Iterator[Row]:
        with _text(self.path) as file:
            for line in file:
                if line.strip():
                    yield {"text": line.rstrip("\r\n")}


class Parquet(RowFile):
    """A Parquet file (extra `parquet`)."""

    def _columns(self) -> list[str]:
        with self._opened() as file:
            return [str(name) for name in file.schema_arrow.names]

    def __iter__(self) -> Iterator[Row]:
        with self._opened() as file:
            for batch in file.iter_batches(batch_size=PARQUET_ROWS):
                yield from batch.to_pylist()

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        try:
            import pyarrow
            from pyarrow import parquet
        except ImportError as error:
            raise MissingExtraError("reading a Parquet file", "parquet") from error
        try:
            with parquet.ParquetFile(self.path, page_checksum_verification=True) as file:
                yield file
        except (pyarrow.ArrowException, OSError) as error:
            if isinstance(error, FileNotFoundError):
                raise
            raise FileFormatError(f"{self.path} must be a Parquet file, got damage or another kind: {error}") from error


def open_rows(path: Path) -> RowFile:
    """Open a file of rows by its extension; all but Parquet may be gzipped."""
    ending = _ending(path)
    if ending in DELIMITERS:
        return Delimited(path)
    if ending in JSON_LINES:
        return JsonLines(path)
    if ending == ".txt":
        return PlainLines(path)
    if ending == ".parquet" and path.suffix != ".gz":
        return Parquet(path)
    raise FileFormatError(
        f"{path} must be a folder, an image, or end in {', '.join(ROW_ENDINGS)}, got {path.suffix or 'no extension'!r}"
    )


def _ending(path: Path) -> str:
    return Path(path.stem if path.suffix == ".gz" else path.name).suffix.lower()


@contextmanager
def _text(path: Path) -> Iterator[TextIO]:
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8-sig", newline="") as file:
            yield file
    except UnicodeDecodeError as error:
        raise FileFormatError(f"{path} must be a text file in UTF-8, got other bytes: {error}") from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise FileFormatError(f"{path} is truncated or damaged: {error}") from error

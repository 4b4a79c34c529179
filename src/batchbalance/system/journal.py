"""A journal: JSON records in a file, one per line, appended durably by one process at a time.

Each line is a JSON array of its number, a checksum and the record:

    [3, "0f1e2d3c4b5a6978", {"round": 2, "trial": 0}]

The number counts the lines of the file from 1. The checksum is the first 16 hexadecimal digits of the SHA-256 of all
bytes before the line, followed by those of the record. So it also covers the lines above, and a line that is changed,
missing, repeated or moved is found when the file is read.

The lock is a file of its own, ``.trial-0.jsonl.lock`` beside ``trial-0.jsonl``. Readers need neither it nor the right
to write. It stays when the journal is closed, and may be deleted while no process has the journal open.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from batchbalance.errors import FileFormatError

Entry = dict[str, Any]

CHECKSUM_DIGITS = 16
SEALED = re.compile(rb'\[([1-9][0-9]*), "([0-9a-f]{%d})", (\{.*\})\]' % CHECKSUM_DIGITS, re.DOTALL)
REMEDY = "restore the file from a copy, or delete this line and all below it"


class Journal:
    """An open journal. No other process can open it until it is closed or its process ends, even by kill -9.

    Opening drops an incomplete last line; a record is durable once `append` has returned.

    Args:
        path: the file; created if missing. Its folder must exist.
        wait: wait until the journal is free instead of raising an error at once.

    Raises:
        OSError: if the folder cannot be written to.
        BlockingIOError: if another process, or another `Journal` of this one, has it open, unless `wait`.
        FileFormatError: if a line other than the last one is damaged.
    """

    def __init__(self, path: Path, *, wait: bool = False) -> None:
        self.path = path
        lock = FileLock(path.with_name(f".{path.name}.lock"), thread_local=False)
        try:
            lock.acquire(timeout=-1 if wait else 0)
        except Timeout as error:
            if not Path(lock.lock_file).exists():  # it is not locked: it could not be created
                raise OSError(f"cannot write {path}: {path.parent} must be a folder that can be written to") from error
            raise BlockingIOError(f"{path} is in use by another process; wait until it ends, or stop it") from error
        with ExitStack() as closing:
            closing.callback(lock.release)
            is_new = not path.exists()
            as_bytes = getattr(os, "O_BINARY", 0)  # Windows would write \r\n otherwise
            self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | as_bytes, 0o666)
            closing.callback(os.close, self._handle)
            content = path.read_bytes()
            self._lines = _CheckedLines(path, content)
            if self._lines.size < len(content):
                os.ftruncate(self._handle, self._lines.size)
                os.fsync(self._handle)
            if is_new:
                sync_folder(path.parent)
            self._closing = closing.pop_all()

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._lines.entries)

    def __len__(self) -> int:
        return len(self._lines.entries)

    def append(self, entry: Entry) -> None:
        """Add a record durably: once this returns, the record survives a crash.

        Raises:
            OSError: if writing fails, for example on a full disk; the earlier records are unchanged.
        """
        record = json.dumps(entry, allow_nan=False).encode()
        line = self._lines.sealed(record)
        try:
            written = 0
            while written < len(line):
                written += os.write(self._handle, line[written:])
            os.fsync(self._handle)
        except OSError as error:
            os.ftruncate(self._handle, self._lines.size)
            raise OSError(
                f"cannot write to {self.path}: {error.strerror or error}; all earlier records are intact: "
                "free space and run the same command again"
            ) from error
        self._lines.take(line, json.loads(record))

    def close(self) -> None:
        """Close the journal, so that others can open it."""
        self._closing.close()

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_journal(path: Path) -> list[Entry]:
    """Read the records of a journal that may be open elsewhere; an incomplete last line is ignored.

    Raises:
        FileFormatError: if a line other than the last one is damaged.
    """
    return _CheckedLines(path, path.read_bytes()).entries


def sync_folder(folder: Path) -> None:
    """Make a new name in a folder survive a crash; does nothing on Windows, where folders cannot be opened."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except PermissionError:
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class _CheckedLines:
    """The complete lines of a journal, checked.

    Attributes:
        entries: their records.
        size: their size in bytes; less than the size of the content if its last line is incomplete.
    """

    def __init__(self, path: Path, content: bytes) -> None:
        self.entries: list[Entry] = []
        self.size = 0
        self._path = path
        self._digest = hashlib.sha256()  # of the first `size` bytes
        *lines, rest = content.split(b"\n")
        for line in lines:
            self.take(line + b"\n", self._checked(line))
        match = SEALED.fullmatch(rest[:-1])
        if match is not None and self.sealed(match[3]) == rest[:-1] + b"\n":  # the newline was changed, not cut off
            raise self._error("must end with a newline", f"{rest[-1:]!r}")

    def take(self, line: bytes, entry: Entry) -> None:
        """Add a line."""
        self.entries.append(entry)
        self.size += len(line)
        self._digest.update(line)

    def sealed(self, record: bytes) -> bytes:
        """Return a record as the next line."""
        digest = self._digest.copy()
        digest.update(record)
        return b'[%d, "%s", %s]\n' % (self._number, digest.hexdigest()[:CHECKSUM_DIGITS].encode(), record)

    @property
    def _number(self) -> int:
        return len(self.entries) + 1

    def _checked(self, line: bytes) -> Entry:
        """Return the record of the next line if its number and checksum are right."""
        match = SEALED.fullmatch(line)
        if match is None:
            raise self._error("must be its number, a checksum and a record in brackets", f"{line[:40]!r}")
        if match[1] != b"%d" % self._number:
            raise self._error(f"must be number {self._number}", f"{match[1].decode()}: lines are missing or moved")
        if self.sealed(match[3]) != line + b"\n":
            raise self._error("must match its checksum", "another one: this line or one above it was changed")
        try:
            entry: Entry = json.loads(match[3])
        except (ValueError, RecursionError) as error:
            raise self._error("must be JSON", f"damage: {error}") from error
        return entry

    def _error(self, wanted: str, got: str) -> FileFormatError:
        return FileFormatError(f"line {self._number} of {self._path} {wanted}, got {got}; {REMEDY}")

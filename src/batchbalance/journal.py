"""A journal: JSON records in a file, one a line, appended durably by one process at a time.

The lock is a file of its own, ``.trial-0.jsonl.lock`` beside ``trial-0.jsonl``. Readers need neither it nor the right
to write. It stays when the journal is closed, and may be deleted while no process has the journal open.
"""

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from batchbalance.errors import FileFormatError

Entry = dict[str, Any]


class Journal:
    """An open journal. Nobody else can open it until it is closed or its process ends, by kill -9 too.

    Opening drops a last line that was cut short; what `append` returned from stays for good.

    Args:
        path: the file; made if it is not there. Its folder must exist.
        wait: wait until it is free, instead of refusing at once.

    Raises:
        BlockingIOError: if another process, or another `Journal` of this one, has it open, unless `wait`.
        FileFormatError: if a line other than the last one is damaged.
    """

    def __init__(self, path: Path, *, wait: bool = False) -> None:
        self.path = path
        lock = FileLock(path.with_name(f".{path.name}.lock"), thread_local=False)
        try:
            lock.acquire(timeout=-1 if wait else 0)
        except Timeout as error:
            raise BlockingIOError(f"{path} is in use by another process; wait until it ends, or stop it") from error
        with ExitStack() as closing:
            closing.callback(lock.release)
            is_new = not path.exists()
            as_bytes = getattr(os, "O_BINARY", 0)  # Windows would write \r\n otherwise
            self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | as_bytes, 0o666)
            closing.callback(os.close, self._handle)
            self._entries, size = _parsed(path)
            if size < os.fstat(self._handle).st_size:
                os.ftruncate(self._handle, size)
                os.fsync(self._handle)
            if is_new:
                sync_folder(path.parent)
            self._closing = closing.pop_all()

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def append(self, entry: Entry) -> None:
        """Add a record; once this returns it survives a crash.

        Raises:
            OSError: if it could not be written, on a full disk say; the earlier records are as they were.
        """
        line = (json.dumps(entry, allow_nan=False) + "\n").encode()
        before = os.fstat(self._handle).st_size
        try:
            written = 0
            while written < len(line):
                written += os.write(self._handle, line[written:])
            os.fsync(self._handle)
        except OSError as error:
            os.ftruncate(self._handle, before)
            raise OSError(
                f"cannot write to {self.path}: {error.strerror or error}; all earlier records are intact: "
                "make room and start the same command again"
            ) from error
        self._entries.append(json.loads(line))

    def close(self) -> None:
        """Let others open it."""
        self._closing.close()

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_journal(path: Path) -> list[Entry]:
    """The records of a journal that may be open elsewhere; a last line that was cut short is ignored."""
    return _parsed(path)[0]


def sync_folder(folder: Path) -> None:
    """Make a new name in a folder survive a crash, where folders can be opened: Windows refuses."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except PermissionError:
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _parsed(path: Path) -> tuple[list[Entry], int]:
    """The records, and the size of the file without a last line that was cut short."""
    content = path.read_bytes()
    size = content.rfind(b"\n") + 1
    entries: list[Entry] = []
    for number, line in enumerate(content[:size].splitlines(), start=1):
        try:
            entry = json.loads(line)
        except ValueError as error:
            raise FileFormatError(f"line {number} of {path} must be JSON, got damage: {error}; restore it") from error
        if not isinstance(entry, dict):
            raise FileFormatError(f"line {number} of {path} must be a JSON object, got {type(entry).__name__}")
        entries.append(entry)
    return entries, size

"""A log of events in an SQLite database: append-only, durable, shared by processes, with detection of damage.

Every event holds a hash of itself and of the one before; the table `head` holds the number and the hash of the last
one. So an event that was changed, lost, repeated or moved is detected when it is read. (SQLite's pages have no
checksums: a third of random bit flips pass its integrity check with changed rows.)

Writes are transactions that begin with the write lock (BEGIN IMMEDIATE), with a rollback journal and synchronous=EXTRA:
once a transaction has ended, all of it is in the one file, and that file is on disk. So a copy of the file alone is
complete, or, if made during a transaction, refused by the hashes. A write-ahead log would save 20 ms per transaction,
but its events are silently lost if one of its bits flips or the database is copied without it.

If a process is killed during a transaction, the journal remains, with the pages from before it. SQLite restores them
when the file is next opened. If the journal is damaged or missing, old and new pages may be mixed, and a mixture never
has the right hashes.
"""

import hashlib
import json
import os
import sqlite3
import tempfile
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from batchbalance.errors import FileFormatError
from batchbalance.learner.labels.machines import is_on_network, only_this_machine
from batchbalance.system.ids import check_unicode, mended
from batchbalance.system.journal import sync_folder

APPLICATION = 0x42424C47  # in the header of the file
VERSION = 1
BUSY_SECONDS = 30.0
SYNCHRONOUS = "EXTRA"  # also syncs the folder; otherwise a deleted journal might reappear after a crash
START = bytes(32)  # the previous hash of the first event
SCHEMA = (
    "CREATE TABLE head (only INTEGER PRIMARY KEY CHECK (only = 1), number INTEGER NOT NULL, hash BLOB NOT NULL)",
    "CREATE TABLE items (row INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, content TEXT, digest TEXT NOT NULL, "
    "is_audit INTEGER NOT NULL)",
    "CREATE TABLE events (number INTEGER PRIMARY KEY, time REAL NOT NULL, kind TEXT NOT NULL, who TEXT, item INTEGER, "
    "value TEXT NOT NULL, seconds REAL, batch INTEGER, hash BLOB NOT NULL)",
    "CREATE TRIGGER events_stay BEFORE UPDATE ON events BEGIN SELECT RAISE(ABORT, 'events are never changed'); END",
    "CREATE TRIGGER events_last BEFORE DELETE ON events BEGIN SELECT RAISE(ABORT, 'events are never deleted'); END",
    "CREATE VIEW batches AS SELECT batch, who, min(time) AS time, count(DISTINCT item) AS questions FROM events "
    "WHERE kind = 'asked' GROUP BY batch, who",
)


@dataclass(frozen=True)
class NewEvent:
    """An event that is not in the log yet.

    Attributes:
        kind: its kind, such as "asked" or "labelled".
        item: the row of its item.
        value: further data; anything that JSON can hold.
        who: the person; None if unknown.
        seconds: how long the person took.
        batch: the number of its batch.
    """

    kind: str
    item: int | None = None
    value: Any = None
    who: str | None = None
    seconds: float | None = None
    batch: int | None = None


@dataclass(frozen=True)
class Event(NewEvent):
    """An event of the log.

    Attributes:
        number: counted from 1.
        time: when it was written, in seconds since 1970.
    """

    number: int = 0
    time: float = 0.0


class EventLog:
    """An open log. Other processes may read and write it at the same time.

    Args:
        path: the file, created if missing; its folder must exist. None keeps the log in memory. A read-only file
            can be read.

    Attributes:
        notes: remarks for the user about its storage.

    Raises:
        FileFormatError: if it is damaged or not a log.
        OSError: if it cannot be opened or written to.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.notes: tuple[str, ...] = ()
        self._lock = threading.RLock()
        self._hash, self._number = START, 0
        self._events: list[Event] = []
        self._is_writing = False
        with self._told_plainly():
            if path is not None and not path.exists():
                _create(path)
            self._connection = _connected(":memory:" if path is None else str(path))
            self._finalizer = weakref.finalize(self, self._connection.close)
            try:
                self._prepare()
            except UnicodeDecodeError as error:  # SQLite quotes a damaged schema
                raise self._damage("its tables cannot be read") from error
        self.events()

    def events(self) -> list[Event]:
        """Return all events so far, including those of other processes."""
        with self._lock, self._told_plainly():
            if self._is_writing:
                return self._events
            self._connection.execute("BEGIN")
            try:
                self._read()
            finally:
                self._connection.rollback()
            return self._events

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Begin a transaction: no other process writes until it ends, and `events` includes all events before it.

        Appended events are durable once it has ended; after an error, nothing is changed.
        """
        with self._lock, self._told_plainly():
            if self._is_writing:
                raise RuntimeError("a transaction of the log must not begin within another one")
            self._connection.execute("BEGIN IMMEDIATE")
            state = None
            self._is_writing = True
            try:
                self._read()
                state = self._hash, self._number, len(self._events)
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                if state is not None:
                    self._hash, self._number = state[:2]
                    del self._events[state[2] :]
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise
            finally:
                self._is_writing = False

    def append(self, new: Sequence[NewEvent]) -> list[Event]:
        """Add events, within `writing`."""
        if not self._is_writing:
            raise RuntimeError("events must be appended within `writing`")
        now = round(time.time(), 3)
        added = []
        for each in new:
            number = self._number + 1
            text = json.dumps(each.value, allow_nan=False)
            if "\\ud" in text:
                check_unicode(f"what is stored ({each.kind})", json.dumps(each.value, ensure_ascii=False))
            columns = (number, now, each.kind, each.who, each.item, text, each.seconds, each.batch)
            digest = _digest(self._hash, columns)
            self._connection.execute("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", (*columns, digest))
            value = json.loads(text)
            added.append(Event(each.kind, each.item, value, each.who, each.seconds, each.batch, number, now))
            self._hash, self._number = digest, number
        self._connection.execute("UPDATE head SET number = ?, hash = ?", (self._number, self._hash))
        self._events += added
        return added

    def query(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a SELECT."""
        with self._lock, self._told_plainly():
            return self._connection.execute(statement, values).fetchall()

    def check(self) -> list[str]:
        """Return the problems that SQLite's integrity check finds; empty if there are none."""
        with self._lock, self._told_plainly():
            found = [str(row[0]) for row in self._connection.execute("PRAGMA integrity_check")]
        return [] if found == ["ok"] else found

    def close(self) -> None:
        """Close the file."""
        self._finalizer()

    def _prepare(self) -> None:
        """Set up the connection, and check that the database is a log of this package."""
        run = self._connection.execute
        if self.path is None:
            _make_tables(self._connection)
            return
        if not (os.access(self.path, os.W_OK) and os.access(self.path.parent, os.W_OK)):
            self.notes = (f"{self.path.parent} is read-only: nothing can be added",)
        elif is_on_network(self.path.parent):
            only_this_machine(self, self.path)
            self.notes = (f"{self.path.parent} is on a network file system: only one machine at a time may use it",)
        ids = [run(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")]
        if ids != [APPLICATION, VERSION]:
            raise FileFormatError(
                f"{self.path} must be a log of labels of version {VERSION}, got another database or a damaged one; "
                "restore it from a copy, or name another folder"
            )
        run("PRAGMA journal_mode = DELETE")
        run(f"PRAGMA synchronous = {SYNCHRONOUS}")
        run("PRAGMA cell_size_check = ON")
        found = run("PRAGMA quick_check(1)").fetchone()[0]  # or the next event might overwrite another one
        if found != "ok":
            raise self._damage(str(found).splitlines()[-1])

    def _read(self) -> None:
        """Read new events; each must follow the one before, and the last must match the head."""
        rows = self._connection.execute("SELECT * FROM events WHERE number > ? ORDER BY number", (self._number,))
        digest, number, found = self._hash, self._number, []
        for *columns, stored in rows:
            number += 1
            digest = _digest(digest, columns)
            if columns[0] != number or stored != digest:
                raise self._damage(f"event {number} does not match its hash")
            _, moment, kind, who, item, value, seconds, batch = columns
            found.append(Event(kind, item, self._mended(json.loads(value)), who, seconds, batch, number, moment))
        head = self._connection.execute("SELECT number, hash FROM head").fetchall()
        if head != [(number, digest)]:
            raise self._damage(f"events after number {number} are missing, or its head does not match")
        self._hash, self._number = digest, number
        self._events += found

    def _mended(self, value: Any) -> Any:
        """Return a value with each lone surrogate replaced by U+FFFD."""
        if not isinstance(value, str) or value.isascii() or mended(value) == value:
            return value
        note = "a note has half a character (a lone surrogate); it is shown and exported as \ufffd"
        self.notes = tuple(dict.fromkeys([*self.notes, note]))
        return mended(value)

    def _damage(self, what: str) -> FileFormatError:
        return FileFormatError(f"{self.path} is damaged: {what}; restore it from a copy")

    @contextmanager
    def _told_plainly(self) -> Iterator[None]:
        """Raise errors of SQLite as errors of this package, with one-sentence messages."""
        try:
            yield
        except sqlite3.ProgrammingError as error:  # the connection is closed
            raise ValueError(f"the log {self.path} is closed; open it again") from error
        except sqlite3.Error as error:
            raise self._error(error) from error

    def _error(self, error: sqlite3.Error) -> Exception:
        said = str(error)
        if "locked" in said or "busy" in said:
            return BlockingIOError(f"{self.path} is in use by another process; try again when it has finished")
        if "full" in said or "disk I/O" in said:
            return OSError(
                f"cannot write to {self.path}: {said}; all earlier events are intact: free some space and try again"
            )
        if "unable to open" in said:
            try:
                Path(os.devnull).open("rb").close()  # not the database itself: closing it would release SQLite's locks
            except OSError as told:  # too many open files, which SQLite does not report
                return OSError(told.errno, told.strerror, str(self.path))
        if "readonly" in said or "unable to open" in said or "authorized" in said:
            return PermissionError(
                f"cannot write to {self.path}: {said}; its folder must exist and be writable: copy it to such a folder"
            )
        return self._damage(said)


def _connected(where: str) -> sqlite3.Connection:
    return sqlite3.connect(where, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)


def _create(path: Path) -> None:
    """Create a log without events atomically, so that an empty file is always damage, never a new log.

    If another process creates a log at the same time, that log is kept.
    """
    try:
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}-") as folder:
            made = Path(folder) / path.name
            with closing(_connected(str(made))) as connection:
                _make_tables(connection)
            try:
                os.link(made, path)
            except FileExistsError:
                return
            except OSError:  # a file system without links
                made.rename(path)
            sync_folder(path.parent)
    except OSError as error:
        raise PermissionError(
            f"cannot write to {path}: {error.strerror or error}; its folder must exist and be writable"
        ) from error


def _make_tables(connection: sqlite3.Connection) -> None:
    connection.execute("BEGIN IMMEDIATE")
    for statement in SCHEMA:
        connection.execute(statement)
    connection.execute("INSERT INTO head VALUES (1, 0, ?)", (START,))
    connection.execute(f"PRAGMA application_id = {APPLICATION}")
    connection.execute(f"PRAGMA user_version = {VERSION}")
    connection.execute("COMMIT")


def _digest(before: bytes, columns: Sequence[Any]) -> bytes:
    """Return the hash of an event: of the previous hash and of all its columns."""
    content = json.dumps([value.hex() if isinstance(value, bytes) else value for value in columns])
    return hashlib.sha256(before + content.encode()).digest()

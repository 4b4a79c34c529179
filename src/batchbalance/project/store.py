"""The database of a project: its items, the log of all events, and the state derived from them.

A row of `items` is a row of the embeddings. Each "items added" event holds a hash of its rows, so silent damage to
items is detected as it is for events.
"""

import hashlib
import json
import re
import threading
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from batchbalance.errors import FileFormatError
from batchbalance.learner.labels import Event, EventLog, NewEvent
from batchbalance.project.settings import SourceKind
from batchbalance.project.state import State
from batchbalance.system.ids import check_unicode
from batchbalance.system.spreadsheets import meanings

FILE = "labels.sqlite"
BLOCK = 10_000  # items written or looked up at a time
MANY = 500  # values in one statement; SQLite takes no more than 999 in old versions


@dataclass(frozen=True)
class NewItem:
    """An item to add.

    Attributes:
        id: its name.
        content: the text, the row as JSON, or the file's path within the folder; None for a bare embedding.
        digest: a hash of the content; equal for exact duplicates.
        is_audit: whether it belongs to the audit set.
    """

    id: str
    content: str | None
    digest: str
    is_audit: bool = False


@dataclass(frozen=True)
class ShownItem:
    """An item as a person sees it.

    Attributes:
        id: of the item.
        text: the text; "" if there is none.
        image: the file of an image, or None.
        fields: the columns of a row of a table, name and value; "" for an empty cell.
    """

    id: str
    text: str = ""
    image: Path | None = None
    fields: tuple[tuple[str, str], ...] = ()


class ProjectStore:
    """Items, events, and the state derived from them. Threads may share it.

    Args:
        folder: the folder of the database, which is created if necessary.

    Attributes:
        log: the events.
        lock: held while the state is read or events are written.
        num_items: the number of items.
        is_audit: (N,) which items belong to the audit set.
    """

    def __init__(self, folder: Path) -> None:
        self.log = EventLog(folder / FILE)
        self.lock = threading.RLock()
        self._state = State()
        self.num_items = 0
        self.is_audit = np.zeros(0, dtype=bool)
        self._added = 0  # number of the last event checked for new items
        self.events()
        # A transaction that was interrupted and could not be rolled back may leave items without their event.
        ((num_rows, number),) = self.log.query("SELECT coalesce((SELECT max(row) FROM items) + 1, 0), number FROM head")
        if number == self._added and num_rows != self.num_items:
            raise self._damage("it has items that were never added")

    @contextmanager
    def reading(self) -> Iterator[State]:
        """Hold the lock and yield the current state."""
        with self.lock:
            self._state.update(self.events())
            yield self._state

    def snapshot(self) -> State:
        """Return a copy of the current state, which later events do not change."""
        state = State()
        with self.lock:
            state.update(list(self.events()))
        return state

    @contextmanager
    def writing(self) -> Iterator[State]:
        """Begin a transaction and yield the state in it; `append` adds events."""
        with self.lock, self.log.writing(), self.reading() as state:
            yield state

    def append(self, events: Sequence[NewEvent]) -> None:
        """Add events, within `writing`."""
        self.log.append(events)

    def events(self) -> list[Event]:
        """Return all events so far, and check items that were added since the last call."""
        events = self.log.events()
        for event in events[self._added :]:
            if event.kind == "items added":
                self._take_in(event)
        self._added = len(events)
        return events

    def add_items(self, items: Iterable[NewItem], note: str) -> int:
        """Add items, whose ids must be new, and their event in one transaction; return their number."""
        digest, expected = hashlib.sha256(), self.num_items
        with self.log.writing() as connection:
            self.events()
            first = row = self.num_items
            if first != expected:
                raise BlockingIOError(f"another process has added items to {self.log.path} in the meantime; try again")
            iterator = iter(items)
            while block := list(islice(iterator, BLOCK)):
                rows = [(row + i, x.id, x.content, x.digest, int(x.is_audit)) for i, x in enumerate(block)]
                connection.executemany("INSERT INTO items VALUES (?, ?, ?, ?, ?)", rows)
                for each in rows:
                    digest.update(_line(each[0], each[1], each[3], each[4]))
                row += len(rows)
            value = {"first": first, "count": row - first, "digest": digest.hexdigest(), "from": note}
            self.log.append([NewEvent("items added", value=value)])
        self.events()
        return row - first

    def set_aside(self, state: State) -> np.ndarray:
        """Return (N,) which items measure the model: the audit set, without labels that were added as chosen."""
        aside = self.is_audit.copy()
        aside[state.chosen()] = False
        return aside

    def has(self, name: str) -> bool:
        """Return whether the index has an item with this id."""
        return bool(self.log.query("SELECT 1 FROM items WHERE id = ?", (name,)))

    def row_of(self, name: Any, where: str = "") -> int:
        """Return the row of an id. Whole numbers are read as text.

        Args:
            name: the id.
            where: the line of a file that names it, for the message.

        Raises:
            ValueError: if no item has that id.
        """
        for meaning in meanings(str(name)):
            row = self._row(normal_id(meaning))
            if row is not None:
                return row
        at = f"{where}: " if where else ""
        raise ValueError(f"{at}ids must be those of items in this project, got {str(name)!r}")

    def rows_of(self, names: Iterable[Any]) -> list[int]:
        """Return the rows of ids."""
        return [self.row_of(name) for name in names]

    def _row(self, name: str) -> int | None:
        """Return the row of an id as it is stored; None if there is none."""
        found = self.log.query("SELECT row FROM items WHERE id = ?", (name,))
        if not found:
            if self.log.query("SELECT 1 FROM items NOT INDEXED WHERE id = ?", (name,)):
                raise self._damage(f"its index has lost {name!r}")
            return None
        # Bypass the index, which is not covered by a hash.
        if self.ids([found[0][0]]) != [name]:
            raise self._damage(f"its index has another row for {name!r}")
        return int(found[0][0])

    def ids(self, rows: Sequence[int] | None = None) -> list[str]:
        """Return the ids of some rows, or of all."""
        if rows is None:
            return [name for (name,) in self.log.query("SELECT id FROM items NOT INDEXED ORDER BY row")]
        return [str(name) for name, *_ in self._of(rows, "id")]

    def matching(self, text: str, count: int) -> list[int]:
        """Return up to `count` rows whose id or content has every word of a text, in the order of rows.

        Letters of either case match. Contents are texts, rows of tables as JSON, and paths of images.
        """
        tests, values = [], list[str]()
        for word in text.split():
            escaped = re.sub(r"([\\%_])", r"\\\1", word)
            # LIKE ignores the case of ASCII letters only.
            forms = {escaped} if word.isascii() else {escaped, escaped.lower(), escaped.upper(), escaped.capitalize()}
            likes = [f"{column} LIKE ? ESCAPE '\\'" for column in ("id", "content") for _ in forms]
            tests.append(f"({' OR '.join(likes)})")
            values += [f"%{form}%" for form in [*forms, *forms]]
        if not tests:
            return []
        query = f"SELECT row FROM items NOT INDEXED WHERE {' AND '.join(tests)} ORDER BY row LIMIT ?"
        return [int(row) for (row,) in self.log.query(query, [*values, count])]

    def contents(self, rows: Sequence[int]) -> list[str | None]:
        """Return the contents of some items; texts and table rows are checked against their hashes."""
        is_whole = self.kind in ("texts", "table")
        found = self._of(rows, "content, digest, id")
        for content, digest, name in found:
            if is_whole and digest_of(str(content).encode()) != digest:
                raise self._damage(f"the content of {name!r} does not match its hash")
        return [content for content, *_ in found]

    @property
    def kind(self) -> SourceKind:
        """The kind of items."""
        kind: SourceKind = self.events()[0].value["kind"]
        return kind

    def shown(self, rows: Sequence[int], root: Path | None) -> list[ShownItem]:
        """Return items as a person sees them; images are in the folder `root`."""
        pairs = zip(self.ids(rows), self.contents(rows), strict=True)
        return [shown_item(self.kind, name, content, root) for name, content in pairs]

    def digests(self) -> list[str]:
        """Return the digests of all items."""
        return [digest for (digest,) in self.log.query("SELECT digest FROM items NOT INDEXED ORDER BY row")]

    def _of(self, rows: Sequence[int], column: str) -> list[tuple[Any, ...]]:
        found: dict[int, tuple[Any, ...]] = {}
        for start in range(0, len(rows), MANY):
            part = [int(row) for row in rows[start : start + MANY]]
            marks = ", ".join("?" * len(part))
            for row, *values in self.log.query(f"SELECT row, {column} FROM items WHERE row IN ({marks})", part):
                found[row] = tuple(values)
        missing = next((row for row in rows if int(row) not in found), None)
        if missing is not None:
            raise self._damage(f"its item {missing} is missing")
        return [found[int(row)] for row in rows]

    def _take_in(self, event: Event) -> None:
        """Check the items that came with an event."""
        first, count = event.value["first"], event.value["count"]
        digest, done = hashlib.sha256(), 0
        is_audit = np.zeros(count, dtype=bool)
        try:
            for start in range(first, first + count, BLOCK):
                for row, name, digest_of, audit in self.log.query(
                    "SELECT row, id, digest, is_audit FROM items WHERE row >= ? AND row < ? ORDER BY row",
                    (start, min(start + BLOCK, first + count)),
                ):
                    digest.update(_line(row, name, digest_of, audit))
                    is_audit[done], done = bool(audit), done + 1
        except (TypeError, ValueError) as error:  # a value has another type than was written
            raise self._damage("its items do not match their hash") from error
        if done != count or digest.hexdigest() != event.value["digest"]:
            raise self._damage("its items do not match their hash")
        self.is_audit = np.concatenate([self.is_audit, is_audit])
        self.num_items += count

    def _damage(self, what: str) -> FileFormatError:
        return FileFormatError(f"{self.log.path} is damaged: {what}; restore it from a copy")


def normal_id(name: str) -> str:
    """Return an id as stored, in Unicode normalization form C."""
    return name if name.isascii() else unicodedata.normalize("NFC", check_unicode("an id", name))


def digest_of(content: bytes) -> str:
    """Return the hash of an item's content."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _line(row: int, name: str, digest: str, is_audit: int) -> bytes:
    return f"{row}\x1f{len(name)}\x1f{name}\x1f{digest}\x1f{is_audit}\n".encode()


def shown_item(kind: SourceKind, name: str, content: str | None, root: Path | None) -> ShownItem:
    """Return an item as a person sees it, from its stored content."""
    if kind == "images" and root is not None and content is not None:
        return ShownItem(name, image=root / content)
    if kind == "table" and content is not None:
        row = json.loads(content)
        return ShownItem(name, fields=tuple((key, "" if value is None else str(value)) for key, value in row.items()))
    return ShownItem(name, content or "")

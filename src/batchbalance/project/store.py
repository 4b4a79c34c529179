"""What a project keeps in its database: its items, and the log of all that happened to them.

A row of `items` is a row of the embeddings. Each "items added" event holds a hash of the rows that came with it, so
that items are as safe from silent damage as events are.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from batchbalance.errors import FileFormatError
from batchbalance.learner.labels import Event, EventLog, NewEvent

FILE = "labels.sqlite"
BLOCK = 10_000  # items written or looked up at a time
MANY = 500  # values in one statement; SQLite takes no more than 999 in old versions


@dataclass(frozen=True)
class NewItem:
    """An item to add.

    Attributes:
        id: its name.
        content: the text, the row as JSON, or the file's path within the folder; None for a bare embedding.
        digest: a hash of what it is; equal for exact duplicates.
        cost: of a label.
        is_audit: whether it is set aside to measure by.
    """

    id: str
    content: str | None
    digest: str
    cost: float = 1.0
    is_audit: bool = False


class ProjectStore:
    """Items and events.

    Args:
        folder: where the database is; it is made if it is not there.
    """

    def __init__(self, folder: Path) -> None:
        self.log = EventLog(folder / FILE)
        self._num_items = 0
        self._costs = np.ones(0)
        self._is_audit = np.zeros(0, dtype=bool)
        self._added = 0  # number of the last event that was looked at for new items
        self.events()
        # A transaction that was cut short and could not be undone may leave items without their event.
        ((num_rows, number),) = self.log.query("SELECT coalesce((SELECT max(row) FROM items) + 1, 0), number FROM head")
        if number == self._added and num_rows != self._num_items:
            raise self._damage("it has items that were never added")

    def events(self) -> list[Event]:
        """All events by now; items that came with new ones are checked."""
        events = self.log.events()
        for event in events[self._added :]:
            if event.kind == "items added":
                self._take_in(event)
        self._added = len(events)
        return events

    @property
    def num_items(self) -> int:
        """How many items there are."""
        return self._num_items

    @property
    def costs(self) -> np.ndarray:
        """(N,) the cost of a label of each item."""
        return self._costs

    @property
    def is_audit(self) -> np.ndarray:
        """(N,) which items are set aside."""
        return self._is_audit

    def add_items(self, items: Iterable[NewItem], note: str) -> int:
        """Add items, whose ids must be new, and the event that they came, in a transaction; how many there were."""
        digest, expected = hashlib.sha256(), self._num_items
        with self.log.writing() as connection:
            self.events()
            first = row = self._num_items
            if first != expected:
                raise BlockingIOError(f"another process has added items to {self.log.path} in the meantime; try again")
            iterator = iter(items)
            while block := list(islice(iterator, BLOCK)):
                rows = [(row + i, x.id, x.content, x.digest, x.cost, int(x.is_audit)) for i, x in enumerate(block)]
                connection.executemany("INSERT INTO items VALUES (?, ?, ?, ?, ?, ?)", rows)
                for each in rows:
                    digest.update(_line(each[0], each[1], each[3], each[4], each[5]))
                row += len(rows)
            value = {"first": first, "count": row - first, "digest": digest.hexdigest(), "from": note}
            self.log.append([NewEvent("items added", value=value)])
        self.events()
        return row - first

    def has(self, name: str) -> bool:
        """Whether there is an item of that id, by the index alone."""
        return bool(self.log.query("SELECT 1 FROM items WHERE id = ?", (name,)))

    def row_of(self, name: str) -> int | None:
        """The row of an id; None if there is none."""
        found = self.log.query("SELECT row FROM items WHERE id = ?", (name,))
        if not found:
            if self.log.query("SELECT 1 FROM items NOT INDEXED WHERE id = ?", (name,)):
                raise self._damage(f"its index has lost {name!r}")
            return None
        # Not by the index, which no hash covers.
        if self.ids([found[0][0]]) != [name]:
            raise self._damage(f"its index has another place for {name!r}")
        return int(found[0][0])

    def ids(self, rows: Sequence[int] | None = None) -> list[str]:
        """The ids of some rows, or of all."""
        if rows is None:
            return [name for (name,) in self.log.query("SELECT id FROM items NOT INDEXED ORDER BY row")]
        return [str(name) for name, *_ in self._of(rows, "id")]

    def contents(self, rows: Sequence[int]) -> list[str | None]:
        """What some items hold; texts and rows of tables, which the database holds all of, are checked."""
        is_whole = self.events()[0].value["kind"] in ("texts", "table")
        found = self._of(rows, "content, digest, id")
        for content, digest, name in found:
            if is_whole and digest_of(str(content).encode()) != digest:
                raise self._damage(f"what {name!r} holds does not match its hash")
        return [content for content, *_ in found]

    def digests(self) -> list[str]:
        """The digests of all items."""
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
        first, count, wanted = event.value["first"], event.value["count"], event.value["digest"]
        digest = hashlib.sha256()
        costs, is_audit = np.ones(count), np.zeros(count, dtype=bool)
        done = 0
        try:
            for row, name, digest_of, cost, audit in islice(self._lines(first, count), count):
                digest.update(_line(row, name, digest_of, cost, audit))
                costs[done], is_audit[done] = float(cost), bool(audit)
                done += 1
        except (TypeError, ValueError) as error:  # a value of another type than was written
            raise self._damage("its items do not match their hash") from error
        if done != count or digest.hexdigest() != wanted:
            raise self._damage("its items do not match their hash")
        self._costs = np.concatenate([self._costs, costs])
        self._is_audit = np.concatenate([self._is_audit, is_audit])
        self._num_items += count

    def _damage(self, what: str) -> FileFormatError:
        return FileFormatError(f"{self.log.path} is damaged: {what}; restore it from a copy")

    def _lines(self, first: int, count: int) -> Iterator[tuple[Any, ...]]:
        for start in range(first, first + count, BLOCK):
            yield from self.log.query(
                "SELECT row, id, digest, cost, is_audit FROM items WHERE row >= ? AND row < ? ORDER BY row",
                (start, min(start + BLOCK, first + count)),
            )


def digest_of(content: bytes) -> str:
    """The hash of what an item is."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _line(row: int, name: str, digest: str, cost: float, is_audit: int) -> bytes:
    return f"{row}\x1f{len(name)}\x1f{name}\x1f{digest}\x1f{cost!r}\x1f{is_audit}\n".encode()

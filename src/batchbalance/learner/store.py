"""The memory of a learner: its questions and the answers, in order.

Everything else is computed again from these and the data, so the process that asked need not run until the labels
arrive. They are events of an `EventLog`: an item is a row of the inputs, a label the number of a class.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from batchbalance.errors import FileFormatError, UnknownNameError
from batchbalance.learner.labels import EventLog, Id, Label, NewEvent, other, plain
from batchbalance.system.journal import Entry, sync_folder

FILE = "labels.sqlite"


@dataclass(frozen=True)
class Known:
    """The state after all events, by rows of the inputs.

    Attributes:
        labels: the class of each labelled row, or the list of its classes if a point may have several.
        asked: rows that were asked and have no label yet, in the order they were asked.
        round: the number of times that new points were chosen.
        label_round: the value of `round` when the last label arrived.
        num_events: the number of events.
    """

    labels: dict[int, Any]
    asked: list[int]
    round: int
    label_round: int
    num_events: int


class Store:
    """Events about N points, in memory or in a database that other processes may use too.

    Args:
        ids: names of the points.
        classes: the possible labels.
        directory: the folder of the database, created if missing; None keeps events in memory.
        events: the initial events of a log in memory: {"event": "asked", "ids": …} and {"event": "told", "ids": …,
            "labels": …}.
        several: whether a point may have several labels, or none; its label is then a list.
    """

    def __init__(
        self,
        ids: Sequence[Id],
        classes: Sequence[Label],
        directory: str | os.PathLike[str] | None = None,
        events: Iterable[Entry] = (),
        *,
        several: bool = False,
    ) -> None:
        self.ids, self.classes, self.several = list(ids), list(classes), several
        self._row_of = {name: row for row, name in enumerate(self.ids)}
        if directory is None:
            self._log = EventLog(None)
            self._begin(list(events))
        else:
            folder = Path(directory)
            folder.mkdir(parents=True, exist_ok=True)
            sync_folder(folder)
            self._log = EventLog(folder / FILE)
            self._begin([])

    def known(self) -> Known:
        """Return the state after all events so far."""
        labels: dict[int, Any] = {}
        asked: dict[int, None] = {}
        rounds = label_round = num_events = 0
        for event in self._log.events():
            num_events = event.number
            if event.kind == "asked" and event.item is not None and event.batch is not None:
                asked[event.item] = None
                rounds = event.batch + 1
            elif event.kind in ("labelled", "corrected") and event.item is not None:
                labels[event.item] = event.value
                label_round = rounds
        return Known(labels, [row for row in asked if row not in labels], rounds, label_round, num_events)

    def add_question(self, rows: Sequence[int], known: Known) -> bool:
        """Record that these rows were asked, chosen given `known`; return False if there are newer events."""
        with self._log.writing():
            if self.known().num_events != known.num_events:
                return False
            self._log.append([NewEvent("asked", row, batch=known.round) for row in rows])
            return True

    def add_answers(self, ids: Iterable[Any], labels: Iterable[Any], *, correct: bool) -> None:
        """Record labels, or none of them if one is invalid. Arguments as in ``Learner.tell``."""
        names, told = [plain(name) for name in ids], list(labels)
        if len(names) != len(told):
            raise ValueError(f"`labels` must be one for each of {len(names)} ids, got {len(told)}")
        rows = [self._row(name) for name in names]
        classes = [self._class(label) for label in told]
        with self._log.writing():
            answers = dict(self.known().labels)
            events = []
            for row, label in zip(rows, classes, strict=True):
                before = answers.setdefault(row, label)
                if before != label and not correct:
                    old, new = self.named(before), self.named(label)
                    raise ValueError(
                        f"{self.ids[row]!r} must keep its label {old!r}, got {new!r}; use correct=True to change it"
                    )
                answers[row] = label
                events.append(NewEvent("labelled" if before == label else "corrected", row, label))
            self._log.append(events)

    def _begin(self, events: Sequence[Entry]) -> None:
        """Write the first events of a new log; refuse a log about other data."""
        digest = hashlib.sha256(json.dumps(self.ids).encode()).hexdigest()[:16]
        header = {"num_points": len(self.ids), "ids": digest, "classes": self.classes}
        header |= {"several": True} if self.several else {}
        if not self._log.events():
            with self._log.writing():
                if not self._log.events():
                    self._log.append([NewEvent("begun", value=header), *self._first_events(events)])
        found = self._log.events()[0].value
        wrong = next((key for key in header if not isinstance(found, dict) or found.get(key) != header[key]), None)
        if wrong is not None:
            got = found.get(wrong) if isinstance(found, dict) else found
            raise FileFormatError(
                f"{self._log.path} must be about this data, got other {wrong}: {got!r} and not {header[wrong]!r}; use "
                "another directory"
            )

    def _first_events(self, events: Sequence[Entry]) -> Iterator[NewEvent]:
        """Yield the initial events of a log in memory."""
        rounds = 0
        for event in events:
            if event["event"] == "asked":
                yield from (NewEvent("asked", self._row(name), batch=rounds) for name in event["ids"])
                rounds += 1
            else:
                for name, label in zip(event["ids"], event["labels"], strict=True):
                    yield NewEvent("labelled", self._row(name), self._class(label))

    def _row(self, name: Id) -> int:
        """Return the row of a point. "3" and 3 are the same id, because CSV files contain text."""
        row = self._row_of.get(name, self._row_of.get(other(name)))
        if row is None:
            raise ValueError(f"`ids` must be ids of this learner's points, got {name!r}")
        return row

    def named(self, label: Any) -> Any:
        """Return the name of a class, or the list of names if a point may have several."""
        return [self.classes[each] for each in label] if self.several else self.classes[label]

    def _class(self, label: Any) -> Any:
        """Return the class of a label, or a list of classes; as for ids, "3" and 3 are the same."""
        if self.several:
            if isinstance(label, str) or not isinstance(label, Iterable):
                raise ValueError(f"`labels` must be a list of labels for each point, empty for none, got {label!r}")
            return sorted({self._one_class(each) for each in label})
        return self._one_class(label)

    def _one_class(self, label: Any) -> int:
        label = plain(label)
        for known in (label, other(label)):
            if known in self.classes:
                return self.classes.index(known)
        raise UnknownNameError("label", str(label), [str(each) for each in self.classes])

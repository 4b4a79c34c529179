"""What a learner remembers: the questions it asked and the answers it was told, in the order they came.

Everything else is worked out again from these and the data, so the process that asked need not live until the labels
come. They are events of an `EventLog`: an item is a row of the inputs, a label a class's number.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from batchbalance.errors import FileFormatError, UnknownNameError
from batchbalance.learner.labels import EventLog, Id, Label, NewEvent, other, plain
from batchbalance.system.journal import Entry, read_journal, sync_folder

FILE = "labels.sqlite"
JOURNAL = "journal.jsonl"  # where labels were kept before 0.2.0


@dataclass(frozen=True)
class Known:
    """What the events say, by rows of the inputs.

    Attributes:
        labels: the class of each labelled row.
        asked: rows that were asked and have no label yet, in the order they were asked.
        round: how often new points were chosen.
        label_round: how often new points had been chosen when the last label came.
        num_events: how many events there are.
    """

    labels: dict[int, int]
    asked: list[int]
    round: int
    label_round: int
    num_events: int


class Store:
    """Events about N points, in memory or in a database that other processes may use too.

    Args:
        ids: names of the points.
        classes: the labels that can be told.
        directory: where the database is kept, made if it is not there; None keeps events in memory. The journal of an
            earlier version is taken in once.
        events: what the memory starts with.
    """

    def __init__(
        self,
        ids: Sequence[Id],
        classes: Sequence[Label],
        directory: str | os.PathLike[str] | None = None,
        events: Iterable[Entry] = (),
    ) -> None:
        self.ids, self.classes = list(ids), list(classes)
        self._row_of = {name: row for row, name in enumerate(self.ids)}
        if directory is None:
            self._log = EventLog(None)
            self._begin(list(events), "`events`")
        else:
            folder = Path(directory)
            folder.mkdir(parents=True, exist_ok=True)
            sync_folder(folder)
            self._log = EventLog(folder / FILE)
            earlier = folder / JOURNAL
            self._begin(read_journal(earlier) if earlier.is_file() else [], str(earlier))

    def known(self) -> Known:
        """What is known by now."""
        labels: dict[int, int] = {}
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
        """Remember that these rows were asked, chosen from what was `known`; False if more is known by now."""
        with self._log.writing():
            if self.known().num_events != known.num_events:
                return False
            self._log.append([NewEvent("asked", row, batch=known.round) for row in rows])
            return True

    def add_answers(self, ids: Iterable[Any], labels: Iterable[Any], *, correct: bool) -> None:
        """Remember labels, all of them or, if one is not valid, none. Arguments as in ``Learner.tell``."""
        names, told = [plain(name) for name in ids], [plain(label) for label in labels]
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
                    old, new = self.classes[before], self.classes[label]
                    raise ValueError(
                        f"{self.ids[row]!r} must keep its label {old!r}, got {new!r}; use correct=True to change it"
                    )
                answers[row] = label
                events.append(NewEvent("labelled" if before == label else "corrected", row, label))
            self._log.append(events)

    def _begin(self, earlier: Sequence[Entry], where: str) -> None:
        """Write what a new log is about, and what is there from earlier; refuse a log about other data."""
        digest = hashlib.sha256(json.dumps(self.ids).encode()).hexdigest()[:16]
        header = {"num_points": len(self.ids), "ids": digest, "classes": self.classes}
        if not self._log.events():
            with self._log.writing():
                if not self._log.events():
                    if earlier and earlier[0].get("event") == "begun":
                        self._check_header(earlier[0], header, where)
                    self._log.append([NewEvent("begun", value=header), *self._taken_in(earlier, where)])
        self._check_header(self._log.events()[0].value, header, str(self._log.path))

    def _check_header(self, found: Any, header: Entry, where: str) -> None:
        wrong = next((key for key in header if not isinstance(found, dict) or found.get(key) != header[key]), None)
        if wrong is not None:
            got = found.get(wrong) if isinstance(found, dict) else found
            raise FileFormatError(
                f"{where} must be about this data, got other {wrong}: {got!r} and not {header[wrong]!r}; use another "
                "directory"
            )

    def _taken_in(self, earlier: Sequence[Entry], where: str) -> list[NewEvent]:
        """The events of the journal of an earlier version, or of a list of such events."""
        found: list[NewEvent] = []
        rounds = 0
        for number, entry in enumerate(earlier, start=1):
            try:
                if entry["event"] == "asked":
                    found += [NewEvent("asked", self._row(name), batch=rounds) for name in entry["ids"]]
                    rounds += 1
                elif entry["event"] == "told":
                    for name, label in zip(entry["ids"], entry["labels"], strict=True):
                        found.append(NewEvent("labelled", self._row(name), self._class(label)))
            except (KeyError, TypeError, ValueError) as error:
                wrong = f"it has no {error}" if isinstance(error, KeyError) else str(error)
                raise FileFormatError(f"line {number} of {where} must be an event of this learner: {wrong}") from error
        return found

    def _row(self, name: Id) -> int:
        """The row of a point. Text stands for a whole number too, and the other way round: CSV files give text."""
        row = self._row_of.get(name, self._row_of.get(other(name)))
        if row is None:
            raise ValueError(f"`ids` must be ids of this learner's points, got {name!r}")
        return row

    def _class(self, label: Label) -> int:
        """The class of a label, which may be text for a whole number, as an id."""
        for known in (label, other(label)):
            if known in self.classes:
                return self.classes.index(known)
        raise UnknownNameError("label", str(label), [str(each) for each in self.classes])

"""What a learner remembers: the questions it asked and the answers it was told, in the order they came.

Everything else is worked out again from these and the data, so the process that asked need not live until the labels
come.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from batchbalance.errors import FileFormatError, UnknownNameError
from batchbalance.journal import Entry, Journal, sync_folder

Id = int | str
Label = int | str

JOURNAL = "journal.jsonl"


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
    """Events about N points, in memory or in a journal that other processes may use too.

    Args:
        ids: names of the points.
        classes: the labels that can be told.
        directory: where the journal is kept, made if it is not there; None keeps events in memory.
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
        self._memory = list(events)
        self._path: Path | None = None
        if directory is not None:
            Path(directory).mkdir(parents=True, exist_ok=True)
            sync_folder(Path(directory))
            self._path = Path(directory) / JOURNAL
            with self._opened() as journal:
                self._check_header(journal)

    def known(self) -> Known:
        """What is known by now."""
        with self._opened() as journal:
            return self._read(journal)

    def add_question(self, rows: Sequence[int], known: Known) -> bool:
        """Remember that these rows were asked, chosen from what was `known`; False if more is known by now."""
        with self._opened() as journal:
            if self._read(journal).num_events != known.num_events:
                return False
            journal.append({"event": "asked", "round": known.round, "ids": [self.ids[row] for row in rows]})
            return True

    def add_answers(self, ids: Iterable[Any], labels: Iterable[Any], *, correct: bool) -> None:
        """Remember labels, all of them or, if one is not valid, none. Arguments as in ``Learner.tell``."""
        names, told = [plain(name) for name in ids], [plain(label) for label in labels]
        if len(names) != len(told):
            raise ValueError(f"`labels` must be one for each of {len(names)} ids, got {len(told)}")
        rows = [self._row(name) for name in names]
        classes = [self._class(label) for label in told]
        names, told = [self.ids[row] for row in rows], [self.classes[index] for index in classes]
        with self._opened() as journal:
            answers = dict(self._read(journal).labels)
            for name, row, label in zip(names, rows, classes, strict=True):
                before = answers.setdefault(row, label)
                if before != label and not correct:
                    old, new = self.classes[before], self.classes[label]
                    raise ValueError(
                        f"{name!r} must keep its label {old!r}, got {new!r}; use correct=True to change it"
                    )
                answers[row] = label
            journal.append({"event": "told", "ids": names, "labels": told})

    def _opened(self) -> AbstractContextManager[Any]:
        """The events, held only for one call, so that other processes can ask and tell in between."""
        return nullcontext(self._memory) if self._path is None else Journal(self._path, wait=True)

    def _check_header(self, journal: Any) -> None:
        """Write what the journal is about into a new one; refuse an old one about other data."""
        digest = hashlib.sha256(json.dumps(self.ids).encode()).hexdigest()[:16]
        header = {"event": "begun", "num_points": len(self.ids), "ids": digest, "classes": self.classes}
        found = next(iter(journal), None)
        if found is None:
            journal.append(header)
        elif found != header:
            wrong = next((key for key in header if found.get(key) != header[key]), "event")
            raise FileFormatError(
                f"{self._path} must be about this data, got other {wrong}: {found.get(wrong)!r} and not "
                f"{header[wrong]!r}; use another directory"
            )

    def _read(self, journal: Any) -> Known:
        labels: dict[int, int] = {}
        asked: dict[int, None] = {}
        rounds = label_round = num_events = 0
        for event in journal:
            num_events += 1
            try:
                if event["event"] == "asked":
                    asked |= dict.fromkeys(self._row(name) for name in event["ids"])
                    rounds += 1
                elif event["event"] == "told":
                    label_round = rounds
                    for name, label in zip(event["ids"], event["labels"], strict=True):
                        labels[self._row(name)] = self._class(label)
            except (KeyError, TypeError, ValueError) as error:
                wrong = f"it has no {error}" if isinstance(error, KeyError) else str(error)
                where = f"line {num_events} of {self._path or '`events`'}"
                raise FileFormatError(f"{where} must be an event of this learner: {wrong}") from error
        return Known(labels, [row for row in asked if row not in labels], rounds, label_round, num_events)

    def _row(self, name: Id) -> int:
        """The row of a point. Text stands for a whole number too, and the other way round: CSV files give text."""
        row = self._row_of.get(name, self._row_of.get(_other(name)))
        if row is None:
            raise ValueError(f"`ids` must be ids of this learner's points, got {name!r}")
        return row

    def _class(self, label: Label) -> int:
        """The class of a label, which may be text for a whole number, as an id."""
        for known in (label, _other(label)):
            if known in self.classes:
                return self.classes.index(known)
        raise UnknownNameError("label", str(label), [str(each) for each in self.classes])


def _other(name: Id | Label) -> Id | Label:
    """The text of a whole number, or the whole number of a text that is one; else the name itself."""
    if isinstance(name, str):
        return int(name) if name.isascii() and name.lstrip("-").isdecimal() and str(int(name)) == name else name
    return str(name)


def plain(value: Any) -> Any:
    """A Python int or str of what may be a NumPy or torch scalar."""
    found = value.item() if isinstance(value, np.generic | Tensor) else value
    if isinstance(found, bool) or not isinstance(found, int | str):
        raise ValueError(f"ids and labels must be whole numbers or text, got {value!r}")
    return found

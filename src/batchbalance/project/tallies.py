"""Counts and places that follow from events, kept up to date with each one.

The page shows them after every answer, so that they must cost the same however long the log is.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Protocol

from batchbalance.learner.labels import Event

Who = str | None


class Viewed(Protocol):
    """What is looked at of an item."""

    open: dict[Who, int]
    skipped: dict[Who, int]

    @property
    def label(self) -> int | None:
        """Its class, if it has one."""


class Tallies:
    """What is known of all items and people together.

    Attributes:
        open: the rows that each person was asked and has not answered.
        skipped: the rows that each person skipped.
        labels: how many items each class has.
        answers: how many labels each person gave.
    """

    def __init__(self) -> None:
        self.open: defaultdict[Who, set[int]] = defaultdict(set)
        self.skipped: defaultdict[Who, set[int]] = defaultdict(set)
        self.labels: Counter[int] = Counter()
        self.answers: Counter[Who] = Counter()
        self._days: Counter[tuple[int, ...]] = Counter()
        self._done: defaultdict[Who, dict[int, Event]] = defaultdict(dict)

    def add(self, row: int, view: Viewed) -> None:
        """Count an item in."""
        for who in view.open:
            self.open[who].add(row)
        for who in view.skipped:
            self.skipped[who].add(row)
        if view.label is not None:
            self.labels[view.label] += 1

    def remove(self, row: int, view: Viewed) -> None:
        """Leave an item out, as it was before something happened to it."""
        for who in view.open:
            self.open[who].discard(row)
        for who in view.skipped:
            self.skipped[who].discard(row)
        if view.label is not None:
            self.labels[view.label] -= 1

    def do(self, event: Event) -> None:
        """Count something in that a person did and can undo."""
        self._done[event.who][event.number] = event
        self._count(event, 1)

    def undo(self, event: Event) -> None:
        """Leave something out that a person has undone."""
        self._done[event.who].pop(event.number, None)
        self._count(event, -1)

    def done(self, who: Who) -> Iterable[Event]:
        """What a person did and did not undo, the latest first."""
        done: dict[int, Event] = self._done.get(who, {})
        return reversed(done.values())

    def num_today(self) -> int:
        """How many labels were given since midnight."""
        return self._days[_day(time.time())]

    def _count(self, event: Event, by: int) -> None:
        if event.kind == "labelled":
            self.answers[event.who] += by
            self._days[_day(event.time)] += by


def _day(moment: float) -> tuple[int, ...]:
    return time.localtime(moment)[:3]

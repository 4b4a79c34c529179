"""The state of a project, derived from its events.

The page shows counts after every answer, so each event updates them at a cost that does not grow with the log.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from batchbalance.learner.labels import Event
from batchbalance.project.labelling import Labelling, Value, majority

Who = str | None

ANSWERS = ("labelled", "corrected")
UNDOABLE = (*ANSWERS, "skipped", "flagged", "commented", "reviewed")
AUDIT, RANDOM, FOUND = "audit", "random", "found"  # reasons to ask an item other than a strategy


def as_value(stored: Any) -> Any:
    """Return an answer as the log stores it: a list of class numbers becomes a tuple."""
    return tuple(stored) if isinstance(stored, list) else stored


@dataclass(frozen=True)
class Note:
    """A note about an item."""

    who: Who
    time: float
    text: str


@dataclass
class ItemView:
    """The state of one item.

    Attributes:
        answers: the latest answer of each person: a class number, or the numbers of several labels.
        answered: the time of each answer.
        last: who answered last.
        open: the people asked who have neither answered, skipped nor returned it, with the number of the event.
        skipped: the people who skipped it and were not asked again.
        is_returned: whether it was returned, and nobody was asked since.
        reasons: why it was asked: "audit", "random", "found", or the name of a strategy; empty if it never was. If its
            turn in the audit or the random arm came while it was already labelled or asked, it is only drawn.
        first_asked: the number of the event that asked or drew it first.
        settled: the answer that somebody decided on in a review, until the next answer; None if there is none.
        flags: the notes of flags.
        num_seen: how many of the flags somebody has reviewed.
        comments: other notes.
        seconds: how long all answers took in total.
        sampled_of: the number of items that its random sample was drawn from; 0 if it was not in one.
        is_chosen: whether its label was added as chosen.
    """

    answers: dict[Who, Value] = field(default_factory=dict)
    answered: dict[Who, float] = field(default_factory=dict)
    last: Who = None
    open: dict[Who, int] = field(default_factory=dict)
    skipped: dict[Who, int] = field(default_factory=dict)
    is_returned: bool = False
    reasons: list[str] = field(default_factory=list)
    first_asked: int | None = None
    settled: Value | None = None
    flags: list[Note] = field(default_factory=list)
    num_seen: int = 0
    comments: list[Note] = field(default_factory=list)
    seconds: float = 0.0
    sampled_of: int = 0
    is_chosen: bool = False

    @property
    def label(self) -> Value | None:
        """The answer of a review, else the majority of the latest answers; None without answers or for a tie."""
        if self.settled is not None:
            return self.settled
        if len(self.answers) == 1:  # by far the most common case
            return next(iter(self.answers.values()))
        return majority(list(self.answers.values())) if self.answers else None  # most have one answer, or none

    @property
    def is_disputed(self) -> bool:
        """Whether there are answers, and a tie."""
        return bool(self.answers) and self.label is None

    @property
    def outcome(self) -> str:
        """The state of the item in one word: "labelled", "disputed", "skipped", "open" or "unlabelled"."""
        if self.answers:
            return "disputed" if self.label is None else "labelled"
        if self.skipped:
            return "skipped"
        return "open" if self.open else "unlabelled"

    def is_complete(self, wanted: int) -> bool:
        """Return whether it was decided in a review, or has all wanted answers and no tie."""
        return self.settled is not None or (len(self.answers) >= wanted and not self.is_disputed)

    def take(self, event: Event) -> None:
        """Apply an event."""
        who = event.who
        if event.kind in ("asked", "drawn"):
            self.reasons.append(str(event.value))
            if self.first_asked is None:
                self.first_asked = event.number
        if event.kind == "asked":
            self.is_returned = False
            if who not in self.answers or self.is_disputed:
                self.open[who] = event.number
            self.skipped.pop(who, None)
        elif event.kind in ANSWERS:
            self.answers[who] = as_value(event.value)
            self.settled = None
            self.answered[who] = event.time
            self.last = who
            self.seconds += event.seconds or 0.0
            self.open.pop(who, None)
            self.skipped.pop(who, None)
        elif event.kind == "skipped":
            self.skipped[who] = event.number
            self.open.pop(who, None)
        elif event.kind == "returned":
            self.open.pop(who, None)
            self.is_returned = True
        elif event.kind == "flagged":
            self.flags.append(Note(who, event.time, str(event.value)))
        elif event.kind == "reviewed":
            self.settled, self.num_seen = as_value(event.value), len(self.flags)
        elif event.kind == "commented":
            self.comments.append(Note(who, event.time, str(event.value)))
        elif event.kind == "sampled":
            self.sampled_of = event.value["of"]
        elif event.kind == "chosen":
            self.is_chosen = True


class Tallies:
    """Counts over all items and people.

    Attributes:
        open: the rows that each person was asked and has not answered.
        skipped: the rows that each person skipped.
        labels: the number of items with each class.
        answers: the number of labels by each person.
    """

    def __init__(self) -> None:
        self.open: defaultdict[Who, set[int]] = defaultdict(set)
        self.skipped: defaultdict[Who, set[int]] = defaultdict(set)
        self.labels: Counter[int] = Counter()
        self.answers: Counter[Who] = Counter()
        self._days: defaultdict[tuple[int, ...], Counter[Who]] = defaultdict(Counter)
        self._done: defaultdict[Who, dict[int, Event]] = defaultdict(dict)

    def count_item(self, row: int, view: ItemView, by: int) -> None:
        """Add an item to the counts (`by` 1) or, before an event changes it, remove it (−1)."""
        change = set.add if by > 0 else set.discard
        for rows, people in ((self.open, view.open), (self.skipped, view.skipped)):
            for who in people:
                change(rows[who], row)
        label = () if view.label is None else view.label
        for each in (label,) if isinstance(label, int) else label:
            self.labels[each] += by

    def count_event(self, event: Event, by: int) -> None:
        """Add an event that its person can undo (`by` 1), or remove it once it is undone (−1)."""
        if by > 0:
            self._done[event.who][event.number] = event
        else:
            self._done[event.who].pop(event.number, None)
        if event.kind == "labelled":
            self.answers[event.who] += by
            self._days[_day(event.time)][event.who] += by

    def done(self, who: Who) -> Iterable[Event]:
        """Return the actions of a person that were not undone, the latest first."""
        done: dict[int, Event] = self._done.get(who, {})
        return reversed(done.values())

    def today(self) -> Counter[Who]:
        """Return how many labels each person gave since midnight."""
        return self._days[_day(time.time())]


class State:
    """The state after all events so far. Call `update` with the whole log to apply new events.

    Attributes:
        classes: the class names; a class number is the position here, and never changes.
        sources: the sources of items, from the events.
        is_multi: whether an item may have several labels.
        tests: the answer of each row of the test set.
        suggested: the suggestions of each machine, a value for each of its files, oldest first.
        checked: the models whose predictions were tried for acceptance, oldest first.
        items: the state of each row that has an event.
        num_events: the number of events applied.
        num_batches: how often new questions were chosen.
        last_change: the number of the last event that changed an answer, the items, or the use of an answer.
        sizes: the number of items after each addition.
        tests_of: the number of items when the test set was last changed.
        tallies: counts of labels and of people's actions.
    """

    def __init__(self) -> None:
        self.classes: list[str] = []
        self.is_multi = False
        self.sources: list[str] = []
        self.tests: dict[int, Value] = {}
        self.suggested: defaultdict[str, list[Any]] = defaultdict(list)
        self.checked: list[str] = []
        self.items: dict[int, ItemView] = {}
        self.sizes: list[int] = []
        self.num_events = self.num_batches = self.last_change = self.tests_of = 0
        self.tallies = Tallies()
        self._events: list[Event] = []
        self._by_item: dict[int, list[Event]] = {}
        self._undone: set[int] = set()

    def update(self, events: Sequence[Event]) -> None:
        """Apply the events that are new."""
        for event in events[self.num_events :]:
            self._events.append(event)
            self.num_events = event.number
            if event.kind == "begun":
                self.classes, self.is_multi = list(event.value["classes"]), event.value.get("multi_label", False)
            elif event.kind == "class added":
                self.classes.append(event.value)
            elif event.kind == "class renamed":
                self.classes[event.value["class"]] = event.value["name"]
            elif event.kind == "tested" and event.item is not None:
                self.tests[event.item], self.tests_of = as_value(event.value), self.sizes[-1]
            elif event.kind == "items added":
                self.sizes.append(event.value["first"] + event.value["count"])
                self.sources.append(event.value["from"])
            elif event.kind == "suggested":
                self.suggested[event.value["by"]].append(event.value)
            elif event.kind == "checked":
                self.checked.append(event.value)
            elif event.kind == "undone":
                self._undo(events[event.value - 1])
            elif event.item is not None:
                self._take(event.item, event)
            if event.batch is not None:
                self.num_batches = max(self.num_batches, event.batch + 1)
            if event.kind in (*ANSWERS, "reviewed", "undone", "items added", "sampled", "chosen", "suggested"):
                self.last_change = event.number

    def _take(self, row: int, event: Event) -> None:
        self._by_item.setdefault(row, []).append(event)
        view = self.items.setdefault(row, ItemView())
        self.tallies.count_item(row, view, -1)
        view.take(event)
        self.tallies.count_item(row, view, 1)
        if event.kind in UNDOABLE:
            self.tallies.count_event(event, 1)

    def _undo(self, event: Event) -> None:
        self._undone.add(event.number)
        if event.item is None:
            return
        self.tallies.count_event(event, -1)
        self.tallies.count_item(event.item, self.items[event.item], -1)
        kept = [each for each in self._by_item[event.item] if each.number != event.number]
        view = ItemView()
        for each in kept:
            view.take(each)
        self._by_item[event.item], self.items[event.item] = kept, view
        self.tallies.count_item(event.item, view, 1)

    def view(self, row: int) -> ItemView:
        """Return the state of an item."""
        return self.items.get(row, ItemView())

    @property
    def labelling(self) -> Labelling:
        """The classes, and how answers name them."""
        return Labelling(tuple(self.classes), self.is_multi)

    def labels(self) -> dict[int, Value]:
        """Return the answer of each labelled row, in the order of rows."""
        found = {row: view.label for row, view in self.items.items()}
        return {row: found[row] for row in sorted(found) if found[row] is not None}  # type: ignore[misc]

    def chosen(self) -> list[int]:
        """Return rows whose labels were added as chosen: they train and never measure."""
        return [row for row, view in self.items.items() if view.is_chosen and view.answers]

    def open_questions(self, who: Who, wanted: int) -> list[int]:
        """Return rows that a person was asked and that still need an answer, oldest question first."""
        mine = [(self.items[row].open[who], row) for row in self.tallies.open.get(who, ())]
        return [row for _, row in sorted(mine) if not self.items[row].is_complete(wanted)]

    def asked_with(self, who: Who, row: int) -> list[int]:
        """Return the rows that a person was asked together with an open question, including that one."""
        at = self.items[row].open[who] - 1
        batch = self._events[at].batch
        first = last = at
        while first and self._events[first - 1].batch == batch:
            first -= 1
        while last + 1 < len(self._events) and self._events[last + 1].batch == batch:
            last += 1
        asked = self._events[first : last + 1]
        return [each.item for each in asked if each.kind == "asked" and each.who == who and each.item is not None]

    def last_batch(self) -> list[int]:
        """Return the rows that were chosen last, in the order they were asked."""
        found: list[int] = []
        for event in reversed(self._events):
            if found and event.batch != self.num_batches - 1:
                break
            if event.kind == "asked" and event.batch == self.num_batches - 1 and event.item is not None:
                found.append(event.item)
        return found[::-1]

    def num_open(self, wanted: int) -> int:
        """Return the number of open questions of all people."""
        return sum(len(self.open_questions(who, wanted)) for who in self.tallies.open)

    def num_skipped(self, who: Who, wanted: int) -> int:
        """Return how many items a person skipped that still need an answer."""
        return len(self.skipped(who, wanted))

    def skipped(self, who: Who, wanted: int) -> list[int]:
        """Return rows that a person skipped and that still need an answer, in the order they were skipped."""
        mine = [(self.items[row].skipped[who], row) for row in self.tallies.skipped.get(who, ())]
        return [row for _, row in sorted(mine) if not self.items[row].is_complete(wanted)]

    def asked_for(self, reason: str) -> list[int]:
        """Return rows that were asked for a reason, in the order they were first asked."""
        found = [(view.first_asked or 0, row) for row, view in self.items.items() if reason in view.reasons]
        return [row for _, row in sorted(found)]

    def undoable(self, who: Who, *, anyone: bool = False) -> Iterator[Event]:
        """Yield events that can be undone, the latest first."""
        if not anyone:
            yield from self.tallies.done(who)
            return
        for event in reversed(self._events):
            if event.kind in UNDOABLE and event.number not in self._undone:
                yield event

    def latest(self, who: Who) -> Iterator[Event]:
        """Yield the last answer, skip or flag of a person on each item, the latest first."""
        seen = set()
        for event in self.tallies.done(who):
            if event.kind not in ("commented", "reviewed") and event.item not in seen:
                seen.add(event.item)
                yield event

    def history(self) -> list[Event]:
        """Return all events that were not undone, without the undo events."""
        return [each for each in self._events if each.number not in self._undone and each.kind != "undone"]

    def num_asked(self) -> int:
        """Return the number of items that were ever asked."""
        return sum(view.first_asked is not None for view in self.items.values())

    def annotators(self) -> list[Who]:
        """Return the people who answered, in the order of their first answers."""
        return list(dict.fromkeys(each.who for each in self.history() if each.kind in ANSWERS))


def _day(moment: float) -> tuple[int, ...]:
    return time.localtime(moment)[:3]

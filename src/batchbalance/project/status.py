"""`status`: how good the model is by now, what is open, and whether to stop, from plain facts about a project.

A project gathers `Facts`; ``status_of`` adds what follows from them. The result prints as a table, is ready for JSON,
and shows as HTML.
"""

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchbalance.project import stopping
from batchbalance.project.arm import ArmComparison
from batchbalance.project.audit import ALPHA, Calibration, Interval, Look, calibration, clopper_pearson, looks
from batchbalance.project.label_errors import Duplicates
from batchbalance.project.stopping import UNKNOWN, Advice, Forecast, Round

ONE_LOOK = "for one look"
NUM_ON_CURVE = 6  # models of the curve that the table shows
NO_AUDIT = (
    "No audit set (--audit 0): the accuracy cannot be known, since the labels were chosen by the model itself; nor can "
    "its calibration, whether a target is reached, or what more labels would bring."
)
NO_AUDIT_FOR_ARM = (
    "Whether the strategy is better than random cannot be known without an audit set (--audit 0), on which to compare."
)
NO_ARM = (
    "Whether the strategy is better than random cannot be known without a random arm: `init --random-arm 0.2` chooses "
    "a fifth of the labels at random and compares."
)


@dataclass(frozen=True)
class Shown:
    """An item as a person sees it.

    Attributes:
        id: of the item.
        text: a text, or what else there is to read; "" for none.
        image: the file of an image, or None.
        fields: columns of a table row, name and value.
    """

    id: str
    text: str = ""
    image: Path | None = None
    fields: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Hard:
    """An item that the model is unsure about.

    Attributes:
        item: the item.
        guesses: the most probable classes with their probabilities, the first first.
    """

    item: Shown
    guesses: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class SuspectLabel:
    """A label that is probably wrong.

    Attributes:
        item: the item.
        label: what was told.
        suggested: what the model would have told.
        probability: of the label, by a model that has not seen it.
    """

    item: Shown
    label: str
    suggested: str
    probability: float


@dataclass(frozen=True)
class Counts:
    """How many items there are of each kind.

    Attributes:
        items: in the project.
        asked: items asked so far, answered or not.
        labelled: with a label to train on.
        open: asked and not answered.
        skipped: that somebody skipped, and nobody answered.
        flagged: with a flag.
        disputed: whose annotators tie; not trained on.
        audit_items: set aside for audit.
        audit_asked: audit items asked.
        audit_labelled: audit items with a label.
        audit_skipped: audit items skipped: if they are the hard ones, the accuracy looks better than it is.
    """

    items: int = 0
    asked: int = 0
    labelled: int = 0
    open: int = 0
    skipped: int = 0
    flagged: int = 0
    disputed: int = 0
    audit_items: int = 0
    audit_asked: int = 0
    audit_labelled: int = 0
    audit_skipped: int = 0


@dataclass(frozen=True, eq=False)
class Facts:
    """What a project knows.

    Attributes:
        name: of the project.
        classes: their names.
        counts: of items.
        audit_share: 0 for no audit set.
        rounds: every trained model, oldest first.
        audit_labels: (F,) the class of each item of the fixed set, −1 for those without a label and for items that are
            not of the audit set.
        confidence: (F,) the newest model's probability of the class it predicts, for the same items.
        class_counts: (C,) labels of each class, audit labels included.
        label_times: when each label came, in seconds since 1970, rising.
        cross_validated_error: of the training labels; None if there are too few.
        target: the accuracy that is wanted, or None.
        budget: the labels, or the cost, that may be spent, or None.
        cost: of the labels so far; None without a column of cost.
        random_arm: share of uniform labels; 0 for none.
        arm: the comparison of the two heads, or None if there are too few labels.
        hardest: items that the model is least sure about.
        suspects: labels that are probably wrong.
        duplicates: exact copies.
        annotators: Cohen's κ of each two people who labelled the same items.
        notes: anything else worth a sentence.
    """

    name: str
    classes: tuple[str, ...]
    counts: Counts
    audit_share: float = 0.1
    rounds: tuple[Round, ...] = ()
    audit_labels: NDArray[Any] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    confidence: NDArray[Any] = field(default_factory=lambda: np.zeros(0))
    class_counts: tuple[int, ...] = ()
    label_times: tuple[float, ...] = ()
    cross_validated_error: float | None = None
    target: float | None = None
    budget: float | None = None
    cost: float | None = None
    random_arm: float = 0.0
    arm: ArmComparison | None = None
    hardest: tuple[Hard, ...] = ()
    suspects: tuple[SuspectLabel, ...] = ()
    duplicates: Duplicates = field(default_factory=Duplicates)
    annotators: dict[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Accuracy:
    """The accuracy of one model.

    Attributes:
        num_labels: what it was trained on.
        correct: right answers.
        total: of so many.
        interval: Clopper and Pearson's 95 %, for one look.
        source: "audit" or "test".
    """

    num_labels: int
    correct: int
    total: int
    interval: Interval
    source: str

    @property
    def value(self) -> float:
        """The share of right answers."""
        return self.correct / self.total


@dataclass(frozen=True, eq=False)
class Status:
    """Facts and what follows from them.

    Attributes:
        facts: as given.
        curve: the accuracy of every model on the test set, if there is one, else on all audit labels known today.
        looks: those that count for advice.
        calibration: of the newest model, or None.
        forecast: what 50 more labels would bring, or None.
        advice: of each rule.
        unknown: sentences on what cannot be known.
    """

    facts: Facts
    curve: tuple[Accuracy, ...]
    looks: tuple[Look, ...]
    calibration: Calibration | None
    forecast: Forecast | None
    advice: tuple[Advice, ...]
    unknown: tuple[str, ...]

    @property
    def accuracy(self) -> Accuracy | None:
        """That of the newest model."""
        return self.curve[-1] if self.curve else None

    def rows(self) -> list[tuple[str, str]]:
        """The table that the command prints: a name and a text each."""
        return list(_rows(self))

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers, lists and strings, ready for JSON."""
        facts = {
            each.name: _plain(getattr(self.facts, each.name))
            for each in dataclasses.fields(self.facts)
            if each.name not in ("rounds", "audit_labels", "confidence")
        }
        made = {
            each.name: _plain(getattr(self, each.name)) for each in dataclasses.fields(self) if each.name != "facts"
        }
        accuracy = self.accuracy
        now = None if accuracy is None else {"value": accuracy.value, **_plain(accuracy), "valid": ONE_LOOK}
        return {**facts, "accuracy": now, **made}

    def __repr__(self) -> str:
        return (
            f"Status({self.facts.name!r}, {self.facts.counts.labelled} labels, accuracy {told_accuracy(self.accuracy)})"
        )

    def __str__(self) -> str:
        rows = self.rows()
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:<{width}}  {text}" for name, text in rows)

    def _repr_html_(self) -> str:
        from batchbalance.project.pages import status_fragment

        return status_fragment(self)


def status_of(facts: Facts) -> Status:
    """What follows from the facts of a project."""
    rounds = facts.rounds
    truth = np.asarray(facts.audit_labels) if facts.audit_share else np.zeros(0, dtype=np.int64)
    audited = np.flatnonzero(truth != UNKNOWN)
    predicted = np.array([each.predicted[audited] for each in rounds]).reshape(len(rounds), len(audited))
    throughout = (predicted != UNKNOWN).all(axis=0)  # items that were there from the first model on
    is_right = predicted == truth[audited]
    has_test = any(each.test_total for each in rounds)
    found = stopping.forecast([each.num_labels for each in rounds], is_right[:, throughout])
    counted = _looks(rounds, has_test)
    spent = facts.counts.asked if facts.cost is None else facts.cost
    advice = (
        stopping.agreement(rounds),
        stopping.label_change(rounds),
        stopping.target_reached(facts.target, counted, "training labels" if has_test else "audit labels"),
        stopping.budget_spent(facts.budget, spent, "labels" if facts.cost is None else "units of cost"),
        stopping.worth_it(found),
    )
    return Status(
        facts,
        _test_curve(rounds) if has_test else _audit_curve(rounds, predicted, is_right),
        tuple(counted),
        calibration(np.asarray(facts.confidence)[audited], is_right[-1]) if rounds else None,
        found,
        advice,
        tuple(_unknown(facts, has_test)),
    )


def _audit_curve(rounds: tuple[Round, ...], predicted: NDArray[Any], is_right: NDArray[Any]) -> tuple[Accuracy, ...]:
    """Every model on the audit labels of today, as far as the items were there."""
    totals = (predicted != UNKNOWN).sum(axis=1)
    found = zip(rounds, is_right.sum(axis=1), totals, strict=True)
    return tuple(_accuracy(each.num_labels, int(right), int(total), "audit") for each, right, total in found if total)


def _test_curve(rounds: tuple[Round, ...]) -> tuple[Accuracy, ...]:
    found = [each for each in rounds if each.test_total]
    return tuple(_accuracy(each.num_labels, each.test_correct, each.test_total, "test") for each in found)


def _accuracy(num_labels: int, correct: int, total: int, source: str) -> Accuracy:
    return Accuracy(num_labels, correct, total, clopper_pearson(correct, total), source)


def _looks(rounds: tuple[Round, ...], has_test: bool) -> list[Look]:
    trained = [each.num_labels for each in rounds]
    if has_test:
        correct, totals = [each.test_correct for each in rounds], [each.test_total for each in rounds]
        return looks(trained, correct, totals, trained, ALPHA)
    totals = [each.audit_total for each in rounds]
    return looks(totals, [each.audit_correct for each in rounds], totals, trained, ALPHA)


def _unknown(facts: Facts, has_test: bool) -> Iterator[str]:
    if not facts.audit_share and not has_test:
        yield NO_AUDIT
    if not facts.random_arm:
        yield NO_ARM
    elif not facts.audit_share:
        yield NO_AUDIT_FOR_ARM
    elif facts.arm is None:
        yield "Whether the strategy is better than random cannot be known yet: there are too few labels of either kind."


def told_accuracy(found: Accuracy | None) -> str:
    """An accuracy with its interval, in words."""
    if found is None:
        return "not known"
    low, high = found.interval.low, found.interval.high
    of = f"{found.correct} of {found.total} {found.source} labels"
    return f"{found.value:.3f} [{low:.3f}, {high:.3f}] (95 %, {ONE_LOOK}; {of})"


def told_share(share: float) -> str:
    """A probability to two digits; one that would round to 0 is below 0.01."""
    return "below 0.01" if share < 0.005 else f"{share:.2f}"


def _rows(status: Status) -> Iterator[tuple[str, str]]:
    facts, counts = status.facts, status.facts.counts
    yield "project", f"{facts.name}, {counts.items:,} items, {len(facts.classes)} classes"
    yield "labels", f"{counts.labelled:,} to train on, {counts.audit_labelled:,} of {counts.audit_items:,} audit items"
    yield "open", f"{counts.open:,} asked and not answered"
    if counts.skipped or counts.flagged or counts.disputed:
        yield "not labelled", f"{counts.skipped:,} skipped, {counts.flagged:,} flagged, {counts.disputed:,} disputed"
    if facts.cost is not None:
        yield "cost", f"{facts.cost:,g} so far"
    yield from _quality(status)
    if facts.class_counts:
        yield "classes", _balance(facts)
    yield from ((f"{each.rule}: {each.verdict}", each.sentence) for each in status.advice)
    yield from _doubts(facts)
    yield from (("annotators", f"{pair}: {_told_kappa(kappa)}") for pair, kappa in facts.annotators.items())
    yield from (("cannot be known", each) for each in status.unknown)
    yield from (("note", each) for each in facts.notes)


def _quality(status: Status) -> Iterator[tuple[str, str]]:
    """How good the model is."""
    facts = status.facts
    yield "accuracy", told_accuracy(status.accuracy)
    if len(status.curve) > 1:
        told = [f"{each.value:.3f} with {each.num_labels:,}" for each in status.curve[-NUM_ON_CURVE:]]
        yield "curve", f"{', '.join(told)} labels"
    if facts.counts.audit_skipped:
        text = f"{facts.counts.audit_skipped:,}; if these are the hard ones, the accuracy looks better than it is"
        yield "audit items skipped", text
    if facts.duplicates.num_audit_copies:
        text = f"{facts.duplicates.num_audit_copies:,} equal an item trained on: the accuracy looks better than it is"
        yield "audit items copied", text
    if facts.cross_validated_error is not None:
        right = 1 - facts.cross_validated_error
        yield "cross-validated", f"{right:.3f} on the training labels, which are not typical of the pool"
    if status.calibration is not None:
        found = status.calibration
        says = f"says {found.confidence:.2f} and is right in {found.accuracy:.2f}"
        yield "calibration", f"{says}; error {found.error:.3f}, by chance alone up to {found.by_chance:.3f}"
    if facts.arm is not None:
        yield "random arm", facts.arm.sentence()


def _told_kappa(kappa: float) -> str:
    return "κ is undefined, because both gave the same answer throughout" if math.isnan(kappa) else f"κ = {kappa:.2f}"


def _balance(facts: Facts) -> str:
    """Labels of each class; of more than ten classes, those that have fewest and the one that has most."""
    counted = sorted(zip(facts.class_counts, facts.classes, strict=True), key=lambda each: each[0])
    if len(counted) <= 10:
        return ", ".join(f"{name} {count:,}" for count, name in counted)
    none = sum(not count for count, _ in counted)
    fewest = ", ".join(f"{name} {count:,}" for count, name in counted[none : none + 3])
    return f"{none:,} without a label; fewest: {fewest or 'none'}; most: {counted[-1][1]} {counted[-1][0]:,}"


def _doubts(facts: Facts) -> Iterator[tuple[str, str]]:
    """Copies, and labels that may be wrong."""
    copies = facts.duplicates
    differ = f", {len(copies.conflicts):,} groups with labels that differ" if copies.conflicts else ""
    yield "exact copies", f"{copies.num_copies:,}{differ}"
    for each in facts.suspects:
        text = f"{each.item.id}: {each.label!r} has probability {told_share(each.probability)}; {each.suggested!r}?"
        yield "likely label error", text


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {each.name: _plain(getattr(value, each.name)) for each in dataclasses.fields(value)}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, Path):
        return value.as_posix()
    value = value.item() if isinstance(value, np.generic) else value
    return None if isinstance(value, float) and not math.isfinite(value) else value  # JSON has no NaN

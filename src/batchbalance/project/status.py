"""`status`: the model's accuracy, open questions, and advice on stopping, from facts about a project.

A project collects `Facts`; ``status_of`` derives the rest. The result prints as a table, converts to JSON, and renders
as HTML.
"""

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchbalance.project import stopping
from batchbalance.project.audit import Calibration, Look, calibration
from batchbalance.project.class_quality import Quality, class_quality
from batchbalance.project.facts import Facts
from batchbalance.project.stopping import (
    ONE_LOOK,
    UNKNOWN,
    Accuracy,
    Advice,
    Forecast,
    accuracy_curve,
    looks_of,
    overall_verdict,
    told_accuracy,
)

NUM_ON_CURVE = 6  # models of the curve in the table
NUM_SUSPECTS = 10  # suspect labels in the table
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


@dataclass(frozen=True, eq=False)
class Status:
    """Facts about a project, and what follows from them.

    Attributes:
        facts: the facts.
        curve: the accuracy of every model on the test set, if there is one, else on all audit labels known today.
        looks: the looks that count for advice.
        calibration: the calibration of the newest model, or None.
        quality: the quality of the newest model, class by class.
        forecast: the expected gain from 50 more labels, or None.
        advice: of each rule; of target and budget only if they are set.
        unknown: sentences on what cannot be known.
    """

    facts: Facts
    curve: tuple[Accuracy, ...]
    looks: tuple[Look, ...]
    calibration: Calibration | None
    quality: Quality
    forecast: Forecast | None
    advice: tuple[Advice, ...]
    unknown: tuple[str, ...]

    @property
    def accuracy(self) -> Accuracy | None:
        """The accuracy of the newest model."""
        return self.curve[-1] if self.curve else None

    @property
    def verdict(self) -> Advice:
        """The overall advice, in one sentence."""
        return overall_verdict(self.accuracy, self.advice, self.forecast)

    def rows(self) -> list[tuple[str, str]]:
        """Return the rows of the printed table, each a name and a text."""
        return list(_rows(self))

    def as_dict(self) -> dict[str, Any]:
        """Return plain numbers, lists and strings, ready for JSON."""
        facts = {
            each.name: _plain(getattr(self.facts, each.name))
            for each in dataclasses.fields(self.facts)
            if not isinstance(getattr(self.facts, each.name), np.ndarray) and each.name != "rounds"
        }
        made = {
            each.name: _plain(getattr(self, each.name)) for each in dataclasses.fields(self) if each.name != "facts"
        }
        accuracy = self.accuracy
        now = None if accuracy is None else {"value": accuracy.value, **_plain(accuracy), "valid": ONE_LOOK}
        return {**facts, "verdict": _plain(self.verdict), "accuracy": now, **made}

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
    """Return what follows from the facts of a project."""
    rounds = facts.rounds
    truth = np.asarray(facts.audit_labels) if facts.audit_share else np.zeros(0, dtype=np.int64)
    audited = np.flatnonzero(truth != UNKNOWN)
    predicted = np.array([each.predicted[audited] for each in rounds]).reshape(len(rounds), len(audited))
    is_right = predicted == truth[audited]
    has_test = any(each.test_total for each in rounds)
    is_about_all = facts.num_first in (None, facts.counts.items)
    # Models from before items were added are not compared with later ones.
    current = [i for i, each in enumerate(rounds) if (each.predicted != UNKNOWN).all()]
    found = stopping.forecast([rounds[i].num_labels for i in current], is_right[current]) if is_about_all else None
    counts, about = facts.counts, ""  # the items that the labels are a sample of, if not all
    if facts.num_first is not None and facts.num_first < counts.items:
        added = counts.items - facts.num_first
        about = f"of the first {facts.num_first:,} items only, not of the {added:,} added since"
    elif counts.chosen and not has_test:
        about = f"of all items but the {counts.chosen:,} whose labels were added as chosen"
    counted = looks_of(rounds, has_test, is_f1=facts.is_f1_target)
    advice = [stopping.agreement([rounds[i] for i in current]), stopping.label_change([rounds[i] for i in current])]
    if facts.target is not None and not is_about_all:
        told = f"The target is {facts.target:.2f}. {_not_about_all(facts, has_test)}"
        advice.append(Advice("target", "cannot tell", told))
    elif facts.target is not None:
        counted_in = "training labels" if has_test else "audit labels"
        advice.append(stopping.target_reached(facts.target, counted, counted_in, is_f1=facts.is_f1_target))
    if facts.budget is not None:
        advice.append(stopping.budget_spent(facts.budget, facts.counts.asked))
    advice.append(stopping.worth_it(found))
    return Status(
        facts,
        accuracy_curve(rounds, predicted, is_right, has_test, about),
        tuple(counted),
        calibration(np.asarray(facts.confidence)[audited], is_right[-1]) if rounds else None,
        _class_quality(facts, truth[audited], predicted, has_test, about),
        found,
        tuple(advice),
        tuple(_unknown(facts, has_test)),
    )


def _class_quality(facts: Facts, audit: NDArray[Any], predicted: NDArray[Any], has_test: bool, about: str) -> Quality:
    """Measure every class on the audit or test labels, and its share of the pool on the audit labels."""
    truth, said = (facts.test_labels, facts.test_predicted) if has_test else (audit, predicted[-1:].reshape(-1))
    known = said != UNKNOWN
    counts = facts.class_counts or (0,) * len(facts.classes)
    truth = truth[known] if len(said) else truth
    decoded = facts.labelling.of_codes
    return class_quality(facts.classes, counts, decoded(audit), decoded(truth), decoded(said[known]), about)


def _not_about_all(facts: Facts, has_test: bool) -> str:
    """Return why the accuracy on all items is not known yet, and what to do."""
    added = facts.counts.items - (facts.num_first or 0)
    what = f"The accuracy on all {facts.counts.items:,} items is not known since {added:,} were added"
    if has_test:
        return f"{what}: the test set is from before; set one with items of both (`Project.set_test`)."
    if not facts.audit_share:
        return f"{what}, and there is no audit set."
    return (
        f"{what}: `ask` asks their audit items first; once ten audit labels are a sample of all items, "
        f"after at most {facts.num_missing:,} more answers, they count."
    )


def _unknown(facts: Facts, has_test: bool) -> Iterator[str]:
    if not facts.audit_share and not has_test:
        yield NO_AUDIT
    elif facts.num_first not in (None, facts.counts.items):
        yield _not_about_all(facts, has_test)
    if not facts.random_arm:
        yield NO_ARM
    elif not facts.audit_share:
        yield NO_AUDIT_FOR_ARM
    elif facts.arm is None:
        yield "Whether the strategy is better than random cannot be known yet: there are too few labels of either kind."


def _rows(status: Status) -> Iterator[tuple[str, str]]:
    facts, counts = status.facts, status.facts.counts
    yield "project", f"{facts.name}, {counts.items:,} items, {len(facts.classes)} classes"
    yield "labels", f"{counts.labelled:,} to train on, {counts.audit_labelled:,} of {counts.audit_items:,} audit items"
    yield "open", f"{counts.open:,} asked and not answered"
    if counts.skipped or counts.flagged or counts.disputed:
        yield "not labelled", f"{counts.skipped:,} skipped, {counts.flagged:,} flagged, {counts.disputed:,} disputed"
    yield from _quality(status)
    yield from status.quality.class_rows()
    yield from ((f"source {each.name}", each.sentence()) for each in facts.sources)
    yield from ((f"{each.rule}: {each.verdict}", each.sentence) for each in status.advice)
    yield from _doubts(facts)
    for pair, kappa in facts.annotators.items():
        undefined = "κ is undefined, because both gave the same answer throughout"
        yield "annotators", f"{pair}: {undefined if math.isnan(kappa) else f'κ = {kappa:.2f} by first answers'}"
    yield from (("cannot be known", each) for each in status.unknown)
    yield from (("note", each) for each in facts.notes)


def _quality(status: Status) -> Iterator[tuple[str, str]]:
    """Yield rows on the accuracy and calibration of the model."""
    facts = status.facts
    yield "exact match" if facts.is_multi else "accuracy", told_accuracy(status.accuracy)
    yield from status.quality.rows()
    if len(status.curve) > 1:
        told = [f"{each.value:.3f} with {each.num_labels:,}" for each in status.curve[-NUM_ON_CURVE:]]
        yield "curve", f"{', '.join(told)} labels"
    skipped, disputed = facts.counts.audit_skipped, facts.counts.audit_disputed
    if skipped or disputed:
        text = f"{skipped:,} skipped, {disputed:,} disputed"
        yield "audit without label", f"{text}; if these are the hard ones, the accuracy is overestimated"
    if facts.model_warning is not None:
        yield "warning", facts.model_warning
    if facts.duplicates.num_audit_copies:
        text = f"{facts.duplicates.num_audit_copies:,} equal an item trained on: the accuracy is overestimated"
        yield "audit items copied", text
    if facts.cross_validated_error is not None:
        right = 1 - facts.cross_validated_error
        yield "cross-validated", f"{right:.3f} on the training labels, which are not typical of the pool"
    if status.calibration is not None:
        found = status.calibration
        says = f"mean confidence {found.confidence:.2f}, accuracy {found.accuracy:.2f}"
        yield "calibration", f"{says}; error {found.error:.3f}, by chance alone up to {found.by_chance:.3f}"
    if facts.arm is not None:
        yield "random arm", facts.arm.sentence()


def _doubts(facts: Facts) -> Iterator[tuple[str, str]]:
    """Yield rows on exact copies and on labels that may be wrong."""
    copies = facts.duplicates
    differ = f", {len(copies.conflicts):,} groups with labels that differ" if copies.conflicts else ""
    yield "exact copies", f"{copies.num_copies:,}{differ}"
    if facts.num_judged:
        yield "likely label errors", told_suspects(facts)
    for each in facts.suspects[:NUM_SUSPECTS]:
        share = "below 0.01" if each.probability < 0.005 else f"{each.probability:.2f}"
        yield "likely label error", f"{each.item.id}: {each.label!r} has probability {share}; {each.suggested!r}?"


def told_suspects(facts: Facts) -> str:
    """Return a sentence on how many labels are probably wrong."""
    judged = f"of {facts.num_judged:,} labels judged by a model that has not seen them"
    if not facts.suspects:
        return f"none {judged}: the model's own errors explain the unlikely ones, or there are too few labels"
    right = sum(each.wrong for each in facts.suspects) / len(facts.suspects)
    return f"{len(facts.suspects):,} {judged}; about {100 * right:.0f} % of them are expected to be wrong"


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

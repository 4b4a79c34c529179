"""Advice on when to stop: each rule gives its finding in one sentence. Nothing stops automatically.

Agreement of successive models follows Bloodgood and Vijay-Shanker (2009). The label change and the forecast use spans
of labels, not batches, so that small batches do not look like convergence.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from batchbalance.project.audit import ALPHA, FIRST_LOOK, LEAST_FOR_ERROR, Interval, Look, clopper_pearson, looks
from batchbalance.project.class_quality import f1_of, pooled_share
from batchbalance.project.label_errors import cohen_kappa
from batchbalance.project.labelling import as_codes
from batchbalance.system.sealed import read_sealed, write_sealed

UNKNOWN = -1  # the prediction for an item added later, and a missing label

SPAN, NUM_STEPS, LEAST_KAPPA = 20, 3, 0.99  # labels between two models, steps, sufficient mean κ
MOST_CHANGED = 0.05  # share of predictions that may change while the labels double
MORE, LEAST_GAIN = 50, 0.01  # labels to forecast, and the gain that is worth them
LEAST_ROUNDS = 4  # needed to fit a curve
NUM_RESAMPLES = 1000

Verdict = Literal["stop", "go on", "cannot tell"]


@dataclass(frozen=True, eq=False)
class Round:
    """A trained model of a project, with its results at that time.

    Attributes:
        num_labels: the number of labels it was trained on.
        when: seconds since 1970.
        predicted: (F,) the codes (`Labelling.codes`) of what it predicts for the fixed set; −1 for items added later.
        audit_correct: how many audit labels it predicted right at that time.
        audit_total: the number of audit labels at that time.
        test_correct: the same on the user's own test set, if there is one.
        test_total: the number of test labels.
        about: the number of items these labels were sampled from.
        both, either: with several labels, how many of them each of these items has in truth and prediction, and in one
            of them; empty otherwise.
    """

    num_labels: int
    when: float
    predicted: NDArray[Any]
    audit_correct: int = 0
    audit_total: int = 0
    test_correct: int = 0
    test_total: int = 0
    about: int = 0
    both: tuple[int, ...] = ()
    either: tuple[int, ...] = ()


@dataclass(frozen=True)
class Advice:
    """The advice of one rule.

    Attributes:
        rule: its name.
        verdict: "stop", "go on" or "cannot tell".
        sentence: its finding.
    """

    rule: str
    verdict: Verdict
    sentence: str


@dataclass(frozen=True)
class Forecast:
    """A forecast of the gain from more labels.

    Attributes:
        more: the number of labels.
        gain: expected gain in accuracy.
        interval: the 95 % interval of the gain.
    """

    more: int
    gain: float
    interval: Interval


def agreement(rounds: Sequence[Round], least: float = LEAST_KAPPA) -> Advice:
    """Return whether successive models, 20 labels apart, agree on the fixed set with a mean κ of `least` or more."""
    models = _apart(rounds, SPAN)[-NUM_STEPS - 1 :]
    if len(models) <= NUM_STEPS:
        return Advice("agreement", "cannot tell", f"There are not yet {NUM_STEPS + 1} models {SPAN} labels apart.")
    pairs = [_both_known(a, b) for a, b in pairwise(models)]
    # Two models that always predict one and the same class agree, though their κ is undefined.
    kappas = [1.0 if math.isnan(each) else each for each in (cohen_kappa(a, b) for a, b in pairs)]
    kappa = sum(kappas) / len(kappas)
    return Advice(
        "agreement",
        "stop" if kappa >= least else "go on",
        f"The last {len(models)} models, at least {SPAN} labels apart, agree with κ = {kappa:.3f} on "
        f"{len(pairs[-1][0]):,} items; {least:g} or more means that they have settled.",
    )


def label_change(rounds: Sequence[Round], most: float = MOST_CHANGED) -> Advice:
    """Return whether at most a share of predictions differs from the model with half as many labels or fewer.

    The fixed set is a sample of all items, so the upper limit of the one-sided 95 % interval decides.
    """
    before = [each for each in rounds if 0 < 2 * each.num_labels <= rounds[-1].num_labels]
    if not before:
        return Advice("label change", "cannot tell", "There is no model with half as many labels yet.")
    first, last = _both_known(before[-1], rounds[-1])
    changed, total = int((first != last).sum()), len(first)
    high = clopper_pearson(changed, total, 2 * ALPHA).high
    verdict: Verdict = "stop" if high <= most else "go on" if changed > most * total else "cannot tell"
    rare = " A class rarer than that may still have changed completely." if verdict == "stop" else ""
    return Advice(
        "label change",
        verdict,
        f"From {before[-1].num_labels} to {rounds[-1].num_labels} labels {changed:,} of {total:,} predicted labels "
        f"changed: of all items at most {100 * high:.1f} % (95 %, for one look), and accuracy by at most as much; "
        f"{100 * most:g} % or less means that it has settled.{rare}",
    )


def target_reached(
    target: float, looks: Sequence[Look], counted: str = "audit labels", *, is_f1: bool = False
) -> Advice:
    """Return whether the target accuracy is reached by the lower limit of the last look's interval.

    With `is_f1` it is the target of micro F1. Looks are scheduled by the number of `counted`.
    """
    if not looks:
        return Advice(
            "target", "cannot tell", f"The target is {target:.2f}; the first look comes with {FIRST_LOOK} {counted}."
        )
    last = looks[-1]
    reached = last.interval.low >= target
    return Advice(
        "target",
        "stop" if reached else "go on",
        f"Look {last.number}, at {last.num_labels} labels, had {last.correct} of {last.total} "
        f"{'labels in both truth and prediction: micro F1' if is_f1 else 'right: accuracy'} at least "
        f"{last.interval.low:.3f}, allowing for all looks, which {'reaches' if reached else 'is below'} the target of "
        f"{target:.2f}.",
    )


def budget_spent(budget: float, spent: float) -> Advice:
    """Return whether the budget is spent."""
    return Advice("budget", "stop" if spent >= budget else "go on", f"{spent:,g} of {budget:,g} labels are used.")


def forecast(num_labels: Sequence[int], is_right: NDArray[Any], more: int = MORE, *, seed: int = 0) -> Forecast | None:
    """Forecast the gain from `more` labels, if the error keeps falling as a power of the number of labels.

    The power is fitted to the models of the last three quarters of the labels, on the same audit items and two
    artificial ones. One of these is learned half way and one is forgotten, since a small sample without a change does
    not prove that there is none. The interval comes from 1,000 resamples of these items, with the models' own scatter
    around the curve added for both models (current and future). The power law is assumed, not tested. None with fewer
    than 4 models or 20 audit labels.

    Args:
        num_labels: (R,) the number of labels of each model, not decreasing.
        is_right: (R, n) whether it gets each audit item right.
        more: the number of further labels.
        seed: the seed of the resamples.
    """
    counts = np.asarray(num_labels, dtype=np.float64)
    recent = 4 * counts >= counts[-1] if len(counts) else np.zeros(0, dtype=bool)
    if len(np.unique(counts[recent])) < LEAST_ROUNDS or np.shape(is_right)[1] < LEAST_FOR_ERROR:
        return None
    wrong = 1.0 - np.asarray(is_right, dtype=np.float64)[recent]
    learned = np.arange(len(wrong))[:, None] < len(wrong) / 2  # wrong in the first half of the models
    wrong = np.hstack([wrong, learned, ~learned])
    num_items = wrong.shape[1]
    random = np.random.default_rng(seed)
    resampled = random.multinomial(num_items, np.full(num_items, 1 / num_items), size=NUM_RESAMPLES)
    weights = np.vstack([np.ones(num_items), resampled])  # the first row is the original sample
    errors = (wrong @ weights.T + 0.5) / (num_items + 1)  # (R, 1 + resamples), never 0
    log_counts = np.log(counts[recent])
    centred = log_counts - log_counts.mean()
    logs = np.log(errors)
    powers = centred @ logs / (centred @ centred)
    fitted = np.exp(logs.mean(axis=0) + powers * centred[:, None])
    gains = fitted[-1] * (1 - (1 + more / counts[-1]) ** powers)
    off = errors - fitted
    # The scatter around the curve beyond that of the items is the models' own.
    own = max(0.0, float((off[:, 0] ** 2).sum() / (len(centred) - 2) - off[:, 1:].var(axis=1).mean()))
    spread = gains[1:] + np.sqrt(2 * own) * random.standard_normal(NUM_RESAMPLES)
    low, high = np.quantile(spread, [ALPHA / 2, 1 - ALPHA / 2])
    return Forecast(more, float(gains[0]), Interval(float(low), float(high)))


def worth_it(found: Forecast | None) -> Advice:
    """Return whether more labels would gain at least a point of accuracy."""
    if found is None:
        needed = f"A forecast needs {LEAST_FOR_ERROR} audit labels and {LEAST_ROUNDS} models of different sizes."
        return Advice("forecast", "cannot tell", needed)
    if found.interval.high < LEAST_GAIN:
        verdict: Verdict = "stop"
    else:
        verdict = "go on" if found.gain >= LEAST_GAIN else "cannot tell"
    return Advice(
        "forecast",
        verdict,
        f"{found.more} more labels would gain {100 * found.gain:+.1f} points of accuracy, "
        f"[{100 * found.interval.low:+.1f}, {100 * found.interval.high:+.1f}], if the curve continues as it has; below "
        f"{100 * LEAST_GAIN:.0f} they are hardly worth it.",
    )


def _apart(rounds: Sequence[Round], span: int) -> list[Round]:
    """Return rounds at least `span` labels apart, counted back from the last; oldest first."""
    found: list[Round] = []
    for each in reversed(rounds):
        if not found or found[-1].num_labels - each.num_labels >= span:
            found.append(each)
    return found[::-1]


def _both_known(first: Round, second: Round) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the predictions of two models for the items that both predicted."""
    both = (first.predicted != UNKNOWN) & (second.predicted != UNKNOWN)
    if not both.any():
        raise ValueError("`rounds` must share items of the fixed set, got two that share none")
    return first.predicted[both], second.predicted[both]


ONE_LOOK = "for one look"


@dataclass(frozen=True)
class Accuracy:
    """The accuracy of one model.

    Attributes:
        num_labels: the number of labels it was trained on.
        correct: the number of correct predictions.
        total: the number of predictions.
        interval: Clopper and Pearson's 95 %, for one look.
        source: "audit" or "test".
        about: the items that it refers to, in words; "" for all items.
    """

    num_labels: int
    correct: int
    total: int
    interval: Interval
    source: str
    about: str = ""

    @property
    def value(self) -> float:
        """The share of correct predictions."""
        return self.correct / self.total


def accuracy_curve(
    rounds: Sequence[Round], predicted: NDArray[Any], is_right: NDArray[Any], has_test: bool, about: str
) -> tuple[Accuracy, ...]:
    """Return the accuracy of every model: on the test set at that time, or on the current audit labels.

    Args:
        rounds: (R,) every trained model, oldest first.
        predicted: (R, n) its predictions for the audit items that count today; −1 for items that were added later.
            Without a test set, models that did not predict all of them are omitted.
        is_right: (R, n) whether they are correct.
        has_test: whether there is a test set.
        about: the items that the labels are a sample of, in words; "" for all items.
    """
    if has_test:
        counts = [(each, each.test_correct, each.test_total) for each in rounds if each.test_total]
    else:
        total = predicted.shape[1]
        knows = (predicted != UNKNOWN).all(axis=1) & (total > 0)
        counts = [(rounds[i], int(is_right[i].sum()), total) for i in np.flatnonzero(knows).tolist()]
    source = "test" if has_test else "audit"
    return tuple(
        Accuracy(each.num_labels, right, total, clopper_pearson(right, total), source, about)
        for each, right, total in counts
    )


def looks_of(rounds: Sequence[Round], has_test: bool, *, is_f1: bool = False) -> list[Look]:
    """Return the looks at the test set, or else at the audit labels, that count for advice, `is_f1` at micro F1."""
    trained, about = [each.num_labels for each in rounds], [each.about for each in rounds]
    if is_f1:

        def interval(i: int, level: float) -> Interval:
            found = f1_of(pooled_share(np.array(rounds[i].both), np.array(rounds[i].either), level))
            return Interval(0.0, 1.0) if found is None else found.interval

        sizes = trained if has_test else [each.audit_total for each in rounds]
        counts = [[sum(x) for x in (each.both, each.either)] for each in rounds]
        return looks(sizes, [both for both, _ in counts], [either for _, either in counts], trained, about, interval)
    if has_test:
        correct, totals = [each.test_correct for each in rounds], [each.test_total for each in rounds]
        return looks(trained, correct, totals, trained, about)
    totals = [each.audit_total for each in rounds]
    return looks(totals, [each.audit_correct for each in rounds], totals, trained, about)


def told_accuracy(found: Accuracy | None) -> str:
    """Return an accuracy with its interval, in words."""
    if found is None:
        return "not known"
    low, high = found.interval.low, found.interval.high
    of = f"{found.correct} of {found.total} {found.source} labels"
    about = f" {found.about}" if found.about else ""
    return f"{found.value:.3f} [{low:.3f}, {high:.3f}]{about} (95 %, {ONE_LOOK}; {of})"


def overall_verdict(accuracy: Accuracy | None, advice: Sequence[Advice], forecast: Forecast | None) -> Advice:
    """Return the overall advice of all rules.

    A reached target or a used budget decides alone. Before ten audit or test labels no other rule counts. After that
    the advice is to stop if more labels are not worth it, or if successive models agree and their predictions have
    settled.
    """
    by_rule = {each.rule: each for each in advice}
    for rule in ("target", "budget"):
        if rule in by_rule and by_rule[rule].verdict == "stop":
            sentence = by_rule[rule].sentence
            return Advice("verdict", "stop", f"Stop: {sentence[:1].lower()}{sentence[1:]}")
    known = "the accuracy is not known yet" if accuracy is None else _told_range(accuracy)
    if accuracy is None or accuracy.total < FIRST_LOOK:
        source, total = ("audit", 0) if accuracy is None else (accuracy.source, accuracy.total)
        more = LEAST_FOR_ERROR - total
        return Advice("verdict", "go on", f"Go on: {known}; {more} more {source} labels say more.")
    stops = {each.rule for each in advice if each.verdict == "stop"}
    if "target" not in by_rule and ("forecast" in stops or {"agreement", "label change"} <= stops):
        return Advice("verdict", "stop", f"You may stop: {known}, and more labels would hardly change the model.")
    if forecast is not None:
        gain = f"{forecast.more} more labels would bring about {100 * forecast.gain:+.1f} points"
        return Advice("verdict", "go on", f"Go on: {known}; {gain}.")
    return Advice("verdict", "go on", f"Go on: {known}; more labels show whether the model has settled.")


def _told_range(accuracy: Accuracy) -> str:
    low, high = 100 * accuracy.interval.low, 100 * accuracy.interval.high
    about = f" {accuracy.about}" if accuracy.about else ""
    return f"accuracy{about} is between {low:.0f} and {high:.0f} %"


def round_path(folder: Path, number: int) -> Path:
    """Return the path of the round of the model trained after an event."""
    return folder / "rounds" / f"{number:09d}.json"


def save_round(path: Path, found: Round, rows: Sequence[int]) -> None:
    """Store a round, with the rows of its predictions.

    A round could be recomputed from the labels of its time. It is stored because each look at the accuracy uses another
    model.
    """
    path.parent.mkdir(exist_ok=True)
    content = {
        "num_labels": found.num_labels, "when": found.when, "rows": list(rows),
        "predicted": found.predicted.tolist(), "audit": [found.audit_correct, found.audit_total],
        "test": [found.test_correct, found.test_total], "about": found.about,
        "labels": [list(found.both), list(found.either)],
    }  # fmt: skip
    write_sealed(path, content)


def read_rounds(folder: Path, rows: NDArray[np.int64]) -> list[Round]:
    """Return all rounds, oldest first, each with its predictions for these rows; −1 where it has none."""
    found = []
    for path in sorted((folder / "rounds").glob("*.json")):
        content = read_sealed(path, "delete it: the model of that time is then not counted")
        predicted = dict(zip(content["rows"], content["predicted"], strict=True))
        for_rows = as_codes([predicted.get(row, UNKNOWN) for row in rows.tolist()])
        counts = (*content["audit"], *content["test"], content["about"], *map(tuple, content["labels"]))
        found.append(Round(int(content["num_labels"]), float(content["when"]), for_rows, *counts))
    return found

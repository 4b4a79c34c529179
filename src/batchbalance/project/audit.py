"""The audit set: items set aside before any question is asked, for an unbiased measure of accuracy.

A hash of the seed and the id decides whether an item belongs to it. So membership is the same on every system, and is
fixed before any model sees the item. Audit items are asked in the order of the same hash, so the labelled ones are a
uniform sample of all items. Models never train on them. After items are added, their audit items are asked first, until
the sample is uniform among all items again.

Intervals are Clopper and Pearson's (1934). Stopping at the first good interval among many looks picks the luckiest. So
the advice to stop looks at a few sample sizes only, the t-th at level α / (t (t + 1)); these levels sum to α.
"""

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchbalance.arguments.checks import check_unit, check_whole

ALPHA = 0.05
FIRST_LOOK, LOOK_GROWTH = 10, Fraction(3, 2)  # looks at 10, 15, 22, 33, 50, … audit labels
LEAST_FOR_ERROR = 20  # audit labels needed to estimate ε from them
FIXED_SET = 5000  # items on which successive models are compared
MAX_BINS, LEAST_IN_BIN = 15, 10
NUM_SIMULATED = 1000
SURE = 0.95  # share of guesses that must be right to accept them together


@dataclass(frozen=True)
class Interval:
    """An interval from `low` to `high`, both included."""

    low: float
    high: float

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high


@dataclass(frozen=True)
class Look:
    """The result of the t-th look.

    Attributes:
        number: t, from 1.
        total: the number of labels.
        correct: how many of them the model at that time predicted right.
        interval: that model's accuracy, at confidence 1 − α / (t (t + 1)).
        num_labels: how many labels that model was trained on.
    """

    number: int
    total: int
    correct: int
    interval: Interval
    num_labels: int


@dataclass(frozen=True)
class Calibration:
    """The calibration of a model's confidence.

    Attributes:
        confidence: mean probability of the predicted class.
        accuracy: share of predictions that are right.
        error: mean gap between the two, within bins of about equal size.
        by_chance: the 95th percentile of this error for a perfectly calibrated model and an audit set of this size.
    """

    confidence: float
    accuracy: float
    error: float
    by_chance: float


def audit_order(ids: Sequence[str], seed: int, purpose: str = "audit") -> NDArray[np.float64]:
    """Return (N,) numbers in [0, 1), uniform by a hash of seed, purpose and id.

    An item is in the audit set if its number is below the share. The random arm uses the purpose "arm".
    """
    prefix = f"{check_whole('seed', seed, 0)}/{purpose}/".encode()
    hashed = (hashlib.sha256(prefix + each.encode("utf-8", "surrogatepass")).digest()[:8] for each in ids)
    return np.array([(int.from_bytes(each, "big") >> 11) * 2.0**-53 for each in hashed], dtype=np.float64)


def is_audit(ids: Sequence[str], seed: int, share: float) -> NDArray[np.bool_]:
    """Return (N,) whether each item is set aside."""
    return audit_order(ids, seed) < check_unit("share", share)


@dataclass(frozen=True, eq=False)
class AuditSample:
    """Labelled audit items that form a uniform sample.

    Attributes:
        rows: (n,) the items, in audit order.
        num_first: they are a sample of the first `num_first` items, in the order they were added.
        num_missing: audit items of later additions that must be answered before all audit labels count.
    """

    rows: NDArray[np.int64]
    num_first: int
    num_missing: int


def audit_sample(
    order: NDArray[np.int64],
    labelled: Iterable[int],
    settled: Iterable[int],
    sampled: Mapping[int, int],
    sizes: Sequence[int],
) -> AuditSample:
    """Return the audit labels that are a uniform sample of all items or, while these are too few, of the earlier ones.

    Audit items are asked in the order of their hashes, including those added later. So labels are a uniform sample of
    all items up to the first added audit item that has not had its turn. They count once there are ten such labels.

    Args:
        order: (A,) rows of the audit set, in the order of their hashes.
        labelled: rows that have a label, and had their turn or came with a random sample.
        settled: rows that had their turn and were answered or skipped.
        sampled: for each row of a random sample, the number of items it was drawn from.
        sizes: the number of items after each addition, ascending.
    """
    has_label, is_settled = np.isin(order, list(labelled)), np.isin(order, list(settled))
    sampled_of = np.array([sampled.get(row, 0) for row in order.tolist()], dtype=np.int64)
    num_missing = None
    for size in reversed(sizes):
        inside = order < size
        missing = np.flatnonzero(inside & (order >= sizes[0]) & ~is_settled)
        has_turn = np.arange(len(order)) < (missing[0] if len(missing) else len(order))
        known = has_label & inside
        counted = known & (has_turn | (sampled_of >= size))
        if num_missing is None:
            last = np.flatnonzero(known & ~counted)
            num_missing = int((missing < last[-1]).sum()) if len(last) else 0
        if size == sizes[0] or counted.sum() >= FIRST_LOOK or counted.sum() == known.sum():
            break
    return AuditSample(order[counted], size, num_missing or 0)


def audit_due(share: float, asked_so_far: int, audit_asked: int) -> int:
    """Return how many audit items to ask now, so that they are floor(share × asked) of all questions.

    Args:
        share: the share in decimal, so that 0.29 of 100 is 29.
        asked_so_far: all questions, including the current batch.
        audit_asked: how many of them, before this batch, were audit items.
    """
    exact = Fraction(repr(check_unit("share", share)))
    return max(0, math.floor(exact * asked_so_far) - audit_asked)


def clopper_pearson(correct: float, total: float, alpha: float = ALPHA) -> Interval:
    """Return the exact 1 − α interval of a share, from `correct` of `total`; 0 to 1 if `total` is 0."""
    from scipy.special import betainccinv, betaincinv  # scipy.stats takes seconds to import

    if not 0 <= correct <= total:
        raise ValueError(f"`correct` must be from 0 to {total:g}, got {correct:g}")
    low = float(betaincinv(correct, total - correct + 1, alpha / 2)) if correct else 0.0
    high = float(betainccinv(correct + 1, total - correct, alpha / 2)) if correct < total else 1.0
    return Interval(low, high)


def look_number(size: int) -> int:
    """Return how many of the sizes 10, 15, 22, 33, 50, … have been reached."""
    number = 0
    while size >= math.floor(FIRST_LOOK * LOOK_GROWTH**number):
        number += 1
    return number


def looks(
    sizes: Sequence[int],
    correct: Sequence[int],
    totals: Sequence[int],
    num_labels: Sequence[int],
    about: Sequence[int],
    interval: Callable[[int, float], Interval] | None = None,
) -> list[Look]:
    """Return the looks among the rounds of a project: the first round that reaches each size.

    Rounds between two looks are never used: each has another model, and the luckiest would decide. A round that passes
    several sizes at once is one look, at the level of the last. Looks from before items were added are not returned,
    but their levels are spent: the first look at all items continues their numbering.

    Args:
        sizes: for each round, the count that decides whether a look is due: audit labels or, with a test set, whose
            labels are complete from the start, training labels.
        correct: correct predictions of each round's model.
        totals: the number of predictions checked.
        num_labels: the number of labels it was trained on.
        about: how many items the labels were a sample of.
        interval: returns the interval of a round at a level; that of `correct` of `totals` if omitted.
    """
    interval = interval or (lambda i, level: clopper_pearson(correct[i], totals[i], level))

    found: list[Look] = []
    spent = last = 0  # numbers of the last look at earlier items, and of the last look
    for i, (size, right, total) in enumerate(zip(sizes, correct, totals, strict=True)):
        if i and about[i] != about[i - 1]:
            found, spent = [], last
        number = spent + look_number(size)
        if total and number > last:
            last = number
            level = ALPHA / (number * (number + 1))
            found.append(Look(number, total, right, interval(i, level), num_labels[i]))
    return found


def calibration(confidence: NDArray[Any], is_right: NDArray[Any], seed: int = 0) -> Calibration | None:
    """Return how well the probabilities of predicted classes are calibrated; None without labels.

    Bins have about equally many items, at least 10 each. The error of a perfect model is
    not 0 in a small sample; `by_chance` is its 95th percentile, from 1,000 sets of answers drawn from `confidence`.

    Args:
        confidence: (n,) probability of the predicted class.
        is_right: (n,) whether the prediction is right.
        seed: the seed of these draws.
    """
    if not len(confidence):
        return None
    order = np.argsort(confidence, kind="stable")
    sure, right = np.asarray(confidence, dtype=np.float64)[order], np.asarray(is_right, dtype=np.float64)[order]
    perfect = np.random.default_rng(seed).random((NUM_SIMULATED, len(sure))) < sure
    return Calibration(
        float(sure.mean()),
        float(right.mean()),
        float(_binned_gap(sure, right[None])[0]),
        float(np.quantile(_binned_gap(sure, perfect.astype(np.float64)), 1 - ALPHA)),
    )


@dataclass(frozen=True)
class Threshold:
    """The confidence from which guesses may be accepted, and what it was measured on.

    Attributes:
        value: the least confidence; None if none is right often enough.
        right: guesses at or above it that were right; of all labels if there is no such confidence.
        total: of so many.
        source: the labels that it was measured on, in words.
    """

    value: float | None
    right: int
    total: int
    source: str


def accept_threshold(confidence: NDArray[Any], is_right: NDArray[Any], source: str, least: float = SURE) -> Threshold:
    """Return the least confidence at or above which a share `least` of guesses are right.

    One wrong guess is added to those that were measured: a handful of right ones does not prove 95 %, 19 do.

    Args:
        confidence: (n,) probability of each guess.
        is_right: (n,) whether it is right.
        source: what these labels are.
        least: the share.
    """
    order = np.argsort(-np.asarray(confidence, dtype=np.float64), kind="stable")
    sure, right = np.asarray(confidence)[order], np.cumsum(np.asarray(is_right)[order])
    is_last = np.append(sure[1:] != sure[:-1], True)[: len(sure)]  # guesses of one confidence are accepted together
    enough = np.flatnonzero(is_last & (right >= least * (np.arange(len(sure)) + 2)))
    if not len(enough):
        return Threshold(None, int(right[-1]) if len(right) else 0, len(right), source)
    return Threshold(float(sure[enough[-1]]), int(right[enough[-1]]), int(enough[-1]) + 1, source)


def _binned_gap(confidence: NDArray[Any], is_right: NDArray[Any]) -> NDArray[Any]:
    """Return (K,) mean over items of the gap in their bin, for K sets of answers (K, n); confidence is ascending."""
    num_bins = max(1, min(MAX_BINS, len(confidence) // LEAST_IN_BIN))
    starts = np.arange(num_bins) * len(confidence) // num_bins
    gaps: NDArray[Any] = np.abs(np.add.reduceat(confidence - is_right, starts, axis=1)).sum(axis=1)
    return gaps / len(confidence)

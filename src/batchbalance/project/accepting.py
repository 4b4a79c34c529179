"""Accept labels by machines from a confidence on, with a promise: a share of them is right.

Thresholds are quantiles of the confidences of all items, so they don't depend on labels. They are tested in fixed
sequences, each from a start downwards and until it first fails: a wrong acceptance needs the first wrong threshold of
some sequence to pass, so the sequences share the level, and thresholds need no further correction (Angelopoulos et al.
2025, "Learn then test"). Each bound holds at any look, so one may export as often as one likes.

A test is about the items that would be accepted. Let there be N items from a threshold on, of which people found w
wrong and r would be accepted. At least a share q of these is right if at least 1 − ((1 − q) r + w) / N of all N are.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from batchbalance.project.anytime import is_above
from batchbalance.project.audit import ALPHA
from batchbalance.project.suggestions import NONE, Source

STARTS = (0.25, 0.5, 1.0)  # shares of items, the surest, at which sequences start
STEP = 0.05  # from one share to the next
MOST_NEEDED, GROWTH = 100_000, 1.02  # in the search for a sufficient number of labels


@dataclass(frozen=True, eq=False)
class Threshold:
    """What is known of the suggestions from a confidence on.

    Attributes:
        value: the confidence.
        right: audit items for which they are right.
        total: of so many.
        required: the share of all of them that must be right, so that enough of those without a label are.
        rows: those without a label.
    """

    value: float
    right: int
    total: int
    required: float
    rows: np.ndarray

    def holds(self, alpha: float) -> bool:
        """Return whether the required share is shown, at a level."""
        return not len(self.rows) or is_above(self.right, self.total, self.required, alpha)

    def num_missing(self, alpha: float) -> int | None:
        """Return how many more labels at this threshold would suffice at the rate so far; None if none would."""
        total, rate = self.total, self.right / self.total if self.total else 1.0
        while rate > self.required and total < MOST_NEEDED:
            if is_above(int(rate * total), total, self.required, alpha):
                return total - self.total
            total = max(total + 1, int(total * GROWTH))
        return None


@dataclass(frozen=True, eq=False)
class Accepted:
    """Machine labels that are accepted.

    Attributes:
        source: whose.
        at_least: the share of them that is right, with 95 % confidence.
        threshold: the last one that was accepted; None if none was.
        tried: otherwise, the one that needs the fewest further labels.
        num_missing: how many more audit labels would suffice for some, at the rate so far; None if none would.
        labels: (N,) the class suggested for each item; −1 for none.
        num_audit: audit items without a label.
    """

    source: str
    at_least: float
    threshold: Threshold | None
    tried: Threshold
    num_missing: int | None
    labels: np.ndarray
    num_audit: int

    @property
    def rows(self) -> np.ndarray:
        """The items whose labels are accepted."""
        return np.zeros(0, dtype=np.int64) if self.threshold is None else self.threshold.rows

    def sentence(self) -> str:
        """Return what is accepted, or what is missing, in words."""
        share = f"{100 * self.at_least:g} %"
        found = self.threshold or self.tried
        known = f"{found.right} of {found.total} audit labels"
        if self.threshold is not None:
            return (
                f"{len(found.rows):,} labels by {self.source} are accepted, from confidence {found.value:.4g} on: at "
                f"least {share} of them are right, with {100 * (1 - ALPHA):g} % confidence at any look ({known} agree)"
            )
        if not len(found.rows):
            return f"no labels by {self.source} are needed: every item that they are for is labelled or set aside"
        none = f"no labels by {self.source} are accepted: {known} from confidence {found.value:.4g} on agree"
        if self.num_missing is None:
            return f"{none}, and at this rate no number of them would show {share}; lower --at-least (`at_least`)"
        more = f"at this rate, about {self.num_missing:,} more audit labels would show it for some"
        enough = "" if self.num_missing <= self.num_audit else f", but only {self.num_audit:,} audit items are left"
        return f"{none}, which does not show {share}; {more}{enough}"


def accept(
    source: Source,
    audit: np.ndarray,
    known: Mapping[int, int],
    closed: np.ndarray,
    at_least: float,
    *,
    num_audit: int = 0,
    alpha: float = ALPHA,
) -> Accepted:
    """Accept as many labels of a source as the promise allows.

    Args:
        source: its labels and confidences. The v-th version has the level α / (v (v + 1)), as the v-th look has.
        audit: rows of a uniform sample of all items, all with a known label.
        known: the labels that people gave, by row.
        closed: (N,) items without a label that must not be accepted, because people could not decide.
        at_least: the share that must be right.
        num_audit: audit items without a label, for the advice.
        alpha: the probability that the promise is broken, for all versions together.
    """
    thresholds = list(_thresholds(source, audit, known, closed, at_least))
    starts = sorted({_first(thresholds, share) for share in STARTS})
    level = alpha / (source.version * (source.version + 1)) / len(starts)
    reached = []
    for start in starts:
        number = start
        while number < len(thresholds) and thresholds[number][1].holds(level):
            number += 1
        reached += [number - 1] if number > start else []
    last = thresholds[max(reached)][1] if reached else None
    last = None if last is None or not len(last.rows) else last
    missing = dict[int, int]()
    for start in starts if last is None else ():
        found = thresholds[start][1]
        if (num := found.num_missing(level)) is not None:  # of all audit labels, only some are above
            missing[start] = int(np.ceil(num * max(1, len(audit)) / max(1, found.total)))
    tried = min(missing, key=lambda start: missing[start]) if missing else starts[-1]
    return Accepted(source.name, at_least, last, thresholds[tried][1], missing.get(tried), source.labels, num_audit)


def _first(thresholds: list[tuple[float, Threshold]], share: float) -> int:
    """Return the number of the first threshold that a share of items is at or above."""
    return next(
        number for number, (above, _) in enumerate(thresholds) if above >= share or number == len(thresholds) - 1
    )


def _thresholds(
    source: Source, audit: np.ndarray, known: Mapping[int, int], closed: np.ndarray, at_least: float
) -> Iterator[tuple[float, Threshold]]:
    """Yield the shares of suggestions at or above each threshold, and the thresholds, the highest first."""
    has = source.labels != NONE
    sure = np.where(has, 1.0 if source.confidence is None else source.confidence, -1.0)
    truth = np.full(len(has), NONE)
    truth[list(known)] = list(known.values())
    is_known, is_audit = truth != NONE, np.zeros(len(has), dtype=bool)
    is_audit[audit] = True
    shares = np.arange(STEP, 1 + STEP / 2, STEP)
    values = sorted(
        {float(np.quantile(sure[has], max(0.0, 1 - share), method="lower")) for share in shares}, reverse=True
    )
    for value in values:
        above = sure >= value
        is_right = above & is_known & (source.labels == truth)
        rows, num = np.flatnonzero(above & ~is_known & ~closed), int(above.sum())
        num_wrong = int((above & is_known).sum() - is_right.sum())
        required = 1 - ((1 - at_least) * len(rows) + num_wrong) / num
        right, total = int((is_right & is_audit).sum()), int((above & is_audit).sum())
        yield num / has.sum(), Threshold(value, right, total, required, rows)

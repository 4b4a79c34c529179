"""Quality of a model by class: labels, share of the pool, precision, recall and F1, each with a 95 % interval.

Shares, precision and recall have Clopper and Pearson's interval. So has F1: of the m items that are of a class or
predicted as it, the number that are both is binomial with the Jaccard index J, and F1 = 2J / (1 + J) increases with J.
Macro F1 combines the classes' intervals as in Zou and Donner (2008, "Construction of confidence limits about effect
measures"), with a correlation for errors that two classes share.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchbalance.project.audit import ALPHA, Interval, clopper_pearson
from batchbalance.project.labelling import NONE

MOST_SHOWN, SHOWN_OF_MANY = 20, 10  # a table shows up to 20 classes, else the 10 with the lowest F1


@dataclass(frozen=True)
class Estimate:
    """A number between 0 and 1 and its 95 % interval, for one look."""

    value: float
    interval: Interval

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.interval.low:.3f}, {self.interval.high:.3f}]"


@dataclass(frozen=True)
class ClassQuality:
    """The quality of one class. Figures are None if there is nothing to measure them on.

    Attributes:
        name: the class name.
        labels: items with this label, including audit items.
        share: the class's share of the pool, by the audit labels.
        precision: share of items predicted as this class that are of it.
        recall: share of items of this class that are predicted as it.
        f1: harmonic mean of precision and recall.
    """

    name: str
    labels: int
    share: Estimate | None = None
    precision: Estimate | None = None
    recall: Estimate | None = None
    f1: Estimate | None = None

    def sentence(self) -> str:
        """Return labels and figures in one line."""
        figures = {"share of the pool": self.share, "precision": self.precision, "recall": self.recall, "F1": self.f1}
        told = [f"{name} {value}" for name, value in figures.items() if value is not None]
        return "; ".join([f"{self.labels:,} labels", *told])


@dataclass(frozen=True)
class Quality:
    """The quality of the newest model, class by class.

    Attributes:
        classes: in the order of the project.
        macro_f1: mean F1 of the classes that were seen or predicted; None without a model or labels to measure by.
        num_measured: how many classes these are.
        majority: the most frequent class among the labels to measure by; None if there are none.
        majority_accuracy: the accuracy of always predicting that class.
        about: the items that the labels to measure by are a sample of; "" for all items.
        micro_f1: F1 of all labels of all items together, if an item may have several labels; else None.
    """

    classes: tuple[ClassQuality, ...]
    macro_f1: Estimate | None = None
    num_measured: int = 0
    majority: str | None = None
    majority_accuracy: Estimate | None = None
    about: str = ""
    micro_f1: Estimate | None = None

    def rows(self) -> Iterator[tuple[str, str]]:
        """Yield the rows after the accuracy: that of the majority class, micro and macro F1."""
        if self.majority is not None and self.macro_f1 is not None:
            yield "majority class", f"always {self.majority!r} would reach {self.majority_accuracy}"
        if self.micro_f1 is not None:
            yield "micro F1", str(self.micro_f1)
        if self.macro_f1 is not None:
            part = "" if self.num_measured == len(self.classes) else self._unmeasured()
            about = f"; like all figures of classes, {self.about}" if self.about else ""
            yield "macro F1", f"{self.macro_f1}{part}{about}"

    def _unmeasured(self) -> str:
        names = [repr(each.name) for each in self.classes if each.f1 is None]
        told = ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
        return f" over {self.num_measured} of {len(self.classes)} classes; no label to measure by yet of {told}"

    def class_rows(self) -> Iterator[tuple[str, str]]:
        """Yield a row for each class; of many, a summary of their labels and the classes with the lowest F1."""
        classes = self.classes
        if len(classes) > MOST_SHOWN:
            counted = sorted(classes, key=lambda each: each.labels)
            none = sum(not each.labels for each in classes)
            fewest = ", ".join(f"{each.name} {each.labels:,}" for each in counted[none : none + 3]) or "none"
            most = f"{counted[-1].name} {counted[-1].labels:,}"
            yield "classes", f"{none:,} without a label; fewest: {fewest}; most: {most}; status.html shows them all"
            measured = [(each.f1.value, each) for each in classes if each.f1 is not None]
            classes = tuple(each for _, each in sorted(measured, key=lambda pair: pair[0])[:SHOWN_OF_MANY])
        yield from ((f"class {each.name}", each.sentence()) for each in classes)


def class_quality(
    names: Sequence[str],
    labels: Sequence[int],
    audit: NDArray[Any],
    truth: NDArray[Any],
    predicted: NDArray[Any],
    about: str = "",
) -> Quality:
    """Measure each class.

    Args:
        names: (C,) the class names.
        labels: (C,) the number of labels of each class.
        audit: (a,) classes of a uniform sample of the pool; with several labels for an item (a, C) of 0 and 1.
        truth: (n,) or (n, C) of the items to measure by: the audit labels, or those of a test set.
        predicted: (n,) or (n, C) the newest model's predictions for these; empty before there is a model.
        about: the items that these labels are a sample of, if not all.
    """
    sampled, of, said = (_of_each(labelled, len(names)) for labelled in (audit, truth, predicted))
    known = of[: len(said)]
    both, either = (known & said).sum(axis=0), (known | said).sum(axis=0)
    scores = [f1_of(share_of(*pair)) for pair in zip(both.tolist(), either.tolist(), strict=True)]
    found = tuple(
        ClassQuality(
            names[c],
            labels[c],
            share_of(int(sampled[:, c].sum()), len(audit)),
            share_of(int(both[c]), int(said[:, c].sum())),
            share_of(int(both[c]), int(known[:, c].sum())),
            scores[c],
        )
        for c in range(len(names))
    )
    measured = [c for c in range(len(names)) if scores[c] is not None]
    wrong = (known != said)[:, measured].astype(np.int64)
    macro = _macro([each for each in scores if each is not None], wrong.T @ wrong, either[measured])
    is_multi = audit.ndim == 2
    pooled = pooled_share((known & said).sum(axis=1), (known | said).sum(axis=1)) if is_multi else None
    kinds, counts = np.unique(of, axis=0, return_counts=True)
    most = len(kinds) - 1 - int(counts[::-1].argmax()) if len(of) else None  # of equally many the first class
    return Quality(
        found,
        macro,
        len(measured),
        None if most is None else ";".join(names[c] for c in np.flatnonzero(kinds[most]).tolist()) or NONE,
        None if most is None else share_of(int(counts[most]), len(of)),
        about,
        f1_of(pooled),
    )


def _of_each(labels: NDArray[Any], num: int) -> NDArray[np.bool_]:
    """Return (n, C) whether each item has each class."""
    found: NDArray[np.bool_] = labels == 1 if labels.ndim == 2 else labels[:, None] == np.arange(num)
    return found


def pooled_share(both: NDArray[Any], either: NDArray[Any], alpha: float = ALPHA) -> Estimate | None:
    """Return the share Σ both / Σ either of counts of items, with an interval; None if there is nothing to count.

    Counts of one item depend on each other. So the interval is Clopper and Pearson's for an effective sample size, as
    in Korn and Graubard (1998, "Confidence intervals for proportions with small expected number of positive counts"):
    the size for which a binomial share varies as this one does between items. Without errors, or with nothing else,
    each item counts once. One artificial item that is all wrong and one that is all right account for what a small
    sample does not show.

    Args:
        both: (n,) the smaller count of each item.
        either: (n,) the larger count of each item.
        alpha: the probability that the interval misses the share.
    """
    both, either = both[either > 0].astype(np.float64), either[either > 0].astype(np.float64)
    if not len(either):
        return None
    share, total = float(both.sum() / either.sum()), float(either.sum())
    usual = total / len(both)
    left, of = np.append(both, [0.0, usual]), np.append(either, [usual, usual])
    middle = left.sum() / of.sum()
    between = ((left - middle * of) ** 2).sum() * len(of) / (len(of) - 1)
    design = max(1.0, float(between / (middle * (1 - middle) * of.sum())))
    size = len(both) if share in (0.0, 1.0) else total / design
    return Estimate(share, clopper_pearson(share * size, size, alpha))


def share_of(count: int, total: int) -> Estimate | None:
    """Return a share with Clopper and Pearson's interval; None if `total` is 0."""
    return Estimate(count / total, clopper_pearson(count, total)) if total else None


def f1_of(jaccard: Estimate | None) -> Estimate | None:
    """Return F1 from the Jaccard index: the share of what is in truth or prediction that is in both."""
    if jaccard is None:
        return None
    value, low, high = (2 * j / (1 + j) for j in (jaccard.value, jaccard.interval.low, jaccard.interval.high))
    return Estimate(value, Interval(low, high))


def _macro(scores: Sequence[Estimate], shared: NDArray[Any], either: NDArray[Any]) -> Estimate | None:
    """Return the mean of F1 scores, by the numbers of items (c, c) on which two classes are both wrong.

    With one class for each item an error counts against two classes, the true one and the predicted one. Two classes
    with e and e' errors that share s of them have the correlation (s + 1/(c − 1)) / √((e + 1)(e' + 1)): 1 for two
    classes, which share all errors. The added error, spread evenly over the other classes, accounts for errors that a
    small sample does not show. F1 of few items is biased in all classes alike, so 1/√(m m') is added for classes
    measured on m and m' items (`either`), up to 1.
    """
    num = len(scores)
    if not num:
        return None
    shared = shared + (1 - np.eye(num)) / max(1, num - 1) + np.eye(num)
    scale = np.sqrt(np.diag(shared))
    bias = 1 / np.sqrt(np.outer(either, either))
    correlation = np.minimum(1, shared / np.outer(scale, scale) + bias * (1 - np.eye(num)))
    values = np.array([each.value for each in scores])
    below = values - [each.interval.low for each in scores]
    above = np.array([each.interval.high for each in scores]) - values
    reach = [float(np.sqrt(side @ correlation @ side)) / num for side in (below, above)]
    mean = float(values.mean())
    return Estimate(mean, Interval(max(0.0, mean - reach[0]), min(1.0, mean + reach[1])))

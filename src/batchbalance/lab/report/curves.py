"""Learning curves: one metric of one trial, and its statistics over trials.

Between two rounds a curve is interpolated linearly; before its first and after its last round it has no value.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median_high, median_low
from typing import Any, Literal

import numpy as np

from batchbalance.lab.report.paired import mean_interval

Span = tuple[int, int]  # label counts, both included
Drawn = Literal["means", "medians"]  # the statistic in the figures

METRIC_NAMES = {"macro_auc": "macro AUC", "macro_f1": "macro F1", "micro_f1": "micro F1", "nll": "NLL"}
LOWER_IS_BETTER = frozenset({"nll", "calibration_error"})
LEAST_SHARE = 0.5  # a median over a smaller share of trials would be biased towards slow or lucky ones


@dataclass(frozen=True)
class Curve:
    """One metric of one trial.

    Attributes:
        labels: training labels at each round, ascending.
        values: the metric at each round, finite.
    """

    labels: tuple[int, ...]
    values: tuple[float, ...]

    def at(self, num_labels: int) -> float | None:
        """Return the value at a label count; None outside the rounds of the trial."""
        if not self.labels[0] <= num_labels <= self.labels[-1]:
            return None
        return float(np.interp(num_labels, self.labels, self.values))

    def area(self, span: Span) -> float | None:
        """Return the mean height over a span of label counts; None if the trial does not cover it."""
        start, end = span
        first, last = self.at(start), self.at(end)
        if first is None or last is None or start > end:
            return None
        inner = [(x, y) for x, y in zip(self.labels, self.values, strict=True) if start < x < end]
        points = [(start, first), *inner, (end, last)]
        area = math.fsum((x2 - x1) * ((y1 + y2) / 2) for (x1, y1), (x2, y2) in pairwise(points))  # by trapezoids
        return area / (end - start) if start < end else first

    def labels_to_reach(self, target: float, higher_is_better: bool) -> int | None:
        """Return the labels of the first round that is as good as `target`; None if no round is."""
        pairs = zip(self.labels, self.values, strict=True)
        return next((x for x, y in pairs if (y >= target if higher_is_better else y <= target)), None)


@dataclass(frozen=True)
class Band:
    """A metric over trials at one label count.

    Attributes:
        num_labels: the label count.
        mean: the mean over trials.
        interval: Student's 95 % interval of the mean; None for one trial.
        lower: the lower quartile.
        median: the median over trials.
        upper: the upper quartile.
        num_trials: the number of trials that cover the label count.
    """

    num_labels: int
    mean: float
    interval: tuple[float, float] | None
    lower: float
    median: float
    upper: float
    num_trials: int

    def drawn(self, what: Drawn) -> tuple[float, float, float]:
        """Return the lower limit, the middle and the upper limit to draw."""
        if what == "medians":
            return self.lower, self.median, self.upper
        low, high = self.interval or (self.mean, self.mean)
        return low, self.mean, high


def metric_name(metric: str) -> str:
    """Return the name of a metric for text and figures."""
    return METRIC_NAMES.get(metric, metric.replace("_", " "))


def span_text(span: Span) -> str:
    """Format label counts as "20 to 1,000"."""
    return f"{span[0]:,} to {span[1]:,}"


def curve(records: Iterable[dict[str, Any]], metric: str) -> Curve | None:
    """Return the curve of a trial's records without rounds that have no finite value; None if no round is left."""
    points = {}
    for record in records:
        value = (record.get("metrics") or {}).get(metric)
        if value is not None and math.isfinite(value):
            points[int(record["num_labelled"])] = float(value)
    if not points:
        return None
    labels = tuple(sorted(points))
    return Curve(labels, tuple(points[x] for x in labels))


def bands(curves: Sequence[Curve]) -> list[Band]:
    """Return mean, interval, median and quartiles where at least half of the trials have a value."""
    found = []
    for num_labels in sorted({x for trial in curves for x in trial.labels}):
        values = [y for trial in curves if (y := trial.at(num_labels)) is not None]
        if len(values) >= LEAST_SHARE * len(curves):
            lower, median, upper = (float(q) for q in np.quantile(values, (0.25, 0.5, 0.75)))
            found.append(Band(num_labels, fmean(values), mean_interval(values), lower, median, upper, len(values)))
    return found


def common_span(curves: Sequence[Curve]) -> Span:
    """Return the first and last label count that at least half of the curves start and end with.

    A trial that has just begun does not shorten the span of the others; it does not cover it.
    """
    starts, ends = zip(*((trial.labels[0], trial.labels[-1]) for trial in curves), strict=True)
    return median_high(starts), median_low(ends)


def shared_span(first: dict[int, Curve], second: dict[int, Curve]) -> Span | None:
    """Return the label counts that both cover in at least half of the trials they share; None if there are none."""
    seeds = sorted(first.keys() & second.keys())
    if not seeds:
        return None
    start = median_high(max(first[seed].labels[0], second[seed].labels[0]) for seed in seeds)
    end = median_low(min(first[seed].labels[-1], second[seed].labels[-1]) for seed in seeds)
    return (start, end) if start < end else None


def evenly_spaced(counts: Sequence[int], num: int) -> tuple[int, ...]:
    """Return at most `num` of some ascending label counts, evenly spread, always including the last one."""
    if len(counts) <= num:
        return tuple(counts)
    steps = (round((i + 1) * (len(counts) - 1) / num) for i in range(num))
    return tuple(counts[step] for step in steps)

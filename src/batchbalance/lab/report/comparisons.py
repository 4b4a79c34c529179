"""Comparison of runs: a summary of each, and its difference from a control over shared seeds.

The measure compared is the mean height of the learning curve over the label counts that both sides cover.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from statistics import fmean
from typing import Any, get_args

from batchbalance.arguments.seeds import generator
from batchbalance.errors import UnknownNameError
from batchbalance.lab.records import Record, Run, check_records, trial_path
from batchbalance.lab.report.curves import (
    LEAST_SHARE,
    LOWER_IS_BETTER,
    Band,
    Curve,
    Drawn,
    Span,
    bands,
    common_span,
    curve,
    evenly_spaced,
    shared_span,
)
from batchbalance.lab.report.paired import holm, mean_interval, median_interval, middle, sign_flip_test, smallest_p

DEFAULT_CONTROL = "random"
NUM_COUNTS = 4  # label counts to show by default


@dataclass(frozen=True)
class Summary:
    """A run, its curves, and what they reach.

    Attributes:
        run: the run.
        curves: for each metric, the curve of each seed that has one.
        areas: for each seed that covers the report's span, the mean height over it.
        reached: for each seed, the training labels to reach the target; None if it is never reached.
        reached_total: the same, including the validation labels of that round.
        labels: the fewest and the most training labels of any trial.
    """

    run: Run
    curves: dict[str, dict[int, Curve]]
    areas: dict[int, float]
    reached: dict[int, int | None]
    reached_total: dict[int, int | None]
    labels: Span

    @property
    def label(self) -> str:
        """The label of the run."""
        return self.run.label

    @property
    def records(self) -> list[Record]:
        """The records of all trials."""
        return [record for trial in self.run.trials.values() for record in trial]

    def recorded(self, name: str) -> list[Any]:
        """Return the values of a field of the records, without those that are missing."""
        return [record[name] for record in self.records if record.get(name) is not None]

    @property
    def select_seconds(self) -> list[float]:
        """The time to choose each batch."""
        times = [(record["seconds"] or {}).get("select") for record in self.records if record["indices"]]
        return [float(each) for each in times if each is not None]

    def bands(self, metric: str) -> list[Band]:
        """Return the band of a metric over trials, at each label count."""
        return bands(list(self.curves.get(metric, {}).values()))

    def at(self, metric: str, num_labels: int) -> list[float]:
        """Return the values of a metric at a label count, of the trials that cover it."""
        found = (trial.at(num_labels) for trial in self.curves.get(metric, {}).values())
        return [value for value in found if value is not None]


@dataclass(frozen=True)
class PairedComparison:
    """A comparison of one run with the control, over the seeds that both have.

    Attributes:
        label: the run.
        num_shared: seeds that both have.
        span: the label counts compared; None if there are none in common.
        differences: run minus control for each seed that covers the span.
        effect: their mean.
        interval: Student's 95 % interval of the effect; None for fewer than two differences.
        p: the p-value of the exact sign-flip test.
        corrected_p: p with Holm's correction over all comparisons of the report.
        least_p: the smallest p possible with this number of differences.
        least_corrected_p: the same with Holm's correction.
        saved: the median over seeds of labels saved to the target. It is ∞ if the control never reached it, −∞ if the
            run did not, and None if neither did in more than half of the shared seeds.
        saved_interval: its 95 % interval; None with fewer than six seeds.
        num_saved: seeds in which at least one of the two reached the target.
    """

    label: str
    num_shared: int
    span: Span | None
    differences: dict[int, float]
    effect: float | None = None
    interval: tuple[float, float] | None = None
    p: float | None = None
    corrected_p: float | None = None
    least_p: float = 1.0
    least_corrected_p: float = 1.0
    saved: float | None = None
    saved_interval: tuple[float, float] | None = None
    num_saved: int = 0


@dataclass(frozen=True)
class Report:
    """The content of a report.

    Attributes:
        data: the data sets of the runs.
        alike: whether all runs have the same data and split, so that trials of one seed start from the same sets.
        metric: the metric of tables and tests.
        metrics: all metrics that have curves.
        control: the label of the control; None if there is none.
        counts: the label counts to show.
        target: the value to reach.
        target_origin: the origin of the target, in words.
        span: the label counts of `Summary.areas`; None if the runs have none in common.
        summaries: one for each run, the control first.
        comparisons: one for each run except the control.
        empty: labels of runs omitted because they have no value of the metric yet.
        earlier: labels of runs omitted because they have earlier settings.
        curves: the statistic of the learning curves: means with 95 % intervals, or medians with quartiles.
    """

    data: tuple[str, ...]
    alike: bool
    metric: str
    metrics: tuple[str, ...]
    control: str | None
    counts: tuple[int, ...]
    target: float
    target_origin: str
    span: Span | None
    summaries: tuple[Summary, ...]
    comparisons: tuple[PairedComparison, ...]
    empty: tuple[str, ...]
    curves: Drawn = "means"
    earlier: tuple[str, ...] = ()

    @property
    def runs(self) -> tuple[Run, ...]:
        """The runs compared, the control first."""
        return tuple(summary.run for summary in self.summaries)

    @property
    def higher_is_better(self) -> bool:
        """Whether a larger value of the metric is better."""
        return self.metric not in LOWER_IS_BETTER


def compare(
    runs: Sequence[Run],
    *,
    metric: str | None = None,
    control: str | None = None,
    at: Sequence[int] | None = None,
    target: float | None = None,
    curves: Drawn = "means",
    seed: int = 0,
) -> Report:
    """Summarise runs and compare them with a control.

    Args:
        runs: runs with distinct labels; they should have the same data set.
        metric: the metric of the tables and tests; if omitted, accuracy, or macro F1 of several labels.
        control: the label of the run to compare with; if omitted, the run of the strategy ``random``, if there is one.
        at: the label counts to show; if omitted, up to four, evenly spread.
        target: the value to reach; if omitted, that of the control's worst trial at the last label count that all runs
            cover.
        curves: the statistic of the learning curves: "means" with 95 % intervals, or "medians" with quartiles.
        seed: the seed of the sign flips.

    Raises:
        ValueError: if no run has a result yet, or an argument is out of range.
        UnknownNameError: if no run has that metric or is labelled `control`.
    """
    labels = [run.label for run in runs]
    twice = next((label for label in labels if labels.count(label) > 1), None)
    if twice is not None:
        raise ValueError(f"`runs` must have distinct labels, got {twice!r} more than once; give each run once")
    for run in runs:
        for number, records in run.trials.items():
            check_records(records, trial_path(run.path, number))
    curves_of = {run.label: _curves(run) for run in runs}
    metrics = tuple(dict.fromkeys(name for found in curves_of.values() for name in found))
    if not metrics:
        raise ValueError(f"`runs` must have a finished round, got none in {len(runs)} runs; run them first")
    metric = metric or next((name for name in ("accuracy", "macro_f1") if name in metrics), metrics[0])
    _check_arguments(metrics, metric, at, target, curves)
    shown = [run for run in runs if metric in curves_of[run.label]]
    control = _control(shown, control)
    shown.sort(key=lambda run: run.label != control)
    of_metric = {run.label: curves_of[run.label][metric] for run in shown}
    spans = [common_span(list(trials.values())) for trials in of_metric.values()]
    start, end = max(s for s, _ in spans), min(e for _, e in spans)
    span = (start, end) if start <= end else None
    rounds = {x for trials in of_metric.values() for trial in trials.values() for x in trial.labels}
    covered = sorted(x for x in rounds if span is None or start <= x <= end)
    goal, origin = (target, "given") if target is not None else _default_target(of_metric, control, span, metric)
    summaries = tuple(_summary(run, curves_of[run.label], metric, goal, span) for run in shown)
    comparisons = [] if control is None else [_against(s, summaries[0], metric, seed) for s in summaries[1:]]
    names = {str((run.config.get("data") or {}).get("name", "unnamed data")) for run in shown}
    starts = [(run.config.get("data"), run.config.get("split")) for run in shown]
    return Report(
        data=tuple(sorted({PurePath(name).name or name for name in names})),
        alike=all(each == starts[0] for each in starts),
        metric=metric,
        metrics=tuple(name for name in metrics if any(name in curves_of[run.label] for run in shown)),
        control=control,
        counts=tuple(sorted(set(at))) if at is not None else evenly_spaced(covered, NUM_COUNTS),
        target=goal,
        target_origin=origin,
        span=span,
        summaries=summaries,
        comparisons=tuple(_corrected(comparisons)),
        empty=tuple(label for label in labels if label not in of_metric),
        curves=curves,
    )


def _check_arguments(
    metrics: Sequence[str], metric: str, at: Sequence[int] | None, target: float | None, curves: str
) -> None:
    """Raise if arguments of `compare` are invalid for the metrics of the runs."""
    if metric not in metrics:
        raise UnknownNameError("metric", metric, metrics)
    if curves not in get_args(Drawn):
        raise UnknownNameError("curves", curves, get_args(Drawn))
    if at is not None and (not at or any(count < 0 for count in at)):
        raise ValueError(f"`at` must be label counts of at least 0, got {list(at)}")
    top = math.inf if metric == "nll" else 1.0
    if target is not None and not (0 <= target <= top and math.isfinite(target)):
        wanted = "finite and at least 0" if metric == "nll" else "from 0 to 1"
        raise ValueError(f"`target` must be {wanted} for {metric}, got {target:g}; write 0.9 for 90 %")


def _curves(run: Run) -> dict[str, dict[int, Curve]]:
    """Return, for each metric with a value in the run, the curve of each seed that has one."""
    records = [record for trial in run.trials.values() for record in trial]
    found: dict[str, dict[int, Curve]] = {}
    for metric in dict.fromkeys(name for record in records for name in record.get("metrics") or {}):
        of_seed = {seed: curve(trial, metric) for seed, trial in run.trials.items()}
        if any(of_seed.values()):
            found[metric] = {seed: trial for seed, trial in of_seed.items() if trial is not None}
    return found


def _control(runs: Sequence[Run], control: str | None) -> str | None:
    if control is not None:
        if control not in [run.label for run in runs]:
            raise UnknownNameError("control", control, [run.label for run in runs])
        return control
    randoms = [run.label for run in runs if (run.config.get("strategy") or {}).get("name") == DEFAULT_CONTROL]
    return randoms[0] if len(randoms) == 1 else None


def _default_target(
    curves: dict[str, dict[int, Curve]], control: str | None, span: Span | None, metric: str
) -> tuple[float, str]:
    """Return the worst trial's value at the end of the span, of the control or, without one, of any run.

    All trials of the control reach it, so the labels saved are defined in every trial.
    """
    worst = max if metric in LOWER_IS_BETTER else min
    trials = [trial for label, found in curves.items() if control in (None, label) for trial in found.values()]
    if span is None:
        return worst(trial.values[-1] for trial in trials), "the worst last value of a trial"
    values = [value for trial in trials if (value := trial.at(span[1])) is not None]
    return worst(values), f"the worst trial of {control or 'all runs'} at {span[1]} labels"


def _summary(run: Run, curves: dict[str, dict[int, Curve]], metric: str, target: float, span: Span | None) -> Summary:
    trials = curves[metric]
    areas = {seed: trial.area(span) for seed, trial in trials.items()} if span else {}
    reached = {seed: trial.labels_to_reach(target, metric not in LOWER_IS_BETTER) for seed, trial in trials.items()}
    validation = {s: {r["num_labelled"]: r.get("num_validation") or 0 for r in run.trials[s]} for s in trials}
    return Summary(
        run=run,
        curves=curves,
        areas={seed: area for seed, area in areas.items() if area is not None},
        reached=reached,
        reached_total={s: None if x is None else x + validation[s][x] for s, x in reached.items()},
        labels=(min(trial.labels[0] for trial in trials.values()), max(t.labels[-1] for t in trials.values())),
    )


def _paired_areas(first: dict[int, Curve], second: dict[int, Curve]) -> tuple[Span | None, dict[int, float]]:
    """Return the span of two runs and, for each seed that covers it, the difference of their mean heights."""
    span = shared_span(first, second)
    if span is None:
        return None, {}
    pairs = {seed: (first[seed].area(span), second[seed].area(span)) for seed in first if seed in second}
    return span, {seed: a - b for seed, (a, b) in pairs.items() if a is not None and b is not None}


def _against(summary: Summary, control: Summary, metric: str, seed: int) -> PairedComparison:
    """Compare a run with the control; p is not yet corrected."""
    first, second = summary.curves[metric], control.curves[metric]
    shared = sorted(first.keys() & second.keys())
    span, differences = _paired_areas(first, second)
    values = list(differences.values())
    pairs = [(control.reached[seed], summary.reached[seed]) for seed in shared]
    reached = [[math.inf if num is None else float(num) for num in pair] for pair in pairs if pair != (None, None)]
    saved = [theirs - ours for theirs, ours in reached]
    known = bool(saved) and len(saved) >= LEAST_SHARE * len(shared)
    return PairedComparison(
        label=summary.label,
        num_shared=len(shared),
        span=span,
        differences=differences,
        effect=fmean(values) if values else None,
        interval=mean_interval(values),
        p=sign_flip_test(values, generator=generator(seed, "report-flips")) if values else None,
        least_p=smallest_p(len(values)),
        saved=middle(saved) if known else None,
        saved_interval=median_interval(saved) if known else None,
        num_saved=len(saved),
    )


def _corrected(comparisons: Sequence[PairedComparison]) -> list[PairedComparison]:
    """Correct the p of all comparisons that have one."""
    tested = [c for c in comparisons if c.p is not None]
    corrected = dict(zip((c.label for c in tested), holm([c.p or 0.0 for c in tested]), strict=True))
    return [
        replace(c, corrected_p=corrected[c.label], least_corrected_p=min(1.0, len(tested) * c.least_p))
        if c.label in corrected
        else c
        for c in comparisons
    ]

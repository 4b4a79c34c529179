"""How a report begins: what came out, in one sentence, and what was run."""

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from batchbalance.lab.records import Run
from batchbalance.lab.report.comparisons import Comparison, Report
from batchbalance.lab.report.curves import metric_name

LEVEL = 0.05
SETTINGS = ("data", "split", "model", "training", "posterior", "batch_size", "candidates")


def conclusion(report: Report) -> str:
    """One sentence: which runs differ from the control after correction, or that none does."""
    metric = metric_name(report.metric)
    if report.span is None:
        return "The runs have no label counts in common, so nothing can be concluded."
    over = f"over {report.span[0]:,} to {report.span[1]:,} labels"
    tested = [c for c in report.comparisons if c.corrected_p is not None and c.effect is not None]
    if not tested:
        with_areas = [s for s in report.summaries if s.areas]
        if not with_areas:
            return "No trial covers the label counts of the others, so nothing can be concluded."
        best = (max if report.higher_is_better else min)(with_areas, key=lambda s: fmean(s.areas.values()))
        value = fmean(best.areas.values())
        return f"{best.label} has the best mean {metric} {over}, {value:.3f}; no difference was tested."
    clear = [c for c in tested if (c.corrected_p or 0) < LEVEL]
    better = [c.label for c in clear if _is_better(report, c)]
    worse = [c.label for c in clear if not _is_better(report, c)]
    num = min(len(c.differences) for c in tested)
    trials = f"{num} paired trial{'' if num == 1 else 's'}"
    if not clear:
        return (
            f"No strategy is statistically distinguishable from {report.control} in mean {metric} {over} "
            f"(Holm's correction, level {LEVEL:g}, {trials})."
        )
    said = [f"better than {report.control}: {', '.join(better)}"] if better else []
    said += [f"worse than {report.control}: {', '.join(worse)}"] if worse else []
    rest = len(tested) - len(clear)
    said += [f"statistically indistinguishable: {rest} other{'' if rest == 1 else 's'}"] if rest else []
    return f"In mean {metric} {over}, {'; '.join(said)} (Holm's correction, level {LEVEL:g}, {trials})."


def _is_better(report: Report, comparison: Comparison) -> bool:
    return ((comparison.effect or 0.0) > 0) == report.higher_is_better


def settings(runs: Sequence[Run]) -> tuple[tuple[str, str], ...]:
    """What the runs were run with, one line for each part of a config; where runs differ, each value with its runs."""
    found = []
    for name in SETTINGS:
        values: dict[str, list[str]] = {}
        for run in runs:
            if run.config.get(name) is not None:
                values.setdefault(written(run.config[name]), []).append(run.label)
        if len(values) == 1 and sum(map(len, values.values())) == len(runs):
            found.append((name.replace("_", " "), next(iter(values))))
        elif values:
            told = "; ".join(f"{value} ({', '.join(labels)})" for value, labels in values.items())
            found.append((name.replace("_", " "), told))
    return tuple(found)


def written(value: Any) -> str:
    """A value of a config as people write it: "digits, copies = 1" of a table with a name."""
    if not isinstance(value, dict):
        return ", ".join(map(written, value)) if isinstance(value, list) else str(value)
    names = [str(value[key]) for key in ("name", "kind") if value.get(key) is not None]
    rest = {key: each for key, each in value.items() if key not in ("name", "kind") and each is not None}
    return ", ".join([*names, *(f"{key} = {_nested(each)}" for key, each in rest.items())]) or "defaults"


def _nested(value: Any) -> str:
    return f"({written(value)})" if isinstance(value, dict | list) else str(value)

"""The opening of a report: its conclusion in one sentence, and the settings of the runs."""

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from batchbalance.lab.records import Run
from batchbalance.lab.report.comparisons import PairedComparison, Report
from batchbalance.lab.report.curves import metric_name

LEVEL = 0.05
MOST_NAMED = 3  # runs that the conclusion lists by name; of more it gives the number
SETTINGS = ("data", "split", "model", "training", "posterior", "batch_size", "candidates")


def conclusion(report: Report) -> str:
    """Say in one sentence which runs differ from the control after correction, or that none does."""
    tested = [c for c in report.comparisons if c.corrected_p is not None]
    if not tested:
        return _untested(report)
    clear = [c for c in tested if (c.corrected_p or 0.0) < LEVEL]
    num = min(len(c.differences) for c in tested)
    sure = f"Holm's correction, level {LEVEL:g}, {num} paired trial{'' if num == 1 else 's'}"
    metric = f"mean {metric_name(report.metric)} {_over(report, tested)}"
    if not clear:
        few = ", too few to distinguish any" if all(c.least_corrected_p >= LEVEL for c in tested) else ""
        return f"No strategy is statistically distinguishable from {report.control} in {metric} ({sure}{few})."
    groups = {
        "better than": [c for c in clear if _is_better(report, c)],
        "worse than": [c for c in clear if not _is_better(report, c)],
        "statistically indistinguishable from": [c for c in tested if c not in clear],
    }
    said = (_said(how, found, len(tested), f"{report.control}") for how, found in groups.items() if found)
    return f"In {metric}, {'; '.join(said)} ({sure})."


def _untested(report: Report) -> str:
    """Say what is known without a test: no strategy is called better than another."""
    shown = [s for s in report.summaries if s.areas]
    if report.span is None or not shown:
        return "The runs have no label counts in common, so nothing can be concluded."
    found = (max if report.higher_is_better else min)(shown, key=lambda s: fmean(s.areas.values()))
    metric = f"mean {metric_name(report.metric)}"
    over = f"over {report.span[0]:,} to {report.span[1]:,} labels is {fmean(found.areas.values()):.3f}"
    if len(shown) == 1:
        return f"The {metric} of {found.label} {over}; there is nothing to compare it with."
    extreme = "highest" if report.higher_is_better else "lowest"
    return f"No difference was tested; the {extreme} {metric} {over}, of {found.label}."


def _over(report: Report, tested: Sequence[PairedComparison]) -> str:
    spans = {c.span for c in tested}
    first = tested[0].span
    if len(spans) > 1 or first is None:
        return f"over the labels that each shares with {report.control}"
    return f"over {first[0]:,} to {first[1]:,} labels"


def _said(how: str, found: Sequence[PairedComparison], num_tested: int, control: str) -> str:
    """Say how some runs, or a number of them, compare with the control."""
    names = [c.label for c in found]
    listed = f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]
    who = f"{len(names)} of {num_tested} strategies" if len(names) > MOST_NAMED else listed
    by = f" by {abs(found[0].effect or 0.0):.3f}" if len(names) == 1 and how.endswith("than") else ""
    return f"{who} {'is' if len(names) == 1 else 'are'} {how} {control}{by}"


def _is_better(report: Report, comparison: PairedComparison) -> bool:
    return ((comparison.effect or 0.0) > 0) == report.higher_is_better


def settings(runs: Sequence[Run]) -> tuple[tuple[str, str], ...]:
    """Return the settings of the runs, one line for each part of a config; differing values name their runs."""
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
    """Write a value of a config as text: "digits, copies = 1" for a table with a name."""
    if not isinstance(value, dict):
        return ", ".join(map(written, value)) if isinstance(value, list) else str(value)
    names = [str(value[key]) for key in ("name", "kind") if value.get(key) is not None]
    rest = {key: each for key, each in value.items() if key not in ("name", "kind") and each is not None}
    return ", ".join([*names, *(f"{key} = {_nested(each)}" for key, each in rest.items())]) or "defaults"


def _nested(value: Any) -> str:
    return f"({written(value)})" if isinstance(value, dict | list) else str(value)

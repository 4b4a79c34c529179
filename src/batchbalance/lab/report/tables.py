"""The tables of a report as text cells for people, and as plain numbers for CSV files."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from batchbalance.lab.records import Run
from batchbalance.lab.report.comparisons import PairedComparison, Report, Summary
from batchbalance.lab.report.curves import metric_name, span_text
from batchbalance.lab.report.paired import middle, standard_deviation

NONE = "–"
SETTINGS = ("data", "split", "model", "training", "posterior", "batch_size", "candidates")


UNTESTED = PairedComparison("", 0, None, {})  # the entry of the control, which is not compared with itself


@dataclass(frozen=True)
class ReportTable:
    """A table for people: the first column names the row, the others are aligned to the right."""

    title: str
    text: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    is_text: bool = False  # sentences rather than numbers


def tables(report: Report) -> list[ReportTable]:
    """Return all tables of a report, the most important first."""
    against = [comparisons(report)] if report.comparisons else []
    timed = [costs(report)] if any(s.recorded("seconds") for s in report.summaries) else []
    text = "The settings of the runs; where they differ, each value with its runs. config.json has all of them."
    ran = ReportTable("Settings", text, ("setting", "value"), settings(report.runs), is_text=True)
    return [results(report), *against, savings(report), labels(report), *timed, ran]


def overview(report: Report) -> ReportTable:
    """Return the short table that `report` prints."""
    last = report.counts[-1]
    columns: dict[str, Callable[[Summary], str]] = {
        f"at {last}": lambda s: spread(s.at(report.metric, last)),
        f"to {report.target:.3g}": lambda s: _median_count(s.reached),
    }
    if report.comparisons:
        against = {c.label: c for c in report.comparisons}
        columns["saved"] = lambda s: count(against.get(s.label, UNTESTED).saved)
        columns["area"] = lambda s: signed(against.get(s.label, UNTESTED).effect)
        columns["p (Holm)"] = lambda s: p_value(against.get(s.label, UNTESTED).corrected_p)
    columns["choosing"] = lambda s: seconds(s.select_seconds)
    trials = sorted({len(s.curves[report.metric]) for s in report.summaries})
    num = " to ".join(str(num) for num in dict.fromkeys((trials[0], trials[-1])))
    than = f", saved, area and p against {report.control}" if report.comparisons else ""
    text = (
        f"trials: {num}; {metric_name(report.metric)} at {last} labels; labels to reach {report.target:.3g}{than}; "
        "time to choose a batch"
    )
    return _table("Overview", text, report.summaries, columns)


def _table(
    title: str, text: str, items: Sequence[Summary | PairedComparison], columns: Mapping[str, Callable[[Any], str]]
) -> ReportTable:
    """Create a table with one row for each item and, after the label, one column for each function of it."""
    rows = tuple((each.label, *(cell(each) for cell in columns.values())) for each in items)
    return ReportTable(title, text, ("strategy", *columns), rows)


def results(report: Report) -> ReportTable:
    """Return the table of the metric at label counts, and of the area under the curve."""
    name = metric_name(report.metric)
    better = "higher is better" if report.higher_is_better else "lower is better"
    area = f"; area is the mean height of the curve over {span_text(report.span)} labels" if report.span else ""
    columns: dict[str, Callable[[Summary], str]] = {"trials": lambda s: str(len(s.curves[report.metric]))}
    for num in report.counts:
        columns[f"at {num}"] = lambda s, num=num: spread(s.at(report.metric, num))  # type: ignore[misc]
    columns["area"] = lambda s: spread(list(s.areas.values()))
    text = f"Mean ± standard deviation over trials, {better}{area}."
    return _table(f"{name[:1].upper()}{name[1:]} by training labels", text, report.summaries, columns)


def comparisons(report: Report) -> ReportTable:
    """Return the table of every run against the control."""
    text = (
        f"Difference in area, strategy minus {report.control}, over the seeds and label counts that both have: its "
        "mean, Student's interval, and p of the exact two-sided sign-flip test, then corrected for all rows. "
        "Least p is the smallest possible with this number of pairs."
    )
    columns: dict[str, Callable[[PairedComparison], str]] = {
        "pairs": lambda c: str(len(c.differences)),
        "labels": lambda c: NONE if c.span is None else span_text(c.span),
        "difference": lambda c: signed(c.effect),
        "95 % interval": lambda c: _interval(c.interval, signed),
        "p": lambda c: p_value(c.p),
        "p (Holm)": lambda c: p_value(c.corrected_p),
        "least p": lambda c: p_value(c.least_p),
        "least (Holm)": lambda c: p_value(c.least_corrected_p),
    }
    return _table(f"Against {report.control}", text, report.comparisons, columns)


def savings(report: Report) -> ReportTable:
    """Return the table of labels needed to reach the target, and saved against the control."""
    text = f"To reach {metric_name(report.metric)} {report.target:.4g} ({report.target_origin}), medians over trials."
    columns: dict[str, Callable[[Summary], str]] = {
        "reached": lambda s: f"{sum(x is not None for x in s.reached.values())} of {len(s.reached)}",
        "training labels": lambda s: _median_count(s.reached),
        "with validation": lambda s: _median_count(s.reached_total),
    }
    if report.comparisons:
        text += (
            f" Saved is the median over shared seeds of {report.control}'s training labels minus the strategy's, with "
            f"its interval from six seeds on; ∞ where {report.control} did not reach it, −∞ where the strategy did "
            "not. Seeds in which neither did are omitted."
        )
        against = {c.label: c for c in report.comparisons}
        columns["saved"] = lambda s: count(against.get(s.label, UNTESTED).saved)
        columns["95 % interval"] = lambda s: _interval(against.get(s.label, UNTESTED).saved_interval, count)
        columns["seeds"] = lambda s: (
            f"{against[s.label].num_saved} of {against[s.label].num_shared}" if s.label in against else NONE
        )
    return _table("Labels to a target", text, report.summaries, columns)


def labels(report: Report) -> ReportTable:
    """Return the table of labels used."""
    text = "Validation labels cost as much as training labels; they are used for early stopping and the threshold."
    columns: dict[str, Callable[[Summary], str]] = {
        "trials": lambda s: str(len(s.curves[report.metric])),
        "rounds": lambda s: str(max(map(len, s.run.trials.values()))),
        "training labels": lambda s: span_text(s.labels),
        "validation labels": lambda s: f"{_most(s, 'num_validation'):,}",
        "all labels": lambda s: f"{s.labels[1] + _most(s, 'num_validation'):,}",
    }
    return _table("Labels used", text, report.summaries, columns)


def costs(report: Report) -> ReportTable:
    """Return the table of time and memory."""
    text = "Median seconds per round, and the peak memory of any process of the run, including training."
    columns: dict[str, Callable[[Summary], str]] = {
        "choosing a batch": lambda s: seconds(s.select_seconds),
        "a whole round": lambda s: seconds([_total(each) for each in s.recorded("seconds")]),
        "peak memory": lambda s: f"{_most(s, 'peak_memory') / 1e6:,.0f} MB" if s.recorded("peak_memory") else NONE,
    }
    if any(s.recorded("clustering_rounds") for s in report.summaries):
        text += " Rounds of clustering: median and maximum over all batches; the paper says usually less than 5."
        columns["rounds of clustering"] = lambda s: (
            f"{median(rounds):g}, at most {max(rounds)}" if (rounds := s.recorded("clustering_rounds")) else NONE
        )
    return _table("Time and memory", text, report.summaries, columns)


def _most(summary: Summary, field: str) -> int:
    return max(summary.recorded(field), default=0)


def _total(phases: Mapping[str, float | None]) -> float:
    return math.fsum(each for each in phases.values() if each is not None)


def spread(values: Sequence[float]) -> str:
    """Format mean ± standard deviation."""
    if not values:
        return NONE
    return f"{fmean(values):.3f}" + (f" ± {standard_deviation(values):.3f}" if len(values) > 1 else "")


def signed(value: float | None) -> str:
    """Format a difference of a metric."""
    return NONE if value is None else f"{value:+.4f}".replace("-", "−")


def p_value(p: float | None) -> str:
    """Format a p-value with two digits."""
    return NONE if p is None else f"{p:.2g}"


def seconds(values: Sequence[float]) -> str:
    """Format the median of some durations."""
    if not values:
        return NONE
    found = median(values)
    return f"{found:.3g} s" if found >= 1 else f"{1000 * found:.3g} ms"


def count(value: float | None) -> str:
    """Format a number of labels, which may be a half or infinite."""
    if value is None:
        return NONE
    return ("−" if value < 0 else "") + ("∞" if math.isinf(value) else f"{abs(value):g}")


def _median_count(counts: Mapping[int, int | None]) -> str:
    value = middle([math.inf if x is None else float(x) for x in counts.values()])
    return NONE if value is None or math.isinf(value) else count(value)


def _interval(ends: tuple[float, float] | None, written: Callable[[float], str]) -> str:
    return NONE if ends is None else f"[{written(ends[0])}, {written(ends[1])}]"


def settings(runs: Sequence[Run]) -> tuple[tuple[str, str], ...]:
    """Return the settings of the runs, one line for each part of a config; differing values name their runs."""
    found = []
    for name in SETTINGS:
        values: dict[str, list[str]] = {}
        for run in runs:
            if run.config.get(name) is not None:
                values.setdefault(written(run.config[name]), []).append(run.label)
        parts = [
            value if len(owners) == len(runs) else f"{value} ({', '.join(owners)})" for value, owners in values.items()
        ]
        if parts:
            found.append((name.replace("_", " "), "; ".join(parts)))
    return tuple(found)


def written(value: Any) -> str:
    """Write a value of a config as text: "digits, copies = 1" for a table with a name."""
    if not isinstance(value, dict):
        return ", ".join(map(written, value)) if isinstance(value, list) else str(value)
    names = [str(value[key]) for key in ("name", "kind") if value.get(key) is not None]
    rest = {key: each for key, each in value.items() if key not in ("name", "kind") and each is not None}
    texts = {key: f"({written(each)})" if isinstance(each, dict | list) else str(each) for key, each in rest.items()}
    return ", ".join([*names, *(f"{key} = {each}" for key, each in texts.items())]) or "defaults"


def csv_tables(report: Report) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of each CSV file by its name; None becomes an empty cell."""
    return {
        "curves": list(_curve_rows(report)),
        "trials": list(_trial_rows(report)),
        "comparisons": [_comparison_row(report, c) for c in report.comparisons],
    }


def _curve_rows(report: Report) -> Iterable[dict[str, Any]]:
    for metric in report.metrics:
        for summary in report.summaries:
            for band in summary.bands(metric):
                low, high = band.interval or (None, None)
                values = summary.at(metric, band.num_labels)
                yield {
                    "metric": metric,
                    "strategy": summary.label,
                    "num_labels": band.num_labels,
                    "trials": band.num_trials,
                    "lower_quartile": band.lower,
                    "median": band.median,
                    "upper_quartile": band.upper,
                    "mean": band.mean,
                    "mean_low": low,
                    "mean_high": high,
                    "std": standard_deviation(values) if len(values) > 1 else None,
                }


def _trial_rows(report: Report) -> Iterable[dict[str, Any]]:
    for summary in report.summaries:
        for seed, trial in summary.curves[report.metric].items():
            yield {
                "strategy": summary.label,
                "seed": seed,
                "first_labels": trial.labels[0],
                "last_labels": trial.labels[-1],
                f"last_{report.metric}": trial.values[-1],
                "area": summary.areas.get(seed),
                **{f"{report.metric}_at_{num}": trial.at(num) for num in report.counts},
                "labels_to_target": summary.reached[seed],
                "all_labels_to_target": summary.reached_total[seed],
            }


def _comparison_row(report: Report, c: PairedComparison) -> dict[str, Any]:
    low, high = c.interval or (None, None)
    saved_low, saved_high = c.saved_interval or (None, None)
    start, end = c.span or (None, None)
    return {
        "strategy": c.label, "control": report.control, "metric": report.metric, "shared_seeds": c.num_shared,
        "pairs": len(c.differences), "from_labels": start, "to_labels": end, "difference": c.effect,
        "interval_low": low, "interval_high": high, "p": c.p, "p_holm": c.corrected_p, "least_p": c.least_p,
        "least_p_holm": c.least_corrected_p, "target": report.target, "labels_saved": c.saved,
        "labels_saved_low": saved_low, "labels_saved_high": saved_high, "labels_saved_seeds": c.num_saved,
    }  # fmt: skip

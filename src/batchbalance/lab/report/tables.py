"""The tables of a report as text cells for people, and as plain numbers for CSV files."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from batchbalance.lab.report.comparisons import PairedComparison, Report, Summary
from batchbalance.lab.report.curves import Span, metric_name
from batchbalance.lab.report.opening import settings
from batchbalance.lab.report.paired import middle, standard_deviation

NONE = "–"


@dataclass(frozen=True)
class ReportTable:
    """A table for people: the first column names the row, the others are aligned to the right."""

    title: str
    text: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    is_text: bool = False  # sentences, no numbers


def tables(report: Report) -> list[ReportTable]:
    """Return all tables of a report, the most important first."""
    against = [comparisons(report)] if report.comparisons else []
    beaten = [wins(report)] if len(report.summaries) > 1 else []
    timed = [costs(report)] if any(s.round_seconds or s.peak_memory for s in report.summaries) else []
    ran = [set_up(report)] if report.runs else []
    return [results(report), *against, savings(report), *beaten, labels(report), *timed, *ran]


def overview(report: Report) -> ReportTable:
    """Return the short table that `report` prints."""
    against = {c.label: c for c in report.comparisons}
    last = report.counts[-1]
    rows = []
    for s in report.summaries:
        row = [s.label, spread(s.at(report.metric, last)), _reached(s)[2]]
        if against:
            c = against.get(s.label)
            row += [_saved(c)[0], *((NONE, NONE) if c is None else (signed(c.effect), p_value(c.corrected_p)))]
        rows.append((*row, seconds(s.select_seconds)))
    header = ["strategy", f"at {last}", f"to {report.target:.3g}", *(["saved", "area", "p (Holm)"] if against else [])]
    trials = sorted({len(s.curves[report.metric]) for s in report.summaries})
    num = " to ".join(str(num) for num in dict.fromkeys((trials[0], trials[-1])))
    than = f", saved, area and p against {report.control}" if against else ""
    text = (
        f"trials: {num}; {metric_name(report.metric)} at {last} labels; labels to reach {report.target:.3g}{than}; "
        "time to choose a batch"
    )
    return ReportTable("Overview", text, (*header, "choosing"), tuple(rows))


def results(report: Report) -> ReportTable:
    """Return the table of the metric at label counts, and of the area under the curve."""
    header = ("strategy", "trials", *(f"at {count}" for count in report.counts), "area")
    rows = tuple(
        (
            s.label,
            str(len(s.curves[report.metric])),
            *(spread(s.at(report.metric, count)) for count in report.counts),
            spread(list(s.areas.values())),
        )
        for s in report.summaries
    )
    better = "higher is better" if report.higher_is_better else "lower is better"
    area = f"; area is the mean height of the curve over {_range(report.span)} labels" if report.span else ""
    return ReportTable(
        f"{capitalised(metric_name(report.metric))} by training labels",
        f"Mean ± standard deviation over trials, {better}{area}.",
        header,
        rows,
    )


def comparisons(report: Report) -> ReportTable:
    """Return the table of every run against the control."""
    header = ("strategy", "pairs", "labels", "difference", "95 % interval", "p", "p (Holm)", "least p", "least (Holm)")
    rows = tuple(
        (
            c.label,
            str(len(c.differences)),
            _range(c.span),
            signed(c.effect),
            NONE if c.interval is None else f"[{signed(c.interval[0])}, {signed(c.interval[1])}]",
            p_value(c.p),
            p_value(c.corrected_p),
            p_value(c.least_p),
            p_value(c.least_corrected_p),
        )
        for c in report.comparisons
    )
    text = (
        f"Difference in area, strategy minus {report.control}, over the seeds and label counts that both have: its "
        "mean, Student's interval, and p of the exact two-sided sign-flip test, then corrected for all rows. "
        "Least p is the smallest that so many pairs can give."
    )
    return ReportTable(f"Against {report.control}", text, header, rows)


def savings(report: Report) -> ReportTable:
    """Return the table of labels needed to reach the target, and saved against the control."""
    header = ("strategy", "reached", "training labels", "with validation")
    rows = tuple(_reached(s) for s in report.summaries)
    text = f"To reach {metric_name(report.metric)} {report.target:.4g} ({report.target_origin}), medians over trials."
    if not report.comparisons:
        return ReportTable("Labels to a target", text, header, rows)
    against = {c.label: c for c in report.comparisons}
    rows = tuple((*row, *_saved(against.get(row[0]))) for row in rows)
    text += (
        f" Saved is the median over shared seeds of {report.control}'s training labels minus the strategy's, with its "
        f"interval from six seeds on; ∞ where {report.control} did not get there, −∞ where the strategy did not. "
        "Seeds in which neither did are omitted."
    )
    return ReportTable("Labels to a target", text, (*header, "saved", "95 % interval", "seeds"), rows)


def wins(report: Report) -> ReportTable:
    """Return the table of how often each run is better than each other one."""
    names = [s.label for s in report.summaries]
    rows = tuple((a, *(NONE if a == b else _won(report.wins[a, b]) for b in names)) for a in names)
    text = "Shared seeds in which the row has the better area than the column, of those compared; a tie counts half."
    return ReportTable("Wins", text, ("better than", *names), rows)


def labels(report: Report) -> ReportTable:
    """Return the table of labels used."""
    header = ("strategy", "trials", "rounds", "training labels", "validation labels", "all labels")
    rows = tuple(
        (
            s.label,
            str(len(s.curves[report.metric])),
            str(s.num_rounds),
            _range(s.labels),
            f"{s.num_validation:,}",
            f"{s.labels[1] + s.num_validation:,}",
        )
        for s in report.summaries
    )
    text = "Validation labels cost as much as training labels; they are used for early stopping and the threshold."
    return ReportTable("Labels used", text, header, rows)


def costs(report: Report) -> ReportTable:
    """Return the table of time and memory."""
    clustered = any(s.clustering_rounds for s in report.summaries)
    header = ("strategy", "choosing a batch", "a whole round", "peak memory")
    rows = tuple(
        (
            s.label,
            seconds(s.select_seconds),
            seconds(s.round_seconds),
            NONE if s.peak_memory is None else f"{s.peak_memory / 1e6:,.0f} MB",
            *([rounds(s.clustering_rounds)] if clustered else []),
        )
        for s in report.summaries
    )
    text = "Median seconds a round, and the most memory any process of the run held, training included."
    if clustered:
        text += " Rounds of clustering: median and most over all batches; the paper says usually less than 5."
    return ReportTable("Time and memory", text, (*header, *(["rounds of clustering"] if clustered else [])), rows)


def set_up(report: Report) -> ReportTable:
    """Return the table of settings."""
    text = "The settings of the runs; where they differ, each value with its runs. The whole is in their config.json."
    return ReportTable("Settings", text, ("setting", "value"), settings(report.runs), is_text=True)


def spread(values: Sequence[float]) -> str:
    """Format mean ± standard deviation."""
    if not values:
        return NONE
    return f"{fmean(values):.3f}" + (f" ± {standard_deviation(values):.3f}" if len(values) > 1 else "")


def capitalised(text: str) -> str:
    """Return text with a capital first letter."""
    return text[:1].upper() + text[1:]


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


def rounds(values: Sequence[int]) -> str:
    """Format the median and the maximum of some numbers of rounds."""
    return f"{median(values):g}, at most {max(values)}" if values else NONE


def count(value: float | None) -> str:
    """Format a number of labels, which may be a half or infinite."""
    if value is None:
        return NONE
    return ("−" if value < 0 else "") + ("∞" if math.isinf(value) else f"{abs(value):g}")


def _reached(summary: Summary) -> tuple[str, ...]:
    found = sum(x is not None for x in summary.reached.values())
    cells = []
    for counts in (summary.reached, summary.reached_total):
        value = middle([math.inf if x is None else float(x) for x in counts.values()])
        cells.append(NONE if value is None or math.isinf(value) else count(value))
    return summary.label, f"{found} of {len(summary.reached)}", cells[0], cells[1]


def _saved(comparison: PairedComparison | None) -> tuple[str, ...]:
    if comparison is None:
        return NONE, NONE, NONE
    ends = comparison.saved_interval
    seeds = f"{comparison.num_saved} of {comparison.num_shared}"
    return count(comparison.saved), NONE if ends is None else f"[{count(ends[0])}, {count(ends[1])}]", seeds


def _won(pair: tuple[float, int]) -> str:
    won, compared = pair
    return f"{won:g} of {compared}" if compared else NONE


def _range(span: Span | None) -> str:
    return NONE if span is None else f"{span[0]:,} to {span[1]:,}"


def csv_tables(report: Report) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of each CSV file by its name; None becomes an empty cell."""
    return {
        "curves": list(_curve_rows(report)),
        "trials": list(_trial_rows(report)),
        "comparisons": [_comparison_row(report, c) for c in report.comparisons],
        "wins": [
            {"strategy": a, "than": b, "wins": won, "compared": compared}
            for (a, b), (won, compared) in report.wins.items()
        ],
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

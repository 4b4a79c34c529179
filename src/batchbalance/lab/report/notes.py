"""The sentences of a report: its conclusion, and notes on few trials, unequal seeds or versions and poor fits."""

from collections.abc import Iterator, Sequence
from statistics import fmean

from batchbalance.lab.report.comparisons import PairedComparison, Report
from batchbalance.lab.report.curves import metric_name, span_text
from batchbalance.lab.report.paired import mean_interval
from batchbalance.strategies import AUTO

ENOUGH_TRIALS = 10
LEVEL = 0.05
MOST_NAMED = 3  # runs that the conclusion names; otherwise it gives their number
FITTED = 0.9  # training accuracy below which a network did not fit its labels


def conclusion(report: Report) -> str:
    """Return one sentence on which runs differ from the control after correction."""
    tested = [c for c in report.comparisons if c.corrected_p is not None]
    if not tested:
        return _untested(report)
    clear = [c for c in tested if (c.corrected_p or 0.0) < LEVEL]
    num = min(len(c.differences) for c in tested)
    sure = f"Holm's correction, level {LEVEL:g}, {num} paired trial{'' if num == 1 else 's'}"
    spans = {c.span for c in tested}
    span = tested[0].span
    shared = f"the labels that each shares with {report.control}"
    over = shared if len(spans) > 1 or span is None else f"{span_text(span)} labels"
    metric = f"mean {metric_name(report.metric)} over {over}"
    if not clear:
        few = ", too few to distinguish any" if all(c.least_corrected_p >= LEVEL for c in tested) else ""
        return f"No strategy is statistically distinguishable from {report.control} in {metric} ({sure}{few})."
    better = [c for c in clear if ((c.effect or 0.0) > 0) == report.higher_is_better]
    groups = {
        "better than": better,
        "worse than": [c for c in clear if c not in better],
        "statistically indistinguishable from": [c for c in tested if c not in clear],
    }
    said = (_said(how, found, len(tested), f"{report.control}") for how, found in groups.items() if found)
    return f"In {metric}, {'; '.join(said)} ({sure})."


def verdict(report: Report) -> str:
    """Return one sentence on whether choosing helped.

    The run of "auto" is called the default. It helped if the interval of its effect lies above 0. The intervals are as
    wide as so many of them need to hold together (Bonferroni).
    """
    told, word = [], "makes no measurable difference"
    for found in sorted(report.comparisons, key=lambda c: c.label != AUTO):
        effect = found.effect
        interval = mean_interval(list(found.differences.values()), len(report.comparisons))
        if effect is None or interval is None:
            continue
        if found.label == AUTO and not interval[0] <= 0 <= interval[1]:
            word = "helps" if effect > 0 else "does harm"
        name = "the default" if found.label == AUTO else found.label
        low, high = (100 * end for end in interval)
        how = "better" if effect > 0 else "worse"
        told.append(f"{name} is {100 * abs(effect):.1f} points {how} than random ({low:+.1f} to {high:+.1f})")
    if not told or report.span is None:
        return conclusion(report)
    start, end = report.span
    trials = min(len(c.differences) for c in report.comparisons)
    num = len(report.comparisons)
    bounds = "95 % interval" if num == 1 else f"95 % intervals, corrected for {num} comparisons"
    return (
        f"Choosing {word} here: {', '.join(told)} in mean accuracy over {start:,} to {end:,} labels "
        f"({bounds}, {trials} paired trials)."
    )


def _untested(report: Report) -> str:
    """Return a conclusion without a test, which ranks no strategy above another."""
    shown = [s for s in report.summaries if s.areas]
    if report.span is None or not shown:
        return "The runs have no label counts in common, so nothing can be concluded."
    found = (max if report.higher_is_better else min)(shown, key=lambda s: fmean(s.areas.values()))
    metric = f"mean {metric_name(report.metric)}"
    over = f"over {span_text(report.span)} labels is {fmean(found.areas.values()):.3f}"
    if len(shown) == 1:
        return f"The {metric} of {found.label} {over}; there is nothing to compare it with."
    extreme = "highest" if report.higher_is_better else "lowest"
    return f"No difference was tested; the {extreme} {metric} {over}, of {found.label}."


def _said(how: str, found: Sequence[PairedComparison], num_tested: int, control: str) -> str:
    """Return how some runs compare with the control, by name or by number."""
    names = [c.label for c in found]
    listed = f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]
    who = f"{len(names)} of {num_tested} strategies" if len(names) > MOST_NAMED else listed
    by = f" by {abs(found[0].effect or 0.0):.3f}" if len(names) == 1 and how.endswith("than") else ""
    return f"{who} {'is' if len(names) == 1 else 'are'} {how} {control}{by}"


def notes(report: Report) -> list[str]:
    """Return the notes of a report, one sentence or two each."""
    return [*_runs(report), *_fits(report), *_versions(report), *_trials(report), *_counts(report), *_tests(report)]


def _runs(report: Report) -> Iterator[str]:
    if not report.alike:
        names = ", ".join(report.data)
        yield f"The runs differ in data or split ({names}), but pairing assumes that trials of one seed start alike."
    if report.earlier:
        yield (
            f"Omitted, because other settings were run last in their folder: {', '.join(report.earlier)}. "
            "`--all` includes them; `--only LABEL` selects some."
        )
    if report.empty:
        yield f"Omitted, because they have no value of {report.metric} yet: {', '.join(report.empty)}."
    if report.control is None:
        yield (
            "There is no single run of random and no other control is named, so nothing is tested. Name one with "
            "`--control LABEL`, or select runs with `--only LABEL`."
        )
    if report.span is None:
        yield "The runs have no label counts in common, so there are no areas."
        return
    cut = [s.label for s in report.summaries if max(t.labels[-1] for t in s.curves[report.metric].values()) ==
           report.span[1] < max(other.labels[1] for other in report.summaries)]  # fmt: skip
    if cut:
        yield f"Areas are over {report.span[0]} to {report.span[1]} labels, because {', '.join(cut)} ends there."


def _fits(report: Report) -> Iterator[str]:
    for run in report.runs:
        fits = [  # the worst network of each round
            (min(kept["training_accuracy"] for kept in record["training"]), record["num_labelled"])
            for records in run.trials.values()
            for record in records
            if record.get("training")
        ]
        poor = [fit for fit in fits if fit[0] < FITTED]
        if poor:
            lowest, at = min(poor)
            yield (
                f"{run.label}: the networks of {len(poor)} of {len(fits)} rounds did not fit their training labels "
                f"(training accuracy below {FITTED:g}; lowest {lowest:.2f} at {at} labels), so the comparison may "
                "reflect the training rather than the strategy. Train for more steps."
            )


def _versions(report: Report) -> Iterator[str]:
    labels: dict[tuple[str, ...], list[str]] = {}
    for summary in report.summaries:
        found = (record.get("versions") or {} for record in summary.records)
        for each in dict.fromkeys(tuple(f"{name} {version}" for name, version in known.items()) for known in found):
            labels.setdefault(each, []).append(summary.label)
    if len(labels) < 2:
        return
    named = [set(each) for each in labels if each]
    shared = set.intersection(*named) if len(named) > 1 else set()
    groups = []
    for each, runs in labels.items():
        differing = ", ".join(version for version in each if version not in shared)
        groups.append(f"{differing or 'versions that the records do not name'} ({', '.join(runs)})")
    yield f"The records were written under different versions, which can change numbers: {'; '.join(groups)}."


def _trials(report: Report) -> Iterator[str]:
    for summary in report.summaries:
        curves = summary.curves[report.metric]
        num_trials = len(summary.run.trials)
        if len(curves) < num_trials:
            missing = num_trials - len(curves)
            yield f"{summary.label}: {missing} of {num_trials} trials have no value of {report.metric} yet."
        short = [seed for seed in curves if report.span and seed not in summary.areas]
        if short:
            seeds = ", ".join(map(str, short))
            yield f"{summary.label}: trials omitted from the area because they do not cover its labels: {seeds}."


def _counts(report: Report) -> Iterator[str]:
    for count in report.counts:
        without = [s.label for s in report.summaries if not s.at(report.metric, count)]
        if without:
            yield f"No value at {count} labels: {', '.join(without)}."


def _tests(report: Report) -> Iterator[str]:
    trials = {s.label: len(s.curves[report.metric]) for s in report.summaries}
    unequal: dict[str, list[str]] = {}
    for comparison in report.comparisons:
        most = max(trials[comparison.label], trials[report.control or ""])
        if comparison.num_shared < most:
            shared = f"Paired with {report.control} on the {comparison.num_shared} of {most} seeds that both have"
            unequal.setdefault(shared, []).append(comparison.label)
    yield from (f"{shared}: {', '.join(labels)}." for shared, labels in unequal.items())
    for comparison in report.comparisons:
        if len(comparison.differences) < comparison.num_shared:
            dropped = f"{comparison.num_shared - len(comparison.differences)} of {comparison.num_shared} shared trials"
            yield f"{comparison.label}: {dropped} do not cover the labels compared."
    tested = [c for c in report.comparisons if c.p is not None]
    few = min(tested, key=lambda c: len(c.differences), default=None)
    if few is not None and len(few.differences) < ENOUGH_TRIALS:
        num = len(few.differences)
        trial = "one paired trial" if num == 1 else f"{num} paired trials"
        yield (
            f"With {trial} the smallest p reachable is {few.least_p:.2g}, and {few.least_corrected_p:.2g} after "
            f"Holm's correction for {len(tested)} comparison{'' if len(tested) == 1 else 's'}; intervals are rough "
            f"too. Run at least {ENOUGH_TRIALS} trials before you trust a difference."
        )

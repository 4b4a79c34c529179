"""Warnings about a report: few trials, unequal seeds or versions, poor fits."""

from collections.abc import Iterator

from batchbalance.lab.records import Run
from batchbalance.lab.report.comparisons import ENOUGH_TRIALS, Report

FITTED = 0.9  # training accuracy below which a network did not fit its labels


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
            "`--all` shows them too, `--only LABEL` some of them."
        )
    if report.empty:
        yield f"Omitted, because they have no value of {report.metric} yet: {', '.join(report.empty)}."
    if report.control is None:
        yield "There is no single run of random, and no other control is named: nothing is tested."
    if report.span is None:
        yield "The runs have no label counts in common, so there are no areas."
        return
    cut = [s.label for s in report.summaries if max(t.labels[-1] for t in s.curves[report.metric].values()) ==
           report.span[1] < max(other.labels[1] for other in report.summaries)]  # fmt: skip
    if cut:
        yield f"Areas are over {report.span[0]} to {report.span[1]} labels, because {', '.join(cut)} ends there."


def _fits(report: Report) -> Iterator[str]:
    for run in report.runs:
        fits = _training_accuracies(run)
        poor = [(accuracy, num_labels) for accuracy, num_labels in fits if accuracy < FITTED]
        if poor:
            lowest, at = min(poor)
            yield (
                f"{run.label}: the networks of {len(poor)} of {len(fits)} rounds did not fit their training labels "
                f"(training accuracy below {FITTED:g}; lowest {lowest:.2f} at {at} labels), so the comparison may "
                "say more about the training than about the strategy. Train for more steps."
            )


def _training_accuracies(run: Run) -> list[tuple[float, int]]:
    """Return the training accuracy of the worst network of each round that records it, and the round's labels."""
    return [
        (min(kept["training_accuracy"] for kept in record["training"]), record["num_labelled"])
        for records in run.trials.values()
        for record in records
        if record.get("training")
    ]


def _versions(report: Report) -> Iterator[str]:
    labels: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for summary in report.summaries:
        for found in summary.versions:
            labels.setdefault(tuple(found.items()), []).append(summary.label)
    if len(labels) < 2:
        return
    named = [set(versions) for versions in labels if versions]
    shared = set.intersection(*named) if len(named) > 1 else set()
    groups = []
    for versions, runs in labels.items():
        differing = ", ".join(f"{name} {version}" for name, version in versions if (name, version) not in shared)
        groups.append(f"{differing or 'versions that the records do not name'} ({', '.join(runs)})")
    yield f"The records were written under different versions, which can change numbers: {'; '.join(groups)}."


def _trials(report: Report) -> Iterator[str]:
    for summary in report.summaries:
        curves = summary.curves[report.metric]
        if len(curves) < summary.num_trials:
            missing = summary.num_trials - len(curves)
            yield f"{summary.label}: {missing} of {summary.num_trials} trials have no value of {report.metric} yet."
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

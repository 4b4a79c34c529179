"""The page of the suite: a matrix of differences with intervals, ranks, labels saved, seconds; and its figure."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any

from batchbalance.lab.report.comparisons import PairedComparison, Report, Summary, compare
from batchbalance.lab.report.curves import Curve
from batchbalance.lab.report.figures import rendered
from batchbalance.lab.report.paired import mean_interval

DEFAULT = "u-herding"  # what `auto` takes once there are labels and embeddings
RIVALS = (  # of the figure, and against it
    "u-herding (raw)", "cover-balance", "max-herding", "typiclust", "margin", "badge", "batch-balance",
)  # fmt: skip
SIGNIFICANT = 0.05
CLOSE = 0.005  # half a point

Reports = Mapping[str, Report]  # by the name of the comparison
Rows = list[list[str]]
Sets = Mapping[str, Mapping[str, Any]]  # facts about data sets, by name
Oracle = Mapping[str, Mapping[str, Mapping[str, float]]]  # accuracy by comparison, trial and label count


def page(reports: Reports, folder: str = "suite", sets: Sets | None = None, oracle: Oracle | None = None) -> str:
    """All tables of a folder of `results/`.

    `sets` tells how well the majority class of a data set does, and `oracle` the best that labels could buy.
    """
    names = ranked(reports)
    rivals, others = [name for name in RIVALS if name in names], [name for name in names if name != DEFAULT]
    option = "" if folder == "suite" else f" --folder results/{folder}"
    parts = [
        f"# All tables of results/{folder}",
        f"Made by `python results/suite/suite.py show{option}`; [results](../../docs/results.md) says what they mean.",
        "## In short",
        "\n".join(f"- {line}" for line in in_short(reports)),
        "## Against random",
        "Mean accuracy over the curve minus that of random, in points, and half its 95 % interval; macro F1 instead of "
        "accuracy where classes are rare (`-rare`, `-tail`). Bold: "
        "the exact sign-flip test, corrected by Holm over the strategies of a column, gives p < 0.05. Strategies stand "
        "in the order of their mean rank over the columns. The last rows: the best that labels could buy, by a search "
        "that looks at the test labels (oracle.py, fewer trials); and always answering the most frequent class.",
        table(
            names,
            reports,
            against_random,
            last={
                "best labels": best_labels(reports, oracle or {}),
                "majority class": majority(reports, sets),
                "trials": num_trials(reports),
            },
        ),
        "## Ranks and regret",
        "Rank of the mean area among all strategies of a comparison (1 is best); regret is what the best strategy of a "
        "comparison has more, in points.",
        ranks(names, reports),
        f"## The default against all others, `{DEFAULT}` minus each",
        "Paired differences of areas in points, and half the 95 % interval; bold: p < 0.05 as above, corrected by Holm "
        "over the strategies of a column. Positive: the default is ahead.",
        table(others, with_control(reports), against_control),
        "## The default against all others, over data sets",
        f"`{DEFAULT}` minus the strategy: the mean over data sets of the mean difference of areas in its comparisons, "
        "in points, and half its 95 % interval over data sets, whatever the number of trials; bold: it excludes 0.",
        over_sets(others, reports),
        "## By label count",
        f"Accuracy of `{DEFAULT}` minus that of the strategy, in points, at label counts of the curve; bold where the "
        "95 % interval excludes 0, not corrected.",
        by_count(["random", *rivals], reports),
        "## From which label count on",
        f"Label counts of the curve at which `{DEFAULT}` is ahead of the strategy; in bold, those at which it is "
        "behind. Ahead or behind: the 95 % interval of the paired differences excludes 0, not corrected.",
        where_ahead(["random", *rivals], reports),
        "## Labels saved",
        "Median over trials of the labels that a strategy needs less than random to reach what the worst trial of "
        "random ends with; ∞: random never reached it in that trial; –: neither did in most of them.",
        table(names, reports, saved),
        "## Seconds a batch",
        "Median time to choose a batch, on one thread of a busy machine, without training and prediction.",
        table(names, reports, seconds),
    ]
    return "\n\n".join(parts) + "\n"


def in_short(reports: Reports) -> list[str]:
    """The sentences that README and the page of results repeat."""
    leads_of = {name: of_sets(reports, name) for name in ("random", "margin", "max-herding", "u-herding (raw)")}
    lines = [
        f"{DEFAULT} minus {name}: {points(mean(means), mean_interval(means), False)} points on average over "
        f"{len(means)} data sets (95 % interval over data sets), ahead on {sum(each > 0 for each in means)}"
        for name, means in leads_of.items()
        if means
    ]
    against = [found for report in reports.values() if (found := comparison_of(report, DEFAULT)) is not None]
    ahead = [found for found in against if (found.effect or 0.0) > 0]
    sure = sum(is_significant(found) for found in ahead)
    lines.append(
        f"ahead of random in {len(ahead)} of {len(against)} cells, in {sure} with p < {SIGNIFICANT} after Holm"
    )
    regrets = {name: regret(report) for name, report in reports.items() if DEFAULT in areas(report)}
    far = {name: f"{name} ({best}, {100 * gap:.1f})" for name, (gap, best) in regrets.items() if gap > CLOSE}
    lines.append(
        f"within half a point of the best strategy in {len(regrets) - len(far)} of {len(regrets)} cells; the others, "
        f"with the best one and its lead in points: {', '.join(far.values()) or 'none'}"
    )
    counts = sorted({len(summary.areas) for report in reports.values() for summary in report.summaries})
    return [*lines, f"{counts[0]} to {counts[-1]} trials of each strategy in each cell"]


def regret(report: Report) -> tuple[float, str]:
    """How much more the best strategy of a comparison has than the default, and which it is."""
    found = areas(report)
    best = max(found, key=lambda name: found[name])
    return found[best] - found[DEFAULT], best


def best_labels(reports: Reports, oracle: Oracle) -> list[str]:
    """The cells of the best that labels could buy, minus random, over the trials that both have."""
    cells = []
    for name, report in reports.items():
        random, found = summary_of(report, "random"), []
        for seed, points_of in oracle.get(name, {}).items():
            trial = Curve(tuple(int(count) for count in points_of), tuple(points_of.values()))
            area = trial.area(report.span) if report.span else None
            if random is not None and area is not None and int(seed) in random.areas:
                found.append(area - random.areas[int(seed)])
        cells.append(points(mean(found), mean_interval(found), False) if found else "")
    return cells


def short(label: str) -> str:
    """A strategy without its options, but for the metric."""
    name, _, options = label.partition("(")
    metric = re.search(r"metric=(\w+)", options)
    return name.strip() if metric is None else f"{name.strip()} ({metric[1]})"


def summary_of(report: Report, name: str) -> Summary | None:
    """The run of a strategy."""
    return next((summary for summary in report.summaries if short(summary.label) == name), None)


def comparison_of(report: Report, name: str) -> PairedComparison | None:
    """A strategy against random."""
    return next((comparison for comparison in report.comparisons if short(comparison.label) == name), None)


def mean(values: Sequence[float]) -> float:
    """The mean, NaN of none."""
    return math.fsum(values) / len(values) if values else math.nan


def areas(report: Report) -> dict[str, float]:
    """The mean area of each strategy, over the trials that all of them have."""
    seeds = set.intersection(*(set(summary.areas) for summary in report.summaries))
    return {short(s.label): mean([s.areas[seed] for seed in seeds]) for s in report.summaries}


def rank_of(found: Mapping[str, float], name: str) -> float:
    """The rank of a strategy, the mean of tied ones."""
    above = sum(value > found[name] for value in found.values())
    return above + (1 + sum(value == found[name] for value in found.values())) / 2


def ranked(reports: Reports) -> list[str]:
    """All strategies, by their mean rank, and by name where it is the same."""
    found = [areas(report) for report in reports.values()]
    names = {name for each in found for name in each}
    return sorted(names, key=lambda name: (mean([rank_of(each, name) for each in found if name in each]), name))


def table(
    names: Sequence[str],
    reports: Reports,
    cell: Callable[[Report, str], str],
    last: Mapping[str, list[str]] | None = None,
) -> str:
    """One row a strategy, one column a comparison."""
    rows = [[f"`{name}`", *(cell(report, name) for report in reports.values())] for name in names]
    rows += [[name, *cells] for name, cells in (last or {}).items()]
    return markdown(["", *reports], rows)


def markdown(header: list[str], rows: Rows) -> str:
    """A table."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def points(value: float, interval: tuple[float, float] | None, bold: bool) -> str:
    """A difference in points with half its interval."""
    half = "" if interval is None else f" ± {50 * (interval[1] - interval[0]):.1f}"
    text = f"{100 * value:+.1f}{half}".replace("-", "−")
    return f"**{text}**" if bold else text


def against_random(report: Report, name: str) -> str:
    """The cell of the matrix."""
    found = comparison_of(report, name)
    if found is None or found.effect is None:
        return ""
    return points(found.effect, found.interval, is_significant(found))


def num_trials(reports: Reports) -> list[str]:
    """How many trials each column is the mean of; of two numbers, the smaller is that of rivals with fewer."""
    found = [sorted({len(summary.areas) for summary in report.summaries}) for report in reports.values()]
    return [str(each[0]) if len(each) == 1 else f"{each[0]}–{each[-1]}" for each in found]


def majority(reports: Reports, sets: Sets | None) -> list[str]:
    """Always answering the most frequent class, minus random, in points."""
    found = []
    for name, report in reports.items():
        facts, control = (sets or {}).get(name.rpartition("-b")[0]), summary_of(report, "random")
        known = None if facts is None else facts.get(f"majority {report.metric}")
        found.append(
            "" if known is None or control is None else points(known - mean([*control.areas.values()]), None, False)
        )
    return found


def with_control(reports: Reports) -> Reports:
    """The same runs, against the default instead of random."""
    return {name: compare(report.runs, metric=report.metric, control=DEFAULT) for name, report in reports.items()}


def against_control(report: Report, name: str) -> str:
    """The control of a report minus a strategy, by area."""
    found = comparison_of(report, name)
    if found is None or found.effect is None:
        return ""
    return points(-found.effect, found.interval, is_significant(found))


def against_entry(reports: Reports, name: str) -> str:
    """An entry minus each published strategy, for the terminal: reports whose control is the entry."""
    rivals = sorted({short(each.label) for report in reports.values() for each in report.comparisons})
    heading = f"{name} minus each, mean over the curve in points; bold: p < {SIGNIFICANT}, corrected by Holm"
    return f"{heading}\n\n{table(rivals, reports, against_control)}"


def entry_row(reports: Reports, name: str, commit: str, today: str) -> str:
    """The row of an entry in the table of all entries: where, how often, and minus the default."""
    cells = {comparison: against_control(report, DEFAULT) for comparison, report in reports.items()}
    trials = sorted({len(report.summaries[0].areas) for report in reports.values()})
    where = ", ".join(f"{comparison} {cell}" for comparison, cell in cells.items() if cell)
    return f"| `{name}` | {commit} | {today} | {'–'.join(map(str, trials))} | {where} |"


def is_significant(found: PairedComparison) -> bool:
    """Whether a difference would be rare by chance, among all strategies of its report."""
    return found.corrected_p is not None and found.corrected_p < SIGNIFICANT


def over_sets(names: Sequence[str], reports: Reports) -> str:
    """The default minus each strategy, with data sets as what varies."""
    rows = []
    for name in names:
        means = of_sets(reports, name)
        interval = mean_interval(means)
        ahead = f"{sum(value > 0 for value in means)} of {len(means)}"
        rows.append([f"`{name}`", points(mean(means), interval, excludes_zero(interval)), ahead])
    return markdown(["", "difference", "data sets where the default is ahead"], rows)


def of_sets(reports: Reports, name: str) -> list[float]:
    """The default minus a strategy, the mean over the comparisons of each data set."""
    of_set: dict[str, list[float]] = {}
    for comparison, report in reports.items():
        ours, theirs = summary_of(report, DEFAULT), summary_of(report, name)
        if ours is not None and theirs is not None and (shared := ours.areas.keys() & theirs.areas.keys()):
            differences = [ours.areas[seed] - theirs.areas[seed] for seed in shared]
            of_set.setdefault(comparison.rpartition("-b")[0], []).append(mean(differences))
    return [mean(values) for values in of_set.values()]


def excludes_zero(interval: tuple[float, float] | None) -> bool:
    """Whether an interval is on one side of 0."""
    return sign_of(interval) != 0


def leads(report: Report, name: str, count: int) -> list[float]:
    """The default minus a strategy at a label count, in each trial that both have."""
    ours, theirs = summary_of(report, DEFAULT), summary_of(report, name)
    if ours is None or theirs is None:
        return []
    first, second = ours.curves[report.metric], theirs.curves[report.metric]
    pairs = [(first[seed].at(count), second[seed].at(count)) for seed in sorted(first.keys() & second.keys())]
    return [a - b for a, b in pairs if a is not None and b is not None]


def lead(values: Sequence[float]) -> str:
    """The cell of some leads; empty for none, as of a strategy that has not been run."""
    interval = mean_interval(values)
    return points(mean(values), interval, excludes_zero(interval)) if values else ""


def by_count(rivals: Sequence[str], reports: Reports) -> str:
    """The default minus rivals at each of four label counts of each comparison."""
    rows = []
    for name, report in reports.items():
        for count in report.counts:
            rows.append([f"{name}, {count} labels", *(lead(leads(report, rival, count)) for rival in rivals)])
    return markdown(["", *(f"`{rival}`" for rival in rivals)], rows)


def where_ahead(rivals: Sequence[str], reports: Reports) -> str:
    """The label counts at which the default is ahead of rivals or behind them, one row a comparison."""
    rows = [[name, *(ahead_in(report, rival) for rival in rivals)] for name, report in reports.items()]
    return markdown(["", *(f"`{rival}`" for rival in rivals)], rows)


def ahead_in(report: Report, name: str) -> str:
    """Spans of label counts at which the default is ahead of a strategy, and in bold those at which it is behind."""
    ours = summary_of(report, DEFAULT)
    trials = ours.curves[report.metric].values() if ours else []
    counts = sorted({count for trial in trials for count in trial.labels})
    signs = [(count, sign_of(mean_interval(leads(report, name, count)))) for count in counts]
    parts = []
    for sign, group in groupby(signs, key=lambda pair: pair[1]):
        span = [count for count, _ in group]
        text = f"{span[0]}–{span[-1]}" if len(span) > 1 else f"{span[0]}"
        parts += [text] if sign > 0 else [f"**behind {text}**"] if sign < 0 else []
    return ", ".join(parts)


def sign_of(interval: tuple[float, float] | None) -> int:
    """1 for an interval above 0, −1 for one below, else 0."""
    return 0 if interval is None else (interval[0] > 0) - (interval[1] < 0)


def ranks(names: Sequence[str], reports: Reports) -> str:
    """Mean rank, mean and largest regret, and in how many comparisons a strategy is the best or behind random."""
    found = [areas(report) for report in reports.values()]
    rows = []
    for name in names:
        mine = [each for each in found if name in each]
        regrets = [100 * (max(each.values()) - each[name]) for each in mine]
        worst = list(reports)[found.index(mine[regrets.index(max(regrets))])]
        behind = sum(each[name] < each["random"] for each in mine)
        rows.append([
            f"`{name}`", f"{mean([rank_of(each, name) for each in mine]):.1f}", f"{mean(regrets):.1f}",
            f"{max(regrets):.1f} ({worst})", str(regrets.count(0.0)), str(behind), str(len(mine)),
        ])  # fmt: skip
    header = ["", "mean rank", "mean regret", "largest regret", "best in", "behind random in", "of"]
    return markdown(header, rows)


def saved(report: Report, name: str) -> str:
    """Labels saved against random."""
    found = comparison_of(report, name)
    if found is None:
        return ""
    if found.saved is None:
        return "–"
    return ("−" if found.saved < 0 else "") + ("∞" if math.isinf(found.saved) else f"{abs(found.saved):.0f}")


def seconds(report: Report, name: str) -> str:
    """Median seconds to choose a batch."""
    found = summary_of(report, name)
    if found is None or not found.select_seconds:
        return ""
    return f"{sorted(found.select_seconds)[len(found.select_seconds) // 2]:.2g}"


def figure(reports: Reports) -> bytes:
    """Draw the lead of strategies over random as a PNG file that can be read at the width of a phone.

    One line a strategy: a dot for each data set, and the mean over data sets with its 95 % interval.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    leads_of = {name: set_leads(reports, name) for name in (DEFAULT, *RIVALS)}
    enough = len(leads_of[DEFAULT]) / 2  # a strategy that was run on few data sets has no mean to compare
    shown = [name for name, found in leads_of.items() if found and len(found) >= enough]
    shown.sort(key=lambda name: mean(leads_of[name]))
    drawn = Figure(figsize=(4.2, 0.42 * len(shown) + 1.1), layout="constrained")
    FigureCanvasAgg(drawn)
    axes = drawn.add_subplot()
    for row, name in enumerate(shown):
        colour, found = "#0072B2" if name == DEFAULT else "#666666", [100 * lead for lead in leads_of[name]]
        axes.plot(found, [row] * len(found), "o", color=colour, alpha=0.3, markersize=4, markeredgewidth=0)
        low, high = mean_interval(found) or (mean(found), mean(found))
        axes.plot([low, high], [row, row], color=colour, linewidth=2.5)
        axes.plot([mean(found)], [row], "D", color=colour, markersize=6)
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_yticks(range(len(shown)), shown)
    axes.get_yticklabels()[shown.index(DEFAULT)].set_fontweight("bold")
    axes.grid(axis="x", linewidth=0.4)
    axes.set_xlabel("points ahead of random")
    return rendered(drawn, "png")


def set_leads(reports: Reports, name: str) -> list[float]:
    """Return what a strategy has more than random, the mean over the comparisons of each data set."""
    of_set: dict[str, list[float]] = {}
    for comparison, report in reports.items():
        found = comparison_of(report, name)
        if found is not None and found.effect is not None:
            of_set.setdefault(comparison.rpartition("-b")[0], []).append(found.effect)
    return [mean(values) for values in of_set.values()]

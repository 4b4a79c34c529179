"""The figures of a report: learning curves of every metric, and differences from the control.

Every run has its own colour, line and marker, so figures are readable in colour, in grey and by colour-blind people.
Legends are below the axes. Figures use their own canvases and do not change matplotlib's global state.
"""

import io
import re
import textwrap
from collections.abc import Callable
from functools import partial
from typing import Any

from batchbalance.errors import MissingExtraError
from batchbalance.lab.report.comparisons import Report
from batchbalance.lab.report.curves import LOWER_IS_BETTER, metric_name

# Okabe and Ito's colours without the yellow, which is too pale for lines; the first is the ink itself.
COLOURS = ("ink", "blue", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
LINES: tuple[Any, ...] = ("--", "-", "-.", (0, (5, 1, 1, 1, 1, 1)), (0, (7, 2)), ":", (0, (3, 1, 1, 1)), (0, (1, 1)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">", "h")
LIGHT, DARK = ("#1A1A1A", "#FFFFFF", "#DDDDDD"), ("#E8E8E8", "#16181C", "#3A3D42")  # ink, paper, grid
WIDTH, AXES_HEIGHT, LEGEND_ROW = 5.6, 3.3, 0.24  # inches; narrow, so that text is readable on a phone
LEGEND_CHARACTERS, TICK_CHARACTERS = 50, 24  # per line
DOTS_PER_INCH = 200
MARKS = 8  # approximate number of markers on a curve

Draw = Callable[[bool], Any]  # dark -> a matplotlib figure


def require_matplotlib() -> None:
    """Raise `MissingExtraError` if matplotlib is not installed."""
    try:
        import matplotlib  # noqa: F401
    except ModuleNotFoundError as error:
        raise MissingExtraError("drawing a report", "report") from error


def figures(report: Report) -> dict[str, Draw]:
    """Return, by name, the functions that draw each figure on a light or dark background."""
    require_matplotlib()
    draws: dict[str, Draw] = {
        name: partial(draw_curves, report, metric) for name, metric in curve_figures(report).items()
    }
    if any(comparison.differences for comparison in report.comparisons):
        draws["differences"] = partial(draw_differences, report)
    return draws


def curve_figures(report: Report) -> dict[str, str]:
    """Return the metric of each figure of curves by its name; the metric of the tables comes first."""
    found: dict[str, str] = {}
    for metric in sorted(report.metrics, key=lambda name: name != report.metric):
        plain = re.sub(r"[^a-zA-Z0-9]+", "-", metric).strip("-")
        alike = sum(name == f"curves-{plain}" or name.startswith(f"curves-{plain}~") for name in found)
        found[f"curves-{plain}~{alike}" if alike or not plain else f"curves-{plain}"] = metric
    return found


def draw_curves(report: Report, metric: str, dark: bool = False) -> Any:
    """Draw a metric over trials against training labels: means with intervals, or medians with quartiles."""
    shown = [(i, s) for i, s in enumerate(report.summaries) if s.curves.get(metric)]
    labels = [_wrapped(summary.label, LEGEND_CHARACTERS) for _, summary in shown]
    longest = max(len(line) for label in labels for line in label.splitlines())
    columns = max(1, min(3, len(shown), 60 // (longest + 7)))
    rows = -(-sum(label.count("\n") + 1 for label in labels) // columns)
    figure, (axes,), ink = blank_figure(AXES_HEIGHT + rows * LEGEND_ROW, dark=dark)
    for (index, summary), label in zip(shown, labels, strict=True):
        band = summary.bands(metric)
        x = [b.num_labels for b in band]
        low, middle, high = zip(*(b.drawn(report.curves) for b in band), strict=True)
        colour, line, marker = look(index, ink)
        step = max(1, len(x) // MARKS)
        axes.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
        axes.plot(
            x, middle, color=colour, linestyle=line, marker=marker, linewidth=1.6, markersize=5.5,
            markevery=(index % step, step), markeredgecolor="none", label=label,
        )  # fmt: skip
    axes.set_xlabel("training labels")
    axes.set_ylabel(f"test {metric_name(metric)}" + (" (nats)" if metric == "nll" else ""), parse_math=False)
    axes.xaxis.get_major_locator().set_params(integer=True)
    legend = figure.legend(loc="outside lower center", ncols=columns, frameon=False, labelcolor=ink, handlelength=3.2)
    for text in legend.get_texts():
        text.set_parse_math(False)
    return figure


def draw_differences(report: Report, dark: bool = False) -> Any:
    """Draw the differences of each run from the control, one tick per seed, and their mean with its interval."""
    shown = [c for c in report.comparisons if c.differences]
    labels = [_wrapped(c.label, TICK_CHARACTERS) for c in shown]
    figure, (axes,), ink = blank_figure(1.1 + sum(0.38 + 0.18 * label.count("\n") for label in labels), dark=dark)
    index_of = {summary.label: i for i, summary in enumerate(report.summaries)}
    for row, comparison in enumerate(shown):
        colour, _, marker = look(index_of[comparison.label], ink)
        values = list(comparison.differences.values())
        axes.plot(values, [row + 0.18] * len(values), linestyle="", marker="|", color=colour, alpha=0.8, markersize=7)
        low, high = comparison.interval or (comparison.effect, comparison.effect)
        axes.plot([low, high], [row - 0.1] * 2, color=ink, linewidth=1.6)
        axes.plot([comparison.effect], [row - 0.1], marker=marker, color=colour, markersize=7, markeredgecolor=ink)
    axes.axvline(0, color=ink, linewidth=0.8, linestyle="--")
    axes.set_yticks(range(len(shown)), labels, parse_math=False)
    axes.set_ylim(len(shown) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
    axes.xaxis.get_major_locator().set_params(nbins=5)
    better = "← better" if report.metric in LOWER_IS_BETTER else "better →"
    control = textwrap.shorten(f"{report.control}", TICK_CHARACTERS, placeholder=" …")
    axes.set_xlabel(f"mean {metric_name(report.metric)} minus {control}'s\n{better}", parse_math=False)
    return figure


def _wrapped(label: str, width: int) -> str:
    """Wrap a label; options start a new line if they do not fit."""
    lines = textwrap.fill(label.replace("(", " (", 1), width, break_on_hyphens=False)
    return label if len(label) <= width else lines.replace(" (", "(")


def look(index: int, ink: str) -> tuple[str, Any, str]:
    """Return the colour, line and marker of a run; the combination repeats after 616 runs."""
    colour = COLOURS[index % len(COLOURS)]
    blue = "#0072B2" if ink == LIGHT[0] else "#56A0E8"  # the blue of the palette is too dark for a dark background
    colour = {"ink": ink, "blue": blue}.get(colour, colour)
    return colour, LINES[index % len(LINES)], MARKERS[index % len(MARKERS)]


def blank_figure(height: float, num_axes: int = 1, *, dark: bool = False) -> tuple[Any, list[Any], str]:
    """Create a figure with stacked empty axes; return it with its axes and its text colour."""
    require_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    ink, paper, grid = DARK if dark else LIGHT
    layout = ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08)
    figure = Figure(figsize=(WIDTH, height), layout=layout, facecolor=paper)
    FigureCanvasAgg(figure)
    all_axes = [figure.add_subplot(num_axes, 1, i + 1, facecolor=paper) for i in range(num_axes)]
    for axes in all_axes:
        axes.grid(visible=True, color=grid, linewidth=0.6)
        axes.set_axisbelow(True)
        axes.tick_params(colors=ink)
        axes.xaxis.label.set_color(ink)
        axes.yaxis.label.set_color(ink)
        axes.spines[["left", "bottom"]].set_color(ink)
        axes.spines[["right", "top"]].set_visible(False)
    return figure, all_axes, ink


def rendered(figure: Any, kind: str) -> bytes:
    """Render a figure as a "png" or "svg" file, the same bytes each time."""
    import matplotlib

    buffer = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "batchbalance"}):
        metadata = {"Date": None} if kind == "svg" else {"Software": None}
        figure.savefig(buffer, format=kind, dpi=DOTS_PER_INCH, metadata=metadata)
    return buffer.getvalue()

"""Panels in the look of the reports, drawn on canvases of their own."""

from typing import Any

from batchbalance.lab.report.figures import LIGHT, WIDTH, look, require_matplotlib

PANEL_HEIGHT = 3.0  # inches

__all__ = ["INK", "legend", "look", "panels"]

INK, PAPER, GRID = LIGHT


def panels(num: int, legend_rows: int = 0) -> tuple[Any, list[Any]]:
    """Make a figure with `num` panels below each other, and return it with its axes."""
    require_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    height = num * PANEL_HEIGHT + 0.24 * legend_rows
    figure = Figure(figsize=(WIDTH, height), layout="constrained", facecolor=PAPER)
    FigureCanvasAgg(figure)
    axes = [figure.add_subplot(num, 1, i + 1, facecolor=PAPER) for i in range(num)]
    for each in axes:
        each.grid(visible=True, color=GRID, linewidth=0.6)
        each.set_axisbelow(True)
        each.spines[["right", "top"]].set_visible(False)
    return figure, axes


def legend(figure: Any, axes: Any, columns: int = 2) -> None:
    """Draw one legend below all panels."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False, handlelength=3.2)

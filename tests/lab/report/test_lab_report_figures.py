"""Figures: legends outside, nothing cut off, runs told apart without colour, no global state."""

import itertools
from dataclasses import replace

import pytest

from batchbalance.lab.report import compare
from batchbalance.lab.report.figures import draw_curves, draw_differences, figures, look
from batchbalance.lab.report.tables import results
from made_runs import made_run


@pytest.fixture(params=[2, 12])
def report(request, tmp_path):
    labels = ["random", *(f"power-balance(beta={beta})" for beta in range(1, request.param))]
    return compare([made_run(tmp_path, label, rate=0.006 + 0.001 * i) for i, label in enumerate(labels)])


def test_the_legend_covers_nothing_and_names_all(report):
    figure = draw_curves(report, "accuracy")
    figure.canvas.draw()
    (legend,) = figure.legends
    box, (axes,) = legend.get_window_extent(), figure.axes
    assert not box.overlaps(axes.get_tightbbox())
    assert axes.get_legend() is None
    assert figure.bbox.containsx(box.x0)
    assert figure.bbox.containsx(box.x1)
    assert figure.bbox.containsy(box.y0)
    assert sorted(text.get_text() for text in legend.get_texts()) == sorted(s.label for s in report.summaries)
    assert axes.get_window_extent().height > 0.4 * 3.3 * figure.dpi


@pytest.mark.parametrize("curves", ["means", "medians"])
def test_curves_and_bands_show_what_was_asked_for(report, curves):
    axes = draw_curves(replace(report, curves=curves), "nll").axes[0]
    for line, summary in zip(axes.lines, report.summaries, strict=True):
        trials = [summary.at("nll", count) for count in line.get_xdata()]
        middles = [sum(values) / 6 if curves == "means" else sum(sorted(values)[2:4]) / 2 for values in trials]
        assert line.get_ydata() == pytest.approx(middles, abs=1e-12)
    corners = axes.collections[0].get_paths()[0].vertices[:, 1]
    bands = report.summaries[0].bands("nll")
    ends = [band.interval if curves == "means" else (band.lower, band.upper) for band in bands]
    assert corners.min() == pytest.approx(min(low for low, _ in ends))
    assert corners.max() == pytest.approx(max(high for _, high in ends))


def test_curves_match_the_table(report):
    axes = draw_curves(report, "accuracy").axes[0]
    for line, row in zip(axes.lines, results(report).rows, strict=True):
        drawn = dict(zip(line.get_xdata(), line.get_ydata(), strict=True))
        assert [cell.split(" ± ")[0] for cell in row[2:-1]] == [f"{drawn[count]:.3f}" for count in report.counts]


@pytest.mark.parametrize("dark", [False, True])
def test_differences_are_drawn_with_the_zero_in_sight(report, dark):
    figure = draw_differences(report, dark)
    figure.canvas.draw()
    axes = figure.axes[0]
    low, high = axes.get_xlim()
    assert low <= 0 <= high
    assert [label.get_text() for label in axes.get_yticklabels()] == [c.label for c in report.comparisons]


def test_no_two_of_many_runs_look_alike():
    looks = [look(index, "#1A1A1A") for index in range(60)]
    assert len({str(entry) for entry in looks}) == 60
    without_colour = [str(entry[1:]) for entry in looks]
    assert all(a != b for a, b in itertools.combinations(without_colour[:60], 2))


def test_long_labels_are_wrapped_and_dollars_are_no_formula(tmp_path):
    labels = ["random", "batch-balance(offset=True) [data.name=digits, model.name=mlp, posterior.num_draws=100]", "$x$"]
    report = compare([made_run(tmp_path, label) for label in labels])
    figure = draw_curves(report, "accuracy")
    figure.canvas.draw()
    assert all(figure.bbox.containsx(x) for x in figure.legends[0].get_window_extent().intervalx)
    assert [text.get_text().replace("\n", " ") for text in figure.legends[0].get_texts()] == labels
    assert not any(text.get_parse_math() for text in figure.legends[0].get_texts())
    figure = draw_differences(report)
    figure.canvas.draw()
    assert all(figure.bbox.containsx(x) for x in figure.axes[0].get_tightbbox().intervalx)
    assert figure.axes[0].get_yticklabels()[0].get_text().startswith("batch-balance\n(offset=True)\n[data.name=digits")


def test_one_trial_and_a_metric_that_one_run_lacks(tmp_path):
    runs = [made_run(tmp_path, label, seeds=[0]) for label in ("random", "bald")]
    for record in runs[1].trials[0]:
        record["metrics"]["nll"] = None
    report = compare(runs)
    assert len(draw_curves(report, "nll").axes[0].lines) == 1
    assert "differences" in figures(report)
    assert "differences" not in figures(compare(runs[:1]))


def test_pyplot_is_never_loaded_and_matplotlib_only_when_drawing(parent):
    code = (
        "import sys; from batchbalance.lab.report import figures\n"
        "assert 'matplotlib' not in sys.modules\n"
        "figures.blank_figure(3); assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    assert parent.run(code) == (0, "", "")

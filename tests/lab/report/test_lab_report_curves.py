"""Curves against plain loops."""

import math

import numpy as np
import pytest

from batchbalance.lab.report.curves import Curve, bands, common_span, curve, evenly_spaced, shared_span

RISING = Curve((10, 20, 40), (0.2, 0.6, 0.8))


def records(*points):
    return [{"num_labelled": x, "metrics": {"accuracy": y}} for x, y in points]


def test_rounds_without_a_value_are_left_out():
    given = [*records((10, 0.5), (20, None), (30, math.nan), (40, 0.9)), {"num_labelled": 50, "metrics": None}]
    assert curve(given, "accuracy") == Curve((10, 40), (0.5, 0.9))
    assert curve(given, "nll") is None
    assert curve([], "accuracy") is None


def test_the_last_record_of_a_label_count_counts():
    assert curve(records((10, 0.5), (20, 0.6), (20, 0.7)), "accuracy") == Curve((10, 20), (0.5, 0.7))


def test_values_between_rounds_lie_on_the_line_and_outside_are_none():
    assert RISING.at(20) == 0.6
    assert RISING.at(25) == pytest.approx(0.65, abs=1e-12)
    assert RISING.at(9) is RISING.at(41) is None


def loop_height(trial, start, end, steps=100_000):
    """The mean of the midpoints of many small steps."""
    total = 0.0
    for i in range(steps):
        x = start + (end - start) * (i + 0.5) / steps
        for x0, y0, x1, y1 in zip(trial.labels, trial.values, trial.labels[1:], trial.values[1:], strict=False):
            if x0 <= x < x1:
                total += y0 + (y1 - y0) * (x - x0) / (x1 - x0)
    return total / steps


@pytest.mark.parametrize("span", [(10, 40), (15, 33), (21, 39), (12, 18)])
def test_area_against_a_loop(span):
    assert RISING.area(span) == pytest.approx(loop_height(RISING, *span), abs=1e-8)


def test_area_of_a_point_and_outside():
    assert RISING.area((25, 25)) == pytest.approx(0.65)
    assert RISING.area((5, 20)) is RISING.area((20, 41)) is RISING.area((30, 20)) is None


def test_labels_to_reach():
    bumpy = Curve((10, 20, 30, 40), (0.5, 0.7, 0.6, 0.9))
    assert [bumpy.labels_to_reach(t, True) for t in (0.1, 0.7, 0.71, 0.95)] == [10, 20, 40, None]
    assert [bumpy.labels_to_reach(t, False) for t in (0.6, 0.5, 0.4)] == [10, 10, None]


def test_bands_against_a_loop():
    rng = np.random.default_rng(0)
    trials = [Curve((10, 20, 30), tuple(rng.random(3).tolist())) for _ in range(6)]
    for i, band in enumerate(bands(trials)):
        ordered = sorted(trial.values[i] for trial in trials)
        assert band.num_labels == (10, 20, 30)[i]
        mean = sum(ordered) / 6
        reach = 2.570581835636314 * math.sqrt(sum((y - mean) ** 2 for y in ordered) / 5 / 6)  # Student's t, 5 degrees
        assert band.drawn("means") == pytest.approx((mean - reach, mean, mean + reach), abs=1e-12)
        assert band.drawn("medians") == (band.lower, band.median, band.upper)
        assert band.median == pytest.approx((ordered[2] + ordered[3]) / 2, abs=1e-12)
        assert band.lower == pytest.approx(ordered[1] + 0.25 * (ordered[2] - ordered[1]), abs=1e-12)
        assert band.upper == pytest.approx(ordered[3] + 0.75 * (ordered[4] - ordered[3]), abs=1e-12)


def test_bands_need_half_of_the_trials():
    trials = [Curve((10, 20, 30), (0.1, 0.2, 0.3)), Curve((10, 20), (0.3, 0.4)), Curve((10,), (0.5,))]
    assert [(b.num_labels, b.num_trials) for b in bands(trials)] == [(10, 3), (20, 2)]


def test_a_missing_round_is_filled_from_its_neighbours():
    trials = [Curve((10, 20, 30), (0.1, 0.2, 0.3)), Curve((10, 30), (0.3, 0.5))]
    assert [b.num_trials for b in bands(trials)] == [2, 2, 2]
    assert bands(trials)[1].median == pytest.approx(0.3)


def test_one_trial_has_no_interval():
    (band,) = bands([Curve((10,), (0.25,))])
    assert band.interval is None
    assert band.drawn("means") == (0.25, 0.25, 0.25)


def flat(first, last):
    return Curve((first, last), (0.5, 0.5)) if first < last else Curve((first,), (0.5,))


def test_spans_outlast_a_trial_that_has_just_begun():
    assert common_span([flat(10, 100), flat(10, 100), flat(10, 20)]) == (10, 100)
    assert common_span([flat(10, 100), flat(10, 20)]) == (10, 20)
    first = {0: flat(10, 100), 1: flat(10, 100), 2: flat(10, 30), 7: flat(10, 15)}
    second = {0: flat(20, 80), 1: flat(20, 80), 2: flat(20, 80), 8: flat(1, 2)}
    assert shared_span(first, second) == (20, 80)
    assert shared_span(first, {8: flat(1, 2)}) is None
    assert shared_span({0: flat(10, 20)}, {0: flat(20, 30)}) is None


def test_evenly_spaced_counts():
    assert evenly_spaced([10, 20], 4) == (10, 20)
    assert evenly_spaced(list(range(20, 140, 10)), 4) == (50, 80, 100, 130)
    assert evenly_spaced([1, 2, 3, 4, 5, 1000], 4) == (2, 3, 5, 1000)


def test_area_is_the_mean_height_by_trapezoids():
    trial = Curve((20, 30, 50), (0.5, 0.7, 0.9))
    assert trial.area((20, 50)) == pytest.approx((10 * 0.6 + 20 * 0.8) / 30, abs=1e-12)
    assert trial.area((20, 20)) == 0.5
    assert Curve((0, 10), (0.4, 0.4)).area((0, 10)) == pytest.approx(0.4, abs=1e-12)

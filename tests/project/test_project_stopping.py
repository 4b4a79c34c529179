"""Stopping advice: what each rule sees, and that the forecast holds where its assumption does."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import cohen_kappa_score

from batchbalance.project.audit import Interval, Look
from batchbalance.project.label_errors import cohen_kappa
from batchbalance.project.stopping import (
    Forecast,
    Round,
    agreement,
    budget_spent,
    forecast,
    label_change,
    target_reached,
    worth_it,
)


def rounds_of(num_labels, predicted):
    return [Round(n, float(n), np.asarray(each)) for n, each in zip(num_labels, predicted, strict=True)]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=30))
def test_kappa_is_that_of_scikit_learn(pairs):
    first, second = np.array(pairs).T
    if len(set(first) | set(second)) == 1:
        assert math.isnan(cohen_kappa(first, second))
    else:
        assert cohen_kappa(first, second) == pytest.approx(cohen_kappa_score(first, second), abs=1e-12)


def test_models_that_agree_have_settled():
    same = np.arange(200) % 4
    assert agreement(rounds_of([20, 40, 60, 80], [same] * 4)).verdict == "stop"
    assert agreement(rounds_of([40, 60, 80], [same] * 3)).verdict == "cannot tell"
    assert agreement([]).verdict == "cannot tell"
    other = same.copy()
    other[:10] = (other[:10] + 1) % 4
    found = agreement(rounds_of([20, 40, 60, 80], [same, other, same, same]))
    assert found.verdict == "go on"
    kappa = (2 * cohen_kappa_score(same, other) + 1) / 3
    assert f"κ = {kappa:.3f}" in found.sentence


def test_small_batches_do_not_look_settled():
    # 81 models, each one label after another, changing one item of 300: any two in a row have κ > 0.99.
    models = [np.where(np.arange(300) < 100 + step, 1, 0) for step in range(81)]
    assert min(cohen_kappa(a, b) for a, b in pairwise(models)) > 0.99
    assert agreement(rounds_of(range(100, 181), models)).verdict == "go on"
    assert label_change(rounds_of(range(1, 82), models)).verdict == "go on"


def test_label_change_is_against_half_the_labels():
    first = np.zeros(400, dtype=int)
    later = np.where(np.arange(400) < 12, 1, 0)
    rounds = rounds_of([10, 30, 50, 60], [first + 3, first, first + 3, later])
    found = label_change(rounds)
    assert found.verdict == "stop"
    assert "From 30 to 60 labels 12 of 400 predicted labels changed: of all items at most 4.8 %" in found.sentence
    assert found.sentence.endswith("A class rarer than that may still have changed completely.")
    assert label_change(rounds_of([30, 60], [first, np.where(np.arange(400) < 16, 1, 0)])).verdict == "cannot tell"
    assert label_change(rounds_of([30, 60], [first, np.where(np.arange(400) < 21, 1, 0)])).verdict == "go on"
    assert label_change(rounds_of([31, 60], [first, later])).verdict == "cannot tell"
    assert label_change([]).verdict == "cannot tell"


@pytest.mark.parametrize("total", [30, 59, 100, 300])
@pytest.mark.parametrize("true", [0.0501, 0.1])
def test_a_larger_change_seldom_passes_however_small_the_set_is(total, true):
    """The exact probability: with 30 items a change of 10 % passed in 18 % of cases when the share itself decided."""
    passed = 0.0
    for changed in range(total + 1):
        rounds = rounds_of([30, 60], [np.zeros(total, dtype=int), np.where(np.arange(total) < changed, 1, 0)])
        if label_change(rounds).verdict != "stop":
            break
        passed += math.comb(total, changed) * true**changed * (1 - true) ** (total - changed)
    assert passed <= 0.05
    assert (changed > 0) == (total >= 59)  # with fewer items than that nothing can pass


def test_items_that_came_later_are_left_out():
    before, after = np.array([0, 0, 0, -1, -1]), np.array([0, 0, 0, 1, 1])
    assert "0 of 3 predicted labels changed" in label_change(rounds_of([30, 60], [before, after])).sentence
    with pytest.raises(ValueError, match="share none"):
        label_change(rounds_of([30, 60], [np.array([-1, 0]), np.array([0, -1])]))


def test_the_target_goes_by_the_lower_end():
    look = Look(2, 40, 38, Interval(0.81, 0.99), 360)
    assert target_reached(0.8, [look]).verdict == "stop"
    assert target_reached(0.82, [look]).verdict == "go on"
    assert target_reached(0.8, []).verdict == "cannot tell"
    assert "360 labels" in target_reached(0.8, [look]).sentence


def test_budget():
    assert budget_spent(100, 99).verdict == "go on"
    assert budget_spent(100, 100).verdict == "stop"


def power_law(rng, counts, num_items, power=0.5, scale=1.5):
    """Audit items that are right once the labels exceed a level of their own: the error is a power of labels."""
    levels = (scale / rng.random(num_items)) ** (1 / power)
    return np.array([count >= levels for count in counts])


def test_a_power_is_found_again():
    rng = np.random.default_rng(0)
    counts = np.arange(40, 420, 20)
    found = forecast(counts, power_law(rng, counts, 3000))
    gain = 1.5 * (400**-0.5 - 450**-0.5)
    assert found.gain == pytest.approx(gain, rel=0.25)
    assert found.interval.low < gain < found.interval.high


def test_the_point_forecast_by_a_plain_fit():
    rng = np.random.default_rng(3)
    counts = [10, 30, 60, 90, 120]
    is_right = power_law(rng, counts, 50, scale=3.0)
    # The first has fewer than a quarter of the labels.
    xs, ys = [], []
    for count, row in zip(counts[1:], is_right[1:], strict=True):
        xs.append(np.log(count))
        ys.append(np.log((sum(not each for each in row) + 1 + 0.5) / 53))  # one made-up item of two is wrong
    slope, intercept = np.polyfit(xs, ys, 1)
    gain = np.exp(intercept + slope * np.log(120)) - np.exp(intercept + slope * np.log(170))
    assert slope < 0
    assert forecast(counts, is_right).gain == pytest.approx(gain, rel=1e-9)


def test_the_forecast_holds_the_gain_as_often_as_it_says():
    rng = np.random.default_rng(1)
    counts = np.arange(40, 280, 20)
    gain = 1.5 * (260**-0.5 - 310**-0.5)
    inside = sum(gain in forecast(counts, power_law(rng, counts, 40)).interval for _ in range(100))
    assert inside >= 89  # 95 % less three standard errors


def test_a_forecast_needs_models_and_labels():
    right = np.ones((4, 20), dtype=bool)
    assert forecast([10, 20, 30, 40], right) is not None
    assert forecast([20, 30, 40], right[:3]) is None
    assert forecast([10, 20, 40, 40], right) is None
    assert forecast([10, 20, 30, 40], right[:, :19]) is None
    assert forecast([], np.zeros((0, 30), dtype=bool)) is None


def test_a_curve_that_falls_promises_no_gain():
    right = np.array([np.arange(40) < each for each in (36, 34, 32, 30)])
    assert forecast([20, 30, 40, 50], right).gain < 0


def test_what_a_forecast_advises():
    assert worth_it(None).verdict == "cannot tell"
    assert worth_it(Forecast(50, 0.002, Interval(-0.01, 0.009))).verdict == "stop"
    assert worth_it(Forecast(50, 0.002, Interval(-0.01, 0.02))).verdict == "cannot tell"
    assert worth_it(Forecast(50, 0.02, Interval(-0.01, 0.04))).verdict == "go on"
    assert "+2.0 points of accuracy, [-1.0, +4.0]" in worth_it(Forecast(50, 0.02, Interval(-0.01, 0.04))).sentence

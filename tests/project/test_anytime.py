"""Bounds that hold at any look, against a sum over shares and against simulated sequences."""

import math

import numpy as np
import pytest

from batchbalance.project.anytime import any_look, log_capital, lower_bound

COUNTS = [(0, 1), (1, 1), (3, 10), (10, 10), (55, 60), (198, 200)]


def capital(right, total, share):
    """The mean likelihood over shares above `share`, with Jeffreys' weights, over the likelihood at it."""
    start, steps, ratios = math.asin(math.sqrt(share)), 20_000, 0.0  # Jeffreys' weights are uniform in this angle
    for step in range(steps):
        other = math.sin(start + (step + 0.5) * (math.pi / 2 - start) / steps) ** 2
        ratios += (other / share) ** right * ((1 - other) / (1 - share)) ** (total - right)
    return ratios / steps


@pytest.mark.parametrize(("right", "total"), COUNTS)
@pytest.mark.parametrize("share", [0.05, 0.5, 0.8, 0.95])
def test_the_capital_is_a_mean_of_likelihood_ratios(right, total, share):
    assert log_capital(right, total, share) == pytest.approx(math.log(capital(right, total, share)), abs=1e-5)


@pytest.mark.parametrize(("right", "total"), COUNTS)
@pytest.mark.parametrize("alpha", [0.05, 0.01])
def test_the_bound_is_the_largest_share_that_is_ruled_out(right, total, alpha):
    bound = lower_bound(right, total, alpha)
    for share in np.arange(0.001, right / total, 0.001):
        assert (log_capital(right, total, share) >= -math.log(alpha)) == (share <= bound)
    assert 0 <= bound <= right / total
    interval = any_look(right, total, alpha)
    assert interval.low <= bound
    assert interval.high == pytest.approx(1 - any_look(total - right, total, alpha).low)


def test_nothing_is_known_without_labels():
    assert (lower_bound(0, 0), any_look(0, 0).low, any_look(0, 0).high) == (0.0, 0.0, 1.0)
    assert log_capital(5, 5, 1.0) == 0.0
    assert log_capital(5, 5, 0.0) == math.inf


@pytest.mark.parametrize("share", [0.5, 0.8, 0.97])
def test_intervals_of_every_look_together_hold_in_95_percent(share):
    random, sequences, looks = np.random.default_rng(3), 400, 150
    made: dict[tuple[int, int], bool] = {}
    missed = 0
    for _ in range(sequences):
        counts = np.cumsum(random.random(looks) < share).tolist()
        for total, right in enumerate(counts, start=1):
            if (right, total) not in made:
                made[right, total] = share not in any_look(right, total)
        missed += any(made[right, total] for total, right in enumerate(counts, start=1))
    assert missed / sequences <= 0.05

"""The random arm: two heads at equal counts on the same audit items."""

import math

import numpy as np
import pytest

from batchbalance.project.arm import compare_arms, compared, paired_interval


def test_the_interval_by_hand():
    # Bonett and Price: one more of each disagreement, two more items.
    first, second = 13 / 52, 5 / 52
    reach = 1.959963984540054 * math.sqrt((first + second - (first - second) ** 2) / 52)
    found = paired_interval(12, 4, 50)
    assert (found.low, found.high) == pytest.approx((first - second - reach, first - second + reach), abs=1e-12)
    assert paired_interval(1, 0, 1).high == 1.0
    assert paired_interval(0, 1, 1).low == -1.0


@pytest.mark.parametrize("total", [10, 20, 50])
@pytest.mark.parametrize("shares", [(0.02, 0.02), (0.1, 0.02), (0.3, 0.1), (0.2, 0.2)])
def test_it_covers(total, shares):
    """The exact probability, over all ways in which items fall on the two kinds of disagreement."""
    first, second = shares
    covered = 0.0
    for a in range(total + 1):
        for b in range(total + 1 - a):
            ways = math.comb(total, a) * math.comb(total - a, b)
            probability = ways * first**a * second**b * (1 - first - second) ** (total - a - b)
            covered += probability * (first - second in paired_interval(a, b, total))
    assert covered >= 0.93


def test_a_comparison_counts_disagreements():
    found = compared(np.array([1, 1, 1, 0, 0] * 8), np.array([1, 0, 0, 1, 0] * 8), 30)
    assert (found.only_chosen, found.only_random, found.total) == (16, 8, 40)
    assert found.difference == pytest.approx(0.2)
    assert "for one look" in found.sentence()
    assert "statistically indistinguishable" in found.sentence()
    better = compared(np.ones(40), np.zeros(40), 30)
    assert "better than random" in better.sentence()
    assert "worse than random" in compared(np.zeros(40), np.ones(40), 30).sentence()
    with pytest.raises(ValueError, match="the same audit items"):
        compared(np.ones(3), np.ones(4), 30)


def test_heads_are_trained_at_equal_counts_on_the_first_labels():
    trained = []

    def train(rows, others):
        trained.append(list(rows))
        right = np.isin(others, [80, 81]) if rows[0] == 0 else np.isin(others, [80])
        return np.stack([~right, right], axis=1).astype(float)

    chosen, uniform, audit = np.arange(40), np.arange(50, 62), np.arange(80, 92)
    found = compare_arms(chosen, uniform, audit, np.ones(100, dtype=int), train)
    assert trained == [list(range(12)), list(range(50, 62))]
    assert (found.num_labels, found.total, found.only_chosen, found.only_random) == (12, 12, 1, 0)
    assert compare_arms(chosen, uniform[:9], audit, np.ones(100, dtype=int), train) is None
    assert compare_arms(chosen, uniform, audit[:9], np.ones(100, dtype=int), train) is None

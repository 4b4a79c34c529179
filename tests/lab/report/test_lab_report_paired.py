"""The statistics against plain loops, and against scipy where it has the same test."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from batchbalance.lab.report import paired


def gen(seed=0):
    return torch.Generator().manual_seed(seed)


def loop_sign_flips(values):
    observed, as_far, total = abs(sum(values)), 0, 0
    for signs in itertools.product((1, -1), repeat=len(values)):
        total += 1
        as_far += abs(sum(s * v for s, v in zip(signs, values, strict=True))) >= observed - 1e-12
    return as_far / total


@pytest.mark.parametrize("num", [1, 2, 3, 6, 9, 11])
@pytest.mark.parametrize("shift", [0.0, 0.4, 2.0])
def test_sign_flips_against_a_loop(num, shift):
    values = (np.random.default_rng(num).normal(size=num) + shift).tolist()
    assert paired.sign_flip_test(values, generator=gen()) == pytest.approx(loop_sign_flips(values), abs=1e-10)


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=9))
def test_sign_flips_with_ties_and_zeros(counts):
    """Equal sums that floating point tells apart (0.1 + 0.2 and 0.3) are ties."""
    expected = loop_sign_flips(counts)
    assert paired.sign_flip_test([0.1 * c for c in counts], generator=gen()) == pytest.approx(expected, abs=1e-10)


def test_sign_flips_against_scipy():
    values = np.random.default_rng(3).normal(size=12) + 0.3
    found = stats.permutation_test(
        (values,), lambda x, axis: x.mean(axis=axis), permutation_type="samples", vectorized=True, n_resamples=np.inf
    )
    assert paired.sign_flip_test(values.tolist(), generator=gen()) == pytest.approx(found.pvalue, abs=1e-10)


def test_many_differences_are_sampled(monkeypatch):
    values = (np.random.default_rng(5).normal(size=20) + 0.35).tolist()
    exact = paired.sign_flip_test(values, generator=gen())
    monkeypatch.setattr(paired, "EXACT_LIMIT", 10)
    sampled = paired.sign_flip_test(values, generator=gen())
    error = math.sqrt(exact * (1 - exact) / paired.NUM_SAMPLED_FLIPS)
    assert 0 < abs(sampled - exact) < 4 * error + 1 / paired.NUM_SAMPLED_FLIPS


@pytest.mark.parametrize("num", [1, 2, 6, 10, 30])
def test_the_smallest_p_is_reached_when_all_differences_have_one_sign(num):
    values = (0.1 + np.random.default_rng(num).random(num)).tolist()
    p = paired.sign_flip_test(values, generator=gen())
    assert p == pytest.approx(paired.smallest_p(num), rel=1e-10)
    assert paired.sign_flip_test([-v for v in values], generator=gen()) == p


def test_no_difference_at_all():
    assert paired.sign_flip_test([0.0] * 5, generator=gen()) == 1.0
    assert paired.smallest_p(0) == 1.0


def loop_holm(p_values):
    """By the definition: the largest, over hypotheses at most as large, of their number left times p."""
    found = []
    for p in p_values:
        steps = [
            min(1.0, q * sum(r > q or (r == q and j >= i) for j, r in enumerate(p_values)))
            for i, q in enumerate(p_values)
            if q <= p
        ]
        found.append(max(steps))
    return found


@given(st.lists(st.sampled_from([0.001, 0.01, 0.02, 0.03125, 0.2, 0.6, 1.0]), max_size=7))
def test_holm_against_a_loop(p_values):
    assert paired.holm(p_values) == pytest.approx(loop_holm(p_values), abs=1e-12)


def test_holm_by_hand():
    assert paired.holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])


def test_mean_interval_against_scipy():
    values = np.random.default_rng(1).normal(size=7)
    expected = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert paired.mean_interval(values.tolist()) == pytest.approx(tuple(expected), abs=1e-10)
    assert paired.mean_interval([1.0]) is None
    apart = stats.ttest_1samp(values, 0).confidence_interval(1 - 0.05 / 3)
    assert paired.mean_interval(values.tolist(), 3) == pytest.approx(tuple(apart), abs=1e-10)


@pytest.mark.parametrize("num", [6, 7, 8, 9, 12, 20, 31])
def test_the_interval_of_a_median_covers_it_and_no_narrower_one_does(num):
    """Over all ways in which values fall below and above the median, as coins do."""
    low, high = paired.median_interval([float(i) for i in range(num)])
    k = int(low) + 1
    assert high == num - k

    def coverage(rank):
        return sum(math.comb(num, below) for below in range(rank, num - rank + 1)) / 2**num

    assert coverage(k) >= 0.95 > coverage(k + 1)


def test_few_values_have_no_interval_of_the_median():
    for num in range(6):
        assert paired.median_interval([float(i) for i in range(num)]) is None


def test_medians_with_infinities():
    inf = math.inf
    assert paired.middle([1.0, inf, 5.0]) == 5
    assert paired.middle([1.0, inf, 5.0, 7.0]) == 6
    assert paired.middle([inf, inf, 5.0]) == inf
    assert paired.middle([-inf, inf]) is None
    assert paired.median_interval([10.0, 20.0, inf, -inf, 5.0, 7.0]) == (-inf, inf)
    assert paired.median_interval([10.0] * 6) == (10, 10)

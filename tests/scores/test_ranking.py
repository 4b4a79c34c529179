import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from batchbalance.arguments.seeds import generator
from batchbalance.scores.ranking import power_sample, top_k
from conftest import fresh

pytestmark = pytest.mark.typed


def test_top_k_breaks_ties_by_the_lowest_index():
    scores = torch.tensor([1.0, 3.0, 2.0, 3.0 + 1e-15, 3.0, 0.0], dtype=torch.float64)
    assert top_k(scores, 4).tolist() == [1, 3, 4, 2]


@pytest.mark.slow
def test_power_sampling_follows_the_power_law():
    scores = torch.tensor([1.0, 2.0, 4.0, 0.0])
    firsts = np.zeros(4)
    seconds = np.zeros(4)
    repeats = 4000
    for seed in range(repeats):
        first, second = power_sample(scores, 2, 2.0, generator=generator(seed, "test")).tolist()
        firsts[first] += 1
        seconds[second] += 1
    p = np.array([1, 4, 16, 0]) / 21
    # P(second = i) = Σ_{j ≠ i} p_j p_i / (1 − p_j)
    q = np.array([sum(p[j] * p[i] / (1 - p[j]) for j in range(3) if j != i) for i in range(4)])
    for counts, expected in ((firsts, p), (seconds, q)):
        error = np.sqrt(expected * (1 - expected) / repeats)
        assert (np.abs(counts / repeats - expected) <= 4 * error).all()


def test_power_sampling_takes_zeros_last_and_at_random():
    scores = torch.tensor([0.0, 0.0, 1.0, 0.0])
    orders = {tuple(power_sample(scores, 4, 1.0, generator=generator(seed, "z")).tolist()) for seed in range(40)}
    assert all(order[0] == 2 for order in orders)
    assert len(orders) == 6


@fresh
@given(st.lists(st.integers(-4, 4), min_size=1, max_size=30), st.integers(0, 2**32), st.integers(0, 40))
def test_top_k_is_a_stable_sort_of_scores_without_their_rounding(scores, seed, num):
    rounding = 1e-14 * torch.randn(len(scores), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    given_scores = torch.tensor(scores, dtype=torch.float64) * 0.3 * (1 + rounding)
    expected = sorted(range(len(scores)), key=lambda i: (-scores[i], i))[:num]
    assert top_k(given_scores, num).tolist() == expected


@pytest.mark.slow
@fresh
@given(
    st.lists(st.just(0.0) | st.floats(1e-3, 1e3), min_size=1, max_size=20),
    st.sampled_from([0.0, 0.5, 1.0, 4.0, 8.0]),
    st.integers(0, 2**32),
    st.integers(0, 25),
)
def test_power_sampling_is_a_race_of_exponential_clocks(scores, beta, seed, num):
    """A clock with rate score^β rings first with p ∝ score^β, the next one likewise among those left."""
    uniform = torch.rand(len(scores), generator=generator(seed, "race"), dtype=torch.float64).tolist()
    rings = [-math.log(u) / (score**beta if score else 1.0) for u, score in zip(uniform, scores, strict=True)]
    expected = sorted(range(len(scores)), key=lambda i: (scores[i] == 0, rings[i]))[:num]
    given_scores = torch.tensor(scores, dtype=torch.float64)
    assert power_sample(given_scores, num, beta, generator=generator(seed, "race")).tolist() == expected
    assert given_scores.tolist() == scores

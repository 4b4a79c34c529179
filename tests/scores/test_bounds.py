"""Lazy bounds against plain loops that evaluate everything."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from batchbalance.scores.ranking import LazyBounds
from conftest import fresh

pytestmark = pytest.mark.typed

SMALL_BLOCKS = {"block": 2, "growth": 2, "largest_block": 5}


class Gains:
    """Gains that fall from round to round, as those of a submodular function; it counts what it is asked."""

    def __init__(self, values):
        self.values = list(values)
        self.asked = []

    def __call__(self, positions):
        self.asked += positions.tolist()
        return torch.tensor([self.values[position] for position in positions.tolist()], dtype=torch.float64)

    def fall(self, shares):
        self.values = [value * share for value, share in zip(self.values, shares, strict=True)]


def near_best(values, is_open, margin, key=lambda _, value: value):
    """Full evaluation: the open positions whose key is the largest or within the margin of it, ascending."""
    keys = {i: key(i, values[i]) for i in range(len(values)) if is_open[i]}
    best = max(keys.values(), default=-math.inf)
    return [i for i in keys if keys[i] >= best - margin]


# Few distinct numbers, so that there are ties; all are exact in binary, so that ties are exact.
gains_of_a_pool = st.lists(st.sampled_from([0.25, 0.5, 1.0, 1.0, 2.0, 3.0]), min_size=1, max_size=30)
shares = st.sampled_from([1.0, 1.0, 0.75, 0.5, 0.25])


@fresh
@given(gains_of_a_pool, st.data(), st.sampled_from([0.0, 0.25]), st.integers(1, 6))
def test_greedy_by_lazy_bounds_is_greedy_by_full_evaluation(start, data, margin, block):
    gains, bounds, num = Gains(start), LazyBounds(len(start)), len(start)
    is_open = [True] * num
    for _ in range(num):
        gains.asked = []
        assert bounds.settle(gains, margin=margin, block=block, growth=2, largest_block=8)
        expected = near_best(gains.values, is_open, margin)
        values = bounds.values.tolist()
        assert near_best(values, is_open, margin) == expected
        for i in range(num):
            if not is_open[i]:
                assert values[i] == -math.inf
                assert i not in gains.asked
            elif i in expected or i in gains.asked:
                assert values[i] == gains.values[i]
            else:
                assert values[i] >= gains.values[i]
        assert len(gains.asked) == len(set(gains.asked))
        picked = next(i for i in expected if gains.values[i] == max(gains.values[j] for j in expected))
        assert int(bounds.values.argmax()) == picked  # a tie goes to the lowest position
        bounds.close(torch.tensor([picked]))
        is_open[picked] = False
        gains.fall([data.draw(shares) for _ in range(num)])
    assert bounds.settle(gains, margin=margin, **SMALL_BLOCKS)  # all are closed: there is nothing to find
    assert bounds.values.tolist() == [-math.inf] * num


@fresh
@given(gains_of_a_pool, st.integers(0, 2**32), st.floats(0.5, 4))
def test_keys_rank_positions_by_more_than_their_gains(start, seed, power):
    num = len(start)
    noise = torch.rand(num, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    gains, bounds = Gains(start), LazyBounds(num)
    bounds.set(gains(torch.arange(num)))
    gains.fall([0.5] * num)
    keys = lambda values: power * values + noise  # noqa: E731
    assert bounds.settle(gains, margin=0.0, keys=keys, **SMALL_BLOCKS)
    expected = near_best(gains.values, [True] * num, 0.0, lambda i, value: power * value + float(noise[i]))
    found = near_best(bounds.values.tolist(), [True] * num, 0.0, lambda i, value: power * value + float(noise[i]))
    assert found == expected


def test_few_gains_are_computed_where_bounds_tell_enough():
    start = [float(100 - i) for i in range(100)]
    gains, bounds = Gains(start), LazyBounds(100)
    assert bounds.settle(gains, margin=0.0, **SMALL_BLOCKS)
    assert (len(gains.asked), bounds.num_evaluations) == (100, 100)  # nothing was known
    gains.asked = []
    bounds.close(torch.tensor([0]))
    assert bounds.settle(gains, margin=0.0, **SMALL_BLOCKS)
    assert gains.asked == [1, 2]
    assert bounds.num_evaluations == 102


def test_the_blocks_grow_to_a_limit():
    blocks = []

    def gains(positions):
        blocks.append(len(positions))
        return torch.ones(len(positions), dtype=torch.float64)

    bounds = LazyBounds(40)
    assert bounds.settle(gains, margin=0.0, block=3, growth=3, largest_block=10)
    assert blocks == [3, 9, 10, 10, 8]


def test_it_gives_up_where_too_many_would_have_to_be_looked_at():
    gains, bounds = Gains([1.0] * 20), LazyBounds(20)
    assert not bounds.settle(gains, margin=0.0, max_share=0.5, **SMALL_BLOCKS)
    assert len(gains.asked) == 2  # the first block alone: 18 of 20 were left
    assert all(bound >= 1.0 for bound in bounds.values.tolist())
    assert bounds.settle(gains, margin=0.0, max_share=1.0, **SMALL_BLOCKS)
    assert bounds.values.tolist() == [1.0] * 20


def test_bounds_up_to_the_floor_are_left_alone():
    gains, bounds = Gains([0.5, 0.25, 0.125]), LazyBounds(3)
    bounds.lower(torch.tensor([1.0, 0.5, 2.0], dtype=torch.float64), torch.tensor([0, 1, 2]))
    bounds.lower(torch.tensor([4.0], dtype=torch.float64), torch.tensor([2]))  # no better than what is known
    assert bounds.values.tolist() == [1.0, 0.5, 2.0]
    assert bounds.settle(gains, margin=0.0, floor=0.5, **SMALL_BLOCKS)
    assert sorted(gains.asked) == [0, 2]
    assert bounds.values.tolist() == [0.5, 0.5, 0.125]
    bounds.close(torch.tensor([0]))
    bounds.forget()
    assert bounds.values.tolist() == [-math.inf, math.inf, math.inf]


def test_setting_all_gains_keeps_closed_positions_closed():
    bounds = LazyBounds(3)
    bounds.close(torch.tensor([1]))
    given_gains = torch.tensor([1.0, 5.0, 2.0], dtype=torch.float64)
    bounds.set(given_gains)
    assert bounds.values.tolist() == [1.0, -math.inf, 2.0]
    assert given_gains.tolist() == [1.0, 5.0, 2.0]
    assert bounds.num_evaluations == 3

"""Class frequencies against plain loops over classes and concentrations."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from batchbalance.posteriors.softmax import class_frequencies

pytestmark = pytest.mark.typed


def by_loops(counts):
    """Frequencies and skew, one concentration after the other."""
    num, total = len(counts), sum(counts)
    alphas = [2.0**k for k in range(-3, 11)]
    evidence = []
    for alpha in alphas:
        value = math.lgamma(num * alpha) - math.lgamma(total + num * alpha)
        for count in counts:
            value += math.lgamma(count + alpha) - math.lgamma(alpha)
        evidence.append(value - math.log(14))
    evidence.append(-total * math.log(num))  # equal frequencies
    weights = [math.exp(value - max(evidence)) for value in evidence]
    weights = [weight / math.fsum(weights) for weight in weights]
    shares = [
        weights[-1] / num
        + math.fsum(w * (count + a) / (total + num * a) for w, a in zip(weights, alphas, strict=False))
        for count in counts
    ]
    skew = math.fsum(w for w, a in zip(weights, alphas, strict=False) if a <= 1)
    offset = [skew * math.log(share / max(shares)) for share in shares]
    seen = [c for c in range(num) if counts[c]]
    highest = math.fsum(offset[c] for c in seen) / len(seen) - math.log(max(1, total / len(seen) / 5))
    offset = [offset[c] if counts[c] else min(offset[c], highest) for c in range(num)]
    return shares, skew, offset


def labels_of(counts):
    return torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))


@given(st.lists(st.integers(0, 30), min_size=2, max_size=6).filter(any))
def test_frequencies_are_those_of_the_loops(counts):
    found = class_frequencies(labels_of(counts), len(counts))
    shares, skew, offset = by_loops(counts)
    torch.testing.assert_close(found.offset, torch.tensor(offset, dtype=torch.float64), rtol=0, atol=1e-10)
    torch.testing.assert_close(found.shares, torch.tensor(shares, dtype=torch.float64), rtol=0, atol=1e-10)
    assert found.skew == pytest.approx(skew, abs=1e-10)
    order = sorted(range(len(counts)), key=counts.__getitem__)
    for fewer, more in pairwise(order):
        assert counts[fewer] == counts[more] or found.shares[fewer] < found.shares[more]


def test_balanced_labels_give_nearly_equal_frequencies_and_skewed_ones_their_own():
    equal = class_frequencies(labels_of([10] * 10), 10)
    assert equal.skew < 0.001
    torch.testing.assert_close(equal.shares, torch.full((10,), 0.1, dtype=torch.float64))
    uneven = class_frequencies(labels_of([1, 3, 2, 0, 4, 2, 2, 1, 3, 2]), 10)  # as twenty labels of a balanced pool are
    assert uneven.skew < 0.05
    assert 0.06 < float(uneven.shares.min()) < float(uneven.shares.max()) < 0.13
    assert float(uneven.offset.min()) > -0.05
    assert float(class_frequencies(labels_of([20, 20, 20, 0]), 4).offset[3]) < -1
    rare = class_frequencies(labels_of([97, 3]), 2)
    assert rare.skew > 0.9
    assert float(rare.shares[1]) == pytest.approx(0.03, abs=0.01)

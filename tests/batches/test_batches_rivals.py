"""BAIT, Falcun and DropQuery against plain loops."""

import math

import numpy as np
import pytest
import torch

from batchbalance import Predictions
from batchbalance.arguments.seeds import gumbel
from batchbalance.batches.bait import bait
from batchbalance.batches.drop_query import central_points, disagreements
from batchbalance.batches.falcun import falcun
from conftest import random_probs, random_weights

pytestmark = pytest.mark.typed


def variance(points, weights, known, known_weights, batch, candidates, prior):
    """trace(F M⁻¹) with F and M summed point by point, and M inverted as a whole."""
    unit = math.sqrt(np.mean([points[x] ** 2 for x in candidates]))
    size = points.shape[1]
    fisher, precision = np.zeros((size, size)), prior * np.eye(size)
    for x in candidates:
        fisher += weights[x] * np.outer(points[x], points[x]) / unit**2
    for x, w in zip(known, known_weights, strict=True):
        fisher += w * np.outer(x, x) / unit**2
        precision += w * np.outer(x, x) / unit**2
    for x in batch:
        precision += weights[x] * np.outer(points[x], points[x]) / unit**2
    return np.trace(fisher @ np.linalg.inv(precision))


def naive_bait(value, candidates, batch_size, count):
    """Greedy with a full inverse for every candidate, then removal of what costs least."""
    batch, gains = [], {}
    for _ in range(count):
        before = value(batch)
        found = {x: before - value([*batch, x]) for x in candidates if x not in batch}
        best = max(found, key=found.get)
        gains[best] = found[best]
        batch.append(best)
    while len(batch) > batch_size:
        batch.remove(min(batch, key=lambda x: value([y for y in batch if y != x])))
    return batch, [gains[x] for x in batch]


@pytest.mark.parametrize(("num_labelled", "prior", "oversample"), [(0, 1.0, 1.0), (5, 1.0, 2.0), (9, 0.01, 2.4)])
def test_bait_is_the_naive_one(num_labelled, prior, oversample):
    rng = np.random.default_rng(num_labelled)
    points, known = rng.normal(1.0, 2.0, size=(30, 4)), rng.normal(size=(num_labelled, 4))
    weights, known_weights = rng.uniform(0.01, 0.25, 30), rng.uniform(0.01, 0.25, num_labelled)
    candidates = [x for x in range(30) if x % 5]
    labelled = (torch.from_numpy(known), torch.from_numpy(known_weights))
    chosen, gains = bait(
        torch.from_numpy(points),
        torch.from_numpy(weights),
        5,
        candidates=torch.tensor(candidates),
        labelled=labelled if num_labelled else None,
        prior=prior,
        oversample=oversample,
    )

    def value(batch):
        return variance(points, weights, known, known_weights, batch, candidates, prior)

    batch, expected = naive_bait(value, candidates, 5, math.ceil(oversample * 5))
    assert chosen.tolist() == batch
    np.testing.assert_allclose(gains.numpy(), expected, rtol=0, atol=1e-10)


def test_bait_takes_no_point_that_is_worth_nothing():
    points = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    weights = torch.tensor([0, 0.2, 0, 0.1, 0, 0], dtype=torch.float64)
    assert sorted(bait(points, weights, 4)[0].tolist()) == [1, 3]
    with pytest.raises(ValueError, match="`embeddings` must be finite"):
        bait(points / 0, weights, 4)


def relevances(probs, uncertainty, batch, left):
    """Uncertainty plus the distance, which begins as the uncertainty, scaled to 0 … 1 over the points left."""
    reach = {}
    for x in left:
        apart = [sum(abs(p - q) for p, q in zip(probs[x], probs[y], strict=True)) for y in batch]
        reach[x] = min([uncertainty[x], *apart])
    low, high = min(reach.values()), max(reach.values())
    return {x: uncertainty[x] + ((reach[x] - low) / (high - low) if high > low else 0.0) for x in left}


def margins(probs):
    ranked = np.sort(probs, axis=1)
    return 1 - (ranked[:, -1] - ranked[:, -2])


def test_falcun_is_the_naive_one():
    probs = random_probs(25, 1, 4, seed=4)[:, 0]
    unsure = margins(probs)
    stream = torch.Generator().manual_seed(3)
    chosen, found = falcun(torch.from_numpy(probs), torch.from_numpy(unsure), 8, generator=stream, gamma=3.0)
    noise = torch.Generator().manual_seed(3)
    batch, left = [], list(range(25))
    for pick in range(8):
        worth = relevances(probs.tolist(), unsure.tolist(), batch, left)
        drawn = gumbel(len(left), generator=noise).tolist()
        best = max(zip(left, drawn, strict=True), key=lambda each: 3 * math.log(worth[each[0]]) + each[1])[0]
        assert float(found[pick]) == pytest.approx(worth[best], abs=1e-12)
        batch.append(best)
        left.remove(best)
    assert chosen.tolist() == batch


@pytest.mark.slow
def test_falcun_draws_by_the_power_of_relevance():
    probs = random_probs(5, 1, 3, seed=1)[:, 0]
    unsure = torch.from_numpy(margins(probs))
    stream = torch.Generator().manual_seed(0)
    firsts = [int(falcun(torch.from_numpy(probs), unsure, 1, generator=stream, gamma=2.0)[0]) for _ in range(2000)]
    worth = relevances(probs.tolist(), unsure.tolist(), [], range(5))
    total = sum(w**2 for w in worth.values())
    for x, w in worth.items():
        p = w**2 / total
        assert abs(firsts.count(x) / 2000 - p) < 4 * math.sqrt(p * (1 - p) / 2000)


def test_disagreements_are_counted():
    probs, weights = random_probs(40, 6, 3, seed=2), random_weights(6)
    found = disagreements(Predictions.from_probs(probs, weights=weights), torch.tensor([0, 3, 4]))
    for x in range(40):
        mean = [sum(weights[s] * probs[x, s, c] for s in range(6)) for c in range(3)]
        votes = [int(np.argmax(probs[x, s])) for s in (0, 3, 4)]
        assert int(found[x]) == sum(vote != mean.index(max(mean)) for vote in votes)
    assert len(set(found.tolist())) > 2


def test_the_centres_of_clusters_by_direction():
    """Clusters of 5, 4 and 3 directions that no k-means can miss; lengths do not matter."""
    rng = np.random.default_rng(0)
    kinds = np.array([0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 0])
    rows = np.eye(3)[kinds] + 0.05 * rng.normal(size=(12, 3))
    lengths = rng.uniform(1, 50, size=(12, 1))
    found = central_points(torch.from_numpy(rows * lengths), 3, seed=1)
    unit = [row / math.sqrt(sum(v * v for v in row)) for row in rows]
    expected = []
    for kind in range(3):
        inside = [x for x in range(12) if kinds[x] == kind]
        mean = [sum(unit[x][d] for x in inside) / len(inside) for d in range(3)]
        expected.append(min(inside, key=lambda x: math.dist(unit[x], mean)))
    assert found.tolist() == expected
    assert len(central_points(torch.ones(5, 2, dtype=torch.float64), 3, seed=1)) == 1

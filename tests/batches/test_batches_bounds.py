"""Bounds for pools with more similarities than fit in memory: never too small, and without influence on the batch."""

import math

import numpy as np
import pytest
import torch

from batchbalance.batches.bounds import KeptRows
from batchbalance.batches.cover import CoverProblem, cover
from batchbalance.batches.targets import Targets


def points_of(kind, num, seed=0):
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(num, 16))
    if kind == "skewed":
        points *= 10.0 ** rng.uniform(-3, 2, size=16)
    if kind == "copies":
        points[num // 2 :] = points[: num - num // 2]
    return torch.from_numpy(points.astype(np.float32))


def similarity(one, other, kernel, squared_length):
    squared = sum((float(a) - float(b)) ** 2 for a, b in zip(one, other, strict=True))
    return math.exp(-squared / squared_length) if kernel == "gaussian" else float(squared <= squared_length)


def test_kept_rows_bound_the_gains_at_every_later_cover():
    rng = np.random.default_rng(1)
    points = points_of("normal", 60)
    weights = torch.from_numpy(rng.exponential(size=20))
    targets = Targets(points[:20], weights, "gaussian", 20.0)
    kept = KeptRows(60, 20, 60 * 4 * 8)  # room for eight of twenty targets
    exact = targets.similarities(points)
    covered = exact[[0, 30, 45]].amax(dim=0)
    positions = torch.arange(60)
    kept.keep(positions, targets.similarity_bounds(points), targets.floor(covered))
    inside = (kept.is_kept).nonzero().flatten()
    assert 0 < len(inside) < 60
    for later in (covered, torch.maximum(covered, exact[7]), torch.ones(20, dtype=torch.float64)):
        found = kept.gains(inside, targets, later)
        for i, bound in zip(inside.tolist(), found.tolist(), strict=True):
            gain = sum(
                float(weights[j]) * max(0.0, similarity(points[i], points[j], "gaussian", 20.0) - float(later[j]))
                for j in range(20)
            )
            assert gain * (1 - 1e-9) <= bound <= gain + 4e-3 * float(weights.sum())


@pytest.mark.parametrize("kernel", ["gaussian", "ball"])
@pytest.mark.parametrize("kind", ["normal", "skewed", "copies"])
def test_memory_does_not_change_the_batch(kind, kernel, monkeypatch):
    monkeypatch.setattr("batchbalance.batches.cover.PIECE_NUMBERS", 400)
    points = points_of(kind, 300, seed=2)
    length = float(torch.cdist(points, points).square().quantile(0.2))
    weights = torch.from_numpy(np.random.default_rng(3).exponential(size=80))
    found = set()
    for room in (2**30, 300 * 4 * 40, 300 * 4 * 5, 0):
        targets = Targets(points[:80], weights, kernel, length, labelled=points[5:6])
        run = cover(CoverProblem(targets, points.__getitem__, torch.arange(20, 300), 25, cache_bytes=room))
        found.add(str((run.positions.tolist(), run.gains.tolist(), run.filled_from)))
    assert len(found) == 1

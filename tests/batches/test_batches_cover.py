"""Coverage against plain loops: values, greedy, ties, certificate, precision, shards."""

import itertools
import math
import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import oracles
from batchbalance.arguments.seeds import generator
from batchbalance.batches import cover as module
from batchbalance.batches.cover import (
    CoverCandidates,
    CoverProblem,
    cover,
    cover_value,
)
from batchbalance.batches.targets import Cloud, Targets, squared_length
from batchbalance.cluster.shards import best_of, positions_in

pytestmark = pytest.mark.typed


def problem(points, batch_size, *, weights=None, kernel="gaussian", length=None, labelled=None, targets=None, **more):
    """A problem over all points, and the value of any batch by plain loops."""
    points = torch.as_tensor(points)
    rows = torch.arange(len(points)) if targets is None else torch.as_tensor(targets)
    weights = np.ones(len(rows)) if weights is None else np.asarray(weights)
    length = oracles.squared_length(points[rows].tolist(), batch_size) if length is None else length
    near = None if labelled is None else torch.as_tensor(labelled)
    made = CoverProblem(
        Targets(points[rows], torch.from_numpy(weights), kernel, length, near),
        lambda index: points[index],
        torch.arange(len(points)),
        batch_size,
        **more,
    )

    def value(batch):
        near = [] if labelled is None else np.asarray(labelled).tolist()
        return oracles.covered(points.tolist(), rows.tolist(), weights.tolist(), batch, kernel, length, near)

    return made, value


def random_points(num, dim, seed, dtype=np.float64):
    rng = np.random.default_rng(seed)
    return (rng.normal(size=(num, dim)) * rng.uniform(0.5, 2, size=dim)).astype(dtype)


@pytest.mark.parametrize("kernel", ["gaussian", "ball"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("seed", range(4))
def test_it_is_brute_force_greedy(kernel, dtype, seed):
    points = random_points(30, 3, seed, dtype)
    weights = np.random.default_rng(seed).exponential(size=30)
    weights[::7] = 0
    made, value = problem(points, 6, weights=weights, kernel=kernel, labelled=points[:2] + 0.1)
    found = cover(made)
    expected = oracles.greedy(value, range(30), 6)
    gains = [value(expected[: i + 1]) - value(expected[:i]) for i in range(6)]
    num = found.filled_from if found.filled_from is not None else 6
    assert found.positions[:num].tolist() == expected[:num]
    assert found.gains.tolist() == pytest.approx(gains, abs=1e-10)


@given(
    st.lists(st.tuples(st.integers(-3, 3), st.integers(-3, 3)), min_size=2, max_size=14),
    st.integers(1, 6),
    st.sampled_from(["gaussian", "ball"]),
)
def test_ties_and_copies_go_to_the_lowest_index(grid, batch_size, kernel):
    """Points on a grid tie in all ways; copies gain nothing once one of them is chosen."""
    batch_size = min(batch_size, len(grid))
    made, value = problem(np.array(grid, dtype=np.float32), batch_size, kernel=kernel)
    found = cover(made)
    num = batch_size if found.filled_from is None else found.filled_from
    expected = oracles.greedy(value, range(len(grid)), num)
    assert found.positions[:num].tolist() == expected
    assert sorted(set(found.positions.tolist())) == sorted(found.positions.tolist())
    if found.filled_from is not None:
        assert found.gains[num:].tolist() == [0] * (batch_size - num)
        best = max(value([*expected, x]) for x in range(len(grid)))
        assert best == pytest.approx(value(expected), abs=1e-12)


@pytest.mark.parametrize("offset", [0.0, 1e4, 1e6])
@pytest.mark.parametrize("spread", [1.0, 1e4])
def test_points_far_from_the_origin_and_tight_clusters_far_apart(offset, spread):
    """In float32 the expansion of squared distances would lose every digit that matters here."""
    rng = np.random.default_rng(3)
    centres = spread * rng.normal(size=(3, 4))
    points = (centres[rng.integers(0, 3, 45)] + rng.normal(size=(45, 4)) + offset).astype(np.float32)
    made, value = problem(points, 9)
    assert squared_length(torch.from_numpy(points), 9) == pytest.approx(made.targets.squared_length, rel=1e-9)
    assert made.targets.dtype == (torch.float32 if spread == 1 else torch.float64)
    assert cover(made).positions.tolist() == oracles.greedy(value, range(45), 9)


def test_an_outlier_beyond_the_range_of_floats_is_a_point_like_others():
    points = random_points(20, 3, 0)
    points[7] = 1e30
    made, value = problem(points, 5)
    assert squared_length(torch.from_numpy(points), 5) == pytest.approx(made.targets.squared_length, rel=1e-12)
    assert made.targets.dtype == torch.float32
    assert cover(made).positions.tolist() == oracles.greedy(value, range(20), 5)


@pytest.mark.parametrize("kernel", ["gaussian", "ball"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_bounds_are_never_below_what_they_bound(kernel, dtype):
    points = torch.from_numpy((random_points(300, 40, 1) + 30).astype(dtype))
    targets = Targets(points[:100], torch.rand(100), kernel, squared_length(points[:100], 10))
    exact, bounds = targets.similarities(points), targets.similarity_bounds(points).double()
    assert bool((bounds >= exact).all())
    so_far = exact[:5].amax(dim=0)
    gains, upper = targets.gains(exact, so_far), targets.bounds_of(bounds.to(targets.dtype), so_far)
    assert bool((upper >= gains).all())
    if kernel == "gaussian":
        assert float((bounds - exact).max()) < 1e-4  # and close
    torch.testing.assert_close(targets.similarity_bounds(points, slack=False).double(), exact, rtol=0, atol=1e-5)


@pytest.mark.parametrize("keep_bytes", [0, 2**20])
@pytest.mark.parametrize("copies", [0, 40])
def test_the_length_is_exact_although_products_are_float32(keep_bytes, copies):
    """Neighbours at distances that float32 does not tell apart, so that the median has to be measured."""
    rng = np.random.default_rng(7)
    points = 1 + 1e-4 * rng.normal(size=(61, 5))
    points[:30] += 1e-9 * rng.normal(size=(30, 5))
    cloud = Cloud(torch.from_numpy(np.concatenate([points, points[:copies]])), keep_bytes=keep_bytes)
    for batch_size in (1, 6, 20, 61):
        expected = oracles.squared_length(points.tolist(), batch_size)
        assert squared_length(cloud, batch_size) == pytest.approx(expected, rel=1e-10)


def test_candidates_that_are_targets_are_bounded_from_products_that_are_known():
    points = torch.from_numpy(random_points(60, 6, 3, np.float32))
    rows = torch.arange(0, 60, 2)
    cloud = Cloud(points[rows], rows)
    assert cloud.known(torch.tensor([0, 4])).tolist() == [-1, -1]  # nothing was multiplied yet
    targets = Targets(cloud, torch.ones(30), "gaussian", squared_length(cloud, 5))
    assert cloud.known(torch.tensor([0, 3, 4, 58, 59, 70])).tolist() == [0, -1, 2, 29, -1, -1]
    exact = targets.similarities(points[rows])
    for found in (targets.own_bounds(torch.arange(30)), targets.similarity_bounds(points[rows])):
        assert bool((found.double() >= exact).all())
        torch.testing.assert_close(found.double(), exact, rtol=0, atol=1e-4)
    candidates = CoverCandidates(CoverProblem(targets, lambda index: points[index], torch.arange(60), 5))
    torch.testing.assert_close(
        candidates._similarity_bounds(torch.arange(60)), targets.similarity_bounds(points), rtol=1e-5, atol=1e-6
    )
    sent = pickle.loads(pickle.dumps(cloud))
    assert sent.known(rows).tolist() == [-1] * 30
    assert len(pickle.dumps(cloud)) < 30 * 6 * 40 + 30 * 30 * 4


@pytest.mark.parametrize("batch_size", [1, 2, 7, 30, 50])
def test_the_length_is_a_median_over_distinct_points(batch_size):
    points = random_points(30, 3, 5)
    copied = np.concatenate([points, np.repeat(points[:3], 40, axis=0)])
    found = squared_length(torch.from_numpy(copied), batch_size)
    assert found == pytest.approx(oracles.squared_length(points.tolist(), batch_size), rel=1e-12)
    assert squared_length(torch.ones(9, 2), batch_size) == 1.0


def test_the_certificate_holds_for_every_batch_of_small_pools():
    closest = math.inf
    for seed in range(12):
        rng = np.random.default_rng(seed)
        points, weights = random_points(9, 2, seed), rng.exponential(size=9)
        labelled = None if seed % 2 else random_points(2, 2, 50 + seed)
        made, value = problem(points, 3, weights=weights, kernel="ball" if seed % 3 == 0 else "gaussian",
                              labelled=labelled)  # fmt: skip
        best = max(value(list(batch)) for batch in itertools.combinations(range(9), 3)) - value([])
        found = cover(made)
        told = cover_value(made, found)
        if told.certificate is None:
            assert best == pytest.approx(0, abs=1e-12)
            continue
        share = float(found.gains.sum()) / best
        assert told.certificate <= share + 1e-12
        assert share >= 1 - 1 / math.e
        closest = min(closest, share - told.certificate)
    assert closest < 0.2  # a certificate of 0 would hold as well


def test_coverage_is_a_share_of_the_weighted_pool_beside_random_batches():
    points, weights = random_points(25, 3, 2), np.random.default_rng(0).exponential(size=25)
    labelled = random_points(3, 3, 9)
    made, value = problem(points, 4, weights=weights, labelled=labelled, seed=5)
    found = cover(made)
    told = cover_value(made, found)
    batch, total = found.positions.tolist(), weights.sum()
    assert told.labelled_coverage == pytest.approx(value([]) / total, abs=1e-10)
    shares = [value(batch[: i + 1]) / total for i in range(4)]
    assert told.coverage.tolist() == pytest.approx(shares, abs=1e-10)
    assert told.labelled_coverage + float(told.gains.sum()) == pytest.approx(shares[-1], abs=1e-10)
    drawn = [torch.randperm(25, generator=generator(5, "random-baseline", i))[:4].tolist() for i in range(20)]
    assert told.random_coverage == pytest.approx(sum(value(batch) for batch in drawn) / 20 / total, abs=1e-5)
    assert told.length == pytest.approx(math.sqrt(made.targets.squared_length / 2))
    assert (told.num_targets, told.num_points, told.is_sampled) == (25, 25, False)


@pytest.mark.slow
def test_points_on_the_edge_of_a_ball_are_inside_for_random_batches_too():
    """On a grid most distances are equal to others, the radius among them."""
    points = 0.1 * np.array(list(itertools.product(range(7), repeat=3)))
    made, value = problem(points, 25, kernel="ball", seed=1)
    told = cover_value(made, cover(made))
    drawn = [torch.randperm(343, generator=generator(1, "random-baseline", i))[:25].tolist() for i in range(20)]
    assert told.random_coverage == pytest.approx(sum(value(batch) for batch in drawn) / 20 / 343, abs=1e-10)


def test_sampled_targets_are_what_is_covered():
    points = random_points(40, 3, 4)
    made, value = problem(points, 5, targets=[1, 5, 8, 13, 21, 34])
    found = cover(made)
    num = 5 if found.filled_from is None else found.filled_from
    assert found.positions[:num].tolist() == oracles.greedy(value, range(40), num)
    assert cover_value(made, found).is_sampled


def test_once_nothing_is_left_to_gain_the_rest_is_random():
    points = np.repeat(random_points(3, 2, 0), 20, axis=0)
    batches = []
    for seed in range(4):
        made, _ = problem(points, 8, seed=seed)
        found = cover(made)
        assert (found.filled_from, cover_value(made, found).filled_from) == (3, 3)
        assert found.gains[3:].tolist() == [0] * 5
        batches.append(tuple(found.positions[3:].tolist()))
    assert len(set(batches)) > 1
    nothing, _ = problem(points, 4, weights=np.zeros(60))
    found = cover(nothing)
    assert (found.filled_from, cover_value(nothing, found).certificate) == (0, None)


@pytest.mark.parametrize("cache_bytes", [0, 40 * 60 * 4, 2**20])
def test_lazy_greedy_gives_the_batch_of_full_passes(monkeypatch, cache_bytes):
    """Blocks, caches and shards of any size give one batch, with fewer evaluations than full passes."""
    points = random_points(400, 5, 8, np.float32)
    targets = list(range(0, 400, 7))
    made, value = problem(points, 12, targets=targets)
    expected = cover(made)
    assert expected.positions[:3].tolist() == oracles.greedy(value, range(400), 3)
    monkeypatch.setattr(module, "FIRST_BLOCK", 8)
    monkeypatch.setattr(module, "LARGEST_BLOCK", 32)
    monkeypatch.setattr(module, "BLOCK_NUMBERS", 64 * 58)
    parts = torch.arange(400).tensor_split(3)
    made, _ = problem(points, 12, targets=targets, cache_bytes=cache_bytes)

    class Three:
        def __init__(self):
            self.shards = [CoverCandidates(replace(made, candidates=part)) for part in parts]

        def best(self, covered, chosen):
            inside = [positions_in(part, chosen) for part in parts]
            found = [shard.best(covered, those) for shard, those in zip(self.shards, inside, strict=True)]
            return best_of(found, parts, 12)

    for found in (cover(made), cover(made, Three())):
        assert found.positions.tolist() == expected.positions.tolist()
        assert found.gains.tolist() == expected.gains.tolist()
        assert found.upper_bound == pytest.approx(expected.upper_bound, rel=0.05)
        assert found.num_evaluations < 0.6 * 400 * 12

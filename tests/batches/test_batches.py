import math

import numpy as np
import pytest
import torch

from batchbalance.batches import badge, cluster_margin, k_center
from batchbalance.batches.badge import _gradients, _mean_gradients
from batchbalance.predictions import Predictions
from batchbalance.scores import margin
from conftest import random_probs, random_weights

pytestmark = pytest.mark.typed


def stream(seed=0):
    return torch.Generator().manual_seed(seed)


def random_embeddings(num_points, num_features, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).normal(1.0, 2.0, size=(num_points, num_features)))


def naive_k_center(points, batch_size, candidates, labelled):
    centres, batch, radii = [list(c) for c in labelled], [], []
    if not centres:
        mean = [sum(points[x][d] for x in candidates) / len(candidates) for d in range(len(points[0]))]
        batch.append(min(candidates, key=lambda x: (math.dist(points[x], mean), x)))
        centres.append(points[batch[0]])
        radii.append(max(math.dist(points[x], centres[0]) for x in candidates))
    while len(batch) < batch_size:
        apart = {x: min(math.dist(points[x], c) for c in centres) for x in candidates if x not in batch}
        batch.append(max(apart, key=lambda x: (apart[x], -x)))
        centres.append(points[batch[-1]])
        radii.append(max(min(math.dist(points[x], c) for c in centres) for x in candidates))
    return batch, radii


@pytest.mark.parametrize("num_labelled", [0, 1, 7])
def test_k_center_is_the_naive_one(num_labelled):
    points, labelled = random_embeddings(40, 3), random_embeddings(num_labelled, 3, seed=1)
    candidates = [x for x in range(40) if x % 5]
    chosen, radii = k_center(points, 9, candidates=torch.tensor(candidates), labelled=labelled)
    batch, expected = naive_k_center(points.tolist(), 9, candidates, labelled.tolist())
    assert chosen.tolist() == batch
    np.testing.assert_allclose(radii.numpy(), expected, rtol=0, atol=1e-10)
    assert bool((radii[1:] <= radii[:-1]).all())


def test_k_center_radius_is_within_twice_the_best():
    points = random_embeddings(12, 2, seed=2)
    _, radii = k_center(points, 3)
    apart = torch.cdist(points, points)
    best = min(float(apart[:, [a, b, c]].amin(dim=1).max()) for a in range(12) for b in range(a) for c in range(b))
    assert best <= float(radii[-1]) <= 2 * best


def test_k_center_takes_duplicates_last_and_in_order():
    points = torch.tensor([[0.0, 1.0], [5.0, 1.0], [0.0, 1.0], [5.0, 1.0]]) + 1000.1
    chosen, radii = k_center(points, 4, labelled=points[:1] + 1)
    assert chosen.tolist() == [1, 0, 2, 3]
    assert radii[1:].tolist() == [0, 0, 0]


def test_a_labelled_duplicate_is_at_distance_zero():
    points = random_embeddings(30, 8, seed=3).float() + 300
    _, radii = k_center(points, 1, labelled=points)
    assert radii.tolist() == [0]


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "apart"), [(torch.float32, 1e4), (torch.float64, 1e9)])
def test_k_center_tells_copies_of_labelled_points_far_from_the_origin(dtype, apart):
    # Clusters that lie far apart for their spread: copies of labelled points, and in each cluster a few new ones.
    centres = apart * random_embeddings(5, 16, seed=8)
    labelled = (centres.repeat_interleave(40, dim=0) + random_embeddings(200, 16, seed=9)).to(dtype)
    fresh = (centres.repeat_interleave(4, dim=0) + random_embeddings(20, 16, seed=10)).to(dtype)
    points = torch.cat([labelled, fresh])
    chosen, radii = k_center(points, 20, labelled=labelled)
    assert sorted(chosen.tolist()) == list(range(200, 220))
    batch, expected = naive_k_center(points.tolist(), 20, range(220), labelled.tolist())
    assert chosen.tolist() == batch
    np.testing.assert_allclose(radii.numpy(), expected, rtol=1e-6, atol=1e-10)


@pytest.mark.parametrize("size", [1e20, 1e-25, 1e38])
def test_radii_of_tiny_and_huge_embeddings_are_in_their_own_unit(size):
    points = torch.tensor([[0.0, 0.0], [0.0, 1.0], [0.0, 2.0]]) * size
    chosen, radii = k_center(points, 2)
    assert chosen.tolist() == [1, 0]
    np.testing.assert_allclose(radii.numpy() / size, [1, 1], rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_factored_distances_are_those_of_the_gradients(dtype):
    probs, embeddings = torch.from_numpy(random_probs(12, 1, 4, seed=4)[:, 0]), random_embeddings(12, 5, seed=5)
    norms, distances = _gradients(probs.to(dtype), embeddings.to(dtype))
    gradients = [
        [[(p[c] - (c == p.index(max(p)))) * h for h in hidden] for c in range(4)]
        for p, hidden in zip(probs.tolist(), embeddings.tolist(), strict=True)
    ]
    flat = [[g for row in gradient for g in row] for gradient in gradients]
    tolerance = 1e-10 if dtype == torch.float64 else 1e-5
    np.testing.assert_allclose(norms.numpy(), [sum(g * g for g in x) for x in flat], rtol=tolerance)
    for centre in range(12):
        expected = [math.dist(x, flat[centre]) ** 2 for x in flat]
        np.testing.assert_allclose(distances(centre).numpy(), expected, rtol=tolerance, atol=tolerance)


def test_factored_distances_far_from_the_origin():
    probs = torch.from_numpy(random_probs(12, 1, 4, seed=4)[:, 0]).float()
    probs = torch.cat([probs, probs[:3] + 1e-6 * torch.tensor([1.0, -1.0, 0.0, 0.0])])
    embeddings = (random_embeddings(15, 5, seed=5) + 1e4).float()
    embeddings[12:] = embeddings[:3] + 0.01
    _, distances = _gradients(probs, embeddings)
    flat = [
        [(float(p[c]) - (c == int(p.argmax()))) * float(h) for c in range(4) for h in hidden]
        for p, hidden in zip(probs, embeddings, strict=True)
    ]
    for centre in range(15):
        expected = [math.dist(x, flat[centre]) ** 2 for x in flat]
        np.testing.assert_allclose(distances(centre).numpy(), expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("weighted", [False, True])
def test_mean_gradients_are_the_mean_over_draws(weighted):
    probs, embeddings = random_probs(6, 3, 4, seed=6), random_embeddings(18, 5, seed=7).view(6, 3, 5)
    weights = random_weights(3) if weighted else np.full(3, 1 / 3)
    flat = []
    for n in range(6):
        mean = [sum(weights[s] * probs[n, s, c] for s in range(3)) for c in range(4)]
        label = mean.index(max(mean))
        flat.append(
            [
                sum(weights[s] * (probs[n, s, c] - (c == label)) * float(embeddings[n, s, d]) for s in range(3))
                for c in range(4)
                for d in range(5)
            ]
        )
    given = torch.from_numpy(weights) if weighted else None
    norms, distances = _mean_gradients(torch.from_numpy(probs), embeddings, given)
    np.testing.assert_allclose(norms.numpy(), [sum(g * g for g in x) for x in flat], rtol=0, atol=1e-10)
    expected = [math.dist(x, flat[2]) ** 2 for x in flat]
    np.testing.assert_allclose(distances(2).numpy(), expected, rtol=0, atol=1e-10)


@pytest.mark.slow
def test_badge_starts_at_the_largest_gradient_and_samples_by_squared_distance():
    probs, embeddings = torch.from_numpy(random_probs(6, 1, 3, seed=8)[:, 0]), random_embeddings(6, 2, seed=9)
    norms, distances = _gradients(probs, embeddings)
    first = int(norms.argmax())
    shares = distances(first) / distances(first).sum()
    counts, runs = torch.zeros(6), 400
    for seed in range(runs):
        indices, apart = badge(probs, embeddings, 2, generator=stream(seed))
        assert int(indices[0]) == first
        assert abs(float(apart[0] ** 2 - norms[first])) < 1e-10
        assert abs(float(apart[1] ** 2 - distances(first)[indices[1]])) < 1e-10
        counts[indices[1]] += 1
    errors = (shares * (1 - shares) / runs).sqrt()
    assert bool(((counts / runs - shares).abs() <= 4 * errors).all())


@pytest.mark.parametrize("per_draw", [False, True])
def test_badge_fills_up_with_duplicates_in_order(per_draw):
    probs, embeddings = torch.from_numpy(random_probs(3, 2, 3, seed=10)), random_embeddings(6, 4, seed=11).view(3, 2, 4)
    if not per_draw:
        probs, embeddings = probs.mean(dim=1), embeddings.mean(dim=1)
    twice = (torch.cat([x, x]).float() for x in (probs, embeddings))
    indices, apart = badge(*twice, 6, generator=stream(), candidates=torch.arange(6))
    assert sorted(i % 3 for i in indices[:3].tolist()) == [0, 1, 2]
    assert indices[3:].tolist() == sorted(indices[3:].tolist())
    assert apart[3:].tolist() == [0, 0, 0]
    assert sorted(indices.tolist()) == list(range(6))


def test_badge_stays_among_the_candidates_and_repeats_with_the_seed():
    probs, embeddings = torch.from_numpy(random_probs(50, 1, 3, seed=12)[:, 0]), random_embeddings(50, 4)
    candidates = torch.arange(0, 50, 3)
    runs = [badge(probs, embeddings, 10, candidates=candidates, generator=stream(s))[0].tolist() for s in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]
    assert set(runs[0]) <= set(candidates.tolist())
    assert len(set(runs[0])) == 10


def naive_cluster_margin(probs, points, batch_size, candidates, num_kept, num_clusters):
    def lead(x):
        ranked = sorted(probs[x], reverse=True)
        return ranked[0] - ranked[1]

    kept = sorted(candidates, key=lambda x: (lead(x), x))[:num_kept]
    clusters = [[x] for x in kept]

    def apart(a, b):
        return sum(math.dist(points[x], points[y]) for x in a for y in b) / (len(a) * len(b))

    while len(clusters) > num_clusters:
        pairs = [(apart(a, b), i, j) for i, a in enumerate(clusters) for j, b in enumerate(clusters) if i < j]
        _, i, j = min(pairs)
        clusters[i] = clusters[i] + clusters.pop(j)
    clusters = [sorted(c, key=kept.index) for c in clusters]
    clusters.sort(key=lambda c: (len(c), kept.index(c[0])))
    batch = []
    while len(batch) < batch_size:
        for cluster in clusters:
            if cluster and len(batch) < batch_size:
                batch.append(cluster.pop(0))
    return batch, [1 - lead(x) for x in batch]


@pytest.mark.slow
@pytest.mark.parametrize("num_clusters", [None, 1, 3, 100])
def test_cluster_margin_is_the_naive_one(num_clusters):
    probs, points = random_probs(60, 1, 4, seed=13)[:, 0], random_embeddings(60, 3, seed=14)
    candidates = [x for x in range(60) if x % 4]
    indices, scores = cluster_margin(
        margin(Predictions.from_probs(probs, "nc")),
        points,
        8,
        candidates=torch.tensor(candidates),
        margin_factor=3.0,
        num_clusters=num_clusters,
    )
    batch, expected = naive_cluster_margin(probs.tolist(), points.tolist(), 8, candidates, 24, num_clusters or 8)
    assert indices.tolist() == batch
    np.testing.assert_allclose(scores.numpy(), expected, rtol=0, atol=1e-10)


def test_cluster_margin_with_one_point():
    indices, scores = cluster_margin(torch.zeros(1), torch.zeros(1, 2), 1)
    assert (indices.tolist(), scores.tolist()) == ([0], [0])
    indices, _ = cluster_margin(torch.zeros(4), torch.zeros(4, 2), 4)
    assert sorted(indices.tolist()) == [0, 1, 2, 3]


def test_wrong_arguments_are_refused():
    points, probs = random_embeddings(5, 2), torch.full((5, 2), 0.5, dtype=torch.float64)
    hole = points.clone()
    hole[3, 1] = torch.nan
    for call in (
        lambda: k_center(hole, 1),
        lambda: badge(probs, hole, 1, generator=stream()),
        lambda: cluster_margin(probs[:, 0], hole, 1),
    ):
        with pytest.raises(ValueError, match=r"`embeddings` must be finite.*point 3, feature 1"):
            call()
    with pytest.raises(ValueError, match="`labelled` must have the pool's 2 features, got 3"):
        k_center(points, 1, labelled=random_embeddings(2, 3))
    with pytest.raises(ValueError, match=r"`probs` and `embeddings` must agree"):
        badge(probs[:4], points, 1, generator=stream())
    with pytest.raises(ValueError, match="one row for each of 4 points, got 5"):
        cluster_margin(probs[:4, 0], points, 1)
    with pytest.raises(ValueError, match="`margin_factor` and `num_clusters` must be at least 1"):
        cluster_margin(probs[:, 0], points, 1, margin_factor=0.5)
    with pytest.raises(ValueError, match=r"at most 20,000 points to cluster"):
        cluster_margin(torch.full((30_000,), 0.5), torch.zeros(30_000, 1), 25_000)


def test_arguments_are_left_alone():
    probs, points = torch.from_numpy(random_probs(9, 1, 3)[:, 0]), random_embeddings(9, 2)
    before = probs.clone(), points.clone()
    k_center(points, 3, labelled=points[:2])
    badge(probs, points, 3, generator=stream())
    cluster_margin(probs[:, 0], points, 3)
    assert torch.equal(probs, before[0])
    assert torch.equal(points, before[1])

import itertools
import math

import numpy as np
import pytest
import torch

from batchbalance import DrawMismatchError, Predictions
from batchbalance.batches.batch_bald import Configurations, batch_bald
from batchbalance.scores import bald, epig
from conftest import random_probs, random_weights

pytestmark = pytest.mark.typed


def plain_entropy(distribution):
    return -sum(p * math.log(p) for p in distribution if p > 0)


def joint_information(probs, weights, batch):
    """I(y_batch; draw) by enumerating every label configuration."""
    num_draws, num_classes = probs.shape[1:]
    joint = []
    for labels in itertools.product(range(num_classes), repeat=len(batch)):
        likelihoods = [math.prod(probs[x, s, y] for x, y in zip(batch, labels, strict=True)) for s in range(num_draws)]
        joint.append(sum(w * p for w, p in zip(weights, likelihoods, strict=True)))
    conditional = sum(weights[s] * plain_entropy(probs[x, s]) for x in batch for s in range(num_draws))
    return plain_entropy(joint) - conditional


def greedy_information(probs, weights, candidates, batch_size):
    batch, gains = [], []
    for _ in range(batch_size):
        before = joint_information(probs, weights, batch) if batch else 0.0
        values = {x: joint_information(probs, weights, [*batch, x]) - before for x in candidates if x not in batch}
        best = max(values.values())
        batch.append(min(x for x, value in values.items() if value >= best - 1e-12))
        gains.append(values[batch[-1]])
    return batch, gains


def stream(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("weighted", [False, True])
def test_bald_is_mutual_information(weighted):
    probs = random_probs(25, 6, 4, seed=1, zeros=0.3)
    weights = random_weights(6) if weighted else np.full(6, 1 / 6)
    found = bald(Predictions.from_probs(probs, weights=weights if weighted else None))
    expected = [joint_information(probs, weights, [x]) for x in range(25)]
    np.testing.assert_allclose(found.numpy(), expected, rtol=0, atol=1e-10)
    assert bool((found >= 0).all())


def test_bald_in_float32_is_close_to_float64():
    probs = torch.from_numpy(random_probs(60, 8, 5, seed=2))
    exact, rounded = bald(Predictions.from_probs(probs)), bald(Predictions.from_probs(probs.float()))
    torch.testing.assert_close(rounded, exact, rtol=0, atol=1e-5)


@pytest.mark.parametrize("weighted", [False, True])
def test_batch_bald_is_greedy_on_the_enumerated_information(weighted):
    probs = random_probs(9, 5, 3, seed=5, zeros=0.2)
    weights = random_weights(5) if weighted else np.full(5, 1 / 5)
    candidates = [0, 1, 2, 4, 5, 7, 8]
    predictions = Predictions.from_probs(probs, weights=weights)
    indices, gains = batch_bald(predictions, 4, candidates=torch.tensor(candidates), generator=stream())
    batch, expected = greedy_information(probs, weights, candidates, 4)
    assert indices.tolist() == batch
    np.testing.assert_allclose(gains.numpy(), expected, rtol=0, atol=1e-10)


def test_exact_increments_fall_and_never_are_negative():
    predictions = Predictions.from_probs(random_probs(40, 10, 2, seed=6))
    _, gains = batch_bald(predictions, 12, generator=stream())
    assert bool((gains >= 0).all())
    assert bool((gains[1:] <= gains[:-1] + 1e-12).all())
    assert float(gains.sum()) <= math.log(10) + 1e-12


def test_skipping_candidates_does_not_change_the_batch():
    """The bounds of 600 candidates against gains of all of them at every pick, exact and sampled."""
    predictions = Predictions.from_probs(random_probs(600, 12, 5, seed=7))
    indices, gains = batch_bald(predictions, 6, generator=stream(3), max_configurations=700, num_samples=700)
    table, source, left = Configurations.empty(predictions), stream(3), torch.zeros(600, dtype=torch.float64)
    for pick, gain in zip(indices.tolist(), gains.tolist(), strict=True):
        scores = table.gains(predictions.log_probs()) + left
        assert int(scores.argmax()) == pick
        assert abs(float(scores[pick]) - gain) < 1e-12
        left[pick] = -torch.inf
        table = table.extended(predictions.log_probs([pick])[0].exp(), 700, 700, source)
    assert not table.exact


def test_merged_configurations_bound_the_gains():
    predictions = Predictions.from_probs(random_probs(50, 9, 4, seed=8, zeros=0.1))
    table = Configurations.empty(predictions)
    for pick in range(5):
        table = table.extended(predictions.log_probs([pick])[0].exp(), 10**6, 1, stream())
    gains, bounds = table.gains(predictions.log_probs()), table.merged(40).gains(predictions.log_probs())
    assert bool((bounds >= gains - 1e-12).all())
    assert float((bounds - gains).max()) > 1e-6


def test_sampled_gains_have_the_exact_mean():
    probs = random_probs(7, 6, 3, seed=9)
    weights = random_weights(6)
    predictions = Predictions.from_probs(probs, weights=weights)
    chosen, others = [0, 1, 2, 3], [4, 5, 6]
    runs = []
    for seed in range(60):
        table, source = Configurations.empty(predictions), stream(seed)
        for x in chosen:
            table = table.extended(predictions.log_probs([x])[0].exp(), 10, 20, source)
        assert len(table.weights) <= 20
        runs.append(table.gains(predictions.log_probs(others)))
    estimates = torch.stack(runs)
    error = estimates.std(dim=0) / math.sqrt(len(runs))
    before = joint_information(probs, weights, chosen)
    exact = torch.tensor([joint_information(probs, weights, [*chosen, x]) - before for x in others])
    assert bool((error > 0).all())
    assert bool(((estimates.mean(dim=0) - exact).abs() <= 4 * error).all())


def test_many_samples_come_close_to_the_exact_gains():
    predictions = Predictions.from_probs(random_probs(30, 8, 3, seed=10))
    indices, exact = batch_bald(predictions, 6, generator=stream())
    found, sampled = batch_bald(predictions, 6, generator=stream(), max_configurations=81)
    assert found[:5].tolist() == indices[:5].tolist()  # five gains need no more than 3^4 configurations
    torch.testing.assert_close(sampled[:5], exact[:5], rtol=0, atol=1e-12)
    assert abs(float(sampled[5] - exact[5])) < 0.01


def test_confident_float32_and_exact_zeros_stay_finite():
    logits = torch.randn(60, 5, 10, generator=stream()) * 3000
    _, gains = batch_bald(
        Predictions.from_logits(logits), 20, generator=stream(), num_samples=50, max_configurations=50
    )
    assert bool(torch.isfinite(gains).all())
    votes = torch.nn.functional.one_hot(torch.tensor([[0, 1, 2], [0, 0, 1], [2, 2, 2]]), 3).float()
    indices, gains = batch_bald(Predictions.from_probs(votes), 3, generator=stream())
    assert indices.tolist() == [0, 1, 2]
    np.testing.assert_allclose(gains.numpy(), [math.log(3), 0, 0], atol=1e-12)


def test_duplicates_and_certain_points_go_to_the_lowest_index():
    probs = random_probs(4, 6, 3, seed=11)
    twice = Predictions.from_probs(np.concatenate([probs, probs]))
    indices, _ = batch_bald(twice, 8, generator=stream())
    assert indices[0] < 4
    assert sorted(indices.tolist()) == list(range(8))
    indices, gains = batch_bald(Predictions.from_probs(torch.tensor([1.0, 0.0]).expand(5, 3, 2)), 3, generator=stream())
    assert indices.tolist() == [0, 1, 2]
    assert gains.tolist() == [0, 0, 0]


def test_memory_budget_does_not_change_the_batch(pool):
    wide = batch_bald(pool, 5, generator=stream(1), max_configurations=100, num_samples=300)
    tight = batch_bald(pool, 5, generator=stream(1), max_configurations=100, num_samples=300, memory_budget=10_000)
    assert wide[0].tolist() == tight[0].tolist()
    torch.testing.assert_close(wide[1], tight[1], rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_samples": 0}, "`num_samples` must be a whole number of at least 1"),
        ({"memory_budget": 0}, "`memory_budget` must be a positive"),
    ],
)
def test_wrong_options_are_refused(pool, options, message):
    with pytest.raises(ValueError, match=message):
        batch_bald(pool, **{"batch_size": 2, "generator": stream(), **options})


@pytest.mark.parametrize("weighted", [False, True])
def test_epig_follows_its_definition(weighted):
    probs, targets = random_probs(8, 5, 3, seed=12, zeros=0.2), random_probs(6, 5, 3, seed=13, zeros=0.2)
    weights = random_weights(5) if weighted else np.full(5, 1 / 5)
    given = weights if weighted else None
    pool, towards = (Predictions.from_probs(p, weights=given) for p in (probs, targets))
    expected = []
    for x in range(8):
        total = 0.0
        for t in range(6):
            for y, z in itertools.product(range(3), repeat=2):
                both = sum(weights[s] * probs[x, s, y] * targets[t, s, z] for s in range(5))
                one = sum(weights[s] * probs[x, s, y] for s in range(5))
                other = sum(weights[s] * targets[t, s, z] for s in range(5))
                total += both * math.log(both / (one * other)) if both > 0 else 0.0
        expected.append(total / 6)
    np.testing.assert_allclose(epig(pool, towards).numpy(), expected, rtol=0, atol=1e-10)
    np.testing.assert_allclose(epig(pool, towards, memory_budget=1).numpy(), expected, rtol=0, atol=1e-10)


def test_epig_needs_the_same_draws(pool):
    with pytest.raises(DrawMismatchError, match="`targets`"):
        epig(pool, Predictions.from_probs(random_probs(5, 11, 4)))

import math

import numpy as np
import pytest
import torch

from batchbalance import Predictions
from batchbalance.scores import bald, entropy, epig, least_confidence, margin, mean_std, variation_ratio
from conftest import random_probs, random_weights

pytestmark = pytest.mark.typed

SCORES = {
    "entropy": entropy,
    "least_confidence": least_confidence,
    "margin": margin,
    "mean_std": mean_std,
    "variation_ratio": variation_ratio,
    "votes": lambda predictions: variation_ratio(predictions, votes=True),
}


def oracle(name, point, weights):
    """The score of one point (S, C) by plain loops."""
    num_draws, num_classes = len(point), len(point[0])
    mean = [sum(weights[s] * point[s][c] for s in range(num_draws)) for c in range(num_classes)]
    ranked = sorted([*mean, 0.0], reverse=True)
    if name == "entropy":
        return -sum(p * math.log(p) for p in mean if p > 0)
    if name in ("least_confidence", "variation_ratio"):
        return 1 - ranked[0]
    if name == "margin":
        return 1 - (ranked[0] - ranked[1])
    if name == "mean_std":
        variances = [
            sum(weights[s] * (point[s][c] - mean[c]) ** 2 for s in range(num_draws)) for c in range(num_classes)
        ]
        return sum(math.sqrt(v) for v in variances) / num_classes
    votes = [0.0] * num_classes
    for s in range(num_draws):
        votes[list(point[s]).index(max(point[s]))] += weights[s]
    return 1 - max(votes)


@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize("weighted", [False, True])
def test_scores_follow_their_definition(name, weighted):
    probs = random_probs(30, 7, 4, seed=3, zeros=0.3)
    weights = random_weights(7) if weighted else None
    found = SCORES[name](Predictions.from_probs(probs, weights=weights))
    plain = np.full(7, 1 / 7) if weights is None else weights
    expected = [oracle(name, point, plain) for point in probs.tolist()]
    np.testing.assert_allclose(found.numpy(), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", SCORES)
def test_float32_is_close_to_float64(name):
    probs = torch.from_numpy(random_probs(50, 6, 5, seed=4))
    exact = SCORES[name](Predictions.from_probs(probs))
    rounded = SCORES[name](Predictions.from_probs(probs.float()))
    torch.testing.assert_close(rounded, exact, rtol=0, atol=1e-5)


def test_epig_in_float32_is_that_of_distributions():
    pool = torch.from_numpy(random_probs(40, 6, 5, seed=5)).float().log()
    rows = torch.from_numpy(random_probs(9, 6, 5, seed=6)).float().log()
    agreed = rows[:, :1].expand(9, 6, 5)  # all draws say the same there, so that nothing can be learned about it
    predictions = Predictions.from_log_probs(pool)
    assert epig(predictions, Predictions.from_log_probs(agreed)).tolist() == [0.0] * 40
    found = epig(predictions, Predictions.from_log_probs(rows))
    np.testing.assert_allclose(found.numpy(), plain_epig(pool.double().tolist(), rows.double().tolist()), atol=1e-13)
    # Twenty times the same draw has nothing to tell either.
    alone = Predictions.from_log_probs(pool[:, :1].expand(40, 20, 5))
    assert epig(alone, alone).tolist() == bald(alone).tolist() == mean_std(alone).tolist() == [0.0] * 40


def plain_epig(pool, targets):
    """The mean over targets of the mutual information of two labels under equally likely draws, by plain loops."""

    def distributions(point):
        return [[math.exp(each) / sum(math.exp(k) for k in draw) for each in draw] for draw in point]

    scores = []
    for point in map(distributions, pool):
        total = 0.0
        for target in map(distributions, targets):
            num_draws, num_classes = len(point), len(point[0])
            for a in range(num_classes):
                for b in range(num_classes):
                    joint = sum(point[s][a] * target[s][b] for s in range(num_draws)) / num_draws
                    apart = sum(p[a] for p in point) * sum(t[b] for t in target) / num_draws**2
                    total += joint * math.log(joint / apart)
        scores.append(total / len(targets))
    return scores


@pytest.mark.parametrize("name", SCORES)
def test_one_hot_draws_score_zero(name):
    sure = torch.zeros(2, 7, 3)
    sure[:, :, 1] = 1
    assert torch.equal(SCORES[name](Predictions.from_probs(sure)), torch.zeros(2, dtype=torch.float64))


@pytest.mark.parametrize("name", ["entropy", "least_confidence", "margin", "variation_ratio"])
def test_confident_float32_points_are_still_told_apart(name):
    logits = torch.tensor([[[0.0, -30.0, -31.0]], [[0.0, -29.0, -31.0]], [[0.0, -28.0, -31.0]]])
    scores = SCORES[name](Predictions.from_logits(logits))
    assert 0 < scores[0] < scores[1] < scores[2]

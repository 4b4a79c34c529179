import math

import numpy as np
import pytest
import torch

from batchbalance import DrawMismatchError, Predictions, connect
from batchbalance.balance.finite import ec2, eced
from conftest import random_probs, random_weights

pytestmark = pytest.mark.typed


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("pairs", ["disjoint", "all"])
@pytest.mark.parametrize("score", [ec2, eced])
def test_scores_over_draws_follow_the_paper(score, pairs, weighted):
    probs = random_probs(15, 8, 3, seed=2, zeros=0.2)
    weights = random_weights(8) if weighted else np.full(8, 1 / 8)
    predictions = Predictions.from_probs(probs, weights=weights if weighted else None)
    edges = connect(predictions, 0.4, pairs)
    assert 0 < edges.num_edges < edges.num_pairs
    looked_at = sum(weights[a] * weights[b] for a, b in edges.pairs.tolist())
    expected = []
    for point in probs.tolist():
        hard = [[float(c == p.index(max(p))) for c in range(3)] for p in point]
        total = 0.0
        for y in range(3):
            lam = [p[y] / max(p) for p in point]
            voters = hard if score is ec2 else point
            probability = sum(w * p[y] for w, p in zip(weights, voters, strict=True))
            for a, b in edges.ends.tolist():
                value = weights[a] * weights[b] / looked_at
                cut = 1 - hard[a][y] * hard[b][y]
                total += probability * value * (cut if score is ec2 else max(lam) ** 2 - lam[a] * lam[b])
        expected.append(total)
    np.testing.assert_allclose(score(predictions, edges).numpy(), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("score", [ec2, eced])
def test_agreeing_draws_are_worth_nothing(score, pool, pool_edges):
    same = pool.log_probs()[:, :1].expand(-1, 12, -1)
    scores = score(Predictions.from_log_probs(same), pool_edges)
    assert float(scores.abs().max()) < 1e-14
    with pytest.raises(DrawMismatchError, match="12"):
        score(Predictions.from_log_probs(same[:, :4]), pool_edges)


def test_draws_in_float32_are_close_to_float64(pool, pool_edges):
    rounded = Predictions.from_log_probs(pool.log_probs().float())
    torch.testing.assert_close(eced(rounded, pool_edges), eced(pool, pool_edges), rtol=0, atol=1e-5)
    assert math.isfinite(float(ec2(rounded, pool_edges).sum()))

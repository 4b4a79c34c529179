import numpy as np
import pytest
import torch

import oracles
from batchbalance import Predictions, connect, joint_balance, select
from batchbalance.arguments.seeds import generator
from batchbalance.balance.closed_form import BalanceModel
from batchbalance.balance.estimators import ConfigurationEstimator
from conftest import random_probs, random_weights

pytestmark = pytest.mark.typed

PROBS = random_probs(12, 6, 3, seed=11)
PREDICTIONS = Predictions.from_probs(PROBS, weights=random_weights(6, 2))
EDGES = connect(PREDICTIONS, 0.0)
EVERY = torch.arange(12)


def estimator(num_samples, seed=0, offset=False):
    model = BalanceModel(PREDICTIONS, EDGES, offset=offset)
    return ConfigurationEstimator(model, num_samples=num_samples, generator=generator(seed, "test"))


@pytest.mark.parametrize("offset", [False, True])
def test_enumeration_is_the_definition(offset):
    by_enumeration = estimator(None, offset=offset)
    batch = []
    for index in (3, 7, 0, 5):
        scores = by_enumeration.scores(EVERY)
        for x in (1, 9):
            expected = oracles.delta(
                PROBS,
                EDGES.ends.tolist(),
                EDGES.edge_weights.tolist(),
                PREDICTIONS.draw_weights.tolist(),
                [*batch, x],
                offset,
            )
            assert float(scores[x]) == pytest.approx(expected, abs=1e-10)
        batch.append(index)
        by_enumeration.add(index)


def sampled_scores(num_samples, repeats):
    scores = []
    for seed in range(repeats):
        sampler = estimator(num_samples, seed)
        for index in (3, 7, 0, 5):
            sampler.add(index)
        scores.append(sampler.scores(EVERY).numpy())
    return np.array(scores)


@pytest.mark.slow
def test_sampling_converges_to_the_closed_form():
    exact = np.array([joint_balance(PREDICTIONS, EDGES, [3, 7, 0, 5, x]) for x in (1, 2, 4, 6, 8, 9, 10, 11)])
    spreads = []
    for num_samples in (20, 320):
        scores = sampled_scores(num_samples, 150)[:, [1, 2, 4, 6, 8, 9, 10, 11]]
        standard_error = scores.std(axis=0, ddof=1) / np.sqrt(150)
        assert (np.abs(scores.mean(axis=0) - exact) <= 4 * standard_error).all()
        spreads.append(np.abs(scores - exact).mean())
    assert spreads[1] < spreads[0] / 2.5  # √16 = 4 in the limit


def test_sampling_starts_at_the_fourth_point():
    sampler, exact = estimator(50), estimator(None)
    for index in (3, 7):
        sampler.add(index)
        exact.add(index)
    assert torch.equal(sampler.scores(EVERY), exact.scores(EVERY))
    sampler.add(0)
    assert sampler.log_likelihoods.shape == (6, 50)


def test_configurations_come_from_one_network_each():
    """Two draws that never agree: a configuration's labels are all of draw 0 or all of draw 1, never mixed."""
    probs = np.zeros((4, 2, 2))
    probs[:, 0, 0] = probs[:, 1, 1] = 1.0
    predictions = Predictions.from_probs(probs)
    model = BalanceModel(predictions, connect(predictions, 0.0))
    sampler = ConfigurationEstimator(model, num_samples=500, generator=generator(0, "t"))
    for index in range(3):
        sampler.add(index)
    likelihoods = sampler.log_likelihoods.exp()
    assert torch.equal(likelihoods.sum(dim=0), torch.ones(500, dtype=torch.float64))
    assert 150 < int(likelihoods[0].sum()) < 350


def test_float32_stays_finite_on_a_confident_pool():
    logits = 30 * np.random.default_rng(0).normal(size=(20, 6, 3))
    predictions = Predictions.from_logits(logits.astype(np.float32))
    model = BalanceModel(predictions, connect(predictions, 0.0))
    sampler = ConfigurationEstimator(model, num_samples=200, generator=generator(0, "test"))
    for index in range(8):
        sampler.add(index)
    assert bool(torch.isfinite(sampler.scores(torch.arange(8, 20))).all())


def test_enumerated_greedy_is_exact_greedy():
    kwargs = {"threshold": 0.0, "batch_size": 4}
    exact = select(PREDICTIONS, strategy="greedy-balance", **kwargs)
    enumerated = select(PREDICTIONS, strategy="enumerated-balance", **kwargs)
    assert enumerated.indices.tolist() == exact.indices.tolist()
    assert float(enumerated.scores[-1]) == pytest.approx(float(exact.gains.sum()), abs=1e-10)


def test_too_many_configurations_are_refused():
    wide = Predictions.from_probs(random_probs(20, 4, 12, seed=1))
    with pytest.raises(ValueError, match=r"1,000,000 label configurations, got 12\^7; use 'greedy-balance'"):
        select(wide, 8, strategy="enumerated-balance", threshold=0.0)

import itertools

import numpy as np
import pytest
import torch

from batchbalance import Predictions, connect, evaluate_batch, joint_balance, select
from batchbalance.arguments.seeds import generator
from conftest import random_probs

pytestmark = pytest.mark.typed


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("offset", [False, True])
def test_the_certificate_is_never_above_the_truth(seed, offset):
    predictions = Predictions.from_probs(random_probs(10, 6, 3, seed=seed).astype(np.float32))
    edges = connect(predictions, 0.0)
    batches = list(itertools.combinations(range(10), 3))
    values = {batch: joint_balance(predictions, edges, batch, offset=offset) for batch in batches}
    best = max(values.values())
    for batch in batches[::17]:
        found = evaluate_batch(predictions, edges, batch, offset=offset)
        assert found.delta == pytest.approx(values[batch], abs=1e-12)
        assert 0 <= found.certificate <= values[batch] / best + 1e-12
    greedy = evaluate_batch(predictions, edges, max(values, key=values.get), offset=offset)
    assert greedy.certificate > 0.5


@pytest.mark.slow
def test_the_certificate_of_select_is_never_above_the_truth():
    for seed in range(8):
        predictions = Predictions.from_probs(random_probs(9, 6, 3, seed=seed))
        for strategy in ("greedy-balance", "balance", "power-balance", "cluster-balance", "stochastic-balance"):
            found = select(predictions, 3, strategy=strategy, threshold=0.0, exclude=[0], seed=seed)
            edges = connect(predictions, 0.0)
            best = max(joint_balance(predictions, edges, b) for b in itertools.combinations(range(1, 9), 3))
            assert found.certificate <= float(found.gains.sum()) / best + 1e-12


def test_baselines_are_what_they_say():
    predictions = Predictions.from_probs(random_probs(60, 8, 3, seed=4))
    edges = connect(predictions, 0.1)
    found = evaluate_batch(predictions, edges, [5, 9], exclude=[0, 1], seed=7)
    expected = []
    left = torch.arange(2, 60)
    for repeat in range(20):
        batch = left[torch.randperm(58, generator=generator(7, "random-baseline", repeat))[:2]]
        expected.append(joint_balance(predictions, edges, batch) / edges.total_weight)
    assert found.random_coverage == pytest.approx(np.mean(expected), abs=1e-12)
    assert float(found.coverage[-1]) == pytest.approx(found.delta / edges.total_weight)
    assert float(found.coverage[0]) == pytest.approx(joint_balance(predictions, edges, [5]) / edges.total_weight)


@pytest.mark.parametrize("pairs", ["disjoint", "all", 1])
@pytest.mark.parametrize("num_draws", [2, 3, 4, 5])
def test_fewer_than_four_draws_have_no_standard_errors(num_draws, pairs):
    predictions = Predictions.from_probs(random_probs(10, num_draws, 3, seed=num_draws))
    found = evaluate_batch(predictions, connect(predictions, 0.0, pairs), [1, 4])
    assert (found.gain_errors is None) == (num_draws < 4)
    if found.gain_errors is not None:
        assert bool(torch.isfinite(found.gain_errors).all())


def test_without_edges_there_is_no_certificate():
    predictions = Predictions.from_probs(random_probs(20, 4, 3))
    found = evaluate_batch(predictions, connect(predictions, 1.0), [3, 4])
    assert (found.delta, found.certificate, found.coverage.tolist()) == (0.0, None, [0.0, 0.0])


def test_bad_batches_are_refused():
    predictions = Predictions.from_probs(random_probs(20, 4, 3))
    edges = connect(predictions, 0.0)
    for kwargs, message in [
        ({"indices": []}, "at least one point"),
        ({"indices": [3], "exclude": [3]}, "must not contain points of `exclude`"),
        ({"indices": [20]}, "from 0 to 19"),
    ]:
        with pytest.raises(ValueError, match=message):
            evaluate_batch(predictions, edges, **kwargs)


def test_a_pass_that_would_cost_too_much_leaves_the_first_bound(monkeypatch):
    predictions = Predictions.from_probs(random_probs(30, 6, 3, seed=2))
    edges = connect(predictions, 0.0)
    full = evaluate_batch(predictions, edges, [1, 2, 3])
    monkeypatch.setattr("batchbalance.balance.evaluation.MAX_BOUND_FLOPS", 1.0)
    cheap = evaluate_batch(predictions, edges, [1, 2, 3])
    assert 0 < cheap.certificate <= full.certificate

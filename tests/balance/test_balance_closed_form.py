import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import oracles
from batchbalance import DrawMismatchError, Predictions, balance_scores, connect, information, joint_balance
from batchbalance.balance.closed_form import BalanceModel, BalanceObjective, Survival, balance_path, null_path
from batchbalance.balance.edges import Edges
from batchbalance.predictions import Draws, stored_predictions
from conftest import random_probs, random_weights

pytestmark = pytest.mark.typed


def oracle_terms(edges: Edges):
    return edges.ends.tolist(), edges.edge_weights.tolist()


@st.composite
def small_problems(draw):
    num_draws = draw(st.integers(2, 6))
    seed = draw(st.integers(0, 10_000))
    probs = random_probs(6, num_draws, draw(st.integers(2, 6)), seed=seed, zeros=draw(st.sampled_from([0.0, 0.4])))
    weights = random_weights(num_draws, seed) if draw(st.booleans()) else None
    pairs = draw(st.sampled_from(["disjoint", "all", 1]))
    return probs, weights, pairs, draw(st.booleans()), draw(st.integers(1, 4))


@pytest.mark.slow
@given(small_problems())
def test_closed_form_is_enumeration(problem):
    probs, weights, pairs, offset, size = problem
    if probs.shape[2] ** size > 300:
        size = 3 if probs.shape[2] < 6 else 2
    predictions = Predictions.from_probs(probs, weights=weights)
    edges = connect(predictions, 0.0, pairs)
    batch = list(range(size))
    expected = oracles.delta(probs, *oracle_terms(edges), predictions.draw_weights.tolist(), batch, offset)
    assert joint_balance(predictions, edges, batch, offset=offset) == pytest.approx(expected, abs=1e-10)
    singles = balance_scores(predictions, edges, offset=offset)
    for x in range(len(probs)):
        one = oracles.delta(probs, *oracle_terms(edges), predictions.draw_weights.tolist(), [x], offset)
        assert float(singles[x]) == pytest.approx(one, abs=1e-10)


def test_four_points_and_three_classes_with_zeros():
    probs = random_probs(5, 5, 3, seed=3, zeros=0.3)
    predictions = Predictions.from_probs(probs, weights=random_weights(5, 3))
    edges = connect(predictions, 0.0)
    expected = oracles.delta(probs, *oracle_terms(edges), predictions.draw_weights.tolist(), [4, 1, 0, 2])
    assert joint_balance(predictions, edges, [4, 1, 0, 2]) == pytest.approx(expected, abs=1e-10)


def test_unweighted_disjoint_pairs_are_the_papers_equation_2():
    probs = random_probs(30, 8, 3, seed=5)
    predictions = Predictions.from_probs(probs)
    edges = connect(predictions, 0.3)
    assert 0 < edges.num_edges < edges.num_pairs
    expected = oracles.paper_delta(probs, edges.pairs.tolist(), edges.connected.tolist(), [0, 7, 3])
    assert joint_balance(predictions, edges, [0, 7, 3]) == pytest.approx(expected, abs=1e-12)


def test_dense_and_sparse_single_scores_agree(monkeypatch):
    predictions = Predictions.from_probs(random_probs(40, 12, 5, seed=2), weights=random_weights(12))
    edges = connect(predictions, 0.1, "all")
    dense = balance_scores(predictions, edges)
    monkeypatch.setattr("batchbalance.balance.closed_form.DENSE_EDGES_PER_DRAW", 1e9)
    assert torch.allclose(balance_scores(predictions, edges), dense, atol=1e-12)


def test_float32_scores_keep_their_digits_on_a_confident_pool():
    logits = (
        torch.from_numpy(np.random.default_rng(0).normal(size=(300, 10, 4)))
        + 40 * torch.eye(4)[torch.arange(300) % 4][:, None]
    )
    exact = Predictions.from_logits(logits)
    rounded = Predictions.from_log_probs(exact.log_probs().float())
    edges = Edges(
        torch.tensor([[0, 5], [1, 6], [2, 7]]), torch.ones(3, dtype=torch.bool), Draws(10), "disjoint", 0.0, 1, 1
    )
    for offset in (False, True):
        reference = balance_scores(exact, edges, offset=offset)
        assert float(reference.max()) < 1e-10
        assert torch.allclose(balance_scores(rounded, edges, offset=offset).double(), reference, rtol=1e-4, atol=0)


def test_information_is_eq_3():
    probs = random_probs(12, 6, 3, seed=8)
    predictions = Predictions.from_probs(probs)
    edges = connect(predictions, 0.0)
    matrix = information(predictions, edges, [0, 3, 5], [3, 4])
    for i, x in enumerate([0, 3, 5]):
        for j, y in enumerate([3, 4]):
            single = [joint_balance(predictions, edges, [z]) for z in (x, y)]
            expected = single[0] if x == y else sum(single) - joint_balance(predictions, edges, [x, y])
            assert float(matrix[i, j]) == pytest.approx(expected, abs=1e-10)


def test_gains_are_differences_of_delta(pool, pool_edges):
    objective = BalanceObjective(BalanceModel(pool, pool_edges), torch.arange(200))
    batch = [3, 150, 17]
    for position in batch:
        objective.add(position)
    before = joint_balance(pool, pool_edges, batch)
    scale = np.exp(objective.log_scale)
    for compute in (objective.gains, objective.exact_gains):
        gains = compute(torch.tensor([0, 44, 199])) * scale
        for x, gain in zip([0, 44, 199], gains, strict=True):
            assert float(gain) == pytest.approx(joint_balance(pool, pool_edges, [*batch, x]) - before, abs=1e-10)


def test_cached_and_recomputed_gains_agree(pool, pool_edges):
    models = (BalanceModel(pool, pool_edges, cache_bytes=b) for b in (2**30, 0))
    cached, fresh = (BalanceObjective(each, torch.arange(0, 200, 2)) for each in models)
    for objective in (cached, fresh):
        objective.add(7)
    assert torch.allclose(cached.gains(), fresh.gains(), rtol=1e-12)


def test_survival_never_underflows():
    survival = Survival(torch.full((3,), 1 / 3).double(), torch.tensor([0.5, 0.5]).double())
    factor = torch.tensor([[1e-9, 1e-8], [1e-7, 1e-9], [1e-8, 1e-8]]).double()
    for _ in range(200):
        survival.multiply(factor)
    assert float(survival.scaled.max()) == 1.0
    assert survival.log_total == pytest.approx(200 * np.log(1e-7) + np.log(1 / 6), rel=1e-9)


def test_path_sums_to_joint_value_whatever_the_chunks(pool, pool_edges, monkeypatch):
    model = BalanceModel(pool, pool_edges)
    batch = torch.tensor([5, 9, 100, 42, 7, 0])
    whole = balance_path(model, batch)
    monkeypatch.setattr("batchbalance.balance.closed_form.CHUNK_BYTES", 1)
    pieces = balance_path(model, batch)
    assert torch.allclose(whole.gains, pieces.gains, atol=1e-15)
    assert torch.allclose(whole.errors, pieces.errors, atol=1e-15)
    for size in (1, 3, 6):
        expected = joint_balance(pool, pool_edges, batch[:size])
        assert float(whole.gains[:size].sum()) == pytest.approx(expected, abs=1e-14)


@pytest.mark.slow
@pytest.mark.parametrize("pairs", ["disjoint", "all", 60])
def test_standard_errors_match_the_spread_over_sets_of_draws(pairs):
    """400 independent sets of 24 draws: the mean estimated variance against the variance of the gains."""
    gains, variances = [], []
    rng = np.random.default_rng(1)
    logits = rng.normal(size=(2, 1, 3)) * 1.5
    for repeat in range(400):
        draws = logits + 0.8 * rng.normal(size=(2, 24, 3)) + 0.8 * rng.normal(size=(1, 24, 3))
        predictions = Predictions.from_logits(draws)
        reference = Predictions.from_logits(np.concatenate([draws, draws[:, :, ::-1]], axis=0))
        path = balance_path(BalanceModel(predictions, connect(reference, 0.2, pairs, repeat)), torch.tensor([0, 1]))
        gains.append(path.gains.numpy())
        variances.append(path.errors.square().numpy())
    ratio = np.mean(variances, axis=0) / np.var(gains, axis=0, ddof=1)
    upper = 1.3 if pairs != 60 else 2.0  # draws count as units, which is conservative for random pairs
    assert ((ratio > 0.75) & (ratio < upper)).all(), ratio


def test_null_path_is_the_mean_prediction_everywhere():
    probs = random_probs(6, 5, 3, seed=4)
    mean = probs.mean(axis=1, keepdims=True).repeat(2, axis=1)
    expected = oracles.delta(mean, [(0, 1)], [1.0], [0.5, 0.5], [2, 5])
    path = null_path(Predictions.from_probs(probs), torch.tensor([2, 5]))
    assert float(path[-1]) == pytest.approx(expected, abs=1e-12)
    assert float(null_path(Predictions.from_probs(probs), torch.tensor([2, 5]), offset=True).abs().max()) < 1e-15


def test_agreeing_noisy_draws_discount_22_percent_a_point_without_offset():
    predictions = Predictions.from_probs(np.tile([0.6, 0.4], (3, 4, 1)))
    edges = Edges(torch.tensor([[0, 2], [1, 3]]), torch.ones(2, dtype=torch.bool), Draws(4), "disjoint", 0.0, 1, 1)
    assert joint_balance(predictions, edges, [0]) == pytest.approx(0.4 * (1 - (0.4 / 0.6) ** 2))
    assert joint_balance(predictions, edges, [0, 1], offset=True) == pytest.approx(0.0, abs=1e-15)


@pytest.mark.slow
def test_swapping_the_draws_of_a_pair_changes_nothing(pool, pool_edges):
    flipped = Edges(
        pool_edges.pairs.flip(1), pool_edges.connected, Draws(12), "disjoint", pool_edges.threshold, 200, 200
    )
    torch.testing.assert_close(balance_scores(pool, pool_edges), balance_scores(pool, flipped), rtol=0, atol=1e-14)


@pytest.mark.parametrize("offset", [False, True])
@pytest.mark.parametrize("pairs", ["disjoint", 9, "all"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_stored_probabilities_give_what_their_logarithms_give(dtype, pairs, offset):
    probs = torch.tensor(random_probs(40, 7, 4, seed=6), dtype=dtype)
    stored, logs = stored_predictions(probs, "probs"), Predictions.from_probs(probs)
    edges = connect(logs, 0.0, pairs)
    a, b = (BalanceObjective(BalanceModel(p, edges, offset=offset), torch.arange(40)) for p in (stored, logs))
    tolerance = 1e-5 if dtype == torch.float32 else 1e-10
    for position in (3, 17, 5):
        torch.testing.assert_close(a.gains(), b.gains(), rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(
            a.exact_gains(torch.arange(40)), b.exact_gains(torch.arange(40)), rtol=tolerance, atol=tolerance
        )
        a.add(position)
        b.add(position)
    scores = balance_scores(stored, edges, offset=offset)
    torch.testing.assert_close(scores, balance_scores(logs, edges, offset=offset), rtol=tolerance, atol=tolerance)


def test_edges_of_other_draws_are_refused(pool, pool_edges):
    other = Predictions.from_probs(random_probs(5, 10, 4))
    with pytest.raises(DrawMismatchError, match="10 draws, got 12"):
        balance_scores(other, pool_edges)


def test_bad_indices_are_refused(pool, pool_edges):
    for bad, message in [
        ([200], "from 0 to 199"),
        ([-1], "got -1"),
        ([3, 3], "3 more than once"),
        (torch.tensor([0.5]), "whole"),
    ]:
        with pytest.raises(ValueError, match=message):
            joint_balance(pool, pool_edges, bad)
    assert joint_balance(pool, pool_edges, []) == 0.0

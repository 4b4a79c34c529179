import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from batchbalance import Predictions, connect, joint_balance, select
from batchbalance.balance.closed_form import BalanceModel, BalanceObjective, balance_path, balance_scores, information
from batchbalance.balance.edges import hamming_distances
from batchbalance.balance.evaluation import evaluate_batch
from batchbalance.balance.finite import ec2, eced
from batchbalance.balance.greedy import GreedyOptions, greedy
from conftest import random_weights
from support import oracles

pytestmark = pytest.mark.typed


def label_probs(num_points, num_draws, num_labels, seed=0):
    return np.random.default_rng(seed).beta(0.5, 0.5, size=(num_points, num_draws, num_labels))


def with_edges(probs, weights=None, threshold=0.3, pairs="disjoint"):
    predictions = Predictions.from_label_probs(probs, weights=weights)
    edges = connect(predictions, threshold, pairs)
    draw_weights = predictions.draw_weights.tolist()
    return predictions, edges, (edges.ends.tolist(), edges.edge_weights.tolist(), draw_weights)


@pytest.mark.parametrize("offset", [False, True])
@pytest.mark.parametrize("num_labels", [1, 2, 4])
def test_delta_is_the_sum_over_all_sets_of_labels(num_labels, offset):
    probs = label_probs(5, 6, num_labels, seed=num_labels)
    weights = random_weights(6, seed=3)
    predictions, edges, known = with_edges(probs, weights, 0.2, 7)
    joint = oracles.over_sets(probs)
    for batch in ([0], [1, 3], [4, 2]):
        expected = delta_with_offset(probs, *known, batch) if offset else oracles.delta(joint, *known, batch)
        assert joint_balance(predictions, edges, batch, offset=offset) == pytest.approx(expected, abs=1e-10)
    single = [
        delta_with_offset(probs, *known, [x]) if offset else oracles.delta(joint, *known, [x])
        for x in range(len(probs))
    ]
    np.testing.assert_allclose(balance_scores(predictions, edges, offset=offset).numpy(), single, atol=1e-10)


def delta_with_offset(probs, edges, edge_weights, draw_weights, batch):
    """Eq. 2 over all sets of labels, with λ of each label divided by the largest of any draw."""
    _, num_draws, num_labels = probs.shape
    lam = {}
    for x, label in itertools.product(batch, range(num_labels)):
        pairs = [(1 - probs[x, s, label], probs[x, s, label]) for s in range(num_draws)]
        plain = [[p / max(pair) for p in pair] for pair in pairs]
        for s, y in itertools.product(range(num_draws), (0, 1)):
            lam[x, s, label, y] = plain[s][y] / max(each[y] for each in plain)
    total = 0.0
    questions = list(itertools.product(batch, range(num_labels)))
    for answers in itertools.product((0, 1), repeat=len(questions)):
        told = [(x, label, y) for (x, label), y in zip(questions, answers, strict=True)]
        probability = sum(
            w * math.prod(probs[x, s, label] if y else 1 - probs[x, s, label] for x, label, y in told)
            for s, w in enumerate(draw_weights)
        )
        for (a, b), v in zip(edges, edge_weights, strict=True):
            kept = math.prod(lam[x, a, label, y] * lam[x, b, label, y] for x, label, y in told)
            total += probability * v * (1 - kept)
    return total


def test_draws_differ_by_the_share_of_labels():
    probs = label_probs(9, 5, 3, seed=1)
    reference = Predictions.from_label_probs(probs)
    found = hamming_distances(reference)
    for a, b in itertools.combinations(range(5), 2):
        assert found[a, b] == oracles.label_hamming(probs, a, b)
    pairs = torch.tensor([[0, 3], [1, 2]])
    assert hamming_distances(reference, pairs).tolist() == [found[0, 3], found[1, 2]]
    edges = connect(reference, int(found[0, 3]) / 27, "all")
    assert edges.connected.tolist() == [bool(found[a, b] > found[0, 3]) for a, b in edges.pairs.tolist()]
    assert (edges.num_reference, edges.num_reference_given) == (9, 9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_greedy_lazy_and_enumerated_choose_the_same(dtype):
    probs = torch.from_numpy(label_probs(40, 12, 3, seed=2)).to(dtype)
    predictions, edges, known = with_edges(probs)
    joint = oracles.over_sets(predictions.questions.probs()[..., 1].double().view(40, 3, 12).transpose(1, 2).numpy())
    expected = oracles.greedy(lambda batch: oracles.delta(joint, *known, batch), range(40), 2)
    batches = []
    for lazy in (True, False):
        objective = BalanceObjective(BalanceModel(predictions, edges, cache_bytes=10_000), torch.arange(40))
        batches.append(greedy(objective, GreedyOptions(6, lazy=lazy)))
    assert batches[0].positions.tolist() == batches[1].positions.tolist()
    assert batches[0].positions[:2].tolist() == expected
    np.testing.assert_allclose(batches[0].gains, batches[1].gains, rtol=1e-5)
    enumerated = select(predictions, 2, strategy="enumerated-balance", threshold=0.3)
    assert enumerated.indices.tolist() == expected


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 4))
def test_the_certificate_bounds_the_best_batch(seed, num_labels):
    probs = label_probs(6, 4, num_labels, seed)
    predictions, edges, _ = with_edges(probs, threshold=0.0)
    selection = select(predictions, 2, strategy="greedy-balance", threshold=0.0)
    if selection.edges.total_weight == 0:
        return
    best = max(joint_balance(predictions, edges, list(pair)) for pair in itertools.combinations(range(6), 2))
    assert selection.value.delta >= selection.value.certificate * best - 1e-9
    assert selection.value.delta >= (1 - 1 / math.e) * best - 1e-9
    random = evaluate_batch(predictions, edges, [0, 1])
    assert random.delta >= random.certificate * best - 1e-9
    assert random.gains.tolist() == pytest.approx(
        [joint_balance(predictions, edges, [0]), random.delta - joint_balance(predictions, edges, [0])], abs=1e-10
    )


def test_overlap_and_null_coverage():
    probs = label_probs(6, 8, 3, seed=5)
    predictions, edges, _ = with_edges(probs)
    overlap = information(predictions, edges, range(6), range(6))
    for x, y in itertools.combinations(range(6), 2):
        alone = joint_balance(predictions, edges, [x]) + joint_balance(predictions, edges, [y])
        assert overlap[x, y] == pytest.approx(alone - joint_balance(predictions, edges, [x, y]), abs=1e-10)
    null = 1.0
    for label in range(3):
        p = probs[2, :, label].mean()
        null *= sum(each * (each / max(p, 1 - p)) ** 2 for each in (p, 1 - p))
    assert float(evaluate_batch(predictions, edges, [2]).null_coverage[0]) == pytest.approx(1 - null, abs=1e-10)


@pytest.mark.parametrize("num_labels", [1, 3])
def test_ec2_and_eced_by_loops(num_labels):
    probs = label_probs(12, 7, num_labels, seed=6)
    weights = random_weights(7, seed=1)
    predictions, edges, (ends, values, draw_weights) = with_edges(probs, weights, 0.1, 9)
    hard = probs > 0.5
    joint = oracles.over_sets(probs)
    lam = oracles.ratios(joint)
    for x in range(12):
        cut, discounted = 0.0, 0.0
        for (a, b), v in zip(ends, values, strict=True):
            for j, w in enumerate(draw_weights):
                survives = all(hard[x, a, i] == hard[x, b, i] == hard[x, j, i] for i in range(num_labels))
                cut += w * v * (1 - survives)
                for y in range(2**num_labels):
                    most = max(lam[x, h, y] ** 2 for h in range(7))
                    discounted += w * joint[x, j, y] * v * (most - lam[x, a, y] * lam[x, b, y])
        assert float(ec2(predictions, edges)[x]) == pytest.approx(cut, abs=1e-10)
        assert float(eced(predictions, edges)[x]) == pytest.approx(discounted, abs=1e-10)


def test_certain_labels_neither_gain_nor_break():
    probs = label_probs(4, 6, 3, seed=8)
    probs[1], probs[2] = 0.0, 1.0
    probs[3] = (probs[3] > 0.5).astype(float)
    predictions, edges, known = with_edges(probs)
    scores = balance_scores(predictions, edges)
    assert scores[1:3].tolist() == [0, 0]
    assert float(scores[3]) == pytest.approx(oracles.delta(oracles.over_sets(probs), *known, [3]), abs=1e-10)
    path = balance_path(BalanceModel(predictions, edges), torch.tensor([3, 0, 1]))
    assert bool(torch.isfinite(path.gains).all())
    assert float(path.gains[2]) == 0
    votes = Predictions.from_label_probs((label_probs(20, 8, 3, seed=9) > 0.5).astype(np.float32))
    assert len(select(votes, 10, threshold=0.0).indices.unique()) == 10


def test_one_label_is_two_classes():
    probs = label_probs(30, 10, 1, seed=10)
    of_labels = Predictions.from_label_probs(probs)
    of_classes = Predictions.from_probs(np.concatenate([1 - probs, probs], axis=2))
    for strategy in ("greedy-balance", "cluster-balance", "power-balance", "ec2", "eced", "margin", "bald"):
        first, second = (select(each, 5, strategy=strategy, threshold=0.2) for each in (of_labels, of_classes))
        assert first.indices.tolist() == second.indices.tolist(), strategy


def test_all_pairs_of_many_draws_are_refused():
    predictions = Predictions.from_label_probs(label_probs(5, 70, 2))
    with pytest.raises(ValueError, match="use pairs=280"):
        select(predictions, 2, strategy="balance", pairs="all", threshold=0.1)

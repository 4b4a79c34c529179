import itertools
import math

import numpy as np
import pytest
import torch

import oracles
from batchbalance import Predictions, select
from batchbalance.balance.closed_form import BalanceModel, BalanceObjective
from batchbalance.balance.greedy import GreedyOptions, greedy
from batchbalance.cluster.one_round import ShardBatch, merged, random_parts, shard_batch
from batchbalance.predictions import join
from batchbalance.scores import unsureness
from conftest import random_probs

pytestmark = pytest.mark.typed


class InProcess:
    """An executor that runs its shards here, one after the other."""

    def __init__(self, num_shards):
        self.num_shards = num_shards

    def unsureness(self, predictions):
        return unsureness(predictions)

    def greedy(self, model, candidates, options):
        assert options.beta is None
        batches = [
            shard_batch(BalanceObjective(model, candidates[part]), part, options)
            for part in random_parts(len(candidates), self.num_shards, options.seed)
        ]
        return merged(model, candidates, batches, options)


def value_of(probs, selection):
    """Δ of any batch under the selection's edges, by plain loops."""
    edges = selection.edges
    weights = np.full(probs.shape[1], 1 / probs.shape[1])
    pairs, edge_weights = edges.ends.tolist(), edges.edge_weights.tolist()
    return lambda batch: oracles.delta(probs, pairs, edge_weights, weights, batch)


def two_rounds(value, parts, batch_size):
    """RandGreeDi by plain loops: the batch and whether it is one shard's own."""
    batches = [oracles.greedy(value, part.tolist(), min(batch_size, len(part))) for part in parts]
    last = oracles.greedy(value, sorted(itertools.chain(*batches)), batch_size)
    best = max(batches, key=value)
    return (best, True) if value(best) > value(last) + 1e-12 else (last, False)


@pytest.mark.parametrize("seed", range(4))
def test_it_is_the_better_of_a_last_greedy_run_and_the_best_shard(seed):
    probs = random_probs(14, 4, 3, seed=seed, spread=1.0)
    selection = select(
        Predictions.from_probs(probs), 3, strategy="greedy-balance", threshold=0.0, seed=seed, executor=InProcess(3)
    )
    expected, _ = two_rounds(value_of(probs, selection), random_parts(14, 3, seed), 3)
    assert selection.indices.tolist() == expected


@pytest.mark.slow
def test_it_is_near_the_best_batch_and_the_certificate_holds():
    shares = []
    for seed in range(12):
        probs = random_probs(9, 4, 2, seed=seed, spread=0.5)
        selection = select(Predictions.from_probs(probs), 2, threshold=0.0, seed=seed, executor=InProcess(3))
        value = value_of(probs, selection)
        best = max(map(value, itertools.combinations(range(9), 2)))
        shares.append(value(selection.indices.tolist()) / best)
        assert selection.certificate <= shares[-1] + 1e-9
        assert float(selection.coverage[-1]) == pytest.approx(value(selection.indices.tolist()) / value_max(selection))
    assert np.mean(shares) >= (1 - 1 / math.e) / 2
    assert min(shares) < 1  # the cases can tell it from the best batch


def value_max(selection):
    return float(selection.edges.edge_weights.sum())


def test_parts_are_random_and_cover_all_positions():
    parts = random_parts(1000, 4, 0)
    assert sorted(torch.cat(parts).tolist()) == list(range(1000))
    assert all(torch.equal(part, part.sort().values) for part in parts)
    assert max(abs(len(part) - 250) for part in parts) < 4 * math.sqrt(1000 * 0.25 * 0.75)
    assert not torch.equal(parts[0], random_parts(1000, 4, 1)[0])
    assert len(random_parts(2, 50, 0)) <= 2


def model_of(probs):
    pool = Predictions.from_probs(probs)
    return BalanceModel(pool, select(pool, 1, threshold=0.0).edges)


def test_the_best_shard_wins_if_it_is_worth_more():
    model = model_of(random_probs(20, 6, 3, seed=4))
    rows = torch.arange(20)
    good = greedy(BalanceObjective(model, rows), GreedyOptions(3)).positions
    poor = torch.tensor([i for i in range(20) if i not in good.tolist()])[:3]
    options = GreedyOptions(3)
    largest = torch.full((3,), 0.5, dtype=torch.float64)
    # The shard of `good` claims more than any batch has: only its own points may be given, in its order.
    shards = [ShardBatch(good.flip(0), 2.0, largest, 5), ShardBatch(poor, 0.1, largest / 2, 5)]
    run = merged(model, rows, shards, options)
    assert run.positions.tolist() == good.flip(0).tolist()
    assert run.upper_bound == pytest.approx(1.5, rel=1e-4)
    best = greedy(BalanceObjective(model, rows), GreedyOptions(3))
    assert float(run.gains.sum()) == pytest.approx(float(best.gains.sum()))
    shards[0] = ShardBatch(good[:1], 2.0, largest[:1], 5)
    short = merged(model, rows, shards, options)
    assert short.positions[0] == good[0]
    assert len(set(short.positions.tolist())) == 3


def test_a_batch_as_large_as_the_pool_and_pieces():
    probs = random_probs(12, 4, 3, seed=2)
    pool = join([Predictions.from_probs(probs[:5]), Predictions.from_probs(probs[5:])])
    chosen = select(pool, 12, threshold=0.0, executor=InProcess(4))
    assert sorted(chosen.indices.tolist()) == list(range(12))
    assert chosen.certificate == pytest.approx(1.0, abs=0.2)

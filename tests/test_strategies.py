"""One contract over every registered strategy."""

import numpy as np
import pytest
import torch

from batchbalance import STRATEGIES, PowerBalance, Predictions, UnknownNameError, select
from batchbalance.strategies import strategy_named
from conftest import random_probs, random_weights

NAMES = sorted(STRATEGIES)
RANDOMISED = {"random", "power-balance", "cluster-balance", "stochastic-balance", "sampled-balance"}
JOINT = ["greedy-balance", "stochastic-balance", "cluster-balance", "batch-balance", "enumerated-balance"]


def choose(predictions, batch_size=3, *, strategy, **kwargs):
    if "threshold" in STRATEGIES[strategy].uses:
        kwargs.setdefault("threshold", 0.05)
    return select(predictions, batch_size, strategy=strategy, **kwargs)


@pytest.mark.parametrize("name", NAMES)
def test_a_batch_has_the_right_shape_and_is_deterministic(name, pool):
    before = pool.stored.clone()
    first, second = (choose(pool, 4, strategy=name, seed=5) for _ in range(2))
    assert first.indices.tolist() == second.indices.tolist()
    assert first.indices.dtype == torch.int64
    assert len(set(first.indices.tolist())) == 4
    assert all(0 <= i < 200 for i in first.indices.tolist())
    assert torch.equal(pool.stored, before)
    if first.gains is not None:
        assert first.coverage[-1] == pytest.approx(float(first.gains.sum()) * first.num_pairs / first.num_edges)
        assert 0 < first.certificate <= 1


@pytest.mark.parametrize("name", sorted(set(NAMES) - RANDOMISED))
def test_permuting_the_points_permutes_the_batch(name, pool):
    order = torch.randperm(200, generator=torch.Generator().manual_seed(1))
    moved = choose(pool.subset(order), 4, strategy=name)
    assert order[moved.indices].tolist() == choose(pool, 4, strategy=name).indices.tolist()


@pytest.mark.parametrize("name", sorted(RANDOMISED - {"sampled-balance"}))
def test_another_seed_gives_another_batch(name, pool):
    assert len({tuple(choose(pool, 4, strategy=name, seed=seed).indices.tolist()) for seed in range(6)}) > 1


@pytest.mark.parametrize("name", NAMES)
def test_excluded_points_are_never_chosen(name):
    predictions = Predictions.from_probs(random_probs(12, 8, 3, seed=2))
    chosen = choose(predictions, 4, strategy=name, exclude=[0, 1, 2, 3, 4, 5, 6, 11])
    assert sorted(chosen.indices.tolist()) == [7, 8, 9, 10]


@pytest.mark.parametrize("name", NAMES)
def test_edge_cases_give_a_batch(name):
    rng = np.random.default_rng(0)
    certain = np.eye(3)[rng.integers(0, 3, size=(9, 6))]
    cases = {
        "exact zeros": certain,
        "one class": np.ones((9, 6, 1)),
        "all draws agree": np.tile(random_probs(9, 1, 3), (1, 6, 1)),
        "duplicates": np.tile(random_probs(3, 6, 3), (3, 1, 1)),
        "confident": random_probs(9, 6, 3, spread=60),
        "an odd draw": random_probs(9, 7, 3),
    }
    for label, probs in cases.items():
        for dtype in (np.float32, np.float64):
            predictions = Predictions.from_probs(probs.astype(dtype))
            for size in (1, 4, 9):
                if name == "enumerated-balance" and size == 9:
                    size = 5
                chosen = choose(predictions, size, strategy=name)
                assert len(set(chosen.indices.tolist())) == size, label
                for tensor in (chosen.gains, chosen.coverage, chosen.scores):
                    assert tensor is None or bool(torch.isfinite(tensor).all()), label


@pytest.mark.parametrize("name", NAMES)
def test_draw_weights_are_honoured(name):
    """Draws of weight 0 have no say: the batch is that of the other draws alone."""
    probs = random_probs(30, 8, 3, seed=6)
    noise = random_probs(30, 8, 3, seed=7)
    weights = np.array([1, 1, 1, 1, 0, 1, 1, 1, 1, 0]) / 8
    # Disjoint pairs join draw i with draw i + 5, so that the two idle draws form a pair of their own.
    full = np.concatenate([probs[:, :4], noise[:, :1], probs[:, 4:], noise[:, 1:2]], axis=1)
    alone = choose(Predictions.from_probs(probs), 4, strategy=name, seed=3)
    weighted = choose(Predictions.from_probs(full, weights=weights), 4, strategy=name, seed=3)
    if name == "partition-balance":  # an idle draw still shapes the classes
        assert weighted.indices.shape == alone.indices.shape
    elif name != "sampled-balance":
        assert weighted.indices.tolist() == alone.indices.tolist()
    if alone.gains is not None and name not in ("partition-balance", "sampled-balance"):
        assert torch.allclose(weighted.gains, alone.gains, atol=1e-12)


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"random"}))
def test_uneven_weights_change_the_value(name, pool):
    weights = torch.from_numpy(random_weights(12, 5))
    plain, weighted = choose(pool, strategy=name), choose(pool.with_weights(weights), strategy=name)
    assert not torch.allclose(plain.gains, weighted.gains)


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"random"}))
def test_no_edges_means_a_random_batch_and_a_warning(name, pool):
    chosen = choose(pool, 5, strategy=name, threshold=1.0)
    assert chosen.num_edges == 0
    assert chosen.certificate is None
    assert "every Δ is zero and the batch is random" in chosen.warnings[0]
    assert chosen.indices.tolist() != [0, 1, 2, 3, 4]
    assert chosen.indices.tolist() != choose(pool, 5, strategy=name, threshold=1.0, seed=1).indices.tolist()


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"random"}))
def test_points_that_gain_nothing_are_taken_at_random(name):
    """Edges on the reference set, but no point of the pool tells the draws apart."""
    agreeing = Predictions.from_probs(np.tile(np.eye(2)[0], (40, 4, 1)))
    reference = Predictions.from_probs(np.tile(np.eye(2)[[0, 0, 1, 1]], (5, 1, 1)))
    chosen = [choose(agreeing, 4, strategy=name, reference=reference, seed=seed) for seed in range(3)]
    assert all(selection.num_edges for selection in chosen)
    assert len({tuple(selection.indices.tolist()) for selection in chosen}) > 1
    assert all(selection.indices.tolist() != [0, 1, 2, 3] for selection in chosen)


@pytest.mark.parametrize("name", JOINT)
def test_joint_strategies_refuse_all_pairs_of_many_draws(name):
    many = Predictions.from_probs(random_probs(6, 65, 2))
    with pytest.raises(ValueError, match=r"more than 64 draws.*use pairs=260"):
        choose(many, strategy=name, pairs="all")
    assert choose(many, strategy="balance", pairs="all").num_pairs == 65 * 64 // 2
    assert choose(many, strategy=name, pairs=260).num_pairs == 260


def test_large_batches_are_clustered(pool):
    small = choose(pool, 49, strategy="batch-balance")
    assert small.indices.tolist() == choose(pool, 49, strategy="greedy-balance").indices.tolist()
    large = choose(pool, 50, strategy="batch-balance")
    assert large.indices.tolist() == choose(pool, 50, strategy="cluster-balance").indices.tolist()


def test_the_offset_reaches_every_strategy(pool):
    for name in set(NAMES) - {"random"}:
        strategy = strategy_named(name, {"offset": True})
        chosen = select(pool, 3, strategy=strategy, threshold=0.05)
        assert float(chosen.null_coverage.abs().max()) < 1e-12
        plain = choose(pool, 3, strategy=name)
        assert not torch.allclose(chosen.gains, plain.gains)


def test_options_are_checked():
    assert strategy_named("power-balance", {"beta": "2"}) == PowerBalance(beta=2.0)
    with pytest.raises(UnknownNameError, match="did you mean 'beta'"):
        strategy_named("power-balance", {"betta": 2})
    with pytest.raises(ValueError, match=r"option `beta` of 'power-balance'.*got 'x'"):
        strategy_named("power-balance", {"beta": "x"})
    with pytest.raises(UnknownNameError, match="did you mean 'batch-balance'"):
        strategy_named("batch-balanc")


def test_every_strategy_describes_itself():
    for name, strategy in STRATEGIES.items():
        assert strategy.name == name
        assert strategy.summary
        assert strategy.__doc__

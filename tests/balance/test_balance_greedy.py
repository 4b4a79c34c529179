import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import oracles
from batchbalance import Predictions, connect, joint_balance
from batchbalance.arguments.seeds import generator, gumbel
from batchbalance.balance.closed_form import BalanceModel, BalanceObjective
from batchbalance.balance.edges import Edges
from batchbalance.balance.greedy import GreedyOptions, LazyCandidates, greedy, greedy_from, pick_noise
from batchbalance.cluster.shards import best_of, positions_in
from batchbalance.predictions import Draws
from conftest import random_probs, random_weights

pytestmark = pytest.mark.typed


def objective(predictions, edges, rows=None, **options):
    rows = torch.arange(predictions.num_points) if rows is None else torch.tensor(rows)
    return BalanceObjective(BalanceModel(predictions, edges, **options), rows)


@pytest.mark.slow
@given(st.integers(0, 1000), st.booleans(), st.sampled_from([0.0, 0.5]))
def test_greedy_is_brute_force_greedy(seed, weighted, zeros):
    probs = random_probs(9, 6, 3, seed=seed, zeros=zeros)
    weights = random_weights(6, seed) if weighted else None
    predictions = Predictions.from_probs(probs, weights=weights)
    edges = connect(predictions, 0.0)

    def value(batch):
        draw_weights = predictions.draw_weights.tolist()
        return oracles.delta(probs, edges.ends.tolist(), edges.edge_weights.tolist(), draw_weights, batch)

    run = greedy(objective(predictions, edges), GreedyOptions(3))
    informed = 3 if run.continued_from is None else run.continued_from  # after that, nothing is left to gain
    assert run.positions[:informed].tolist() == oracles.greedy(value, range(9), informed)
    assert float(run.gains.sum()) == pytest.approx(value(run.positions.tolist()), abs=1e-10)
    best = max(value([*run.positions[:informed].tolist(), x]) for x in range(9))
    assert informed == 3 or best == pytest.approx(value(run.positions[:informed].tolist()), abs=1e-13)


def exhaustive_best(predictions, edges, size):
    return max(
        joint_balance(predictions, edges, list(batch))
        for batch in itertools.combinations(range(predictions.num_points), size)
    )


@pytest.mark.parametrize("seed", range(6))
def test_greedy_value_and_bound_against_the_best_batch(seed):
    predictions = Predictions.from_probs(random_probs(9, 6, 3, seed=seed, spread=1 + seed / 2))
    edges = connect(predictions, 0.0)
    assert edges.num_edges
    best = exhaustive_best(predictions, edges, 3)
    run = greedy(objective(predictions, edges), GreedyOptions(3))
    value = float(run.gains.sum())
    assert value >= (1 - 1 / np.e) * best
    assert run.upper_bound >= best
    assert run.upper_bound < 3 * best


@pytest.mark.slow
@pytest.mark.parametrize("beta", [None, 4.0])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_lazy_is_plain_and_chunked_is_whole(beta, dtype, monkeypatch):
    monkeypatch.setattr("batchbalance.balance.greedy.PROBE", 8)
    predictions = Predictions.from_probs(random_probs(400, 10, 4, seed=7, spread=15).astype(dtype))
    edges = connect(predictions, 0.002)
    options = {"seed": 3, "beta": beta}
    plain = greedy(objective(predictions, edges), GreedyOptions(30, lazy=False, **options))
    lazy = greedy(objective(predictions, edges), GreedyOptions(30, lazy=True, **options))
    monkeypatch.setattr("batchbalance.balance.closed_form.CHUNK_BYTES", 3000)
    chunked = greedy(objective(predictions, edges, cache_bytes=0), GreedyOptions(30, **options))
    assert plain.positions.tolist() == lazy.positions.tolist() == chunked.positions.tolist()
    assert lazy.num_evaluations < plain.num_evaluations
    assert lazy.upper_bound >= float(plain.gains.sum())
    monkeypatch.setattr("batchbalance.balance.greedy.LAZY_SHARE", 1.0)
    part = objective(predictions, edges, cache_bytes=0)
    assert greedy(part, GreedyOptions(30, **options)).positions.tolist() == plain.positions.tolist()


@pytest.mark.slow
def test_float32_picks_are_float64_picks_on_a_confident_pool():
    rng = np.random.default_rng(5)
    logits = 12 * rng.normal(size=(600, 1, 5)) + 2 * rng.normal(size=(600, 20, 5)) + rng.normal(size=(1, 20, 5))
    exact = Predictions.from_logits(logits)
    rounded = Predictions.from_log_probs(exact.log_probs().float())
    edges = connect(exact, 0.01)
    runs = [greedy(objective(p, edges), GreedyOptions(50)) for p in (exact, rounded)]
    assert runs[0].positions.tolist() == runs[1].positions.tolist()
    assert float(runs[0].gains[-1]) < 1e-12  # deep in the tail, where a plain float32 sum has long lost everything


@pytest.mark.slow
@pytest.mark.parametrize("num_informative", [80, 480, 580])
@pytest.mark.parametrize("beta", [None, 4.0, 0.0])
def test_lazy_is_plain_where_most_points_gain_nothing(num_informative, beta):
    """One-hot rows that all draws share gain nothing; they must never bring a chosen point back."""
    probs = np.tile(np.eye(3)[0], (1500, 8, 1))
    probs[:: 1500 // num_informative][:num_informative] = random_probs(num_informative, 8, 3, seed=2)
    predictions = Predictions.from_probs(probs.astype(np.float32))
    edges = connect(predictions, 0.0)
    options = [GreedyOptions(40, beta=beta, lazy=lazy) for lazy in (True, False)]
    lazy, plain = (greedy(objective(predictions, edges), each) for each in options)
    assert len(set(lazy.positions.tolist())) == 40
    assert lazy.positions.tolist() == plain.positions.tolist()


@pytest.mark.slow
def test_float32_follows_float64_below_its_smallest_numbers():
    """An edge that no point touches pins the scale, so that the gains that matter fall to 1e-45 and below."""
    rng = np.random.default_rng(0)
    logits = 2.0 * rng.normal(size=(300, 4, 3))
    logits[:, [0, 2]] = [200.0, 0.0, 0.0]
    exact = Predictions.from_logits(logits)
    rounded = Predictions.from_log_probs(exact.log_probs().float())
    edges = Edges(torch.tensor([[0, 2], [1, 3]]), torch.ones(2, dtype=torch.bool), Draws(4), "disjoint", 0.0, 1, 1)
    runs = [greedy(objective(p, edges), GreedyOptions(60)) for p in (exact, rounded)]
    assert runs[0].positions.tolist() == runs[1].positions.tolist()
    assert 0 < float(runs[0].gains[-1]) < 1e-40


def test_duplicates_tie_to_the_lowest_index():
    probs = random_probs(30, 8, 3, seed=3)
    predictions = Predictions.from_probs(np.concatenate([probs, probs, probs]).astype(np.float32))
    run = greedy(objective(predictions, connect(predictions, 0.0)), GreedyOptions(1))
    assert run.positions[0] < 30


@pytest.mark.slow
def test_stochastic_greedy_samples_the_first_pick_by_power():
    """The largest of (β · log gain + Gumbel noise) has p ∝ gain^β; the noise is the one that the run draws."""
    predictions = Predictions.from_probs(random_probs(5, 6, 3, seed=2))
    edges = connect(predictions, 0.0)
    gains = np.array([joint_balance(predictions, edges, [x]) for x in range(5)])
    noise = [gumbel(5, generator=generator(seed, "stochastic-greedy", 0)).numpy() for seed in range(5000)]
    firsts = (2 * np.log(gains) + np.stack(noise)).argmax(axis=1)
    for seed in range(50):
        run = greedy(objective(predictions, edges), GreedyOptions(1, seed=seed, beta=2.0))
        assert int(run.positions[0]) == firsts[seed]
    p = gains**2 / (gains**2).sum()
    counts = np.bincount(firsts, minlength=5)
    assert (np.abs(counts / 5000 - p) <= 4 * np.sqrt(p * (1 - p) / 5000)).all()


def votes(num_points=40, seed=0):
    """0/1 votes of 8 draws: survival becomes exactly zero after a few picks."""
    rng = np.random.default_rng(seed)
    return Predictions.from_probs(np.eye(3)[rng.integers(0, 3, size=(num_points, 8))])


@pytest.mark.parametrize("continuation", ["tail", "power", "random"])
def test_hard_votes_continue_once_nothing_survives(continuation):
    predictions = votes()
    run = greedy(objective(predictions, connect(predictions, 0.0)), GreedyOptions(20, continuation=continuation))
    assert run.continued_from is not None
    assert 0 < run.continued_from < 10
    assert run.continuation == ("random" if continuation == "random" else "power")
    assert float(run.gains[: run.continued_from].min()) > 0
    assert len(set(run.positions.tolist())) == 20
    assert float(run.gains[run.continued_from :].sum()) == pytest.approx(0, abs=1e-15)


@pytest.mark.slow
def test_tail_goes_on_where_others_stop(monkeypatch):
    predictions = Predictions.from_probs(random_probs(300, 12, 4, seed=9, spread=1))
    edges = connect(predictions, 0.0)
    tail = greedy(objective(predictions, edges), GreedyOptions(60))
    assert (tail.continuation, tail.continued_from is not None) == ("tail", True)
    assert bool((tail.gains > 0).all())
    assert bool((tail.gains[1:] <= tail.gains[:-1] * (1 + 1e-9)).all())
    power = greedy(objective(predictions, edges), GreedyOptions(60, continuation="power"))
    start = power.continued_from
    assert start == tail.continued_from
    assert power.positions[:start].tolist() == tail.positions[:start].tolist()
    assert power.positions[start:].tolist() != tail.positions[start:].tolist()


class SeveralShards:
    """Shards in this process, cut at given positions and merged as those of a cluster are."""

    def __init__(self, predictions, edges, cuts, options):
        self.whole, self.options, self.num_chosen = objective(predictions, edges), options, 0
        self.num_candidates = predictions.num_points
        bounds = itertools.pairwise([0, *cuts, predictions.num_points])
        self.parts = [torch.arange(start, stop) for start, stop in bounds]
        self.shards = [
            LazyCandidates(objective(predictions, edges, part.tolist()), options, self.noise_of(part))
            for part in self.parts
        ]

    def noise_of(self, part):
        return lambda _: pick_noise(self.options, self.num_candidates, self.num_chosen)[part]

    def best(self, survival, chosen):
        self.num_chosen = len(chosen)
        inside = [positions_in(part, chosen) for part in self.parts]
        found = [shard.best(survival, those) for shard, those in zip(self.shards, inside, strict=True)]
        return best_of(found, self.parts, self.options.batch_size)

    def factors(self, position):
        return self.whole.factors(position)

    def first_gains(self, survival):
        return torch.cat([shard.first_gains(survival) for shard in self.shards])


@pytest.mark.slow
@pytest.mark.parametrize("beta", [None, 4.0])
@pytest.mark.parametrize("cuts", [[1], [40, 100], [7, 8, 120]])
def test_shards_are_one_pool_through_ties_and_the_tail(beta, cuts):
    """Copies tie across shards; 0/1 votes leave shards with nothing to offer; late gains are too small for float32."""
    part = random_probs(50, 8, 3, seed=4)
    pools = [
        Predictions.from_probs(np.concatenate([part, part, part]).astype(np.float32)),
        Predictions.from_probs(np.concatenate([np.tile(np.eye(3)[0], (100, 8, 1)), part]).astype(np.float32)),
        votes(num_points=150),
    ]
    for predictions in pools:
        edges = connect(predictions, 0.0)
        options = GreedyOptions(45, seed=1, beta=beta)
        whole = greedy(objective(predictions, edges), options)
        shards = SeveralShards(predictions, edges, cuts, options)
        several = greedy_from(shards, shards.whole.survival, options)
        assert several.positions.tolist() == whole.positions.tolist()
        assert several.upper_bound == pytest.approx(whole.upper_bound, rel=1e-5)
        assert several.continued_from == whole.continued_from

"""One contract over every registered strategy."""

import numpy as np
import pytest
import torch

from batchbalance import (
    STRATEGIES,
    Badge,
    Epig,
    PowerBalance,
    PowerSampling,
    Predictions,
    Refine,
    SampledBalance,
    StochasticBalance,
    UnknownNameError,
    select,
)
from batchbalance.arguments.seeds import generator, gumbel
from batchbalance.scores import epig
from batchbalance.strategies import OWN, ConnectedStrategy, strategy_named
from batchbalance.strategies.connected import BalanceStrategy
from batchbalance.strategies.probing import parts_needed, parts_read
from conftest import random_probs, random_weights

NAMES = sorted(STRATEGIES)
RANDOMISED = {
    "random", "power-balance", "cluster-balance", "stochastic-balance", "sampled-balance", "power-bald",
    "power-sampling", "badge", "typiclust", "explore", "falcun", "drop-query", "refine",
}  # fmt: skip
CONNECTED = sorted(name for name, strategy in STRATEGIES.items() if issubclass(strategy, ConnectedStrategy))
BALANCE = sorted(name for name, strategy in STRATEGIES.items() if issubclass(strategy, BalanceStrategy))
QUICK = {"refine": Refine(num_batches=8)}  # each strategy of its ensemble once
JOINT = ["greedy-balance", "stochastic-balance", "cluster-balance", "batch-balance", "enumerated-balance"]


def features(predictions):
    """Embeddings that move with the points."""
    mean = predictions.mean_probs()
    return torch.cat([mean, mean.square() * 3, mean[:, :1].sin()], dim=1)


def choose(predictions, batch_size=3, *, strategy, **kwargs):
    if "threshold" in parts_read(STRATEGIES[strategy]()):
        kwargs.setdefault("threshold", 0.05)
    if "embeddings" in parts_needed(STRATEGIES[strategy]()):
        kwargs.setdefault("embeddings", features(predictions))
    return select(predictions, batch_size, strategy=QUICK.get(strategy, strategy), **kwargs)


@pytest.mark.typed
@pytest.mark.parametrize("name", NAMES)
def test_a_batch_has_the_right_shape_and_is_deterministic(name, pool):
    before = pool.log_probs().clone()
    first, second = (choose(pool, 4, strategy=name, seed=5) for _ in range(2))
    assert first.indices.tolist() == second.indices.tolist()
    assert first.indices.dtype == torch.int64
    assert len(set(first.indices.tolist())) == 4
    assert all(0 <= i < 200 for i in first.indices.tolist())
    assert torch.equal(pool.log_probs(), before)
    if first.gains is not None:
        assert first.coverage[-1] == pytest.approx(
            float(first.gains.sum()) * first.edges.num_pairs / first.edges.num_edges
        )
        assert 0 < first.certificate <= 1


@pytest.mark.parametrize("name", sorted(set(NAMES) - RANDOMISED))
def test_permuting_the_points_permutes_the_batch(name, pool):
    order = torch.randperm(200, generator=torch.Generator().manual_seed(1))
    moved, still = choose(pool.subset(order), 4, strategy=name), choose(pool, 4, strategy=name)
    if name in ("ec2", "prob-cover"):  # counts tie, and a tie goes to the lowest index; what follows may then differ
        same = slice(1 if name == "prob-cover" else None)
        torch.testing.assert_close(moved.scores[same], still.scores[same], rtol=0, atol=1e-12)
    else:
        assert order[moved.indices].tolist() == still.indices.tolist()


@pytest.mark.parametrize("name", sorted(RANDOMISED - {"sampled-balance"}))
def test_another_seed_gives_another_batch(name, pool):
    assert len({tuple(choose(pool, 4, strategy=name, seed=seed).indices.tolist()) for seed in range(6)}) > 1


@pytest.mark.typed
@pytest.mark.parametrize("name", NAMES)
def test_excluded_points_are_never_chosen(name):
    predictions = Predictions.from_probs(random_probs(12, 8, 3, seed=2))
    chosen = choose(predictions, 4, strategy=name, exclude=[0, 1, 2, 3, 4, 5, 6, 11])
    assert sorted(chosen.indices.tolist()) == [7, 8, 9, 10]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_edge_cases_give_a_batch(name):
    rng = np.random.default_rng(0)
    certain = np.eye(3)[rng.integers(0, 3, size=(9, 6))]
    cases = {
        "exact zeros": certain,
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


@pytest.mark.typed
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


@pytest.mark.parametrize("name", CONNECTED)
def test_uneven_weights_change_the_value(name, pool):
    weights = torch.from_numpy(random_weights(12, 5))
    plain, weighted = choose(pool, strategy=name), choose(pool.with_weights(weights), strategy=name)
    assert not torch.allclose(plain.gains, weighted.gains)


@pytest.mark.typed
@pytest.mark.parametrize("name", CONNECTED)
def test_no_edges_means_a_random_batch_and_a_warning(name, pool):
    chosen = choose(pool, 5, strategy=name, threshold=1.0)
    assert chosen.edges.num_edges == 0
    assert chosen.certificate is None
    assert "every Δ is zero and the batch is random" in chosen.warnings[0]
    assert chosen.indices.tolist() != [0, 1, 2, 3, 4]
    assert chosen.indices.tolist() != choose(pool, 5, strategy=name, threshold=1.0, seed=1).indices.tolist()


@pytest.mark.typed
@pytest.mark.parametrize("name", CONNECTED)
def test_points_that_gain_nothing_are_taken_at_random(name):
    """Edges on the reference set, but no point of the pool tells the draws apart."""
    agreeing = Predictions.from_probs(np.tile(np.eye(2)[0], (40, 4, 1)))
    reference = Predictions.from_probs(np.tile(np.eye(2)[[0, 0, 1, 1]], (5, 1, 1)))
    chosen = [choose(agreeing, 4, strategy=name, reference=reference, seed=seed) for seed in range(3)]
    assert all(selection.edges.num_edges for selection in chosen)
    assert len({tuple(selection.indices.tolist()) for selection in chosen}) > 1
    assert all(selection.indices.tolist() != [0, 1, 2, 3] for selection in chosen)


@pytest.mark.parametrize("name", JOINT)
def test_joint_strategies_refuse_all_pairs_of_many_draws(name):
    many = Predictions.from_probs(random_probs(6, 65, 2))
    with pytest.raises(ValueError, match=r"more than 64 draws.*use pairs=260"):
        choose(many, strategy=name, pairs="all")
    assert choose(many, strategy="balance", pairs="all").edges.num_pairs == 65 * 64 // 2
    assert choose(many, strategy=name, pairs=260).edges.num_pairs == 260


@pytest.mark.typed
def test_large_batches_are_clustered(pool):
    small = choose(pool, 49, strategy="batch-balance")
    assert small.indices.tolist() == choose(pool, 49, strategy="greedy-balance").indices.tolist()
    large = choose(pool, 50, strategy="batch-balance")
    assert large.indices.tolist() == choose(pool, 50, strategy="cluster-balance").indices.tolist()


@pytest.mark.slow
def test_the_offset_reaches_every_strategy(pool):
    for name in BALANCE:
        strategy = strategy_named(name, {"offset": True})
        needed = {"embeddings": features(pool)} if "embeddings" in parts_needed(strategy) else {}
        chosen = select(pool, 3, strategy=strategy, threshold=0.05, **needed)
        assert float(chosen.null_coverage.abs().max()) < 1e-12
        plain = choose(pool, 3, strategy=name)
        assert not torch.allclose(chosen.gains, plain.gains)


def test_beta_zero_is_uniform_over_informative_points(pool):
    chosen = select(pool, 5, strategy=StochasticBalance(beta=0), threshold=0.05)
    assert (chosen.choice.continued_from, chosen.warnings) == (None, ())
    few = pool.subset([0, 1, 2, 3])
    noise = [gumbel(4, generator=generator(seed, "stochastic-greedy", 0)).numpy() for seed in range(4000)]
    firsts = np.stack(noise).argmax(axis=1)  # with β = 0 nothing but the noise ranks them
    for seed in range(25):
        chosen = select(few, 1, strategy=StochasticBalance(beta=0), threshold=0.05, seed=seed)
        assert int(chosen.indices[0]) == firsts[seed]
    counts = np.bincount(firsts, minlength=4)
    assert (np.abs(counts / 4000 - 0.25) < 4 * np.sqrt(0.25 * 0.75 / 4000)).all()


@pytest.mark.typed
def test_saturated_samples_tie_and_say_so():
    predictions = Predictions.from_probs(random_probs(150, 20, 4, seed=1, spread=1).astype(np.float32))
    chosen = select(predictions, 12, strategy=SampledBalance(num_samples=100), threshold=0.0)
    assert "one of them is chosen at random" in chosen.warnings[0]
    assert chosen.indices[-5:].tolist() != sorted(chosen.indices[-5:].tolist())


@pytest.mark.slow
def test_enumeration_needs_no_configurations_of_the_last_pick():
    wide = Predictions.from_probs(random_probs(5, 4, 30, seed=1))
    assert len(select(wide, 5, strategy="enumerated-balance", threshold=0.0).indices) == 5  # 30^4 is allowed


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


@pytest.mark.parametrize("name", ["bald", "batch-bald", "epig", "mean-std", "power-bald"])
def test_points_that_all_draws_agree_on_are_taken_at_random(name):
    """Rounding must not rank points that are worth nothing."""
    same = Predictions.from_probs(np.tile(random_probs(40, 1, 3), (1, 7, 1)))
    chosen = [choose(same, 4, strategy=name, seed=seed) for seed in range(3)]
    assert len({tuple(selection.indices.tolist()) for selection in chosen}) > 1
    assert all(selection.scores.tolist() == [0, 0, 0, 0] for selection in chosen)


@pytest.mark.parametrize("score", ["bald", "entropy", "margin", "mean-std", "least-confidence", "variation-ratio"])
def test_power_sampling_takes_any_score(score, pool):
    sharp = select(pool, 3, strategy=PowerSampling(score=score, beta=1e6))
    assert sharp.indices.tolist() == select(pool, 3, strategy=score).indices.tolist()
    with pytest.raises(ValueError, match="option `score` of 'power-sampling'"):
        strategy_named("power-sampling", {"score": "luck"})


@pytest.mark.parametrize("name", ["coreset", "badge", "cluster-margin"])
def test_embeddings_are_asked_for_and_checked(name, pool):
    for wrong, message in (
        (None, f"`embeddings` must be given for strategy '{name}', got none"),
        (torch.zeros(199, 2), "one row for each of 200 points, got 199"),
        (torch.zeros(200), "points × features"),
        (torch.zeros(200, 11, 2), "points × 12 draws × features"),
        (np.full((200, 2), np.nan), "must be finite"),
        (np.full((200, 2), "x"), "`embeddings` must be real numbers"),
    ):
        with pytest.raises(ValueError, match=message):
            select(pool, 2, strategy=name, embeddings=wrong)
    unread = select(pool, 2, strategy="bald", embeddings=torch.zeros(200, 2))
    assert unread.warnings == ("`embeddings` was ignored: strategy 'bald' does not use it",)


@pytest.mark.parametrize("name", ["coreset", "badge", "cluster-margin"])
def test_embeddings_of_every_draw_are_averaged_by_weight(name, pool):
    weighted = pool.with_weights(torch.from_numpy(random_weights(12)))
    per_draw = torch.randn(200, 12, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    mean = torch.einsum("s,nsd->nd", weighted.draw_weights, per_draw)
    found = [select(weighted, 5, strategy=name, embeddings=x, seed=4).indices.tolist() for x in (per_draw, mean)]
    assert found[0] == found[1]


def test_coreset_starts_from_the_labelled_points(pool):
    points = features(pool)
    far = select(pool, 1, strategy="coreset", embeddings=points, labelled_embeddings=points[:5]).indices
    apart = torch.cdist(points, points[:5]).amin(dim=1)
    assert far.tolist() == [int(apart.argmax())]
    with pytest.raises(ValueError, match="`labelled_embeddings` must have the 9 features of `embeddings`, got 8"):
        select(pool, 1, strategy="coreset", embeddings=points, labelled_embeddings=points[:5, 1:])


def test_badge_can_average_the_gradients_of_draws(pool):
    per_draw = torch.randn(200, 12, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    plain = select(pool, 5, strategy="badge", embeddings=per_draw)
    mean = select(pool, 5, strategy=Badge(mean_gradients=True), embeddings=per_draw)
    assert not torch.allclose(plain.scores, mean.scores)
    with pytest.raises(ValueError, match=r"those of every draw \(N, S, D\)"):
        select(pool, 5, strategy=Badge(mean_gradients=True), embeddings=per_draw[:, 0])


def test_epig_looks_towards_the_reference_set(pool):
    reference = Predictions.from_probs(random_probs(50, 12, 4, seed=8))
    scores = epig(pool, reference)
    chosen = select(pool, 3, strategy="epig", reference=reference)
    assert chosen.indices.tolist() == scores.argsort(descending=True)[:3].tolist()
    assert chosen.warnings == ()
    fewer = select(pool, 3, strategy=Epig(max_targets=20), reference=reference)
    assert "20 of 50 reference points" in fewer.warnings[0]


@pytest.mark.parametrize(
    "name", ["bald", "entropy", "margin", "mean-std", "variation-ratio", "power-bald", "power-balance"]
)
def test_single_scores_tell_how_far_they_are(name, capsys):
    pool = Predictions.from_logits(torch.randn(30, 4, 3, generator=torch.Generator().manual_seed(0)))
    needs = {"threshold": 0.0} if name == "power-balance" else {}
    select(pool, 2, strategy=name, progress=True, **needs)
    assert "scoring points: 30 of 30" in capsys.readouterr().err


@pytest.mark.parametrize("name", sorted(name for name in OWN if "embeddings" in parts_needed(OWN[name]())))
def test_the_size_of_embeddings_does_not_matter(name):
    """Powers of two, so that every digit stays; and the sizes that were wrong once."""
    rng = np.random.default_rng(5)
    points = rng.normal(size=(120, 4)) + 6 * np.eye(4)[rng.integers(4, size=120)]
    given = (
        {}
        if "predictions" not in parts_needed(OWN[name]())
        else {"predictions": Predictions.from_probs(random_probs(120, 6, 3, seed=2))}
    )

    def batch(embeddings):
        strategy = QUICK.get(name, name)
        chosen = select(**given, batch_size=8, strategy=strategy, embeddings=embeddings, labelled=[3, 50], seed=1)
        return chosen.indices.tolist(), None if chosen.cover is None else chosen.cover.length

    expected, length = batch(points)
    for exponent in (-1000, -530, -100, 100, 500, 1000):
        found, other = batch(points * 2.0**exponent)
        assert found == expected, exponent
        assert length is None or other == length * 2.0**exponent
    for size in (1e30, 1e-30, 1e-160, 1e300):
        assert batch(points * size)[0] == expected, size
    small = points.astype(np.float32)
    for exponent in (-120, 110):
        assert batch(small * np.float32(2.0**exponent))[0] == batch(small)[0], exponent

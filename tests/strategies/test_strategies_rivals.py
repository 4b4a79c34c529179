"""Strategies of recent papers: against plain loops, and what they do where little is known."""

import math

import numpy as np
import pytest
import torch

import oracles
from batchbalance import Predictions, PublishedUHerding, Refine, UnknownNameError, select
from batchbalance.arguments.seeds import derived_seed, generator
from batchbalance.strategies import strategy_named
from conftest import random_probs

pytestmark = pytest.mark.typed


@pytest.fixture
def known():
    """50 points with predictions of four classes, and embeddings."""
    return Predictions.from_probs(random_probs(50, 6, 4, seed=5)), np.random.default_rng(2).normal(size=(50, 3))


def test_bait_weighs_labelled_points_by_their_predictions(known):
    """One pick, by the definition: labelled points of the pool have weights, others the mean of the candidates."""
    predictions, points = known
    best = predictions.probs().mean(dim=1).amax(dim=1).numpy()
    weights, others = best * (1 - best), np.array([[3.0, 1.0, 0.0]])
    chosen = select(predictions, 1, strategy="bait", embeddings=points, labelled=[0, 1], labelled_embeddings=others)
    unit = np.sqrt((points[2:] ** 2).mean())
    rows, others = points / unit, others / unit
    labelled = weights[0] * np.outer(rows[0], rows[0]) + weights[1] * np.outer(rows[1], rows[1])
    labelled += weights[2:].mean() * np.outer(others[0], others[0])
    fisher = labelled + sum(weights[x] * np.outer(rows[x], rows[x]) for x in range(2, 50))

    def value(batch):
        added = sum(weights[x] * np.outer(rows[x], rows[x]) for x in batch)
        return -np.trace(fisher @ np.linalg.inv(np.eye(3) + labelled + added))

    two = oracles.greedy(value, range(2, 50), 2)
    assert chosen.indices.tolist() == [max(two, key=lambda x: value([x]))]
    assert chosen.certificate is None
    assert chosen.cover is None


def test_drop_query_takes_points_on_which_draws_disagree(known):
    predictions, points = known
    chosen = select(predictions, 4, strategy="drop-query", embeddings=points, exclude=[7])
    labels = predictions.hard_labels()
    usual = predictions.mean_probs().argmax(dim=1, keepdim=True)
    assert bool((labels != usual).any(dim=1)[chosen.indices].all())
    assert chosen.warnings == ()


def test_drop_query_without_disagreement_takes_small_margins(known):
    predictions, points = known
    one = Predictions.from_probs(predictions.mean_probs().unsqueeze(1))
    chosen = select(one, 4, strategy="drop-query", embeddings=points)
    assert chosen.indices.tolist() == select(one, 4, strategy="margin").indices.tolist()
    assert chosen.warnings == ("draws disagree on only 0 points; others of small margin complete the batch",)


def test_drop_query_completes_a_batch_of_copies(known):
    """Copies share a cluster; other points on which draws disagree come before those on which they agree."""
    predictions, _ = known
    chosen = select(predictions, 6, strategy="drop-query", embeddings=np.ones((50, 2)))
    usual = predictions.mean_probs().argmax(dim=1, keepdim=True)
    assert len(set(chosen.indices.tolist())) == 6
    assert bool((predictions.hard_labels() != usual).any(dim=1)[chosen.indices].all())


@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_published_u_herding_is_the_naive_one(known, temperature):
    predictions, points = known
    strategy = PublishedUHerding(temperature=temperature)
    others = points[3:4]  # a copy of a labelled point is no second one
    chosen = select(
        predictions, 5, strategy=strategy, embeddings=points, labelled=[3, 8, 9], labelled_embeddings=others
    )
    radius = min(math.dist(points[a], points[b]) for a, b in ((3, 8), (3, 9), (8, 9)))
    weights = []
    for mean in predictions.probs().mean(dim=1).tolist():
        powers = [p ** (1 / temperature) for p in mean]
        first, second = sorted((p / sum(powers) for p in powers), reverse=True)[:2]
        weights.append(1 - (first - second))
    candidates = [x for x in range(50) if x not in (3, 8, 9)]

    def value(batch):
        kept = [weights[x] for x in candidates]
        return oracles.covered(points, candidates, kept, batch, "gaussian", radius**2, points[[3, 8, 9]])

    assert chosen.indices.tolist() == oracles.greedy(value, candidates, 5)
    assert chosen.cover.length == pytest.approx(radius / math.sqrt(2))


def test_published_u_herding_with_one_label_has_our_radius(known):
    predictions, points = known
    for labelled in ([], [4]):
        found = [
            select(predictions, 3, strategy=name, embeddings=points, labelled=labelled)
            for name in ("u-herding-published", "u-herding")
        ]
        assert found[0].indices.tolist() == found[1].indices.tolist()
        assert found[0].cover.length == found[1].cover.length
    with pytest.raises(ValueError, match="option `score` of 'u-herding-published'"):
        strategy_named("u-herding-published", {"score": "bald"})


@pytest.mark.slow
def test_refine_chooses_from_the_union_of_batches(known):
    """Each part by a call of its own."""
    predictions, points = known
    strategy = Refine(strategy="max-herding", ensemble=("margin", "badge", "coreset"), num_batches=4, share=0.3)
    given = {"embeddings": points, "labelled": [0, 1]}
    chosen = select(predictions, 3, strategy=strategy, seed=9, **given)
    stream, kept = generator(9, "refine"), set()
    for i, name in enumerate(("margin", "badge", "coreset", "margin")):
        part = (torch.randperm(48, generator=stream)[:14] + 2).tolist()
        without = [x for x in range(2, 50) if x not in part]
        batch = select(predictions, 3, strategy=name, exclude=without, seed=derived_seed(9, "refine", i), **given)
        kept |= set(batch.indices.tolist())
    assert len(kept) < 48
    rest = [x for x in range(2, 50) if x not in kept]
    final = select(predictions, 3, strategy="max-herding", exclude=rest, seed=9, **given)
    assert chosen.indices.tolist() == final.indices.tolist()
    assert chosen.cover is None
    assert chosen.certificate is None


def test_options_of_refine_are_checked(known):
    predictions, points = known
    found = strategy_named("refine", {"strategy": "margin", "ensemble": "badge,random", "num_batches": "3"})
    assert found == Refine(strategy="margin", ensemble=("badge", "random"), num_batches=3)
    with pytest.raises(ValueError, match=r"option `strategy` of 'refine'.*did you mean 'margin'"):
        strategy_named("refine", {"strategy": "margn"})
    with pytest.raises(ValueError, match=r"option `ensemble` of 'refine'.*must name a strategy"):
        strategy_named("refine", {"ensemble": []})
    mixed = Refine(ensemble=("balance", "partition-balance"), num_batches=2)
    with pytest.raises(ValueError, match=r"must join draws in the same way.*omit 'partition-balance'"):
        select(predictions, 2, strategy=mixed, embeddings=points, threshold=0.05)
    with pytest.raises(UnknownNameError):
        strategy_named("refin")

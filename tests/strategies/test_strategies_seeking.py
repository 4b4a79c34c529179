"""`seek` and `explore`: against plain loops, and what they do where nothing is known."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

import oracles
from batchbalance import Explore, Predictions, Seek, UnknownNameError, select
from batchbalance.arguments.seeds import generator
from batchbalance.strategies import strategy_named
from batchbalance.strategies.seeking import with_examples
from conftest import random_probs

pytestmark = pytest.mark.typed


@pytest.fixture
def skewed():
    """60 points with predictions of three named classes, and embeddings."""
    probs = random_probs(60, 5, 3, seed=3)
    return Predictions.from_probs(probs, classes=["no", "fraud", "spam"]), np.random.default_rng(1).normal(size=(60, 3))


def test_the_sought_part_covers_the_most_likely_points(skewed):
    """The part that is sought, by a plain loop: three times as many points by probability, covered by weight."""
    pool, points = skewed
    chosen = select(pool, 8, strategy=Seek(classes=["fraud"]), embeddings=points, labelled=[0, 1], exclude=[2])
    likely = pool.probs().mean(dim=1)[:, 1].tolist()
    short = sorted(sorted(range(3, 60), key=lambda i: -likely[i])[:12])
    rows = [points[i].tolist() for i in short]
    length = oracles.squared_length(rows, 4)

    def value(batch):
        weights = [likely[i] for i in short]
        return oracles.covered(rows, list(range(12)), weights, batch, "gaussian", length, ())

    assert chosen.indices[:4].tolist() == [short[i] for i in oracles.greedy(value, range(12), 4)]
    rest = select(
        pool, 4, strategy="u-herding", embeddings=points, labelled=[0, 1, *chosen.indices[:4].tolist()], exclude=[2]
    )
    assert chosen.indices[4:].tolist() == rest.indices.tolist()
    assert chosen.choice.reasons == ("seek",) * 4 + ("u-herding",) * 4


def test_share_and_several_classes(skewed):
    pool, points = skewed
    both = select(pool, 5, strategy=Seek(classes=["fraud", "spam"], share=1), embeddings=points)
    assert both.choice.reasons == ("seek",) * 5
    likely = 1 - pool.probs().mean(dim=1)[:, 0]
    assert set(both.indices.tolist()) <= set(likely.argsort(descending=True)[:15].tolist())
    one = select(pool, 5, strategy=Seek(classes=["fraud"], share=0.01), embeddings=points)
    assert one.choice.reasons == ("seek", *("u-herding",) * 4)
    assert strategy_named("seek", {"classes": "fraud,spam", "share": "0.3"}) == Seek(
        classes=("fraud", "spam"), share=0.3
    )


def test_classes_are_those_of_the_predictions(skewed):
    pool, points = skewed
    with pytest.raises(UnknownNameError, match="did you mean 'fraud'"):
        select(pool, 2, strategy=Seek(classes=["frud"]), embeddings=points)
    unnamed = Predictions.from_probs(pool.probs().numpy())
    by_number = select(unnamed, 6, strategy=Seek(classes=[1]), embeddings=points)
    assert (
        by_number.indices.tolist()
        == select(pool, 6, strategy=Seek(classes=["fraud"]), embeddings=points).indices.tolist()
    )
    with pytest.raises(UnknownNameError, match="class to seek"):
        select(unnamed, 2, strategy=Seek(classes=["fraud"]), embeddings=points)
    for wrong in (0, 1.5, float("nan")):
        with pytest.raises(ValueError, match="option `share` of 'seek'"):
            strategy_named("seek", {"share": wrong})
    rarest = select(pool, 6, strategy="seek", embeddings=points)
    number = int(pool.mean_probs().mean(dim=0).argmin())
    assert f"the rarest class by the predictions, {pool.classes[number]!r}" in rarest.warnings[0]


def test_without_predictions_nothing_is_sought(skewed):
    _, points = skewed
    chosen = select(embeddings=points, batch_size=4, strategy=Seek(classes=["fraud"]))
    assert chosen.indices.tolist() == select(embeddings=points, batch_size=4, strategy="max-herding").indices.tolist()
    assert "no class is sought" in chosen.warnings[0]


def test_only_classes_with_labels_are_sought():
    wanted, known = Seek(classes=["fraud", "spam"]), ["no", "fraud", "spam"]
    assert with_examples(wanted, known, {0, 1, 2}) == (wanted, "")
    kept, note = with_examples(wanted, known, {0, 2})
    assert kept.classes == ("spam",)
    assert note.startswith("'fraud' has no label yet")
    assert with_examples(wanted, known, {0})[0] is None
    assert with_examples(Seek(classes=[1]), range(3), {0}, known)[1].startswith("'fraud' has no label yet")


@pytest.mark.parametrize("size", [1, 2, 7])
def test_explore_draws_half_and_goes_farthest_first(size):
    points = np.random.default_rng(4).normal(size=(40, 3)) + 5
    chosen = select(embeddings=points, batch_size=size, strategy=Explore(), labelled=[0, 1], exclude=[2], seed=9)
    free = list(range(3, 40))
    order = torch.randperm(len(free), generator=generator(9, "explore"))[: size // 2].tolist()
    drawn = sorted(free[i] for i in order)
    centred = points - points.mean(axis=0)
    unit = [row / np.sqrt((row**2).sum()) for row in centred]
    known, farthest = [0, 1, *drawn], []
    for _ in range(size - size // 2):
        best = max(
            (i for i in free if i not in known), key=lambda i: min(np.linalg.norm(unit[i] - unit[k]) for k in known)
        )
        farthest.append(best)
        known.append(best)
    assert chosen.indices.tolist() == farthest + drawn


@pytest.mark.slow
def test_explore_finds_a_rare_class_sooner_than_coverage():
    """Digits with 2 % of eights: after a first batch without any, coverage goes on with typical others."""
    digits, found = load_digits(), {"explore": 0, "max-herding": 0}
    eights, others = np.flatnonzero(digits.target == 8), np.flatnonzero(digits.target != 8)
    for seed in range(4):
        rng = np.random.default_rng(seed)
        rows = np.concatenate([rng.choice(eights, 32, replace=False), rng.choice(others, 1568, replace=False)])
        points = digits.data[rows].astype(np.float32)
        first = select(embeddings=points, batch_size=18, strategy="max-herding", exclude=range(32)).indices.tolist()
        for name in found:
            more = select(embeddings=points, batch_size=18, strategy=name, labelled=first, seed=seed).indices
            found[name] += int((more < 32).any())
    assert found["explore"] == 4
    assert found["max-herding"] < 4

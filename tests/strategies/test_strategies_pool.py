"""`Pool`: parts are made when they are read, at most once, and what is missing is named."""

import pytest
import torch

from batchbalance import Predictions, Strategy, select
from batchbalance.errors import MissingPartError
from batchbalance.strategies import OWN, Choice
from batchbalance.strategies.pool import Pool
from batchbalance.strategies.probing import parts_needed, parts_read
from conftest import random_probs

pytestmark = pytest.mark.typed

PREDICTIONS = Predictions.from_probs(random_probs(10, 4, 3, seed=1))
POINTS = torch.arange(20.0).reshape(10, 2)


def test_a_part_is_made_when_it_is_read_and_once():
    calls = []
    pool = Pool(made={"embeddings": lambda: calls.append("embeddings") or POINTS}, num_points=10)
    assert (pool.has("embeddings"), pool.at_hand("embeddings"), calls) == (True, None, [])
    view = pool.to_choose(batch_size=3, seed=4)
    assert torch.equal(view.mean_embeddings, POINTS)
    assert torch.equal(pool.embedding_rows(torch.tensor([2])), POINTS[2:3])
    assert torch.equal(pool.scaled(2.0).embeddings, 2 * POINTS)
    assert (calls, pool.read, (view.batch_size, pool.batch_size)) == (["embeddings"], {"embeddings"}, (3, 1))


def test_a_missing_part_says_how_to_get_it():
    with pytest.raises(MissingPartError, match="`predictions` must be given for this strategy, got none; predict"):
        _ = Pool(num_points=3).predictions
    with pytest.raises(MissingPartError, match="`embeddings` must be given for strategy 'coreset', got none; give"):
        select(PREDICTIONS, 2, strategy="coreset")
    pool = Pool({"predictions": PREDICTIONS})
    assert not pool.without("predictions").has("predictions")
    assert pool.has("predictions")


def test_what_was_given_and_not_read_is_known():
    pool = Pool({"predictions": PREDICTIONS, "embeddings": POINTS, "pairs": None})
    assert pool.unread() == []  # nobody needs more than their number
    _ = pool.predictions
    assert pool.unread() == ["embeddings"]


def test_a_strategy_is_watched_to_tell_what_it_reads():
    assert parts_read(OWN["margin"]()) == {"predictions"}
    assert parts_needed(OWN["margin"]()) == {"predictions"}
    assert parts_needed(OWN["u-herding"]()) == {"predictions", "embeddings"}
    assert parts_read(OWN["max-herding"]()) == {"embeddings", "labelled_embeddings", "weights", "targets"}
    assert parts_read(OWN["epig"]()) == {"predictions", "reference", "max_reference"}
    assert "pairs" not in parts_read(OWN["partition-balance"]())
    assert parts_read(OWN["badge"](mean_gradients=True)) == {"embeddings", "predictions"}
    assert parts_read(OWN["random"]()) == frozenset()
    for strategy in OWN.values():
        assert parts_needed(strategy()) <= parts_read(strategy())


def test_an_own_strategy_reads_from_the_pool_and_draws_from_its_generator():
    class Mine(Strategy):
        name = "mine"
        summary = "any"

        def choose(self, pool):
            order = torch.randperm(len(pool.candidates), generator=pool.generator("mine"))
            return Choice(pool.candidates[order[: pool.batch_size]])

    first, again, other = (select(PREDICTIONS, 4, strategy=Mine(), seed=seed) for seed in (1, 1, 2))
    assert first.indices.tolist() == again.indices.tolist() != other.indices.tolist()

import json

import numpy as np
import pytest
import torch

from batchbalance import (
    DrawMismatchError,
    GreedyBalance,
    Predictions,
    connect,
    evaluate_batch,
    joint_balance,
    select,
)
from conftest import random_probs, random_weights

pytestmark = pytest.mark.typed


def test_the_selection_tells_how_it_came_about(pool):
    chosen = select(pool, 3, validation_error=0.2)
    assert (chosen.edges.threshold, chosen.threshold_source) == (0.05, "0.25 × validation error 0.2")
    edges = connect(pool, 0.05)
    assert (chosen.edges.num_edges, chosen.edges.num_pairs, chosen.edges.num_reference) == (edges.num_edges, 6, 200)
    assert float(chosen.gains.sum()) == pytest.approx(joint_balance(pool, edges, chosen.indices), abs=1e-12)
    assert bool((chosen.gain_errors > 0).all())
    assert select(pool, 3, threshold=0.1).threshold_source == "given"


def test_the_error_is_estimated_from_the_pool_and_said_so(pool):
    chosen = select(pool, 3, ratio=0.5)
    mean = pool.log_probs().exp().mean(dim=1)
    assert chosen.edges.threshold == pytest.approx(0.5 * float((1 - mean.amax(dim=1)).mean()))
    assert "estimated error" in chosen.threshold_source


def test_an_accuracy_in_place_of_an_error_is_said(pool):
    warned = select(pool, 3, validation_error=0.95).warnings
    assert (
        "a validation error of 0.95 is worse than guessing among 4 classes; if it is an accuracy, give 1 − 0.95"
        in warned[0]
    )
    for fine in (0.75, 0.05):
        assert select(pool, 3, validation_error=fine).warnings == ()
    sure = np.full((30, 4, 40), 0.01 / 39)
    sure[np.arange(30)[:, None], np.arange(4)[None, :], np.arange(30)[:, None]] = 0.99
    sure = Predictions.from_probs(
        np.where(np.arange(4)[None, :, None] == np.arange(30)[:, None, None] % 4, sure[::-1], sure)
    )
    assert "far above what the predictions themselves expect" in select(sure, 3, validation_error=0.95).warnings[0]


@pytest.mark.parametrize("name", ["exclude", "labelled", "embeddings"])
def test_masked_entries_are_refused(pool, name):
    given = np.ma.masked_array(np.arange(400).reshape(200, 2) if name == "embeddings" else np.arange(3))
    select(pool, 3, strategy="coreset", **{"embeddings": np.eye(200), name: given})
    given[0] = np.ma.masked
    with pytest.raises(ValueError, match=f"`{name}` must not have masked entries, got .; fill or drop them"):
        select(pool, 3, strategy="coreset", **{"embeddings": np.eye(200), name: given})


def test_a_reference_set_decides_the_edges(pool):
    reference = Predictions.from_probs(random_probs(50, 12, 4, seed=9))
    chosen = select(pool, 3, reference=reference, threshold=0.5)
    assert chosen.edges.num_edges == connect(reference, 0.5).num_edges
    assert chosen.edges.num_reference == 50


def test_weights_of_the_pool_hold_for_the_reference_set(pool):
    weights = random_weights(12)
    weighted = pool.with_weights(torch.from_numpy(weights))
    reference = Predictions.from_probs(random_probs(50, 12, 4, seed=9))
    chosen = select(weighted, 2, reference=reference, threshold=0.1)
    edges = connect(reference.with_weights(weighted.weights), 0.1)
    assert float(chosen.gains.sum()) == pytest.approx(joint_balance(weighted, edges, chosen.indices), abs=1e-12)
    with pytest.raises(DrawMismatchError, match="same draw weights"):
        select(pool, 2, reference=reference.with_weights(weighted.weights), threshold=0.1)


def test_subsampling_is_reported(pool):
    chosen = select(pool, 2, threshold=0.05, max_reference=50)
    assert chosen.edges.num_reference == 50
    assert "50 of 200 reference points" in chosen.warnings[0]


def test_memory_mapped_predictions_give_the_same_batch(tmp_path):
    probs = random_probs(150, 10, 3, seed=3).astype(np.float32)
    np.save(tmp_path / "p.npy", probs)
    mapped = Predictions.load(tmp_path / "p.npy", "probs")
    for strategy in ("greedy-balance", "power-balance", "cluster-balance"):
        first, second = (select(p, 8, strategy=strategy) for p in (mapped, Predictions.from_probs(probs)))
        assert first.indices.tolist() == second.indices.tolist()


def test_a_selection_is_plain_json(pool):
    for strategy in ("batch-balance", "random"):
        plain = json.loads(json.dumps(select(pool, 2, strategy=strategy).as_dict(), allow_nan=False))
        assert plain["strategy"]["name"] == strategy
        assert len(plain["indices"]) == 2


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"batch_size": 0}, "at least 1, got 0"),
        ({"batch_size": -3}, "at least 1, got -3"),
        ({"batch_size": 201}, "at most 200, the points that are left, got 201"),
        ({"batch_size": 199, "exclude": [1, 2]}, "at most 198"),
        ({"exclude": [5, 5]}, "5 more than once"),
        ({"exclude": [200]}, "from 0 to 199, got 200"),
        ({"threshold": 1.5}, "`threshold` must be a number from 0 to 1, got 1.5"),
        ({"validation_error": -0.1}, "`validation_error` must be"),
        ({"ratio": 2.0}, "`ratio` must be"),
        ({"threshold": 0.1, "validation_error": 0.1}, "together with `validation_error`"),
        ({"threshold": 0.1, "ratio": 0.5}, "together with `ratio`"),
        ({"strategy": "gredy-balance"}, "did you mean 'greedy-balance'"),
        ({"device": "warp"}, "`device` must be one that torch can use"),
        ({"seed": -1}, "at least 0"),
    ],
)
def test_bad_requests_are_refused(pool, kwargs, message):
    with pytest.raises(ValueError, match=message):
        select(pool, **{"batch_size": 3, **kwargs})


@pytest.mark.parametrize(
    ("strategy", "given"),
    [
        ("random", {"threshold": 0.1}),
        ("random", {"pairs": "all"}),
        ("random", {"max_reference": 3}),
        ("partition-balance", {"pairs": 4}),
        ("margin", {"weights": torch.ones(200)}),
    ],
)
def test_arguments_that_are_never_read_are_named(pool, strategy, given):
    (name,) = given
    expected = f"`{name}` was ignored: strategy {strategy!r} does not use it"
    assert expected in select(pool, 3, strategy=strategy, **given).warnings
    assert not any("was ignored" in each for each in select(pool, 3, strategy=strategy).warnings)


def test_other_draws_or_classes_are_refused(pool):
    for probs, message in [(random_probs(5, 11, 4), "12 draws, got 11"), (random_probs(5, 12, 3), "4 classes, got 3")]:
        with pytest.raises(DrawMismatchError, match=message):
            select(pool, 2, reference=Predictions.from_probs(probs))


def test_numbers_of_numpy_and_torch_are_numbers(pool):
    plain = select(pool, 3, validation_error=0.25, pairs=4, exclude=[1, 2])
    other = select(pool, np.int64(3), validation_error=torch.tensor(0.25), pairs=np.int64(4), exclude={2, 1})
    assert other.indices.tolist() == plain.indices.tolist()
    assert select(pool, 3, threshold=np.float32(0.125)).edges.threshold == 0.125


@pytest.mark.slow
def test_weights_that_differ_in_the_last_digit_are_the_same():
    for seed in range(60):
        weights = torch.from_numpy(random_weights(8, seed)) * (1 + 1e-15)
        weighted = Predictions.from_probs(random_probs(9, 8, 3), weights=weights)
        weighted.check_same_draws(weighted.with_weights(weighted.weights))
        select(weighted, 2, reference=Predictions.from_probs(random_probs(9, 8, 3)), threshold=0.0)


def test_the_edges_serve_to_evaluate_another_batch(pool):
    chosen = select(pool, 3, threshold=0.05)
    assert evaluate_batch(pool, chosen.edges, chosen.indices).delta == pytest.approx(float(chosen.gains.sum()))


def test_edges_of_weight_zero_are_named():
    weighted = Predictions.from_probs(random_probs(30, 4, 3), weights=[0.5, 0.5, 0, 0])
    chosen = select(weighted, 3, threshold=0.0)
    assert "2 edges join draws of weight 0" in chosen.warnings[0]


def test_one_draw_is_refused_where_pairs_are_needed(pool):
    single = Predictions.from_probs(random_probs(9, 1, 3))
    with pytest.raises(ValueError, match="at least 2 draws"):
        select(single, 2, strategy="batch-balance")
    assert len(select(single, 2, strategy="random").indices) == 2
    chosen = select(single, 2)
    assert chosen.note == "auto chose 'margin': there are predictions of one model and no embeddings"
    assert chosen.indices.tolist() == select(single, 2, strategy="margin").indices.tolist()


def test_a_strategy_object_carries_its_options(pool):
    chosen = select(pool, 120, strategy=GreedyBalance(continuation="random"), threshold=0.05)
    assert chosen.choice.continuation == "random"
    assert chosen.choice.continued_from is not None


def test_reversed_embeddings_are_taken_and_ragged_ones_refused():
    points = np.random.default_rng(0).normal(size=(12, 3))
    reversed_points = np.ascontiguousarray(points[::-1])
    for given in (points[::-1], points[::-1].astype("f4"), np.asfortranarray(reversed_points)):
        found = select(embeddings=given, batch_size=3, strategy="coreset", seed=1)
        expected = select(embeddings=reversed_points.astype(given.dtype), batch_size=3, strategy="coreset", seed=1)
        assert list(found.indices) == list(expected.indices)
    with pytest.raises(ValueError, match="`embeddings` must have rows of one length, got rows of different lengths"):
        select(embeddings=[[1.0, 2.0], [3.0]], batch_size=1, strategy="coreset")

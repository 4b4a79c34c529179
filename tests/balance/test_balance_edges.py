import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import oracles
from batchbalance import Predictions, annealed_threshold, connect, hamming_distances
from batchbalance.balance.edges import choose_pairs, partition, partition_edges, threshold_count
from conftest import fresh, random_probs, random_weights

pytestmark = pytest.mark.typed

PROBS = random_probs(37, 7, 3, seed=2)
REFERENCE = Predictions.from_probs(PROBS)


def test_distances_count_differing_hard_predictions():
    matrix = hamming_distances(REFERENCE)
    for a in range(7):
        for b in range(7):
            assert int(matrix[a, b]) == oracles.hamming(PROBS, a, b)
    pairs = torch.tensor([[0, 3], [6, 2]])
    assert hamming_distances(REFERENCE, pairs).tolist() == [int(matrix[0, 3]), int(matrix[6, 2])]


def test_distances_do_not_depend_on_chunks(monkeypatch):
    whole = hamming_distances(REFERENCE)
    monkeypatch.setattr("batchbalance.balance.edges.CHUNK_NUMBERS", 40)
    assert torch.equal(hamming_distances(REFERENCE), whole)


def test_a_hard_prediction_tie_goes_to_the_lowest_class():
    tied = Predictions.from_probs([[[0.5, 0.5], [0.4, 0.6]], [[0.5, 0.5], [1.0, 0.0]]])
    assert hamming_distances(tied)[0, 1] == 1


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [("disjoint", [[0, 3], [1, 4], [2, 5], [0, 6]]), ("all", [[a, b] for a in range(7) for b in range(a + 1, 7)])],
)
def test_named_pairs(pairs, expected):
    chosen, design = choose_pairs(7, pairs, seed=0)
    assert (chosen.tolist(), design) == (expected, pairs)


def test_random_pairs_are_distinct_and_seeded():
    first, design = choose_pairs(9, 20, seed=4)
    assert design == "random"
    assert len({tuple(pair) for pair in first.tolist()}) == 20
    assert all(a < b for a, b in first.tolist())
    assert torch.equal(first, choose_pairs(9, 20, seed=4)[0])
    assert not torch.equal(first, choose_pairs(9, 20, seed=5)[0])


def test_edges_differ_on_more_than_the_threshold():
    for threshold in (0.0, 0.2, 0.4, 1.0):
        edges = connect(REFERENCE, threshold, "all")
        expected = [oracles.hamming(PROBS, a, b) > threshold * 37 for a, b in edges.pairs.tolist()]
        assert edges.connected.tolist() == expected


def test_exactly_the_threshold_is_not_an_edge():
    # 29 of 100 points differ; 0.29 · 100 falls just below 29 in floating point.
    probs = torch.tensor([[0.9, 0.1]]).repeat(100, 2, 1)
    probs[:29, 1] = torch.tensor([0.1, 0.9])
    reference = Predictions.from_probs(probs)
    assert connect(reference, 0.29).num_edges == 0
    assert connect(reference, 0.28).num_edges == 1
    assert threshold_count(0.29, 100) == 29


def test_edge_weights_are_products_over_the_pairs_looked_at():
    weights = random_weights(7, 1)
    edges = connect(Predictions.from_probs(PROBS, weights=weights), 0.25)
    total = sum(weights[a] * weights[b] for a, b in edges.pairs.tolist())
    expected = [weights[a] * weights[b] / total for a, b in edges.ends.tolist()]
    assert edges.edge_weights.tolist() == pytest.approx(expected, abs=1e-14)
    plain = connect(REFERENCE, 0.25)
    assert plain.edge_weights.tolist() == pytest.approx([1 / 4] * plain.num_edges)
    assert plain.total_weight == pytest.approx(plain.num_edges / plain.num_pairs)


def test_annealing():
    assert annealed_threshold(0.2) == pytest.approx(0.05)
    assert annealed_threshold(0.2, 0.5) == pytest.approx(0.1)
    for bad in (-0.1, 1.5, float("nan")):
        with pytest.raises(ValueError, match="from 0 to 1"):
            annealed_threshold(bad)
        with pytest.raises(ValueError, match="from 0 to 1"):
            connect(REFERENCE, bad)


def test_large_reference_sets_are_subsampled_and_say_so():
    edges = connect(REFERENCE, 0.1, "all", seed=3, max_reference=10)
    assert (edges.num_reference, edges.num_reference_given) == (10, 37)
    assert torch.equal(edges.connected, connect(REFERENCE, 0.1, "all", seed=3, max_reference=10).connected)
    assert connect(REFERENCE, 0.1, max_reference="all").num_reference == 37
    with pytest.raises(ValueError, match="at least 1"):
        connect(REFERENCE, 0.1, max_reference=0)


@pytest.mark.parametrize(("pairs", "message"), [(0, "at least 1"), (22, "got 22")])
def test_bad_pairs(pairs, message):
    with pytest.raises(ValueError, match=message):
        connect(REFERENCE, 0.1, pairs)


def test_one_draw_has_no_pairs():
    with pytest.raises(ValueError, match="at least 2 draws, got 1"):
        connect(Predictions.from_probs(PROBS[:, :1]), 0.1)


def farthest_first(distances, radius):
    """Plain farthest-first traversal from draw 0."""
    centres = [0]
    while True:
        nearest = [min(distances[s][c] for c in centres) for s in range(len(distances))]
        if max(nearest) <= radius:
            break
        centres.append(nearest.index(max(nearest)))
    return [min(range(len(centres)), key=lambda i: (distances[s][centres[i]], i)) for s in range(len(distances))]


@pytest.mark.parametrize("radius", [0, 5, 12, 37])
def test_partition_is_farthest_first_traversal(radius):
    distances = hamming_distances(REFERENCE)
    assert partition(distances, radius).tolist() == farthest_first(distances.tolist(), radius)


def test_partition_edges_join_different_classes():
    edges = partition_edges(REFERENCE, 0.3)
    classes = farthest_first(hamming_distances(REFERENCE).tolist(), int(0.3 * 37))
    assert edges.connected.tolist() == [classes[a] != classes[b] for a, b in edges.pairs.tolist()]
    assert 0 < edges.num_edges < 21


@st.composite
def references(draw):
    """Votes with ties: (N, S, C) probabilities of few distinct values."""
    shape = draw(st.integers(1, 8)), draw(st.integers(2, 8)), draw(st.integers(2, 3))
    votes = draw(arrays(np.int64, shape, elements=st.integers(1, 3), fill=st.nothing()))
    return votes / votes.sum(axis=2, keepdims=True)


@fresh
@given(references(), st.integers(0, 8), st.booleans(), st.booleans(), st.data())
def test_connect_is_a_loop_over_pairs(probs, count, between, weighted, data):
    """A threshold of exactly count/N, or between two counts."""
    num_points, num_draws, _ = probs.shape
    count = min(count, num_points)
    threshold = min(1.0, (count + (0.5 if between else 0.0)) / num_points)
    weights = random_weights(num_draws, count) if weighted else None
    num_all = num_draws * (num_draws - 1) // 2
    pairs = data.draw(st.sampled_from(["disjoint", "all"]) | st.integers(1, num_all))
    edges = connect(Predictions.from_probs(probs, weights=weights), threshold, pairs, seed=3)
    looked_at = [tuple(pair) for pair in edges.pairs.tolist()]
    assert len(looked_at) == len(set(looked_at))
    assert all(0 <= a < b < num_draws for a, b in looked_at)
    if pairs == "disjoint":
        assert {draw for pair in looked_at for draw in pair} == set(range(num_draws))
        assert len(looked_at) == (num_draws + 1) // 2
    else:
        assert len(looked_at) == (num_all if pairs == "all" else pairs)
    assert edges.connected.tolist() == [oracles.hamming(probs, a, b) > count for a, b in looked_at]
    draw_weights = [1 / num_draws] * num_draws if weights is None else weights.tolist()
    total = sum(draw_weights[a] * draw_weights[b] for a, b in looked_at)
    expected = [draw_weights[a] * draw_weights[b] / total for a, b in edges.ends.tolist()]
    assert edges.edge_weights.tolist() == pytest.approx(expected, abs=1e-12)


@fresh
@given(references(), st.integers(0, 4))
def test_a_partition_covers_all_draws_by_balls(probs, radius):
    num_points, num_draws, _ = probs.shape
    radius = min(radius, num_points)
    distances = [[oracles.hamming(probs, a, b) for b in range(num_draws)] for a in range(num_draws)]
    classes = partition(hamming_distances(Predictions.from_probs(probs)), radius).tolist()
    assert classes == farthest_first(distances, radius)
    # A class has a centre, all its draws are within the radius of it, and centres are further apart than that.
    centres = []
    for number in range(max(classes) + 1):
        members = [draw for draw in range(num_draws) if classes[draw] == number]
        centres.append([m for m in members if all(distances[m][other] <= radius for other in members)])
        assert centres[-1]
    assert all(any(distances[a][b] > radius for a in first for b in second)
               for i, first in enumerate(centres) for second in centres[:i])  # fmt: skip
    edges = partition_edges(Predictions.from_probs(probs), radius / num_points)
    assert edges.connected.tolist() == [classes[a] != classes[b] for a, b in edges.pairs.tolist()]
    assert edges.num_pairs == num_draws * (num_draws - 1) // 2

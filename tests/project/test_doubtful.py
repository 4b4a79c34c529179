"""Which suggestions come first in a review, against plain loops."""

from types import SimpleNamespace

import numpy as np
import pytest

from batchbalance.project import doubtful as module
from batchbalance.project.doubtful import doubtful
from batchbalance.project.suggestions import packed

N, C = 60, 3


@pytest.fixture
def vectors():
    return np.random.default_rng(0).normal(size=(N, 5)).astype(np.float32)


def state_of(*sources):
    """Sources with labels and confidences, None for none."""
    kept = {
        name: [{"labels": packed(labels), "confidence": None if sure is None else packed(sure)}]
        for name, labels, sure in sources
    }
    return SimpleNamespace(suggested=kept)


def probs_of(vectors):
    exp = np.exp(vectors[:, :C])
    return exp / exp.sum(axis=1, keepdims=True)


def test_each_item_counts_once_with_its_most_doubtful_label(vectors, monkeypatch):
    monkeypatch.setattr(module, "class_probs", lambda _, rows: probs_of(rows))
    random = np.random.default_rng(1)
    first, second = (random.integers(-1, C, N).astype(np.int64) for _ in range(2))
    free = random.random(N) < 0.7
    model = SimpleNamespace(posterior=None)
    found = doubtful(state_of(("a", first, None), ("b", second, None)), vectors, model, free, N, "raw")
    expected, probs = {}, probs_of(vectors)
    for row in range(N):
        for name, labels in (("a", first), ("b", second)):
            if free[row] and labels[row] >= 0:
                wrong = 1 - probs[row, labels[row]]
                if row not in expected or wrong > expected[row][2]:
                    expected[row] = (name, int(labels[row]), wrong)
    assert {each.row for each in found} == set(expected)
    for each in found:
        assert (each.source, each.label) == expected[each.row][:2]
        assert each.wrong == pytest.approx(expected[each.row][2], abs=1e-6)


def test_doubt_outweighs_coverage_and_copies_do_not_crowd_the_list(vectors, monkeypatch):
    vectors[:20] = vectors[0]  # the same item twenty times, as doubtful as all others
    monkeypatch.setattr(module, "class_probs", lambda _, rows: np.full((len(rows), C), 1 / C))
    labels = np.zeros(N, dtype=np.int64)
    free = np.ones(N, dtype=bool)
    found = doubtful(state_of(("a", labels, None)), vectors, SimpleNamespace(posterior=None), free, 10, "raw")
    assert len({each.row for each in found}) == 10
    assert sum(each.row < 20 for each in found) == 1


def test_without_a_model_the_confidence_of_the_source_counts(vectors):
    labels = np.array([0, 1, 2, *[-1] * (N - 3)], dtype=np.int64)
    sure = np.array([0.9, 0.2, 0.6, *[0.0] * (N - 3)])
    found = doubtful(state_of(("a", labels, sure)), vectors, None, np.ones(N, dtype=bool), 2, "raw")
    assert len({each.row for each in found} & {0, 1, 2}) == 2
    assert {each.row: each.wrong for each in found}.get(1, 0.8) == pytest.approx(0.8, abs=1e-3)
    assert doubtful(state_of(), vectors, None, np.ones(N, dtype=bool), 2, "raw") == []
    (only,) = doubtful(state_of(("a", labels, sure)), vectors, None, np.arange(N) == 1, 2, "raw")
    assert (only.row, only.label) == (1, 1)

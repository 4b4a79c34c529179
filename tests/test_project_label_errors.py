"""Labels that are probably wrong, exact copies, and cross-validation."""

import numpy as np
import pytest

from batchbalance.project.label_errors import (
    cross_validated,
    cross_validated_error,
    duplicates,
    folds,
    likely_errors,
    row_digests,
)


def nearest_mean(x, labels, num_classes):
    """Trains on rows: probabilities by the distance to class means."""

    def train_and_predict(train, test):
        distance = np.full((len(test), num_classes), 50.0)
        for label in np.unique(labels[train]):
            mean = x[train][labels[train] == label].mean(axis=0)
            distance[:, label] = ((x[test] - mean) ** 2).sum(axis=1)
        weights = np.exp(-distance)
        return weights / weights.sum(axis=1, keepdims=True)

    return train_and_predict


def test_folds_are_stratified():
    labels = np.array([0] * 11 + [1] * 7 + [2] * 2)
    found = folds(labels, 5, seed=1)
    for label in range(3):
        counts = np.bincount(found[labels == label], minlength=5)
        assert counts.max() - counts.min() <= 1
    assert np.ptp(np.bincount(found)) <= 1
    assert (folds(labels, 5, seed=2) != found).any()


def test_every_row_is_predicted_by_a_model_that_has_not_seen_it():
    labels = np.array([0, 1] * 6 + [2])
    seen = []

    def train_and_predict(train, test):
        seen.append((set(train), set(test)))
        return np.tile([0.5, 0.3, 0.2], (len(test), 1)) + test[:, None] / 1e3

    probs, judged = cross_validated(labels, train_and_predict)
    assert all(not train & test and len(train | test) == len(labels) for train, test in seen)
    assert judged.tolist() == [True] * 12 + [False]  # nobody else has class 2
    assert probs[:12, 0] == pytest.approx(0.5 + np.arange(12) / 1e3)
    assert not probs[12].any()


def test_too_few_labels_judge_nothing():
    for labels in (np.array([], dtype=int), np.array([1])):
        probs, judged = cross_validated(labels, lambda *_: pytest.fail("nothing can be trained"))
        assert not judged.any()
        assert cross_validated_error(probs, labels, judged) is None
        assert likely_errors(probs, labels, judged) == []


def test_wrong_labels_are_found():
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 3, 90)
    x = 4 * np.eye(3)[truth] + rng.normal(size=(90, 3)) * 0.5
    labels = truth.copy()
    wrong = [5, 40, 77]
    labels[wrong] = (labels[wrong] + 1) % 3
    probs, judged = cross_validated(labels, nearest_mean(x, labels, 3))
    found = likely_errors(probs, labels, judged)
    assert {each.row for each in found} == set(wrong)
    assert [each.probability for each in found] == sorted(each.probability for each in found)
    for each in found:
        assert each.suggested == truth[each.row] != each.label
        assert each.suggested_probability > each.probability
    assert cross_validated_error(probs, labels, judged) == pytest.approx(3 / 90)
    assert len(likely_errors(probs, labels, judged, limit=2)) == 2


def test_a_label_that_the_model_would_give_too_is_no_error():
    probs = np.array([[0.35, 0.33, 0.32], [0.1, 0.9, 0.0], [0.0, 0.2, 0.8], [0.2, 0.8, 0.0]])
    found = likely_errors(probs, np.array([0, 0, 2, 0]), np.array([True, True, True, True]))
    assert [(each.row, each.label, each.suggested) for each in found] == [(1, 0, 1)]


def test_copies():
    contents = ["a", "b", "a", "c", "b", "a", "d"]
    labels = [0, 1, 0, None, 0, None, 2]
    is_audit = np.array([False, True, True, False, False, True, True])
    found = duplicates(contents, labels, is_audit)
    assert (found.num_copies, found.num_groups) == (3, 2)
    assert found.conflicts == ((1, 4),)
    assert found.num_audit_copies == 3  # two of "a" (item 0 was trained on), one of "b"
    only_audit_has_a_label = duplicates(["a", "a"], [1, None], np.array([True, False]))
    assert only_audit_has_a_label.num_audit_copies == 0
    assert duplicates(contents).num_copies == 3
    assert duplicates(["x", "y"], [0, 1]).num_groups == 0


def test_digests_of_rows():
    rows = np.array([[0.0, 1.0], [-0.0, 1.0], [0.0, 1.0 + 1e-7]], dtype=np.float32)
    first, second, third = row_digests(rows)
    assert first == second != third

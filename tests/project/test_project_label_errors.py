"""Labels that are probably wrong, exact copies, and cross-validation."""

import math

import numpy as np
import pytest

from batchbalance.project.label_errors import (
    cross_validated,
    cross_validated_error,
    duplicates,
    folds,
    likely_errors,
    wrong_probabilities,
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


def made(rng, num, noise, spread=0.5):
    """Three classes, of whose labels some are wrong; and what a model says that has not seen them."""
    truth = rng.integers(0, 3, num)
    x = 4 * np.eye(3)[truth] + rng.normal(size=(num, 3)) * spread
    labels = truth.copy()
    wrong = rng.random(num) < noise
    labels[wrong] = (labels[wrong] + rng.integers(1, 3, wrong.sum())) % 3
    return labels, truth, *cross_validated(labels, nearest_mean(x, labels, 3))


def test_wrong_labels_are_found():
    labels, truth, probs, judged = made(np.random.default_rng(0), 150, 0.05, spread=1.0)
    found = likely_errors(probs, labels, judged)
    assert {each.row for each in found} == set(np.flatnonzero(labels != truth).tolist())
    assert [each.wrong for each in found] == sorted((each.wrong for each in found), reverse=True)
    assert all(each.suggested == truth[each.row] != each.label for each in found)
    judged[found[0].row] = False
    assert {each.row for each in likely_errors(probs, labels, judged)} == {each.row for each in found[1:]}


def plain_wrong(probs, labels):
    """The parts of wrong labels by plain loops, averaged over temperatures and shares of wrong labels."""
    num_classes = len(probs[0])

    def terms(rate, temperature):
        made = []
        for row, label in zip(probs, labels, strict=True):
            tempered = [max(p, 1e-12) ** (1 / temperature) for p in row]
            own = tempered[label] / sum(tempered)
            made.append(((1 - rate) * own, rate * (1 - own) / (num_classes - 1)))
        return made

    def likelihood(pairs):
        return sum(math.log(right + wrong) for right, wrong in pairs)

    temperatures = [0.25 * 256 ** (i / 32) for i in range(33)]
    rates = [0.002 * 250 ** (i / 39) for i in range(40)]
    tried = [(0.9 if rate == 0 else 0.1 / 40, terms(rate, each)) for each in temperatures for rate in [0.0, *rates]]
    most = max(likelihood(pairs) for _, pairs in tried)
    weights = [prior * math.exp(likelihood(pairs) - most) for prior, pairs in tried]
    return [
        sum(w * pairs[i][1] / sum(pairs[i]) for w, (_, pairs) in zip(weights, tried, strict=True)) / sum(weights)
        for i in range(len(labels))
    ]


@pytest.mark.slow
@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_probabilities_of_wrong_labels_by_plain_loops(noise):
    labels, _, probs, _ = made(np.random.default_rng(0), 150, noise, spread=1.0)
    found = wrong_probabilities(probs, labels)
    assert found.tolist() == pytest.approx(plain_wrong(probs.tolist(), labels.tolist()), abs=1e-10)
    assert (found.max() > 0.5) == (noise > 0)


@pytest.mark.parametrize("spread", [0.5, 1.5, 3.0])
def test_right_labels_are_hardly_ever_suspected_however_weak_the_model_is(spread):
    listing = 0
    for seed in range(40):
        labels, _, probs, judged = made(np.random.default_rng(seed), 80, 0.0, spread)
        listing += bool(likely_errors(probs, labels, judged))
    assert listing <= 2


@pytest.mark.parametrize("noise", [0.05, 0.15])
def test_as_many_are_wrong_as_is_said(noise):
    right = expected = variance = 0.0
    for seed in range(30):
        labels, truth, probs, judged = made(np.random.default_rng(seed), 120, noise, spread=1.2)
        for each in likely_errors(probs, labels, judged):
            right += labels[each.row] != truth[each.row]
            expected += each.wrong
            variance += each.wrong * (1 - each.wrong)
    assert expected > 50
    assert abs(right - expected) <= 4 * math.sqrt(variance) + 0.05 * expected


def test_few_labels_are_not_judged():
    probs = np.tile([0.99, 0.01], (19, 1))
    labels = np.array([0] * 15 + [1] * 4)
    assert likely_errors(probs, labels, np.ones(19, dtype=bool)) == []
    assert likely_errors(np.zeros((0, 2)), np.zeros(0, dtype=int), np.zeros(0, dtype=bool)) == []


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

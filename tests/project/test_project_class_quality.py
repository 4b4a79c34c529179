"""Figures of each class: against plain loops and scikit-learn, and how often their intervals hold."""

import numpy as np
import pytest
from scipy.stats import binom
from sklearn.metrics import f1_score, precision_recall_fscore_support

from batchbalance.project.class_quality import class_quality, share_of


def measured(truth, predicted, num=3):
    truth, predicted = np.asarray(truth, dtype=np.int64), np.asarray(predicted, dtype=np.int64)
    return class_quality([f"c{i}" for i in range(num)], [7] * num, truth, truth, predicted)


def exact_interval(count, total):
    """Clopper and Pearson's by bisection on binomial tails."""

    def solved(tail, target):
        low, high = 0.0, 1.0
        for _ in range(200):
            middle = (low + high) / 2
            low, high = (middle, high) if tail(middle) < target else (low, middle)
        return low

    low = 0.0 if count == 0 else solved(lambda p: 1 - binom.cdf(count - 1, total, p), 0.025)
    high = 1.0 if count == total else solved(lambda p: 1 - binom.cdf(count, total, p), 0.975)
    return low, high


def test_figures_are_those_of_scikit_learn():
    rng = np.random.default_rng(0)
    for _ in range(20):
        truth, predicted = rng.integers(0, 4, (2, 25))
        found = measured(truth, predicted, 4)
        p, r, f, _ = precision_recall_fscore_support(truth, predicted, labels=range(4), zero_division=0)
        for c, each in enumerate(found.classes):
            for estimate, expected in ((each.precision, p[c]), (each.recall, r[c]), (each.f1, f[c])):
                assert estimate is None or estimate.value == pytest.approx(expected, abs=1e-12)
        assert found.macro_f1.value == pytest.approx(f1_score(truth, predicted, average="macro"), abs=1e-12)
        assert found.majority_accuracy.value == max(np.bincount(truth)) / 25
        assert found.classes[1].share.value == (truth == 1).mean()


def test_intervals_are_exact_and_f1_follows_the_jaccard_index():
    truth, predicted = [0, 0, 0, 1, 1, 2], [0, 0, 1, 1, 0, 2]
    found = measured(truth, predicted).classes[0]
    for estimate, count, total in ((found.share, 3, 6), (found.precision, 2, 3), (found.recall, 2, 3)):
        assert (estimate.interval.low, estimate.interval.high) == pytest.approx(exact_interval(count, total), abs=1e-9)
    low, high = (2 * j / (1 + j) for j in exact_interval(2, 4))  # two are both, two are only one of them
    assert (found.f1.interval.low, found.f1.interval.high) == pytest.approx((low, high), abs=1e-9)
    assert share_of(0, 0) is None


def test_macro_f1_of_two_classes_has_the_mean_of_their_ends():
    """Two classes share all their errors."""
    found = measured([0] * 20 + [1] * 5, [0] * 19 + [1] * 4 + [0] * 2, 2)
    ends = [each.f1.interval for each in found.classes]
    expected = [np.mean([end.low for end in ends]), np.mean([end.high for end in ends])]
    assert [found.macro_f1.interval.low, found.macro_f1.interval.high] == pytest.approx(expected)


def test_what_nobody_saw_is_not_known():
    found = measured([0, 0, 1], [0, 0, 0])
    assert found.classes[1].precision is None  # never predicted
    assert (found.classes[1].recall.value, found.classes[1].f1.value) == (0, 0)
    assert (found.classes[2].recall, found.classes[2].f1) == (None, None)
    assert found.num_measured == 2
    empty = measured([], [])
    assert (empty.macro_f1, empty.majority, empty.classes[0].share) == (None, None, None)
    assert list(empty.rows()) == []
    assert dict(empty.class_rows())["class c0"] == "7 labels"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shares", "recalls", "size"),
    [
        ((0.98, 0.02), (0.99, 0.5), 100),
        ((0.5, 0.5), (0.9, 0.9), 30),
        ((0.6, 0.3, 0.1), (0.9, 0.8, 0.5), 60),
        ((0.1,) * 10, (0.9,) * 10, 30),
        (tuple(1 / np.arange(1, 11) ** 1.5), tuple(np.linspace(0.95, 0.3, 10)), 100),
        ((1 / 40,) * 40, (0.8,) * 40, 100),
    ],
)
def test_intervals_of_f1_hold_in_simulated_samples(shares, recalls, size):
    """At least 95 %, less four standard errors, for each class and for macro F1 over the classes that were seen."""
    rng, num, repeats = np.random.default_rng(1), len(shares), 150
    cells = np.empty((num, num))
    for c in range(num):
        cells[c] = np.insert((1 - recalls[c]) * rng.dirichlet(np.ones(num - 1)), c, recalls[c])
    cells *= np.array(shares)[:, None] / sum(shares)
    true_f1 = 2 * np.diag(cells) / (cells.sum(axis=0) + cells.sum(axis=1))
    classes, macro = [], []
    for _ in range(repeats):
        drawn = rng.choice(num * num, size, p=cells.ravel())
        found = measured(drawn // num, drawn % num, num)
        seen = [c for c in range(num) if found.classes[c].f1 is not None]
        classes += [true_f1[c] in found.classes[c].f1.interval for c in seen]
        macro.append(true_f1[seen].mean() in found.macro_f1.interval)
    slack = 4 * (0.95 * 0.05 / repeats) ** 0.5
    assert np.mean(classes) >= 0.95 - slack
    assert np.mean(macro) >= 0.95 - slack

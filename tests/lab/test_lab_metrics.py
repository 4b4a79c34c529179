"""Metrics against plain loops that share no code with the library."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from batchbalance.lab.metrics import accuracy, balanced_accuracy, calibration_error, macro_auc, macro_f1, nll
from batchbalance.lab.metrics import test_metrics as all_metrics
from batchbalance.predictions import Predictions

pytestmark = pytest.mark.typed


def example(seed: int, num: int = 40, num_classes: int = 4, *, missing: int | None = None, ties: bool = False):
    draws = torch.Generator().manual_seed(seed)
    probs = torch.rand(num, num_classes, generator=draws, dtype=torch.float64)
    if ties:
        probs = (probs * 4).ceil()
    probs = probs / probs.sum(dim=1, keepdim=True)
    labels = torch.randint(0, num_classes, (num,), generator=draws)
    if missing is not None:
        labels[labels == missing] = (missing + 1) % num_classes
    return probs, labels


def top(row: list[float]) -> int:
    return max(range(len(row)), key=lambda c: (row[c], -c))


def loop_auc(probs, labels) -> float:
    areas = []
    for c in sorted(set(labels)):
        yes = [row[c] for row, y in zip(probs, labels, strict=True) if y == c]
        no = [row[c] for row, y in zip(probs, labels, strict=True) if y != c]
        if yes and no:
            wins = sum(1.0 if a > b else 0.5 if a == b else 0.0 for a in yes for b in no)
            areas.append(wins / (len(yes) * len(no)))
    return sum(areas) / len(areas)


def loop_f1(probs, labels) -> float:
    scores = []
    for c in sorted(set(labels)):
        hits = sum(top(row) == c and y == c for row, y in zip(probs, labels, strict=True))
        precision = hits / max(1, sum(top(row) == c for row in probs))
        recall = hits / labels.count(c)
        scores.append(2 * precision * recall / (precision + recall) if hits else 0.0)
    return sum(scores) / len(scores)


def loop_calibration(probs, labels, num_bins: int) -> float:
    total = 0.0
    for b in range(num_bins):
        inside = [
            (max(row), top(row) == y)
            for row, y in zip(probs, labels, strict=True)
            if b / num_bins < max(row) <= (b + 1) / num_bins
        ]
        if inside:
            confidence = sum(c for c, _ in inside) / len(inside)
            correct = sum(hit for _, hit in inside) / len(inside)
            total += len(inside) / len(labels) * abs(confidence - correct)
    return total


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), missing=st.sampled_from([None, 0, 3]), ties=st.booleans())
def test_against_loops(seed: int, missing: int | None, ties: bool) -> None:
    probs, labels = example(seed, missing=missing, ties=ties)
    p, y = probs.tolist(), labels.tolist()
    assert accuracy(probs, labels) == pytest.approx(sum(top(r) == c for r, c in zip(p, y, strict=True)) / 40, abs=1e-10)
    assert macro_auc(probs, labels) == pytest.approx(loop_auc(p, y), abs=1e-10)
    assert macro_f1(probs, labels) == pytest.approx(loop_f1(p, y), abs=1e-10)
    recalls = []
    for label in set(y):
        mine = [row for row, true in zip(p, y, strict=True) if true == label]
        recalls.append(sum(row.index(max(row)) == label for row in mine) / len(mine))
    assert balanced_accuracy(probs, labels) == pytest.approx(sum(recalls) / len(recalls), abs=1e-10)
    mean_log = sum(-math.log(r[c]) for r, c in zip(p, y, strict=True)) / 40
    assert nll(probs, labels) == pytest.approx(mean_log, abs=1e-10)
    # 7 bins: the tied probabilities are fractions whose ends no bin of width 1/7 shares with another.
    assert calibration_error(probs, labels, 7) == pytest.approx(loop_calibration(p, y, 7), abs=1e-10)


def test_float32_is_near_float64() -> None:
    probs, labels = example(3, num=300)
    for metric in (accuracy, balanced_accuracy, macro_auc, macro_f1, nll, calibration_error):
        assert metric(probs.float(), labels) == pytest.approx(metric(probs, labels), abs=1e-5)


def test_evaluate_averages_the_draws_by_weight() -> None:
    one, labels = example(1)
    two, _ = example(2)
    predictions = Predictions.from_probs(torch.stack([one, two], dim=1), weights=[0.25, 0.75])
    mixed = 0.25 * one + 0.75 * two
    result = all_metrics(predictions, labels)
    assert result.accuracy == pytest.approx(accuracy(mixed, labels), abs=1e-10)
    assert result.macro_auc == pytest.approx(macro_auc(mixed, labels), abs=1e-10)
    assert result.macro_f1 == pytest.approx(macro_f1(mixed, labels), abs=1e-10)
    assert result.nll == pytest.approx(nll(mixed, labels), abs=1e-10)
    assert result.calibration_error == pytest.approx(calibration_error(mixed, labels), abs=1e-10)


def test_a_perfect_and_a_worst_classifier() -> None:
    labels = torch.tensor([0, 1, 2, 1])
    perfect = torch.nn.functional.one_hot(labels, 3).double()
    assert (accuracy(perfect, labels), macro_auc(perfect, labels), macro_f1(perfect, labels)) == (1, 1, 1)
    assert (nll(perfect, labels), calibration_error(perfect, labels)) == (0, 0)
    worst = torch.nn.functional.one_hot((labels + 1) % 3, 3).double()
    assert (accuracy(worst, labels), macro_f1(worst, labels), calibration_error(worst, labels)) == (0, 0, 1)
    assert nll(worst, labels) == pytest.approx(52 * math.log(2), abs=1e-10)


def test_one_class_alone_is_finite() -> None:
    probs, _ = example(0)
    labels = torch.full((40,), 2)
    assert macro_auc(probs, labels) == 0.5
    assert 0 <= macro_f1(probs, labels) <= 1
    assert math.isfinite(nll(probs, labels))


def test_a_missing_class_does_not_count() -> None:
    # Class 2 never occurs; predicting it once costs the class that was missed, not a class of its own.
    probs = torch.tensor([[0.9, 0.1, 0.0], [0.1, 0.9, 0.0], [0.1, 0.0, 0.9]], dtype=torch.float64)
    labels = torch.tensor([0, 1, 1])
    assert macro_f1(probs, labels) == pytest.approx((1 + 2 / 3) / 2, abs=1e-10)


@pytest.mark.parametrize(
    ("labels", "complaint"),
    [([0, 1], "for each of 40 inputs, got 2"), ([4] * 40, "from 0 to 3, got 4 to 4"), ([-1] * 40, "got -1 to -1")],
)
def test_labels_that_do_not_fit(labels: list[int], complaint: str) -> None:
    probs, _ = example(0)
    for metric in (accuracy, balanced_accuracy, macro_auc, macro_f1, nll, calibration_error):
        with pytest.raises(ValueError, match=complaint):
            metric(probs, torch.tensor(labels))


def test_nan_is_never_averaged() -> None:
    probs, labels = example(0)
    probs[3, 1] = torch.nan
    with pytest.raises(ValueError, match="must be finite"):
        nll(probs, labels)
    with pytest.raises(ValueError, match="`num_bins` must be"):
        calibration_error(*example(0), num_bins=0)

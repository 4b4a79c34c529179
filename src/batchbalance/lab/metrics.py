"""Test metrics of averaged predictions: accuracy, balanced accuracy, macro AUC, macro F1, NLL and calibration.

All take class probabilities averaged over draws, (N, C), and true classes, (N,). Macro averages omit classes without
test inputs; every result is finite.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from batchbalance.arguments.checks import check_whole
from batchbalance.predictions import Predictions

LEAST_PROBABILITY = 2.0**-52
NUM_BINS = 15


@dataclass(frozen=True)
class Metrics:
    """The test metrics of one round.

    Attributes:
        accuracy: share of inputs whose most probable class is the true one.
        balanced_accuracy: see ``balanced_accuracy``.
        macro_auc: see ``macro_auc``.
        macro_f1: see ``macro_f1``.
        nll: see ``nll``.
        calibration_error: see ``calibration_error``.
    """

    accuracy: float
    balanced_accuracy: float
    macro_auc: float
    macro_f1: float
    nll: float
    calibration_error: float


@dataclass(frozen=True)
class LabelMetrics:
    """The test metrics of one round if an input may have several labels; a label is predicted above 1/2.

    Attributes:
        exact_match: share of inputs whose predicted labels are all right.
        micro_f1: F1 of all labels of all inputs together; 1 if there are none and none is predicted.
        macro_f1: F1 of each label, averaged over the labels that occur.
        nll: mean negative log-likelihood of a label in nats, with the probabilities of ``nll``.
    """

    exact_match: float
    micro_f1: float
    macro_f1: float
    nll: float


def label_metrics(probs: Float[Tensor, "N L"], labels: Int[Tensor, "N L"]) -> LabelMetrics:
    """Return all test metrics of the probabilities of labels, averaged over draws."""
    if probs.shape != labels.shape or not len(labels):
        raise ValueError(f"`labels` must be 0 or 1 for each of {tuple(probs.shape)}, got {tuple(labels.shape)}")
    predicted, truth = probs > 0.5, labels.bool()
    twice_right = 2 * (predicted & truth).sum(dim=0).double()
    both = (predicted.sum(dim=0) + truth.sum(dim=0)).double()
    present = truth.any(dim=0)
    of_truth = torch.where(truth, probs.double(), 1 - probs.double())
    return LabelMetrics(
        exact_match=float((predicted == truth).all(dim=1).double().mean()),
        micro_f1=float(twice_right.sum() / both.sum()) if both.sum() else 1.0,
        macro_f1=float((twice_right / both)[present].mean()) if present.any() else 1.0,
        nll=float(-of_truth.clamp(LEAST_PROBABILITY, 1.0).log().mean()),
    )


def test_metrics(predictions: Predictions, labels: Int[Tensor, " n"]) -> Metrics:
    """Return all test metrics of predictions, their draws averaged by weight."""
    probs = predictions.mean_probs()
    return Metrics(
        accuracy=accuracy(probs, labels),
        balanced_accuracy=balanced_accuracy(probs, labels),
        macro_auc=macro_auc(probs, labels),
        macro_f1=macro_f1(probs, labels),
        nll=nll(probs, labels),
        calibration_error=calibration_error(probs, labels),
    )


def accuracy(probs: Float[Tensor, "N C"], labels: Int[Tensor, " n"]) -> float:
    """Return the share of inputs whose most probable class is the true one; a tie goes to the lowest class."""
    _check(probs, labels)
    return float((probs.argmax(dim=1) == labels).to(torch.float64).mean())


def balanced_accuracy(probs: Float[Tensor, "N C"], labels: Int[Tensor, " n"]) -> float:
    """Return the accuracy on the inputs of each class, averaged over the classes that occur."""
    _check(probs, labels)
    of_class = torch.bincount(labels, minlength=probs.shape[1])
    right = torch.bincount(labels[probs.argmax(dim=1) == labels], minlength=probs.shape[1])
    return float((right[of_class > 0] / of_class[of_class > 0].to(torch.float64)).mean())


def macro_auc(probs: Float[Tensor, "N C"], labels: Int[Tensor, " n"]) -> float:
    """Return the area under the ROC curve of each class against the rest, averaged over the classes that occur.

    A tie counts half. If all inputs are of one class there is nothing to rank, and the result is 0.5.
    """
    _check(probs, labels)
    areas = []
    for label in torch.bincount(labels).nonzero()[:, 0].tolist():
        positive = labels == label
        num_positive = int(positive.sum())
        num_negative = len(labels) - num_positive
        if num_negative:
            rank_sum = float(_mean_ranks(probs[:, label].contiguous())[positive].sum())
            areas.append((rank_sum - num_positive * (num_positive + 1) / 2) / (num_positive * num_negative))
    return math.fsum(areas) / len(areas) if areas else 0.5


def _mean_ranks(values: Tensor) -> Tensor:
    """Return ranks from 1, float64; equal values share the mean of their ranks."""
    ordered = values.sort().values
    first = torch.searchsorted(ordered, values) + 1
    last = torch.searchsorted(ordered, values, right=True)
    return (first + last).to(torch.float64) / 2


def macro_f1(probs: Float[Tensor, "N C"], labels: Int[Tensor, " n"]) -> float:
    """Return the F1 score of each class, averaged over the classes that occur among `labels`."""
    _check(probs, labels)
    num_classes = probs.shape[1]
    predicted = probs.argmax(dim=1)
    true_c = torch.bincount(labels, minlength=num_classes)
    predicted_c = torch.bincount(predicted, minlength=num_classes)
    both_c = torch.bincount(labels[predicted == labels], minlength=num_classes)
    present = true_c > 0
    return float((2 * both_c[present] / (true_c + predicted_c)[present].to(torch.float64)).mean())


def nll(probs: Float[Tensor, "N C"], labels: Int[Tensor, " n"]) -> float:
    """Return the mean negative log-likelihood in nats.

    Probabilities are clipped to at least 2⁻⁵², so an impossible label costs 36 nats rather than infinity.
    """
    _check(probs, labels)
    of_label = probs.to(torch.float64).gather(1, labels[:, None].long())
    return float(-of_label.clamp(LEAST_PROBABILITY, 1.0).log().mean())


def calibration_error(probs: Float[Tensor, "N C"], labels: Int[Tensor, " n"], num_bins: int = NUM_BINS) -> float:
    """Return the expected calibration error of the most probable class.

    Inputs are grouped by confidence into `num_bins` bins of equal width, closed on the right. The result is the mean
    over inputs of the gap between mean confidence and accuracy in their bin.
    """
    _check(probs, labels)
    num_bins = check_whole("num_bins", num_bins)
    confidence, predicted = probs.to(torch.float64).max(dim=1)
    bins = (confidence * num_bins).ceil().long().clamp(1, num_bins) - 1
    gap = torch.zeros(num_bins, dtype=torch.float64)
    gap.index_add_(0, bins.cpu(), (confidence - (predicted == labels).to(torch.float64)).cpu())
    return float(gap.abs().sum() / len(labels))


def _check(probs: Tensor, labels: Tensor) -> None:
    if len(labels) != len(probs) or not len(labels):
        raise ValueError(f"`labels` must hold a class for each of {len(probs)} inputs, got {len(labels)}")
    if int(labels.min()) < 0 or int(labels.max()) >= probs.shape[1]:
        raise ValueError(
            f"`labels` must be classes from 0 to {probs.shape[1] - 1}, got {int(labels.min())} to {int(labels.max())}"
        )
    if not bool(torch.isfinite(probs).all()):
        raise ValueError("`probs` must be finite, got NaN or infinity; check the model's predictions")

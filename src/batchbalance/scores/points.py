"""Scores of single points, f(predictions) -> (N,): the classic baselines (section 4, compared methods).

Every score is float64, non-negative, and larger for points that are more informative. ``entropy``, ``margin`` and
``least_confidence`` use only the mean prediction p̄(y) = Σ_s w_s p(y | ω_s); the others use every draw. These three
are computed in logs, and `log` also ranks points so confident that the score underflows to 0.

Items with several labels are scored label by label, as points with two classes. `combine` says how an item is ranked by
its labels: by their mean or by their largest score. Scores of whole sets of labels enumerate them, see
``Predictions.joint``.
"""

import math
from collections.abc import Callable
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from batchbalance.predictions import CHUNK_NUMBERS, Predictions
from batchbalance.system.progress import Bar

Combine = Literal["mean", "max"]
COMBINE: Combine = "max"  # docs/method.md compares the two

MEMORY_BUDGET = 2**28
CACHED_NUMBERS = 2**20  # numbers per block; larger blocks do not fit the CPU cache and are slower
ROUNDING = 1e-13  # relative; a smaller difference is rounding and counts as 0


def entropy(
    predictions: Predictions, *, combine: Combine | None = None, log: bool = False, bar: Bar | None = None
) -> Float[Tensor, " N"]:
    """Return the entropy of the mean prediction in nats, from 0 to log C; with `log` its logarithm."""

    def score(ranked: Float[Tensor, "n C"]) -> Float[Tensor, " n"]:
        others = ranked[:, 1:]
        rest = others.logsumexp(dim=-1)
        # −p log p of the most probable class: p is one minus the rest, and −log(1 − r) is r where r is below rounding.
        surprise = torch.where(rest < -40, rest, (-torch.log1p(-rest.exp())).log())
        terms = torch.cat([(ranked[:, 0] + surprise).unsqueeze(1), others + (-others).log()], dim=1)
        return terms.nan_to_num(nan=-torch.inf, neginf=-torch.inf).logsumexp(dim=-1)

    return _of_means(predictions, combine, log, bar, score)


def least_confidence(
    predictions: Predictions, *, combine: Combine | None = None, log: bool = False, bar: Bar | None = None
) -> Float[Tensor, " N"]:
    """Return one minus the highest mean probability, from 0 to 1 − 1/C; with `log` its logarithm."""
    return _of_means(predictions, combine, log, bar, lambda ranked: ranked[:, 1:].logsumexp(dim=-1))


def margin(
    predictions: Predictions, *, combine: Combine | None = None, log: bool = False, bar: Bar | None = None
) -> Float[Tensor, " N"]:
    """Return one minus the margin between the two most probable classes, from 0 to 1; with `log` its logarithm."""

    def score(ranked: Float[Tensor, "n C"]) -> Float[Tensor, " n"]:
        return torch.cat([ranked[:, 1:], ranked[:, 1:2]], dim=1).logsumexp(dim=1)

    return _of_means(predictions, combine, log, bar, score)


def variation_ratio(
    predictions: Predictions,
    *,
    votes: bool = False,
    combine: Combine | None = None,
    log: bool = False,
    bar: Bar | None = None,
) -> Float[Tensor, " N"]:
    """Return the mean probability of all classes but the most probable one, from 0 to 1 − 1/C.

    Args:
        predictions: predictions of the points to score.
        votes: count each draw as a vote for its most probable class (Freeman 1965) instead of using its
            probabilities (Gal et al. 2017). With S draws votes take few values and tie often. Without votes
            this equals ``least_confidence``.
        combine: for several labels, without votes; draws vote for whole sets of labels.
        log: return the logarithm.
        bar: counts points.
    """
    if not votes:
        return least_confidence(predictions, combine=combine, log=log, bar=bar)
    predictions = predictions.joint()
    weights, num_classes = predictions.draw_weights, predictions.num_classes
    scores = _empty(predictions)
    for rows, chunk in predictions.chunks(bar=bar):
        labels = chunk.argmax(dim=-1)  # (n, S)
        tally = torch.zeros(len(labels), num_classes, dtype=torch.float64, device=labels.device)
        tally.scatter_add_(1, labels, weights.to(labels.device).expand(labels.shape))
        scores[rows] = tally.sort(dim=-1, descending=True).values[:, 1:].sum(dim=-1)
    return scores.log() if log else scores


def mean_std(
    predictions: Predictions, *, combine: Combine | None = None, bar: Bar | None = None
) -> Float[Tensor, " N"]:
    """Return the standard deviation of class probabilities over draws, averaged over classes, from 0 to 1/2."""
    scores = _empty(predictions.questions)
    for rows, chunk in predictions.question_chunks(CHUNK_NUMBERS // 8, bar):  # several float64 copies are in memory
        probs = chunk.double().exp()
        weights = predictions.draw_weights.to(probs.device)
        mean = torch.einsum("s,nsc->nc", weights, probs)
        variance = torch.einsum("s,nsc->nc", weights, (probs - mean.unsqueeze(1)).square())
        scores[rows] = above_rounding(variance.sqrt(), mean).mean(dim=-1)
    return combined(scores, predictions, combine)


def bald(predictions: Predictions, *, combine: Combine | None = None, bar: Bar | None = None) -> Float[Tensor, " N"]:
    """Return the mutual information between the label of a point and the draw, from 0 to log min(C, S) nats.

    For items with several labels it is that of the whole set of labels, for at most 10 labels. With `combine` it is the
    mean or the largest of the information of each label. L times the mean is an upper bound on that of the set, because
    given a draw the labels are independent, but their entropies add up to more than the entropy of the set.
    """
    whole = predictions.joint() if combine is None else predictions
    weights = predictions.draw_weights.to(predictions.device)
    scores = _empty(whole.questions)
    for rows, chunk in whole.question_chunks(CACHED_NUMBERS, bar):
        log_probs = chunk.double()
        probs = log_probs.exp()
        mean = torch.einsum("s,nsc->nc", weights, probs)
        given_draw = entropies(probs, log_probs) @ weights
        entropy = torch.special.entr(mean).sum(dim=-1)
        scores[rows] = above_rounding(entropy - given_draw, entropy)
    return combined(scores, whole, combine)


def epig(predictions: Predictions, targets: Predictions, *, memory_budget: int = MEMORY_BUDGET) -> Float[Tensor, " N"]:
    """Return the expected predictive information gain (Bickford Smith et al. 2023), in nats, float64.

    It is the mutual information between the label of a point and the label of a target, averaged over the targets. So
    it measures information about the predictions on the targets, not about the draw. Costs N·T·S·C² for T targets.

    Args:
        predictions: predictions of the points to score.
        targets: predictions of the same draws on points like those to be predicted later.
        memory_budget: bytes to use besides the input.
    """
    predictions.check_same_draws(targets, "targets")
    predictions, targets = predictions.joint(), targets.joint()
    num_draws, num_classes = predictions.num_draws, predictions.num_classes
    step = points_within(memory_budget, num_draws * num_classes)
    numbers = min(CACHED_NUMBERS, max(1, memory_budget // 32))
    weights = predictions.draw_weights.to(predictions.device)
    scores = []
    for _, chunk in predictions.chunks(min(numbers, step * num_draws * num_classes)):
        num_points = len(chunk)
        weighted = (_normalised(chunk) * weights.unsqueeze(1)).transpose(1, 2)  # (n, C, S)
        marginal = torch.special.entr(weighted.sum(dim=-1)).sum(dim=-1)
        flat = weighted.reshape(num_points * num_classes, num_draws)
        total = torch.zeros_like(marginal)
        for _, target in targets.chunks(max(1, numbers // len(flat)) * num_draws):
            probs = _normalised(target.to(flat)).transpose(0, 1).reshape(num_draws, -1)  # (S, t·C)
            joint = torch.special.entr(flat @ probs).sum(dim=1).view(num_points, num_classes).sum(dim=1)
            total += len(target) * marginal + torch.special.entr(weights @ probs).sum() - joint
        scores.append(above_rounding(total / targets.num_points, marginal))
    return torch.cat(scores)


def _normalised(log_probs: Float[Tensor, "n S C"]) -> Float[Tensor, "n S C"]:
    """Return probabilities in float64 that sum to 1 in float64.

    Rows in float32 sum to 1 only up to rounding. If the sums differ, a difference of entropies is not 0 where it
    must be. The remaining rounding error of `bald` is of second order, because each draw is compared with their mean.
    """
    return torch.softmax(log_probs.double(), dim=-1)


def unsureness(predictions: Predictions, rows: Int[Tensor, " n"] | None = None) -> float:
    """Return the sum over points of 1 − (largest mean probability), the expected errors of the mean prediction.

    An item with several labels counts with the share of its labels that are expected to be wrong.
    """
    if rows is None:
        return float(least_confidence(predictions, combine="mean").sum())
    parts = rows.split(max(1, CHUNK_NUMBERS // (predictions.num_draws * predictions.num_classes)))
    return sum(float(least_confidence(predictions.subset(part), combine="mean").sum()) for part in parts)


def points_within(memory_budget: int, point_numbers: int) -> int:
    """Return how many points fit in half of the budget: a copy of the input and three float64 arrays of its size."""
    if memory_budget < 1:
        raise ValueError(f"`memory_budget` must be a positive number of bytes, got {memory_budget}")
    return max(1, min(memory_budget // 2 // (32 * point_numbers), CACHED_NUMBERS // point_numbers))


def entropies(probs: Float[Tensor, "n S C"], log_probs: Float[Tensor, "n S C"]) -> Float[Tensor, "n S"]:
    """Return the entropy of each prediction in nats; `log_probs` may be -inf where `probs` is 0."""
    # 0 · log 0 is 0: the clamp makes -inf finite, and its product with 0 is 0 instead of NaN.
    return -(log_probs.clamp_min(-1e300).mul_(probs)).sum(dim=-1)


def above_rounding(difference: Float[Tensor, "..."], scale: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Return a non-negative difference of numbers of size `scale`; exactly 0 where it is only rounding."""
    return torch.where(difference > ROUNDING * scale, difference, 0)


def combined(scores: Float[Tensor, " q"], predictions: Predictions, combine: Combine | None) -> Float[Tensor, " N"]:
    """Return one score for each point from those of its questions."""
    by_point = scores.view(predictions.num_points, -1)
    return by_point.mean(dim=1) if (combine or COMBINE) == "mean" else by_point.amax(dim=1)


def _of_means(
    predictions: Predictions,
    combine: Combine | None,
    log: bool,
    bar: Bar | None,
    score: Callable[[Float[Tensor, "n C"]], Float[Tensor, " n"]],
) -> Float[Tensor, " N"]:
    """Return a score or its log, float64, computed from log mean probabilities with the largest first.

    One minus the largest probability is summed from the others: 1 − max rounds to 0 for every confident point.
    """
    logs = _empty(predictions.questions)
    for rows, chunk in predictions.question_chunks(bar=bar):
        # Nothing is subtracted from a mean, so the dtype of the predictions is precise enough for its sum.
        largest = chunk.amax(dim=1).clamp_min(torch.finfo(chunk.dtype).min)  # (n, C); so that not all draws underflow
        summed = torch.einsum("s,nsc->nc", predictions.draw_weights.to(chunk), (chunk - largest.unsqueeze(1)).exp())
        means = summed.double().log() + largest.double()
        logs[rows] = score((means - means.logsumexp(dim=-1, keepdim=True)).sort(dim=-1, descending=True).values)
    if predictions.num_labels is not None:
        logs = logs.view(-1, predictions.num_labels)
        mean = (combine or COMBINE) == "mean"
        logs = logs.logsumexp(dim=1) - math.log(predictions.num_labels) if mean else logs.amax(dim=1)
    return logs if log else logs.exp()


def _empty(predictions: Predictions) -> Float[Tensor, " N"]:
    """Return an empty array for all scores: small arrays between large temporary ones would fragment memory."""
    return torch.empty(predictions.num_points, dtype=torch.float64, device=predictions.device)

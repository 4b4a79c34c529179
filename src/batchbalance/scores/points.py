"""Scores of single points, f(predictions) -> (N,): the classic baselines (section 4, compared methods).

Every score is float64, non-negative, and larger for points that are more informative. ``entropy``, ``margin`` and
``least_confidence`` use only the mean prediction p̄(y) = Σ_s w_s p(y | ω_s); the others use every draw. These three
are computed in logs. Their ``log_`` forms also rank points so confident that the score underflows to 0.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from batchbalance.predictions import CHUNK_NUMBERS, Predictions, mean_over_draws, spans_of
from batchbalance.system.progress import Bar

MEMORY_BUDGET = 2**28
CACHED_NUMBERS = 2**20  # numbers per block; larger blocks do not fit the CPU cache and are slower
ROUNDING = 1e-13  # relative; a smaller difference is rounding and counts as 0


def entropy(predictions: Predictions, *, bar: Bar | None = None) -> Float[Tensor, " N"]:
    """Return the entropy of the mean prediction in nats, from 0 to log C."""
    return log_entropy(predictions, bar=bar).exp()


def log_entropy(predictions: Predictions, *, bar: Bar | None = None) -> Float[Tensor, " N"]:
    """Return the logarithm of ``entropy``."""

    def score(ranked: Float[Tensor, "n C"]) -> Float[Tensor, " n"]:
        others = ranked[:, 1:]
        rest = others.logsumexp(dim=-1)
        # −p log p of the most probable class: p is one minus the rest, and −log(1 − r) is r where r is below rounding.
        surprise = torch.where(rest < -40, rest, (-torch.log1p(-rest.exp())).log())
        terms = torch.cat([(ranked[:, 0] + surprise).unsqueeze(1), others + (-others).log()], dim=1)
        return terms.nan_to_num(nan=-torch.inf, neginf=-torch.inf).logsumexp(dim=-1)

    return _log_of_means(predictions, bar, score)


def least_confidence(predictions: Predictions, *, bar: Bar | None = None) -> Float[Tensor, " N"]:
    """Return one minus the highest mean probability, from 0 to 1 − 1/C."""
    return log_least_confidence(predictions, bar=bar).exp()


def log_least_confidence(predictions: Predictions, *, bar: Bar | None = None) -> Float[Tensor, " N"]:
    """Return the logarithm of ``least_confidence``."""
    return _log_of_means(predictions, bar, lambda ranked: ranked[:, 1:].logsumexp(dim=-1))


def margin(predictions: Predictions, *, bar: Bar | None = None) -> Float[Tensor, " N"]:
    """Return one minus the margin between the two most probable classes, from 0 to 1; 0 with a single class."""
    return log_margin(predictions, bar=bar).exp()


def log_margin(predictions: Predictions, *, bar: Bar | None = None) -> Float[Tensor, " N"]:
    """Return the logarithm of ``margin``."""
    return _log_of_means(predictions, bar, lambda ranked: torch.cat([ranked[:, 1:], ranked[:, 1:2]], 1).logsumexp(1))


def variation_ratio(predictions: Predictions, *, votes: bool = False, bar: Bar | None = None) -> Float[Tensor, " N"]:
    """Return the mean probability of all classes but the most probable one, from 0 to 1 − 1/C.

    Args:
        predictions: predictions of the points to score.
        votes: count each draw as a vote for its most probable class (Freeman 1965) instead of using its
            probabilities (Gal et al. 2017). With S draws votes take few values and tie often. Without votes
            this equals ``least_confidence``.
        bar: counts points.
    """
    if not votes:
        return least_confidence(predictions, bar=bar)
    weights, num_classes = predictions.draw_weights, predictions.num_classes
    scores = _empty(predictions)
    for rows, chunk in predictions.chunks(bar=bar):
        labels = chunk.argmax(dim=-1)  # (n, S)
        tally = torch.zeros(len(labels), num_classes, dtype=torch.float64, device=labels.device)
        tally.scatter_add_(1, labels, weights.to(labels.device).expand(labels.shape))
        scores[rows] = tally.sort(dim=-1, descending=True).values[:, 1:].sum(dim=-1)
    return scores


def mean_std(predictions: Predictions, *, bar: Bar | None = None) -> Float[Tensor, " N"]:
    """Return the standard deviation of class probabilities over draws, averaged over classes, from 0 to 1/2."""
    scores = _empty(predictions)
    for rows, chunk in predictions.chunks(CHUNK_NUMBERS // 8, bar):  # several float64 copies are in memory
        probs = chunk.double().exp()
        weights = predictions.draw_weights.to(probs.device)
        mean = torch.einsum("s,nsc->nc", weights, probs)
        variance = torch.einsum("s,nsc->nc", weights, (probs - mean.unsqueeze(1)).square())
        scores[rows] = above_rounding(variance.sqrt(), mean).mean(dim=-1)
    return scores


def bald(predictions: Predictions, *, bar: Bar | None = None) -> Float[Tensor, " N"]:
    """Return the mutual information between the label of a point and the draw, from 0 to log min(C, S) nats."""
    weights = predictions.draw_weights.to(predictions.device)
    scores = torch.empty(predictions.num_points, dtype=torch.float64, device=weights.device)
    for rows, chunk in predictions.chunks(CACHED_NUMBERS, bar):
        log_probs = chunk.double()
        probs = log_probs.exp()
        mean = torch.einsum("s,nsc->nc", weights, probs)
        given_draw = entropies(probs, log_probs) @ weights
        entropy = torch.special.entr(mean).sum(dim=-1)
        scores[rows] = above_rounding(entropy - given_draw, entropy)
    return scores


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
    """Return the sum over points of 1 − (largest mean probability), the expected errors of the mean prediction."""
    total = 0.0
    numbers = predictions.num_draws * predictions.num_classes
    num = predictions.num_points if rows is None else len(rows)
    for span in spans_of(num, CHUNK_NUMBERS // numbers):
        chunk = predictions.log_probs(span if rows is None else rows[span])
        means = mean_over_draws(predictions.draw_weights.to(chunk), chunk.exp())
        total += float((1 - means.amax(dim=1)).double().sum())
    return total


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


def _log_of_means(
    predictions: Predictions, bar: Bar | None, score: Callable[[Float[Tensor, "n C"]], Float[Tensor, " n"]]
) -> Float[Tensor, " N"]:
    """Return the log of a score, float64, chunk by chunk, from log mean probabilities with the largest first.

    One minus the largest probability is summed from the others: 1 − max rounds to 0 for every confident point.
    """
    scores = _empty(predictions)
    for rows, chunk in predictions.chunks(bar=bar):
        # Nothing is subtracted from a mean, so the dtype of the predictions is precise enough for its sum.
        largest = chunk.amax(dim=1).clamp_min(torch.finfo(chunk.dtype).min)  # (n, C); so that not all draws underflow
        summed = torch.einsum("s,nsc->nc", predictions.draw_weights.to(chunk), (chunk - largest.unsqueeze(1)).exp())
        means = summed.double().log() + largest.double()
        ranked = (means - means.logsumexp(dim=-1, keepdim=True)).sort(dim=-1, descending=True).values
        scores[rows] = score(ranked)
    return scores


def _empty(predictions: Predictions) -> Float[Tensor, " N"]:
    """Return an empty array for all scores: small arrays between large temporary ones would fragment memory."""
    return torch.empty(predictions.num_points, dtype=torch.float64, device=predictions.device)

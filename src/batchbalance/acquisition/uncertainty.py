"""Scores of one point from how unsure its prediction is: the classic baselines (section 4, compared methods).

Every score is float64, not negative, and larger for a point that is more worth a label. All but ``mean_std``
and the votes of ``variation_ratio`` read only the mean prediction p̄(y) = Σ_s w_s p(y | ω_s).
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from batchbalance.predictions import CHUNK_NUMBERS, Predictions
from batchbalance.progress import Bar

ROUNDING = 1e-13  # a difference below this share of what was subtracted is rounding, and counts as 0


def entropy(predictions: Predictions, *, bar: Bar | None = None) -> Float[Tensor, " N"]:
    """Entropy of the mean prediction in nats, from 0 to log C."""
    return _of_means(predictions, bar, lambda means: torch.special.entr(means).sum(dim=-1))


def least_confidence(predictions: Predictions, *, bar: Bar | None = None) -> Float[Tensor, " N"]:
    """One minus the highest mean probability, from 0 to 1 − 1/C."""
    return _of_means(predictions, bar, lambda means: _others(means).sum(dim=-1))


def margin(predictions: Predictions, *, bar: Bar | None = None) -> Float[Tensor, " N"]:
    """One minus the lead of the most probable class over the second, from 0 to 1; 0 with a single class."""
    return _of_means(predictions, bar, lambda means: _others(means).sum(dim=-1) + _others(means)[:, :1].sum(dim=-1))


def variation_ratio(predictions: Predictions, *, votes: bool = False, bar: Bar | None = None) -> Float[Tensor, " N"]:
    """The share of the mean prediction that is not on its mode, from 0 to 1 − 1/C.

    Args:
        predictions: of the points to score.
        votes: count each draw as a vote for its most probable class (Freeman 1965) instead of as probabilities
            (Gal et al. 2017). With S draws the votes take few values and tie often. Without them this is
            ``least_confidence``.
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
        scores[rows] = _others(tally).sum(dim=-1)
    return scores


def mean_std(predictions: Predictions, *, bar: Bar | None = None) -> Float[Tensor, " N"]:
    """The standard deviation of a class probability over draws, averaged over classes, from 0 to 1/2."""
    scores = _empty(predictions)
    for rows, chunk in predictions.chunks(CHUNK_NUMBERS // 8, bar):  # several float64 copies are alive
        probs = chunk.double().exp()
        weights = predictions.draw_weights.to(probs.device)
        mean = torch.einsum("s,nsc->nc", weights, probs)
        variance = torch.einsum("s,nsc->nc", weights, (probs - mean.unsqueeze(1)).square())
        scores[rows] = above_rounding(variance.sqrt(), mean).mean(dim=-1)
    return scores


def above_rounding(difference: Float[Tensor, "..."], scale: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """A difference of numbers of size `scale` that cannot be negative; exactly 0 where it is only rounding."""
    return torch.where(difference > ROUNDING * scale, difference, 0)


def _of_means(
    predictions: Predictions, bar: Bar | None, score: Callable[[Float[Tensor, "n C"]], Float[Tensor, " n"]]
) -> Float[Tensor, " N"]:
    """A score of the mean probabilities, float64, chunk by chunk; a row that is all on one class is exactly 1 there."""
    scores = _empty(predictions)
    for rows, chunk in predictions.chunks(bar=bar):
        # Nothing is subtracted from a mean, so that the precision of the predictions is enough for its sum.
        mean = torch.einsum("s,nsc->nc", predictions.draw_weights.to(chunk), chunk.exp()).double()
        scores[rows] = score(mean / mean.sum(dim=-1, keepdim=True))
    return scores


def _empty(predictions: Predictions) -> Float[Tensor, " N"]:
    """Room for the scores; pieces of them between large temporary arrays would keep freed memory from going back."""
    return torch.empty(predictions.num_points, dtype=torch.float64, device=predictions.stored.device)


def _others(means: Float[Tensor, "n C"]) -> Float[Tensor, "n c"]:
    """Mean probabilities but the highest, the highest first.

    The rest is summed from small numbers, because 1 − max rounds to 0 for every confident point of a float32 pool.
    """
    return means.sort(dim=-1, descending=True).values[:, 1:]

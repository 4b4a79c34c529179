"""Scores of single points, f(predictions) -> (N,): the classic baselines (section 4, compared methods).

Every score is float64, not negative, and larger for a point that is more worth a label. ``entropy``, ``margin`` and
``least_confidence`` read only the mean prediction p̄(y) = Σ_s w_s p(y | ω_s); the others tell draws apart. These three
are computed in logs, and their ``log_`` forms rank points so sure that the score itself is below the smallest float.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from batchbalance.predictions import CHUNK_NUMBERS, Predictions, mean_over_draws, spans_of
from batchbalance.system.progress import Bar

MEMORY_BUDGET = 2**28
CACHED_NUMBERS = 2**20  # numbers of a block that stay in the cache: larger ones are slower, not faster
ROUNDING = 1e-13  # a difference below this share of what was subtracted is rounding, and counts as 0


def entropy(predictions: Predictions, *, bar: Bar | None = None) -> Float[Tensor, " N"]:
    """Entropy of the mean prediction in nats, from 0 to log C."""
    return log_entropy(predictions, bar=bar).exp()


def log_entropy(predictions: Predictions, *, bar: Bar | None = None) -> Float[Tensor, " N"]:
    """Logarithm of ``entropy``."""

    def score(ranked: Float[Tensor, "n C"]) -> Float[Tensor, " n"]:
        others = ranked[:, 1:]
        rest = others.logsumexp(dim=-1)
        # −p log p of the most probable class: p is one minus the rest, and −log(1 − r) is r where r is below rounding.
        surprise = torch.where(rest < -40, rest, (-torch.log1p(-rest.exp())).log())
        terms = torch.cat([(ranked[:, 0] + surprise).unsqueeze(1), others + (-others).log()], dim=1)
        return terms.nan_to_num(nan=-torch.inf, neginf=-torch.inf).logsumexp(dim=-1)

    return _log_of_means(predictions, bar, score)


def least_confidence(predictions: Predictions, *, bar: Bar | None = None) -> Float[Tensor, " N"]:
    """One minus the highest mean probability, from 0 to 1 − 1/C."""
    return log_least_confidence(predictions, bar=bar).exp()


def log_least_confidence(predictions: Predictions, *, bar: Bar | None = None) -> Float[Tensor, " N"]:
    """Logarithm of ``least_confidence``."""
    return _log_of_means(predictions, bar, lambda ranked: ranked[:, 1:].logsumexp(dim=-1))


def margin(predictions: Predictions, *, bar: Bar | None = None) -> Float[Tensor, " N"]:
    """One minus the lead of the most probable class over the second, from 0 to 1; 0 with a single class."""
    return log_margin(predictions, bar=bar).exp()


def log_margin(predictions: Predictions, *, bar: Bar | None = None) -> Float[Tensor, " N"]:
    """Logarithm of ``margin``."""
    return _log_of_means(predictions, bar, lambda ranked: torch.cat([ranked[:, 1:], ranked[:, 1:2]], 1).logsumexp(1))


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
        scores[rows] = tally.sort(dim=-1, descending=True).values[:, 1:].sum(dim=-1)
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


def bald(predictions: Predictions, *, bar: Bar | None = None) -> Float[Tensor, " N"]:
    """Mutual information between the label of a point and the draw, from 0 to log min(C, S) nats, float64."""
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
    """Expected predictive information gain (Bickford Smith et al. 2023), in nats, float64.

    The mutual information between the label of a point and the label of a target, averaged over the targets:
    what is learned about the predictions that matter, not about the draw. Costs N·T·S·C² for T targets.

    Args:
        predictions: of the points to score.
        targets: the same draws on points like those to be predicted later.
        memory_budget: bytes to use above the input.
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
    """Probabilities in float64 that sum to 1 in float64.

    Rows in float32 sum to 1 up to rounding only, and a difference of entropies of different sums is not 0 where it must
    be. What rounding leaves in `bald` is of second order, because each draw is weighed against a mean of draws.
    """
    return torch.softmax(log_probs.double(), dim=-1)


def unsureness(predictions: Predictions, rows: Int[Tensor, " n"] | None = None) -> float:
    """The sum over points of 1 − (largest mean probability): how many errors the mean prediction expects to make."""
    total = 0.0
    numbers = predictions.num_draws * predictions.num_classes
    num = predictions.num_points if rows is None else len(rows)
    for span in spans_of(num, CHUNK_NUMBERS // numbers):
        chunk = predictions.log_probs(span if rows is None else rows[span])
        means = mean_over_draws(predictions.draw_weights.to(chunk), chunk.exp())
        total += float((1 - means.amax(dim=1)).double().sum())
    return total


def points_within(memory_budget: int, point_numbers: int) -> int:
    """How many points' predictions fit half of the budget: the input's copy and three float64 arrays of its size."""
    if memory_budget < 1:
        raise ValueError(f"`memory_budget` must be a positive number of bytes, got {memory_budget}")
    return max(1, min(memory_budget // 2 // (32 * point_numbers), CACHED_NUMBERS // point_numbers))


def entropies(probs: Float[Tensor, "n S C"], log_probs: Float[Tensor, "n S C"]) -> Float[Tensor, "n S"]:
    """Entropy of each prediction in nats; `log_probs` may be -inf where `probs` is 0."""
    # 0 · log 0 is 0: the clamp makes -inf a number, which 0 takes to 0.
    return -(log_probs.clamp_min(-1e300).mul_(probs)).sum(dim=-1)


def above_rounding(difference: Float[Tensor, "..."], scale: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """A difference of numbers of size `scale` that cannot be negative; exactly 0 where it is only rounding."""
    return torch.where(difference > ROUNDING * scale, difference, 0)


def _log_of_means(
    predictions: Predictions, bar: Bar | None, score: Callable[[Float[Tensor, "n C"]], Float[Tensor, " n"]]
) -> Float[Tensor, " N"]:
    """The log of a score, float64, chunk by chunk, from log mean probabilities with the largest first.

    One minus the largest probability is summed from the others: 1 − max rounds to 0 for every confident point.
    """
    scores = _empty(predictions)
    for rows, chunk in predictions.chunks(bar=bar):
        # Nothing is subtracted from a mean, so that the precision of the predictions is enough for its sum.
        largest = chunk.amax(dim=1).clamp_min(torch.finfo(chunk.dtype).min)  # (n, C); no draw below it underflows alone
        summed = torch.einsum("s,nsc->nc", predictions.draw_weights.to(chunk), (chunk - largest.unsqueeze(1)).exp())
        means = summed.double().log() + largest.double()
        ranked = (means - means.logsumexp(dim=-1, keepdim=True)).sort(dim=-1, descending=True).values
        scores[rows] = score(ranked)
    return scores


def _empty(predictions: Predictions) -> Float[Tensor, " N"]:
    """Room for the scores; pieces of them between large temporary arrays would keep freed memory from going back."""
    return torch.empty(predictions.num_points, dtype=torch.float64, device=predictions.device)

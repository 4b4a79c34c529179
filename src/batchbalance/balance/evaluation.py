"""Evaluation of a batch: Δ, coverage with its baselines, and a certificate of how close it is to the best batch.

Coverage is Δ / Δ_max, the expected share of edge weight that the batch discounts. Label noise discounts too, and with
many draws a random batch discounts nearly everything. So coverage is meaningful only relative to two baselines: the
mean coverage of random batches of the same size, and the null coverage, where every draw is the mean prediction.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from batchbalance.arguments.checks import Indices, check_indices
from batchbalance.arguments.seeds import generator
from batchbalance.balance.closed_form import BalanceModel, BalanceObjective, balance_path, null_path
from batchbalance.balance.edges import Edges
from batchbalance.predictions import Predictions

NUM_RANDOM_BATCHES = 20
SETTLED_SHARE = 1 - 1e-6  # a batch with this share of the bound needs no tighter bound
MAX_BOUND_FLOPS = 5e11  # a few seconds; a certificate that would cost more uses only its first, cheap bound
SETTLED = 1e-12  # coverage this close to 1 is 1


@dataclass(frozen=True)
class BatchEvaluation:
    """The value of a batch under given draws and edges.

    Attributes:
        delta: Δ of the batch.
        gains: (B,) the gain of each point given those before it.
        gain_errors: (B,) Monte-Carlo standard errors of the gains over draws; None with fewer than four draws.
        coverage: (B,) Δ / Δ_max after each point.
        random_coverage: mean coverage of random batches of the same size.
        null_coverage: (B,) coverage after each point if every draw were the mean prediction.
        certificate: the batch is worth at least this share of the best batch of its size under these draws and
            edges; None if there is no edge.
    """

    delta: float
    gains: Float[Tensor, " B"]
    gain_errors: Float[Tensor, " B"] | None
    coverage: Float[Tensor, " B"]
    random_coverage: float
    null_coverage: Float[Tensor, " B"]
    certificate: float | None


def evaluate_batch(
    predictions: Predictions,
    edges: Edges,
    indices: Indices,
    *,
    exclude: Indices | None = None,
    offset: bool = False,
    seed: int = 0,
) -> BatchEvaluation:
    """Compute Δ, coverage with its baselines, and the certificate of any batch, however it was chosen.

    Args:
        predictions: predictions of the pool.
        edges: pairs of draws to distinguish, from ``connect``.
        indices: the batch, in order.
        exclude: points that neither the random batches nor the best batch may contain.
        offset: as in the strategy to compare the batch with.
        seed: for the random batches.
    """
    rows = check_indices("indices", indices, predictions.num_points)
    if not len(rows):
        raise ValueError("`indices` must name at least one point, got none")
    excluded = check_indices("exclude", [] if exclude is None else exclude, predictions.num_points)
    if bool(torch.isin(rows, excluded).any()):
        raise ValueError("`indices` must not contain points of `exclude`")
    candidates = remaining_candidates(predictions.num_points, excluded)
    model = BalanceModel(predictions, edges, offset=offset)
    return batch_value(model, rows, candidates, seed=seed)


def remaining_candidates(num_points: int, excluded: Int[Tensor, " e"]) -> Int[Tensor, " n"]:
    """Return the points that are not excluded, in order."""
    keep = torch.ones(num_points, dtype=torch.bool)
    keep[excluded] = False
    return keep.nonzero().flatten()


def batch_value(
    model: BalanceModel,
    indices: Int[Tensor, " B"],
    candidates: Int[Tensor, " n"],
    *,
    seed: int,
    upper_bound: float | None = None,
) -> BatchEvaluation:
    """Evaluate a batch whose arguments are checked already; `upper_bound` bounds Δ of the best batch, if known."""
    path = balance_path(model, indices)
    largest = float(model.edge_weights.sum())
    delta = float(path.gains.sum())
    null_coverage = null_path(model.predictions, indices, offset=model.offset)
    if largest == 0:
        return BatchEvaluation(0.0, path.gains, path.errors, torch.zeros_like(path.gains), 0.0, null_coverage, None)
    bound = upper_bound
    if bound is None:  # no batch can be worth more than all edges
        bound = largest if delta >= SETTLED_SHARE * largest else best_batch_bound(model, indices, candidates)
    return BatchEvaluation(
        delta=delta,
        gains=path.gains,
        gain_errors=path.errors,
        coverage=(path.gains.cumsum(dim=0) / largest).clamp(max=1.0),
        random_coverage=mean_random_coverage(model, candidates, len(indices), seed),
        null_coverage=null_coverage,
        certificate=certificate(delta, min(bound, largest)),
    )


def certificate(delta: float, bound: float) -> float | None:
    """Return Δ as a share of a bound on the best batch, at most 1; None if the bound is 0."""
    return min(1.0, delta / bound) if bound > 0 else None


def best_batch_bound(model: BalanceModel, indices: Int[Tensor, " B"], candidates: Int[Tensor, " n"]) -> float:
    """Return an upper bound on Δ of any batch of B candidates.

    For every set A, Δ(best) ≤ Δ(A) + the B largest gains given A. A runs through prefixes of the batch: the first 0, 1,
    2, 4, … points, and all of them.
    """
    num = len(indices)
    predictions, num_edges = model.predictions, len(model.edge_weights)
    flops = 2.0 * len(candidates) * predictions.num_draws * predictions.num_classes * num_edges
    if flops * num.bit_length() > MAX_BOUND_FLOPS:
        scores = torch.cat([model.scores(candidates[span]).cpu() for span in model.spans(len(candidates))])
        return float(scores.double().topk(num).values.sum()) * (1 + 1e-5)
    objective = BalanceObjective(model, candidates)
    positions = torch.searchsorted(candidates, indices)
    still_open = torch.ones(len(candidates), dtype=torch.float64)
    lengths = {0, num} | {2**i for i in range(num.bit_length())}
    bound, delta = math.inf, 0.0
    for length in range(num + 1):
        unit = math.exp(objective.log_scale)
        if length in lengths:
            largest = (objective.gains() * still_open).topk(num).values.sum()
            bound = min(bound, delta + float(largest) * unit * (1 + 1e-5))
        if length < num:
            position = positions[length : length + 1]
            delta += float(objective.exact_gains(position)) * unit
            objective.add(int(position))
            still_open[position] = 0
    return bound


def mean_random_coverage(model: BalanceModel, candidates: Int[Tensor, " n"], batch_size: int, seed: int) -> float:
    """Return the mean coverage of random batches of this size."""
    coverages = []
    for repeat in range(NUM_RANDOM_BATCHES):
        stream = generator(seed, "random-baseline", repeat)
        picks = torch.randperm(len(candidates), generator=stream)[:batch_size]
        coverages.append(_coverage(model, candidates[picks]))
    return sum(coverages) / len(coverages)


def _coverage(model: BalanceModel, indices: Int[Tensor, " B"]) -> float:
    weights = torch.outer(model.draw_weights, model.edge_weights)
    weights = weights / weights.sum()
    survival = weights
    for span in model.factor_spans(len(indices)):
        _, kept = model.factors(indices[span])
        survival = survival * kept.prod(dim=0)
        if float(survival.sum()) < SETTLED:
            break
    return 1 - float(survival.sum())

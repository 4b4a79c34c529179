"""Strategies of recent papers, for comparison. `docs/strategies.md` lists how each differs from its paper."""

import sys
from typing import Annotated, ClassVar, Literal

import torch
from jaxtyping import Float, Int
from pydantic import Field, PositiveFloat, PositiveInt
from torch import Tensor

from batchbalance import scores
from batchbalance.batches.bait import bait
from batchbalance.batches.distances import BLOCK_NUMBERS, check_finite
from batchbalance.batches.drop_query import central_points, disagreements
from batchbalance.batches.falcun import falcun
from batchbalance.batches.targets import Cloud
from batchbalance.predictions import Predictions, spans_of
from batchbalance.scores.ranking import power_sample
from batchbalance.strategies.baselines import EmbeddingStrategy, PredictionStrategy, best_scores
from batchbalance.strategies.contract import Choice, Coldness, candidate_scores, filled
from batchbalance.strategies.coverage import UHerding
from batchbalance.strategies.pool import Pool
from batchbalance.strategies.seeking import without

ENOUGH = 25  # times the batch size: points to cluster that are enough for DropQuery


class Bait(EmbeddingStrategy):
    """BAIT with the binary Fisher information: minimises the variance on the pool (arXiv 2106.09675, 2404.08981).

    A labelled point that is not in the pool has no prediction. It gets the mean weight of the candidates.

    Attributes:
        prior: λ, the precision of the prior, for embeddings whose numbers have a mean square of 1.
        oversample: number of points chosen before the least useful are removed, as a multiple of the batch size.
    """

    name: ClassVar[str] = "bait"
    summary: ClassVar[str] = "greedy on the variance of a linear model on the pool (binary Fisher information)"
    copies: ClassVar[int] = 8

    prior: PositiveFloat = 1.0
    oversample: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 2.0

    def flops(self, pool: Pool) -> float:
        """Return the operations of two products with matrices of D × D, and of two passes for each pick."""
        return (
            2.0 * pool.num_points * pool.num_features * (2 * pool.num_features + 2 * self.oversample * pool.batch_size)
        )

    def choose(self, pool: Pool) -> Choice:
        """Minimise the variance one point at a time."""
        pool.predictions.check_one_class()
        unsure = scores.least_confidence(pool.predictions)
        weights = unsure * (1 - unsure)
        known = pool.labelled_embeddings
        labelled = None
        if known is not None:
            usual = weights[pool.candidates.to(weights.device)].mean()
            own = weights[pool.labelled.to(weights.device)]
            labelled = known, torch.cat([own, usual.expand(len(known) - len(own))])
        found = bait(
            pool.mean_embeddings,
            weights,
            pool.batch_size,
            candidates=pool.candidates,
            labelled=labelled,
            prior=self.prior,
            oversample=self.oversample,
        )
        return filled(pool, *found)


class Falcun(PredictionStrategy):
    """Falcun: samples uncertain points with diverse predictions (Gilhuber et al. 2024).

    Attributes:
        gamma: γ; 0 is uniform sampling, larger is greedier.
    """

    name: ClassVar[str] = "falcun"
    summary: ClassVar[str] = "each pick sampled with p ∝ (one minus the margin + distance in predictions)^γ"

    gamma: Coldness = 10.0

    def choose(self, pool: Pool) -> Choice:
        """Sample one point at a time."""
        positions, relevances = falcun(
            pool.predictions.mean_probs().cpu()[pool.candidates],
            candidate_scores(pool, scores.margin(pool.predictions)),
            pool.batch_size,
            generator=pool.generator("falcun"),
            gamma=self.gamma,
        )
        return Choice(pool.candidates[positions], scores=relevances)


class DropQuery(EmbeddingStrategy):
    """DropQuery: clusters the points on which draws disagree with their mean (arXiv 2401.14555).

    A point qualifies if more than half of the passes predict another class than the mean of all draws. While fewer than
    25 times the batch size qualify, the required number of passes is lowered, down to one. If there are still too few,
    points of small margin complete the batch.

    Attributes:
        num_passes: M, the number of draws used in place of predictions with dropout on the embedding.
    """

    name: ClassVar[str] = "drop-query"
    summary: ClassVar[str] = "the centres of clusters of points on which draws disagree with their mean"
    copies: ClassVar[int] = 8

    num_passes: PositiveInt = 3

    def choose(self, pool: Pool) -> Choice:
        """Find points on which draws disagree, cluster them, and choose the centres."""
        check_finite("embeddings", pool.embeddings)
        predictions = pool.predictions
        weights = predictions.draw_weights.cpu()
        likely = (weights > 0).nonzero().flatten()
        drawn = power_sample(weights[likely], self.num_passes, 1.0, generator=pool.generator("passes"))
        counts = disagreements(predictions, likely[drawn])
        needed = len(drawn) // 2 + 1
        while needed > 1 and int((counts[pool.candidates] >= needed).sum()) < ENOUGH * pool.batch_size:
            needed -= 1
        is_unsure = counts >= needed
        chosen = pool.candidates[is_unsure[pool.candidates]]
        notes: tuple[str, ...] = ()
        if len(chosen) > pool.batch_size:
            chosen = chosen[central_points(pool.embedding_rows(chosen), pool.batch_size, pool.seed)]
        elif len(chosen) < pool.batch_size:
            notes = (f"draws disagree on only {len(chosen)} points; others of small margin complete the batch",)
        if len(chosen) == pool.batch_size:
            return Choice(chosen)
        left = pool.to_choose(candidates=without(pool.candidates, chosen), batch_size=pool.batch_size - len(chosen))
        worth = scores.margin(predictions).cpu() + is_unsure  # among duplicates in a cluster, uncertain ones first
        return Choice(torch.cat([chosen, best_scores(left, worth).indices]), notes=notes)


class PublishedUHerding(UHerding):
    """UHerding as in its paper: radius from the labelled points, and a temperature (arXiv 2412.20644).

    The radius is the smallest distance between two distinct labelled points. With fewer than two, it is that of
    `u-herding`.

    Attributes:
        temperature: T; the mean prediction is raised to the power 1/T. The paper uses the T of smallest calibration
            error on held-out labels. A pool has no labels, so the caller sets it.
    """

    name: ClassVar[str] = "u-herding-published"
    summary: ClassVar[str] = "u-herding with the radius rule of its paper, and a temperature"

    score: Literal["margin", "entropy", "least-confidence"] = "margin"
    temperature: PositiveFloat = 1.0

    def squared_length(self, targets: Cloud, pool: Pool, scale: float) -> float:
        """Return the square of the radius."""
        known = pool.labelled_embeddings
        smallest = torch.inf if known is None else _smallest_distance(known)
        if smallest == torch.inf:
            return super().squared_length(targets, pool, scale)
        return max(smallest**2, sys.float_info.min)

    def weights(self, pool: Pool, rows: Int[Tensor, " T"]) -> Float[Tensor, " T"]:
        """Return scores at this temperature, as shares of the largest."""
        if self.temperature == 1:
            return super().weights(pool, rows)
        predictions = pool.predictions.subset(rows)
        log_weights = predictions.draw_weights.log().to(predictions.device)
        means = (predictions.log_probs().double() + log_weights.unsqueeze(1)).logsumexp(dim=1)
        scaled = Predictions.from_log_probs((means / self.temperature).log_softmax(dim=1).unsqueeze(1))
        return super().weights(Pool({"predictions": scaled}), torch.arange(len(rows)))


def _smallest_distance(points: Float[Tensor, "L D"]) -> float:
    """Return the smallest distance between two distinct points; infinity if there are fewer than two."""
    distinct = points.double().unique(dim=0)
    smallest = torch.inf
    for span in spans_of(len(distinct), BLOCK_NUMBERS // len(distinct)):
        apart = torch.cdist(distinct[span], distinct, compute_mode="donot_use_mm_for_euclid_dist")
        apart[torch.arange(len(apart)), torch.arange(span.start, span.stop)] = torch.inf
        smallest = min(smallest, float(apart.amin()))
    return smallest

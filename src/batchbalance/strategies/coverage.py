"""Strategies that cover the pool in the space of embeddings, based on ``batches.cover``."""

import sys
from abc import abstractmethod
from dataclasses import replace
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor

from batchbalance.balance.edges import Edges
from batchbalance.batches.cover import (
    MAX_TARGETS,
    TARGETS_PER_PICK,
    CoverExecutor,
    CoverProblem,
    cover,
    cover_value,
)
from batchbalance.batches.distances import BLOCK_NUMBERS, check_finite, usual_scale
from batchbalance.batches.targets import Cloud, Kernel, Targets, squared_length
from batchbalance.batches.typiclust import MAX_CLUSTERS, typiclust
from batchbalance.scores import Combine
from batchbalance.strategies.baselines import IN_LOGS, SCORES, EmbeddingStrategy, ScoreName
from batchbalance.strategies.connected import BalanceStrategy
from batchbalance.strategies.contract import Choice, Strategy
from batchbalance.strategies.pool import Metric, Pool


class CoverStrategy(Strategy):
    """Greedy maximisation of the weighted share of the pool that labelled and chosen points cover.

    Attributes:
        max_targets: points whose cover is measured; a larger pool is sampled. If omitted, 4,096 or 40 times the batch
            size, whichever is more.
        metric: how distances are measured, instead of the metric of the pool: "raw" uses embeddings unchanged, "unit"
            centres them with the pool and scales them to unit length.
    """

    runs_on_executors: ClassVar[bool] = True
    kernel: ClassVar[Kernel] = "gaussian"

    max_targets: PositiveInt | None = None
    metric: Metric | None = None

    @abstractmethod
    def weights(self, pool: Pool, rows: Int[Tensor, " T"]) -> Float[Tensor, " T"]:
        """Return the non-negative weight of each of some points of the pool."""

    def squared_length(self, targets: Cloud, pool: Pool, scale: float) -> float:  # noqa: ARG002
        """Return ℓ² of the kernel for embeddings times `scale`, by the rule of ``batches.targets.squared_length``."""
        return squared_length(targets, pool.batch_size)

    def flops(self, pool: Pool) -> float:
        """Return the operations of the first pass over candidates and targets, and about as many for later passes."""
        return 4.0 * len(pool.candidates) * self._num_targets(pool) * pool.num_features

    def in_pieces(self, pool: Pool) -> bool:
        """Return whether the embeddings are in memory."""
        return pool.embeddings.device.type == "cpu"

    def memory_needed(self, pool: Pool) -> int:
        """Return the bytes of the targets and labelled points in several forms, and of a few blocks."""
        labelled = pool.labelled_embeddings
        num_rows = self._num_targets(pool) + (0 if labelled is None else len(labelled))
        return 4 * 8 * num_rows * pool.num_features + 5 * 8 * BLOCK_NUMBERS

    def _num_targets(self, pool: Pool) -> int:
        most = self.max_targets or max(MAX_TARGETS, TARGETS_PER_PICK * pool.batch_size)
        return min(most, len(pool.targets) if pool.has("targets") else len(pool.candidates))

    def choose(self, pool: Pool) -> Choice:
        """Cover the targets."""
        pool = pool if self.metric is None else pool.measured_by(self.metric)
        largest = check_finite("embeddings", pool.embeddings)
        labelled = pool.labelled_embeddings
        if labelled is not None:
            largest = max(largest, check_finite("labelled_embeddings", labelled))
        if pool.has("targets"):
            largest = max(largest, check_finite("targets", pool.targets))
        scale = 1.0 if pool.is_unit else usual_scale(largest)
        if scale != 1:
            pool = pool.scaled(scale)
            labelled = pool.labelled_embeddings
        spare = max(0, pool.cache_bytes - self.memory_needed(pool))
        points, weights = self._targets(pool, spare)
        made = CoverProblem(
            Targets(points, weights, self.kernel, self.squared_length(points, pool, scale), labelled),
            pool.embedding_rows,
            pool.candidates,
            pool.batch_size,
            seed=pool.seed,
            cache_bytes=spare - points.kept_bytes,
            progress=pool.progress,
        )
        if pool.executor is None:
            found = cover(made)
        elif isinstance(pool.executor, CoverExecutor):
            found = pool.executor.cover(made)
        else:
            raise ValueError(f"`executor` must be able to run {self.name!r}, got one without the method `cover`")
        value = cover_value(made, found)
        value = replace(value, length=value.length / scale)
        return Choice(pool.candidates[found.positions], scores=value.gains, cover=value)

    def _targets(self, pool: Pool, keep_bytes: int) -> tuple[Cloud, Float[Tensor, " T"]]:
        """Return the points whose cover is measured, and their weights.

        They are all candidates, or the given targets, or a sample of these.
        """
        own = pool.targets if pool.has("targets") else None
        everything = pool.candidates if own is None else torch.arange(len(own))
        rows = everything
        if self._num_targets(pool) < len(rows):
            order = torch.randperm(len(rows), generator=pool.generator("targets"))
            rows = rows[order[: self._num_targets(pool)].sort().values]
        if pool.has("weights"):
            weights = pool.weights[rows]
        elif own is None:
            weights = self.weights(pool, rows)
        else:
            weights = self.target_weights(pool, len(rows))
        if own is not None:
            return Cloud(own[rows.to(own.device)], keep_bytes=keep_bytes), weights
        return Cloud(pool.embedding_rows(rows), rows, keep_bytes=keep_bytes), weights

    def target_weights(self, pool: Pool, count: int) -> Float[Tensor, " T"]:  # noqa: ARG002
        """Return the weight of each of the given targets."""
        raise ValueError(
            f"`weights` must be given together with `targets` for strategy {self.name!r}, one for each target: its own "
            "come from predictions of the pool; or use 'max-herding', which weights all targets equally"
        )


class AlikeStrategy(CoverStrategy):
    """Coverage in which all points have the same weight."""

    def weights(self, pool: Pool, rows: Int[Tensor, " T"]) -> Float[Tensor, " T"]:
        """Return 1 for every point."""
        return self.target_weights(pool, len(rows))

    def target_weights(self, pool: Pool, count: int) -> Float[Tensor, " T"]:  # noqa: ARG002
        """Return 1 for every target."""
        return torch.ones(count, dtype=torch.float64)


class MaxHerding(AlikeStrategy):
    """MaxHerding: greedy choice by the mean similarity to the nearest labelled or chosen point (arXiv 2407.12212)."""

    name: ClassVar[str] = "max-herding"
    summary: ClassVar[str] = "covers the pool in the space of embeddings; needs no predictions"


class ProbCover(AlikeStrategy):
    """ProbCover: greedy maximisation of the points within a radius of a labelled or chosen one (arXiv 2205.11320).

    Attributes:
        radius: of the balls. If omitted, the median distance of a target to its k-th nearest one, k = targets / batch
            size, so that a batch of typical balls holds as many points as there are. (The paper takes the largest
            radius at which 95 % of the balls contain a single k-means cluster, which needs the number of classes.)
    """

    name: ClassVar[str] = "prob-cover"
    summary: ClassVar[str] = "covers the pool with balls in the space of embeddings; needs no predictions"
    kernel: ClassVar[Kernel] = "ball"

    radius: PositiveFloat | None = None

    def squared_length(self, targets: Cloud, pool: Pool, scale: float) -> float:
        """Return the square of the radius."""
        if self.radius is None:
            return super().squared_length(targets, pool, scale)
        return max((self.radius * scale) ** 2, sys.float_info.min)


class UHerding(CoverStrategy):
    """UHerding: MaxHerding weighted by how uncertain each point is (arXiv 2412.20644).

    Attributes:
        score: the measure of uncertainty.
        combine: for several labels, as in the strategy named after the score.
    """

    name: ClassVar[str] = "u-herding"
    summary: ClassVar[str] = "covers the uncertain part of the pool in the space of embeddings; weights by margin"

    score: ScoreName = "margin"
    combine: Combine | None = None

    def weights(self, pool: Pool, rows: Int[Tensor, " T"]) -> Float[Tensor, " T"]:
        """Return scores as shares of the largest; scores of confident predictions alone would underflow."""
        predictions = pool.predictions.subset(rows)
        if self.score not in IN_LOGS:
            return SCORES[self.score](predictions, combine=self.combine)
        logs = SCORES[self.score](predictions, combine=self.combine, log=True)
        return (logs - logs.amax().clamp_min(torch.finfo(logs.dtype).min)).exp()  # all 0 where every score is 0


class CoverBalance(CoverStrategy, BalanceStrategy):
    """Coverage weighted by Δ: a label at a discounts κ(x, a) · Δ(x) at x."""

    name: ClassVar[str] = "cover-balance"
    summary: ClassVar[str] = "covers the uncertain part of the pool in the space of embeddings; weights Δ"

    def connected(self, pool: Pool) -> Edges | None:
        """Return the edges of the pool, unless given weights replace Δ."""
        return None if pool.has("weights") else self.edges(pool)

    def weights(self, pool: Pool, rows: Int[Tensor, " T"]) -> Float[Tensor, " T"]:
        """Return Δ of each single point, in float64, because Δ of confident predictions underflows in float32."""
        model = self.model(pool)
        found = [model.scores(rows[span], torch.float64).cpu() for span in model.spans(len(rows))]
        return torch.cat(found)


class TypiClust(EmbeddingStrategy):
    """TypiClust: the most typical points of the largest clusters without labels (arXiv 2202.02794).

    Attributes:
        max_clusters: the largest number of clusters; otherwise one for each labelled point and each point of the batch.
    """

    name: ClassVar[str] = "typiclust"
    summary: ClassVar[str] = "the most typical points of the largest clusters without labels; needs no predictions"
    copies: ClassVar[int] = 6

    max_clusters: PositiveInt = MAX_CLUSTERS

    def choose(self, pool: Pool) -> Choice:
        """Cluster the points, and choose typical ones."""
        indices = typiclust(
            pool.mean_embeddings,
            pool.batch_size,
            seed=pool.seed,
            candidates=pool.candidates,
            labelled=pool.labelled_embeddings,
            max_clusters=self.max_clusters,
        )
        return Choice(indices)

"""Strategies that cover the pool in the space of embeddings. What they share is ``batches.cover``."""

import sys
from abc import abstractmethod
from dataclasses import replace
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor

from batchbalance.arguments.seeds import generator
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
from batchbalance.strategies.baselines import LOG_SCORES, SCORES, ScoreName, embedding_bytes
from batchbalance.strategies.connected import BalanceStrategy
from batchbalance.strategies.contract import Choice, Problem, Strategy

EMBEDDINGS = frozenset({"embeddings", "labelled_embeddings"})


class CoverStrategy(Strategy):
    """Greedy on the weighted share of the pool that labelled and chosen points cover.

    Attributes:
        max_targets: points whose cover is measured; a larger pool is sampled. If omitted, 4,096 or 40 times the batch
            size, whichever is more.
    """

    uses: ClassVar[frozenset[str]] = EMBEDDINGS
    needs: ClassVar[frozenset[str]] = frozenset({"embeddings"})
    needs_predictions: ClassVar[bool] = False
    runs_on_executors: ClassVar[bool] = True
    kernel: ClassVar[Kernel] = "gaussian"

    max_targets: PositiveInt | None = None

    @abstractmethod
    def weights(self, problem: Problem, rows: Int[Tensor, " T"]) -> Float[Tensor, " T"]:
        """What each target is worth; not negative."""

    def squared_length(self, targets: Cloud, batch_size: int, scale: float) -> float:  # noqa: ARG002
        """ℓ² of the kernel for embeddings times `scale`: by the rule of ``batches.targets.squared_length``."""
        return squared_length(targets, batch_size)

    def targets(self, problem: Problem) -> Int[Tensor, " T"]:
        """The points whose cover is measured: all that may be chosen, or a sample of them."""
        most = self._most_targets(problem)
        if len(problem.candidates) <= most:
            return problem.candidates
        order = torch.randperm(len(problem.candidates), generator=generator(problem.seed, "targets"))
        return problem.candidates[order[:most].sort().values]

    def flops(self, problem: Problem) -> float:
        """The first pass over candidates and targets, and about as much for all that follow."""
        if problem.embeddings is None:
            return 0.0
        num_targets = min(self._most_targets(problem), len(problem.candidates))
        return 4.0 * len(problem.candidates) * num_targets * problem.embeddings.shape[-1]

    def in_pieces(self, problem: Problem) -> bool:
        """Yes, where the embeddings are in memory."""
        return problem.embeddings is not None and problem.embeddings.device.type == "cpu"

    def memory_needed(self, problem: Problem) -> int:
        """The targets and labelled points in several forms, and a few blocks."""
        if problem.embeddings is None:
            return 0
        labelled = [points for points in (problem.labelled, problem.labelled_embeddings) if points is not None]
        num_rows = min(self._most_targets(problem), len(problem.candidates)) + sum(map(len, labelled))
        return 4 * 8 * num_rows * problem.embeddings.shape[-1] + 5 * 8 * BLOCK_NUMBERS

    def _most_targets(self, problem: Problem) -> int:
        return self.max_targets or max(MAX_TARGETS, TARGETS_PER_PICK * problem.batch_size)

    def choose(self, problem: Problem) -> Choice:
        """Cover the targets."""
        largest = 0.0 if problem.embeddings is None else check_finite("embeddings", problem.embeddings)
        labelled = problem.mean_labelled_embeddings
        if labelled is not None:
            largest = max(largest, check_finite("labelled_embeddings", labelled))
        scale = usual_scale(largest)
        if scale != 1:
            problem = problem.scaled(scale)
            labelled = problem.mean_labelled_embeddings
        rows = self.targets(problem)
        spare = max(0, problem.cache_bytes - self.memory_needed(problem))
        points = Cloud(problem.mean_embedding_rows(rows), rows, keep_bytes=spare)
        made = CoverProblem(
            Targets(
                points,
                self.weights(problem, rows),
                self.kernel,
                self.squared_length(points, problem.batch_size, scale),
                labelled,
            ),
            problem.mean_embedding_rows,
            problem.candidates,
            problem.batch_size,
            seed=problem.seed,
            cache_bytes=spare - points.kept_bytes,
            progress=problem.progress,
        )
        if problem.executor is None:
            found = cover(made)
        elif isinstance(problem.executor, CoverExecutor):
            found = problem.executor.cover(made)
        else:
            raise ValueError(f"`executor` must be able to run {self.name!r}, got one without the method `cover`")
        value = cover_value(made, found)
        value = replace(value, length=value.length / scale)
        return Choice(problem.candidates[found.positions], scores=value.gains, cover=value)


class MaxHerding(CoverStrategy):
    """MaxHerding: greedy on the mean similarity to the nearest labelled or chosen point (arXiv 2407.12212)."""

    name: ClassVar[str] = "max-herding"
    summary: ClassVar[str] = "covers the pool in the space of embeddings; needs no predictions"

    def weights(self, problem: Problem, rows: Int[Tensor, " T"]) -> Float[Tensor, " T"]:  # noqa: ARG002
        """Every target counts the same."""
        return torch.ones(len(rows), dtype=torch.float64)


class ProbCover(CoverStrategy):
    """ProbCover: greedy on the points within a radius of a labelled or chosen one (arXiv 2205.11320).

    Attributes:
        radius: of the balls. If omitted, the median distance of a target to its k-th nearest one, k = targets / batch
            size, so that a batch of typical balls holds as many points as there are. (The paper takes the largest
            radius at which 95 % of the balls hold one k-means cluster only, which asks for the number of classes.)
    """

    name: ClassVar[str] = "prob-cover"
    summary: ClassVar[str] = "covers the pool with balls in the space of embeddings; needs no predictions"
    kernel: ClassVar[Kernel] = "ball"

    radius: PositiveFloat | None = None

    def weights(self, problem: Problem, rows: Int[Tensor, " T"]) -> Float[Tensor, " T"]:  # noqa: ARG002
        """Every target counts the same."""
        return torch.ones(len(rows), dtype=torch.float64)

    def squared_length(self, targets: Cloud, batch_size: int, scale: float) -> float:
        """The square of the radius."""
        if self.radius is None:
            return super().squared_length(targets, batch_size, scale)
        return max((self.radius * scale) ** 2, sys.float_info.min)


class UHerding(CoverStrategy):
    """UHerding: MaxHerding weighted by how uncertain each point is (arXiv 2412.20644).

    Attributes:
        score: what tells how uncertain a point is.
    """

    name: ClassVar[str] = "u-herding"
    summary: ClassVar[str] = "covers the uncertain part of the pool in the space of embeddings; weights by margin"
    needs_predictions: ClassVar[bool] = True

    score: ScoreName = "margin"

    def weights(self, problem: Problem, rows: Int[Tensor, " T"]) -> Float[Tensor, " T"]:
        """The score of each, as a share of the largest: scores of sure predictions are below the smallest float."""
        predictions = problem.predictions.subset(rows)
        if self.score not in LOG_SCORES:
            return SCORES[self.score](predictions)
        logs = LOG_SCORES[self.score](predictions)
        return (logs - logs.amax().clamp_min(torch.finfo(logs.dtype).min)).exp()  # all 0 where every score is 0


class CoverBalance(CoverStrategy, BalanceStrategy):
    """Coverage weighted by Δ: what a label at a takes away from x is κ(x, a) · Δ(x)."""

    name: ClassVar[str] = "cover-balance"
    summary: ClassVar[str] = "covers the uncertain part of the pool in the space of embeddings; weights Δ"
    uses: ClassVar[frozenset[str]] = EMBEDDINGS | BalanceStrategy.uses
    needs_predictions: ClassVar[bool] = True

    def weights(self, problem: Problem, rows: Int[Tensor, " T"]) -> Float[Tensor, " T"]:
        """Δ of each on its own, in float64: that of sure predictions is below the smallest float32."""
        model = self.model(problem)
        found = [model.scores(rows[span], torch.float64).cpu() for span in model.spans(len(rows))]
        return torch.cat(found)


class TypiClust(Strategy):
    """TypiClust: the most typical points of the largest clusters without labels (arXiv 2202.02794).

    Attributes:
        max_clusters: the most that k-means makes; else one for each labelled point and each point of the batch.
    """

    name: ClassVar[str] = "typiclust"
    summary: ClassVar[str] = "the most typical points of the largest clusters without labels; needs no predictions"
    uses: ClassVar[frozenset[str]] = EMBEDDINGS
    needs: ClassVar[frozenset[str]] = frozenset({"embeddings"})
    needs_predictions: ClassVar[bool] = False

    max_clusters: PositiveInt = MAX_CLUSTERS

    def memory_needed(self, problem: Problem) -> int:
        """Several copies of the embeddings."""
        return 3 * embedding_bytes(problem)

    def choose(self, problem: Problem) -> Choice:
        """Cluster, and take typical points."""
        indices = typiclust(
            problem.mean_embeddings,
            problem.batch_size,
            seed=problem.seed,
            candidates=problem.candidates,
            labelled=problem.mean_labelled_embeddings,
            max_clusters=self.max_clusters,
        )
        return Choice(indices)

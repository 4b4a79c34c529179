"""Greedy selection on a Ray cluster: the pool lies in shards on actors, the driver holds only the survival matrix.

A step sends (S, E) numbers to every shard and gets one offer back from each, so that the batch is that of one process,
index by index. A shard remembers nothing that its next step does not tell it again but bounds, which only save work:
if its worker dies, a new one reads the same points and goes on.
"""

import os
import warnings
from collections.abc import Hashable, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from batchbalance.arguments.checks import check_whole
from batchbalance.balance.closed_form import BalanceModel, Survival
from batchbalance.balance.greedy import Greedy, GreedyOptions, Offer, Step, greedy_over
from batchbalance.batches.cover import Covering, CoverOffer, CoverProblem, CoverStep, cover
from batchbalance.cluster.connection import connected_ray
from batchbalance.cluster.one_round import ShardBatch, merged, random_parts
from batchbalance.cluster.parts import part_of
from batchbalance.cluster.workers import Workers
from batchbalance.predictions import Predictions, Stored, Values, load_parts


class RayExecutor:
    """Where the shards of a greedy run live.

    Args:
        address: "host:port" of a running cluster; "auto" for one that runs on this machine, or the one that the
            variable RAY_ADDRESS names; "local" to start one on this machine; "any" for "auto" if there is one, else
            "local".
        num_shards: parts of the pool, each on an actor with one CPU; as many as the cluster has CPUs if omitted.
        cache_bytes: what a worker may keep in memory to be faster.
        one_round: for slow networks: each worker picks a batch from random points, and the last choice is among those
            (``batchbalance.cluster.one_round``). The batch is another one, worth at least (1 − 1/e) / 2 of the best in
            expectation.
    """

    def __init__(
        self,
        address: str = "any",
        *,
        num_shards: int | None = None,
        cache_bytes: int = 2**30,
        one_round: bool = False,
    ) -> None:
        if num_shards is not None:
            check_whole("num_shards", num_shards)
        ray = connected_ray(address)
        num_cpus = int(ray.cluster_resources().get("CPU", 0))
        if (num_shards or 1) > num_cpus:
            raise ValueError(f"`num_shards` must be at most the {num_cpus} CPUs of the cluster, got {num_shards or 1}")
        self._workers = Workers(ray, num_shards or num_cpus)
        self._cache_bytes = cache_bytes
        self._one_round = one_round

    def close(self) -> None:
        """End the workers."""
        self._workers.close()

    def load(
        self,
        paths: Sequence[str | os.PathLike[str]],
        values: Values | None = None,
        axes: str = "nsc",
        *,
        ids: Sequence[Sequence[Hashable]] | None = None,
    ) -> Predictions:
        """``predictions.load_parts``, with the numbers of ``.npy`` files checked by the workers."""
        return load_parts(paths, values, axes, ids=ids, check=self._check)

    def _check(self, predictions: Predictions) -> float:
        """The work of ``Predictions.check``."""
        if not isinstance(predictions.source, Stored) or predictions.source.file is None:
            return predictions.check()
        found = self._workers.ask("check", self._parts(predictions))
        for message in set.intersection(*(set(messages) for _, messages in found)):
            warnings.warn(message, stacklevel=2)
        return max(float(furthest) for furthest, _ in found)

    def unsureness(self, predictions: Predictions) -> float:
        """``scores.unsureness``, on the workers."""
        return float(sum(self._workers.ask("unsureness", self._parts(predictions))))

    def _parts(self, predictions: Predictions) -> list[tuple[Any, ...]]:
        parts = consecutive_parts(predictions.num_points, len(self._workers))
        return [(part_of(predictions, rows),) for rows in parts]

    def greedy(self, model: BalanceModel, candidates: Int[Tensor, " n"], options: GreedyOptions) -> Greedy:
        """``balance.greedy.greedy`` on the candidates, spread over the cluster."""
        if self._one_round and options.beta is not None:
            raise ValueError("`one_round` must not be given for strategies that sample their picks, got a power β")
        shards = self.shards(model, candidates, options)
        try:
            if self._one_round:
                return merged(model, candidates, shards.batches(options), options)
            return greedy_over(shards, Survival(model.draw_weights, model.edge_weights), options)
        finally:
            shards.close()

    def cover(self, problem: CoverProblem) -> Covering:
        """``batches.cover.cover`` with the candidates spread over the cluster, and all targets on every worker."""
        if self._one_round:
            raise ValueError("`one_round` must not be given for strategies of coverage")
        shards = RayCoverShards(self._workers, problem, self._cache_bytes)
        try:
            return cover(problem, shards)
        finally:
            shards.close()

    def shards(self, model: BalanceModel, candidates: Int[Tensor, " n"], options: GreedyOptions) -> "RayShards":
        """The candidates on the workers, in consecutive shards or in random ones."""
        num, num_shards = len(candidates), len(self._workers)
        parts = random_parts(num, num_shards, options.seed) if self._one_round else consecutive_parts(num, num_shards)
        return RayShards(self._workers, model, candidates, parts, options.lazy, self._cache_bytes)


def consecutive_parts(num: int, num_parts: int) -> list[Int[Tensor, " _"]]:
    """The numbers from 0 to `num` − 1 in consecutive parts of nearly equal size, none of them empty."""
    return [part for part in torch.arange(num).tensor_split(num_parts) if len(part)]


class RayShards:
    """The candidates of a greedy run on actors. A worker that dies is replaced by one that reads the same points.

    Args:
        workers: where the shards live.
        model: the closed form for the whole pool.
        candidates: the points that may be chosen.
        parts: for each shard, the positions of its candidates, ascending.
        lazy: as in ``balance.greedy.Shard``.
        cache_bytes: what a worker may keep in memory.
    """

    def __init__(
        self,
        workers: Workers,
        model: BalanceModel,
        candidates: Int[Tensor, " n"],
        parts: Sequence[Int[Tensor, " _"]],
        lazy: bool,
        cache_bytes: int,
    ) -> None:
        self._workers, self._model, self._candidates = workers, model, candidates
        put = workers.ray.put
        edges = put(model.edges)
        self._builds = [
            (put(part_of(model.predictions, candidates[part])), edges, model.offset, part, lazy, cache_bytes)
            for part in parts
        ]
        workers.ask("build", self._builds)

    @property
    def num_candidates(self) -> int:
        """Positions of all shards together."""
        return len(self._candidates)

    def offers(self, step: Step, show: bool) -> Sequence[Offer]:
        """The best point of each shard."""
        return self._ask("offer", self._workers.ray.put(step), show=show)

    def first_gains(self, survival: Survival) -> Float[Tensor, " n"]:
        """Gains of all candidates; shards are consecutive parts, so that theirs follow each other."""
        return torch.cat(self._ask("first_gains", self._workers.ray.put(survival)))

    def batches(self, options: GreedyOptions) -> list[ShardBatch]:
        """The greedy batch of each shard alone."""
        return self._ask("batch", options, show=options.progress)

    def factors(self, position: int) -> tuple[Float[Tensor, "S E"], Float[Tensor, "S E"]]:
        """(1 − G, G) of a point, read here."""
        discounts, kept = self._model.factors(self._candidates[position : position + 1])
        return discounts[0], kept[0]

    def _ask(self, method: str, *arguments: Any, show: bool = False) -> list[Any]:
        return self._workers.ask(method, [arguments] * len(self._builds), self._builds, show=show)

    def close(self) -> None:
        """Let the workers go of their points."""
        for actor in self._workers.actors:
            actor.drop.remote()


class RayCoverShards:
    """The candidates of a run of coverage on actors; their embeddings are sent to them, one part each.

    Args:
        workers: where the shards live.
        problem: what is to be covered, by which points.
        cache_bytes: what a worker may keep in memory.
    """

    def __init__(self, workers: Workers, problem: CoverProblem, cache_bytes: int) -> None:
        self._workers = workers
        put = workers.ray.put
        targets = put(problem.targets)
        self._builds = [
            (targets, put(problem.rows(problem.candidates[part])), part, cache_bytes)
            for part in consecutive_parts(len(problem.candidates), len(workers))
        ]
        workers.ask("build_cover", self._builds)

    def offers(self, step: CoverStep, show: bool) -> Sequence[CoverOffer]:
        """The best point of each shard."""
        steps = [(self._workers.ray.put(step),)] * len(self._builds)
        return self._workers.ask("offer", steps, self._builds, build="build_cover", show=show)

    def close(self) -> None:
        """Let the workers go of their points."""
        for actor in self._workers.actors:
            actor.drop.remote()

"""Greedy selection on a Ray cluster: the candidates are in shards on actors, the driver holds only the survival.

A step sends (S, E) numbers to every shard and receives the best candidate of each. The batch is the same as in one
process, index by index. All that a shard keeps from step to step are bounds, which only save work: if its worker dies,
a new one reads the same points and continues.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from batchbalance.arguments.checks import check_whole
from batchbalance.balance.closed_form import BalanceModel, Survival
from batchbalance.balance.greedy import Greedy, GreedyOptions, greedy_from
from batchbalance.batches.cover import Covering, CoverProblem, cover
from batchbalance.cluster.connection import connected_ray
from batchbalance.cluster.parts import part_of
from batchbalance.cluster.workers import BalanceShard, Workers, cover_shard, unsureness_of
from batchbalance.predictions import Predictions
from batchbalance.scores.ranking import Best


class RayExecutor:
    """Runs greedy selection and coverage on a Ray cluster.

    Args:
        address: "host:port" of a running cluster; "auto" for one that runs on this machine, or the one that the
            variable RAY_ADDRESS names; "local" to start one on this machine; "any" for "auto" if there is one, else
            "local".
        num_shards: parts of the pool, each on an actor with one CPU; as many as the cluster has CPUs if omitted.
        cache_bytes: memory that a worker may use to save time.
    """

    def __init__(self, address: str = "any", *, num_shards: int | None = None, cache_bytes: int = 2**30) -> None:
        if num_shards is not None:
            check_whole("num_shards", num_shards)
        ray = connected_ray(address)
        num_cpus = int(ray.cluster_resources().get("CPU", 0))
        if (num_shards or 1) > num_cpus:
            raise ValueError(f"`num_shards` must be at most the {num_cpus} CPUs of the cluster, got {num_shards or 1}")
        self._workers = Workers(ray, num_shards or num_cpus)
        self._cache_bytes = cache_bytes

    def close(self) -> None:
        """Stop the workers."""
        self._workers.close()

    def unsureness(self, predictions: Predictions) -> float:
        """Compute ``scores.unsureness`` on the workers."""
        return float(sum(self._workers.ask(unsureness_of, self._parts(predictions))))

    def _parts(self, predictions: Predictions) -> list[tuple[Any, ...]]:
        parts = consecutive_parts(predictions.num_points, len(self._workers))
        return [(part_of(predictions, rows),) for rows in parts]

    def greedy(self, model: BalanceModel, candidates: Int[Tensor, " n"], options: GreedyOptions) -> Greedy:
        """Run ``balance.greedy.greedy`` with the candidates distributed over the cluster."""
        with self._workers:
            shards = RayCandidates(self._workers, model, candidates, options, self._cache_bytes)
            return greedy_from(shards, Survival(model.draw_weights, model.edge_weights), options)

    def cover(self, problem: CoverProblem) -> Covering:
        """Run ``cover`` with the candidates distributed over the cluster; each worker has all targets."""
        with self._workers:
            return cover(problem, RayCoverCandidates(self._workers, problem, self._cache_bytes))


def consecutive_parts(num: int, num_parts: int) -> list[Int[Tensor, " _"]]:
    """Divide the numbers from 0 to `num` − 1 into consecutive parts of nearly equal size, none of them empty."""
    return [part for part in torch.arange(num).tensor_split(num_parts) if len(part)]


def positions_in(part: Int[Tensor, " n"], chosen: Sequence[int]) -> list[int]:
    """Return the positions within a part of those chosen candidates that belong to it."""
    return torch.isin(part, torch.tensor(chosen, dtype=torch.long)).nonzero().flatten().tolist()


def best_of(found: Sequence[Best], parts: Sequence[Int[Tensor, " _"]], batch_size: int) -> Best:
    """Return the best of the candidates that the shards found, with its position among all candidates."""
    placed = [
        best if best.position < 0 else replace(best, position=int(part[best.position]))
        for best, part in zip(found, parts, strict=True)
    ]
    largest = torch.cat([best.largest for best in found])
    return replace(
        min(placed, key=lambda best: (-best.key, best.position)),
        largest=largest.topk(min(batch_size, len(largest))).values,
        num_evaluations=sum(best.num_evaluations for best in found),
    )


class RayCandidates:
    """The candidates of a greedy run on actors.

    Args:
        workers: the actors.
        model: the closed form for the whole pool.
        candidates: the points that may be chosen.
        options: the options of the run.
        cache_bytes: memory that a worker may use to save time.
    """

    def __init__(
        self,
        workers: Workers,
        model: BalanceModel,
        candidates: Int[Tensor, " n"],
        options: GreedyOptions,
        cache_bytes: int,
    ) -> None:
        self._workers, self._model, self._candidates, self._options = workers, model, candidates, options
        self._parts = consecutive_parts(len(candidates), len(workers))
        put, quiet = workers.ray.put, replace(options, progress=False)
        edges = put(model.edges)
        workers.build(
            BalanceShard,
            [
                (put(part_of(model.predictions, candidates[part])), edges, model.offset, part, len(candidates), quiet,
                 cache_bytes)
                for part in self._parts
            ],
        )  # fmt: skip

    @property
    def num_candidates(self) -> int:
        """The number of candidates of all shards together."""
        return len(self._candidates)

    def best(self, survival: Survival, chosen: Sequence[int]) -> Best:
        """Return the best candidate of all shards.

        A shard whose gains are all too small for float32 is asked for exact ones only if this is true of every shard.
        """
        sent = self._workers.ray.put(survival)
        inside = [positions_in(part, chosen) for part in self._parts]
        best = Best(-1, -torch.inf, torch.empty(0), 0)
        for skip_small in (True, False):
            arguments = [(sent, positions, len(chosen), skip_small) for positions in inside]
            found = self._workers.ask("best", arguments, show=self._options.progress and not chosen)
            num_before, best = best.num_evaluations, best_of(found, self._parts, self._options.batch_size)
            best = replace(best, num_evaluations=best.num_evaluations + num_before)
            if best.position >= 0:
                break
        return best

    def first_gains(self, survival: Survival) -> Float[Tensor, " n"]:
        """Return the gains of all candidates given a survival; the shards are consecutive parts."""
        return torch.cat(self._workers.ask("first_gains", [(self._workers.ray.put(survival),)] * len(self._parts)))

    def factors(self, position: int) -> tuple[Float[Tensor, "S E"], Float[Tensor, "S E"]]:
        """Return (1 − G, G) of a candidate, read in this process."""
        discounts, kept = self._model.factors(self._candidates[position : position + 1])
        return discounts[0], kept[0]


class RayCoverCandidates:
    """The candidates of a run of coverage on actors; each actor receives the embeddings of its part.

    Args:
        workers: the actors.
        problem: the targets and the points that may be chosen.
        cache_bytes: memory that a worker may use to save time.
    """

    def __init__(self, workers: Workers, problem: CoverProblem, cache_bytes: int) -> None:
        self._workers, self._problem = workers, problem
        self._parts = consecutive_parts(len(problem.candidates), len(workers))
        put = workers.ray.put
        targets = put(problem.targets)
        points = [put(problem.rows(problem.candidates[part])) for part in self._parts]
        workers.build(cover_shard, [(targets, each, problem.batch_size, cache_bytes) for each in points])

    def best(self, covered: Float[Tensor, " T"], chosen: Sequence[int]) -> Best:
        """Return the best candidate of all shards."""
        sent = self._workers.ray.put(covered)
        arguments = [(sent, positions_in(part, chosen)) for part in self._parts]
        found = self._workers.ask("best", arguments, show=self._problem.progress and not chosen)
        return best_of(found, self._parts, self._problem.batch_size)

"""Greedy selection on a Ray cluster: the pool lies in shards on actors, the driver holds only the survival matrix.

A step sends (S, E) numbers to every shard and gets one offer back from each, so that the batch is that of one process,
index by index. A shard remembers nothing that its next step does not tell it again but bounds, which only save work:
if its worker dies, a new one reads the same points and goes on.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from batchbalance.acquisition.balance import BalanceModel, BalanceObjective, Survival
from batchbalance.distributed.cluster import MAX_LOSSES, connected_ray
from batchbalance.distributed.parts import Part, part_of
from batchbalance.equivalence import Edges
from batchbalance.one_round import ShardBatch, merged, random_parts, shard_batch
from batchbalance.progress import progress
from batchbalance.selection import Continuation, Greedy, greedy_over
from batchbalance.shards import Offer, Shard, Step


def consecutive_parts(num_candidates: int, num_shards: int) -> list[Int[Tensor, " n"]]:
    """Positions of the candidates in consecutive shards of nearly equal size, none of them empty."""
    return [part for part in torch.arange(num_candidates).tensor_split(num_shards) if len(part)]


class Worker:
    """What an actor runs: one shard at a time."""

    def __init__(self) -> None:
        self._shard: Any = None

    def build(
        self,
        part: Part,
        edges: Edges,
        offset: bool,
        positions: Int[Tensor, " n"],
        lazy: bool,
        cache_bytes: int,
    ) -> None:
        """Take the points of a part."""
        predictions, rows = part.load()
        model = BalanceModel(predictions, edges, offset=offset, cache_bytes=cache_bytes)
        self._shard = Shard(BalanceObjective(model, rows), positions, lazy=lazy)

    def offer(self, step: Step) -> Offer:
        """The best point of the shard."""
        offer: Offer = self._shard.offer(step)
        return offer

    def first_gains(self, survival: Survival) -> Float[Tensor, " n"]:
        """Gains of all points of the shard."""
        gains: Tensor = self._shard.first_gains(survival)
        return gains

    def batch(self, batch_size: int, seed: int) -> ShardBatch:
        """The greedy batch of the shard alone."""
        shard = self._shard
        return shard_batch(shard.objective, shard.positions, batch_size, seed=seed, lazy=shard.lazy)

    def drop(self) -> None:
        """Let go of the points."""
        self._shard = None


class RayExecutor:
    """Where the shards of a greedy run live.

    Args:
        address: "host:port" of a running cluster; "auto" for one that runs on this machine, or the one that the
            variable RAY_ADDRESS names; "local" to start one on this machine; "any" for "auto" if there is one, else
            "local".
        num_shards: parts of the pool, each on an actor with one CPU; as many as the cluster has CPUs if left out.
        cache_bytes: what a worker may keep in memory to be faster.
        one_round: for slow networks: each worker picks a batch from random points, and the last choice is among those
            (``batchbalance.one_round``). The batch is another one, worth at least (1 − 1/e) / 2 of the best in
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
        if num_shards is not None and num_shards < 1:
            raise ValueError(f"`num_shards` must be at least 1, got {num_shards}")
        self._ray = connected_ray(address)
        num_cpus = int(self._ray.cluster_resources().get("CPU", 0))
        if (num_shards or 1) > num_cpus:
            raise ValueError(f"`num_shards` must be at most the {num_cpus} CPUs of the cluster, got {num_shards or 1}")
        self._num_shards = num_shards or num_cpus
        self._cache_bytes = cache_bytes
        self._one_round = one_round
        self._actor = self._ray.remote(num_cpus=1)(Worker)
        self._workers = [self.new_worker() for _ in range(self._num_shards)]

    def new_worker(self) -> Any:
        """An actor without points."""
        return self._actor.remote()

    def close(self) -> None:
        """End the workers."""
        for worker in self._workers:
            self._ray.kill(worker)

    def greedy(
        self,
        model: BalanceModel,
        candidates: Int[Tensor, " n"],
        batch_size: int,
        *,
        seed: int,
        beta: float | None,
        lazy: bool,
        continuation: Continuation,
        progress: bool,
    ) -> Greedy:
        """``selection.greedy`` on the candidates, spread over the cluster."""
        if self._one_round and beta is not None:
            raise ValueError("`one_round` must be left out for strategies that sample their picks, got a power β")
        shards = self.shards(model, candidates, seed, lazy)
        try:
            if self._one_round:
                batches = shards.batches(batch_size, seed, progress)
                return merged(
                    model, candidates, batches, batch_size,
                    seed=seed, lazy=lazy, continuation=continuation, progress=progress,
                )  # fmt: skip
            survival = Survival(model.draw_weights, model.edge_weights)
            return greedy_over(
                shards, survival, batch_size, seed=seed, beta=beta, continuation=continuation, progress=progress
            )
        finally:
            shards.close()

    def shards(self, model: BalanceModel, candidates: Int[Tensor, " n"], seed: int, lazy: bool) -> "RayShards":
        """The candidates on the workers, in consecutive shards or in random ones."""
        num = len(candidates)
        positions = (
            random_parts(num, self._num_shards, seed) if self._one_round else consecutive_parts(num, self._num_shards)
        )
        return RayShards(
            self._ray, self.new_worker, self._workers, model, candidates, positions, lazy, self._cache_bytes
        )


class RayShards:
    """The candidates of a greedy run on actors. A worker that dies is replaced by one that reads the same points."""

    def __init__(
        self,
        ray: Any,
        new_worker: Callable[[], Any],
        workers: list[Any],
        model: BalanceModel,
        candidates: Tensor,
        parts: Sequence[Tensor],
        lazy: bool,
        cache_bytes: int,
    ) -> None:
        self._ray, self._new_worker, self._workers = ray, new_worker, workers
        self._model, self._candidates = model, candidates
        edges = ray.put(model.edges)
        self._arguments: list[tuple[Any, ...]] = []
        for positions in parts:
            part = ray.put(part_of(model.predictions, candidates[positions]))
            self._arguments.append((part, edges, model.offset, positions, lazy, cache_bytes))
        self._ask(lambda index: workers[index].build.remote(*self._arguments[index]), False)

    @property
    def num_candidates(self) -> int:
        """Positions of all shards together."""
        return len(self._candidates)

    def offers(self, step: Step, show: bool) -> Sequence[Offer]:
        """The best point of each shard."""
        sent = self._ray.put(step)
        return self._ask(lambda index: self._workers[index].offer.remote(sent), show)

    def first_gains(self, survival: Survival) -> Float[Tensor, " n"]:
        """Gains of all candidates; shards are consecutive parts, so that theirs follow each other."""
        sent = self._ray.put(survival)
        return torch.cat(self._ask(lambda index: self._workers[index].first_gains.remote(sent), False))

    def batches(self, batch_size: int, seed: int, show: bool) -> list[ShardBatch]:
        """The greedy batch of each shard alone."""
        return self._ask(lambda index: self._workers[index].batch.remote(batch_size, seed), show)

    def factors(self, position: int) -> tuple[Float[Tensor, "S E"], Float[Tensor, "S E"]]:
        """(1 − G, G) of a point, read here."""
        discounts, kept = self._model.factors(self._candidates[position : position + 1])
        return discounts[0], kept[0]

    def _ask(self, call: Callable[[int], Any], show: bool) -> list[Any]:
        """The answers of all shards, in order."""
        pending = [call(index) for index in range(len(self._arguments))]
        answers = []
        with progress("scoring shards", len(pending), show) as bar:
            for index, answer in enumerate(pending):
                answers.append(self._answer(index, answer, call))
                bar.advance()
        return answers

    def _answer(self, index: int, pending: Any, call: Callable[[int], Any]) -> Any:
        """The answer of one shard, from a new worker if the old one is dead."""
        errors = self._ray.exceptions
        lost: Exception | None = None
        for _ in range(MAX_LOSSES + 1):
            try:
                if lost is not None:
                    self._workers[index] = self._new_worker()
                    self._ray.get(self._workers[index].build.remote(*self._arguments[index]))
                    pending = call(index)
                return self._ray.get(pending)
            except errors.RayActorError as error:
                lost = error
            except errors.RayTaskError as error:
                raise error.cause from None
        raise RuntimeError(f"shard {index} was lost {MAX_LOSSES + 1} times; look at its machine") from lost

    def close(self) -> None:
        """Let the workers go of their points."""
        for worker in self._workers:
            worker.drop.remote()

"""What runs on a cluster's CPUs, and how it is asked: an actor that dies is replaced, and asked again."""

import warnings
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from batchbalance.balance.closed_form import BalanceModel, BalanceObjective, Survival
from batchbalance.balance.edges import Edges
from batchbalance.balance.greedy import GreedyOptions, Offer, Shard, Step
from batchbalance.batches.cover import CoverShard, CoverStep
from batchbalance.batches.targets import Targets
from batchbalance.cluster.connection import MAX_LOSSES
from batchbalance.cluster.one_round import ShardBatch, shard_batch
from batchbalance.cluster.parts import Part
from batchbalance.scores import unsureness
from batchbalance.system.progress import progress

START_SECONDS = 60.0  # after which workers that wait for a CPU are worth a warning


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

    def build_cover(
        self, targets: Targets, points: Float[Tensor, "n D"], positions: Int[Tensor, " n"], cache_bytes: int
    ) -> None:
        """Take candidates that cover targets."""
        every = torch.arange(len(points))
        self._shard = CoverShard(targets, lambda rows: points[rows], every, positions, cache_bytes=cache_bytes)

    def offer(self, step: Step | CoverStep) -> Offer:
        """The best point of the shard."""
        offer: Offer = self._shard.offer(step)
        return offer

    def first_gains(self, survival: Survival) -> Float[Tensor, " n"]:
        """Gains of all points of the shard."""
        gains: Tensor = self._shard.first_gains(survival)
        return gains

    def batch(self, options: GreedyOptions) -> ShardBatch:
        """The greedy batch of the shard alone."""
        shard = self._shard
        return shard_batch(shard.objective, shard.positions, options)

    def drop(self) -> None:
        """Let go of the points."""
        self._shard = None

    def check(self, part: Part) -> tuple[float, list[str]]:
        """How far rows of a part are from sums of 1, and warnings; raises if they are no distributions."""
        predictions, rows = part.load()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            furthest = predictions.check(slice(int(rows[0]), int(rows[-1]) + 1))
        return furthest, [str(each.message) for each in caught]

    def unsureness(self, part: Part) -> float:
        """The errors that the mean prediction expects to make on a part."""
        return unsureness(*part.load())


class Workers:
    """Actors with one CPU each."""

    def __init__(self, ray: Any, num: int) -> None:
        self.ray = ray
        self._actor = ray.remote(num_cpus=1)(Worker)
        self.actors = [self._actor.remote() for _ in range(num)]
        started, _ = ray.wait([a.__ray_ready__.remote() for a in self.actors], num_returns=num, timeout=START_SECONDS)
        if len(started) < num:
            warnings.warn(
                f"{len(started)} of {num} workers have started after {START_SECONDS:.0f} s, the others wait for CPUs; "
                "to go on at once, give fewer `num_shards`, or end what else runs on the cluster",
                stacklevel=3,
            )

    def __len__(self) -> int:
        return len(self.actors)

    def ask(
        self,
        method: str,
        arguments: Sequence[tuple[Any, ...]],
        builds: Sequence[tuple[Any, ...]] | None = None,
        *,
        build: str = "build",
        show: bool = False,
    ) -> list[Any]:
        """The answers of the first actors, one for each tuple of arguments, in order.

        Args:
            method: of `Worker`.
            arguments: of the calls.
            builds: what a new actor is built with before it is asked in the place of a dead one, if that matters.
            build: the method of `Worker` that takes what is in `builds`.
            show: show progress.
        """
        pending = [getattr(actor, method).remote(*given) for actor, given in zip(self.actors, arguments, strict=False)]
        answers: list[Any] = []
        try:
            with progress("scoring shards", len(pending), show) as bar:
                for index, answer in enumerate(pending):
                    again = None if builds is None else (build, *builds[index])
                    answers.append(self._answer(index, answer, method, arguments[index], again))
                    bar.advance()
        except Exception:
            for other in pending[len(answers) + 1 :]:  # Ray would print the errors that nobody looks at
                with suppress(Exception):
                    self.ray.get(other)
            raise
        return answers

    def _answer(
        self, index: int, pending: Any, method: str, arguments: tuple[Any, ...], build: tuple[Any, ...] | None
    ) -> Any:
        errors = self.ray.exceptions
        lost: Exception | None = None
        for _ in range(MAX_LOSSES + 1):
            try:
                if lost is not None:
                    actor = self.actors[index] = self._actor.remote()
                    if build is not None:
                        self.ray.get(getattr(actor, build[0]).remote(*build[1:]))
                    pending = getattr(actor, method).remote(*arguments)
                return self.ray.get(pending)
            except errors.RayActorError as error:
                lost = error
            except errors.RayTaskError as error:
                raise error.cause from None
        raise ConnectionError(
            f"worker {index} of the Ray cluster was lost {MAX_LOSSES + 1} times; look at its machine: {lost}"
        ) from lost

    def close(self) -> None:
        """End the actors."""
        for actor in self.actors:
            self.ray.kill(actor)

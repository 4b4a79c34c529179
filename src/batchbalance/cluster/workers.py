"""The actors of a Ray cluster. An actor that dies is replaced, and its call is repeated."""

import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from batchbalance.balance.closed_form import BalanceModel, BalanceObjective, Survival
from batchbalance.balance.edges import Edges
from batchbalance.balance.greedy import GreedyOptions, LazyCandidates, pick_noise
from batchbalance.batches.cover import CoverCandidates, CoverProblem
from batchbalance.batches.targets import Targets
from batchbalance.cluster.connection import MAX_LOSSES
from batchbalance.cluster.parts import Part
from batchbalance.scores import unsureness
from batchbalance.scores.ranking import Best
from batchbalance.system.progress import progress

START_SECONDS = 60.0  # after this, a warning is issued if workers still wait for a CPU


class Worker:
    """The code of an actor. It holds one shard at a time."""

    def __init__(self) -> None:
        self._shard: Any = None

    def build(self, make: Callable[..., Any], *given: Any) -> None:
        """Make the shard."""
        self._shard = make(*given)

    def ask(self, method: str, *given: Any) -> Any:
        """Call a method of the shard."""
        return getattr(self._shard, method)(*given)

    def run(self, function: Callable[..., Any], *given: Any) -> Any:
        """Call a function."""
        return function(*given)

    def drop(self) -> None:
        """Release the shard."""
        self._shard = None


class BalanceShard:
    """The points of a part, which have these `positions` among all candidates of a greedy run."""

    def __init__(
        self,
        part: Part,
        edges: Edges,
        offset: bool,
        positions: Int[Tensor, " n"],
        num_candidates: int,
        options: GreedyOptions,
        cache_bytes: int,
    ) -> None:
        predictions, rows = part()
        objective = BalanceObjective(BalanceModel(predictions, edges, offset=offset, cache_bytes=cache_bytes), rows)
        self._num_chosen = 0
        # The noise of a candidate must not depend on its shard, so it is drawn for all candidates.
        self._candidates = LazyCandidates(
            objective, options, lambda _: pick_noise(options, num_candidates, self._num_chosen)[positions]
        )
        self.first_gains = self._candidates.first_gains

    def best(self, survival: Survival, chosen: list[int], num_chosen: int, skip_small: bool) -> Best:
        """Return the best candidate of the shard, given those chosen in it and the total number chosen."""
        self._num_chosen = num_chosen
        return self._candidates.best(survival, chosen, skip_small)


def cover_shard(targets: Targets, points: Float[Tensor, "n D"], batch_size: int, cache_bytes: int) -> CoverCandidates:
    """Return candidates that cover targets."""
    rows = torch.arange(len(points))
    return CoverCandidates(CoverProblem(targets, points.__getitem__, rows, batch_size, cache_bytes=cache_bytes))


def unsureness_of(part: Part) -> float:
    """Return the expected number of errors of the mean prediction on a part."""
    return unsureness(*part())


class Workers:
    """Actors with one CPU each. As a context manager, they release their points at its end."""

    def __init__(self, ray: Any, num: int) -> None:
        self.ray = ray
        self._actor = ray.remote(num_cpus=1)(Worker)
        self._builds: Sequence[tuple[Any, ...]] | None = None
        self.actors = [self._actor.remote() for _ in range(num)]
        started, _ = ray.wait([a.__ray_ready__.remote() for a in self.actors], num_returns=num, timeout=START_SECONDS)
        if len(started) < num:
            warnings.warn(
                f"{len(started)} of {num} workers have started after {START_SECONDS:.0f} s, the others wait for CPUs; "
                "to continue at once, lower `num_shards`, or stop other work on the cluster",
                stacklevel=3,
            )

    def __len__(self) -> int:
        return len(self.actors)

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *_: object) -> None:
        self._builds = None
        for actor in self.actors:
            actor.drop.remote()

    def build(self, make: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> None:
        """Make the shard of each actor; the replacement of a dead actor makes it again."""
        builds = [(make, *given) for given in arguments]
        self._calls("build", builds)
        self._builds = builds

    def ask(
        self, what: str | Callable[..., Any], arguments: Sequence[tuple[Any, ...]], *, show: bool = False
    ) -> list[Any]:
        """Return the answers of the first actors, one for each tuple of arguments, in order.

        Args:
            what: a method of the shards, or a function.
            arguments: the arguments of each call.
            show: show progress.
        """
        return self._calls("ask" if isinstance(what, str) else "run", [(what, *given) for given in arguments], show)

    def _calls(self, method: str, arguments: Sequence[tuple[Any, ...]], show: bool = False) -> list[Any]:
        pending = [getattr(actor, method).remote(*given) for actor, given in zip(self.actors, arguments, strict=False)]
        answers: list[Any] = []
        try:
            with progress("scoring shards", len(pending), show) as bar:
                for index, answer in enumerate(pending):
                    answers.append(self._answer(index, answer, method, arguments[index]))
                    bar.advance()
        except Exception:
            for other in pending[len(answers) + 1 :]:  # otherwise Ray would print their errors
                with suppress(Exception):
                    self.ray.get(other)
            raise
        return answers

    def _answer(self, index: int, pending: Any, method: str, arguments: tuple[Any, ...]) -> Any:
        errors = self.ray.exceptions
        lost: Exception | None = None
        for _ in range(MAX_LOSSES + 1):
            try:
                if lost is not None:
                    actor = self.actors[index] = self._replacement()
                    if self._builds is not None:
                        self.ray.get(actor.build.remote(*self._builds[index]))
                    pending = getattr(actor, method).remote(*arguments)
                return self.ray.get(pending)
            except errors.RayTaskError as error:
                raise error.cause from None
            except errors.RayError as error:  # the actor, its machine, or a result stored there was lost
                lost = error
        raise ConnectionError(
            f"worker {index} of the Ray cluster was lost {MAX_LOSSES + 1} times; check its machine: {lost}"
        ) from lost

    def _replacement(self) -> Any:
        """Return a new actor; if no CPU becomes free, as after the loss of a machine, one that shares a CPU."""
        actor = self._actor.remote()
        if not self.ray.wait([actor.__ray_ready__.remote()], timeout=START_SECONDS)[0]:
            warnings.warn(
                f"a worker of the Ray cluster was lost, and no CPU became free for another one within "
                f"{START_SECONDS:.0f} s; it shares one with other work, which is slower",
                stacklevel=2,
            )
            self.ray.kill(actor)
            actor = self._actor.options(num_cpus=0).remote()
        return actor

    def close(self) -> None:
        """Stop the actors."""
        for actor in self.actors:
            self.ray.kill(actor)

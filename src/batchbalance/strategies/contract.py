"""The interface of strategies: small frozen objects with options that choose a batch from a pool."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import torch
from jaxtyping import Float, Int
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from batchbalance.balance.closed_form import BalanceModel
from batchbalance.balance.edges import Edges, connect
from batchbalance.balance.greedy import Continuation
from batchbalance.batches.cover import Cover
from batchbalance.errors import UnknownNameError
from batchbalance.strategies.pool import Pool

Coldness = Annotated[float, Field(ge=0, allow_inf_nan=False)]  # β: 0 is uniform, larger is greedier


@dataclass(frozen=True)
class Choice:
    """The choice of a strategy.

    Attributes:
        indices: (B,) points of the pool, in the order they were chosen.
        scores: (B,) the numbers by which the strategy ranked or sampled them, if any.
        upper_bound: an upper bound on Δ of the best batch, if the strategy found one.
        continued_from: the pick (from 0) from which nothing meaningful was left to gain.
        continuation: how the batch was filled from there on.
        clustering_rounds: the number of rounds of clustering, for strategies that cluster by Δ.
        notes: sentences for the user.
        reasons: the strategy that chose each point, for strategies that share a batch with others; else empty.
        cover: the coverage of the batch in the space of embeddings, for strategies of coverage.
    """

    indices: Int[Tensor, " B"]
    scores: Float[Tensor, " B"] | None = None
    upper_bound: float | None = None
    continued_from: int | None = None
    continuation: Continuation | None = None
    clustering_rounds: int | None = None
    notes: tuple[str, ...] = field(default=())
    reasons: tuple[str, ...] = field(default=())
    cover: Cover | None = None


class Strategy(BaseModel, ABC):
    """A named way of choosing a batch. Subclasses declare their options as fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: ClassVar[str]
    summary: ClassVar[str]
    runs_on_executors: ClassVar[bool] = False  # whether `select` accepts an executor
    passes: ClassVar[tuple[str, ...]] = ()  # parts of the pool that `choose` goes over, known before it starts
    copies: ClassVar[int] = 0  # of all embeddings, and of mean predictions, that `choose` keeps in memory

    @abstractmethod
    def choose(self, pool: Pool) -> Choice:
        """Choose `pool.batch_size` of the candidates."""

    def connected(self, pool: Pool) -> Edges | None:  # noqa: ARG002
        """Return the pairs of draws that this strategy distinguishes; None if it does not compare draws."""
        return None

    def flops(self, pool: Pool) -> float:
        """Return the approximate number of operations of ``choose``: a pass over the available parts for each pick."""
        for name in self.passes:
            getattr(pool, name)
        embeddings, predictions = pool.at_hand("embeddings"), pool.at_hand("predictions")
        found = 0.0 if embeddings is None else 2.0 * embeddings.numel()
        if predictions is not None:
            found += predictions.num_points * predictions.num_draws**2 * predictions.num_classes
        return found * pool.batch_size

    def in_pieces(self, pool: Pool) -> bool:  # noqa: ARG002
        """Return whether the long parts of ``choose`` use ``threads.each``."""
        return False

    def memory_needed(self, pool: Pool) -> int:
        """Return the bytes that ``choose`` needs besides a streaming pass; 0 for strategies that stream."""
        if not self.copies:
            return 0
        embeddings, predictions = pool.features, pool.at_hand("predictions")
        means = 0 if predictions is None else 8 * predictions.num_points * predictions.num_classes
        return self.copies * (embeddings.numel() * embeddings.element_size() + means)

    @classmethod
    def with_options(cls, options: dict[str, Any]) -> "Strategy":
        """Build from option values, which may be strings; an unknown name suggests the nearest one."""
        for name in options:
            if name not in cls.model_fields:
                raise UnknownNameError(f"option of {cls.name!r}", name, cls.model_fields)
            if isinstance(options[name], bool) and cls.model_fields[name].annotation is not bool:
                raise ValueError(f"option `{name}` of {cls.name!r}: must not be true or false, got {options[name]!r}")
        try:
            return cls(**options)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"]) or cls.name
            raise ValueError(
                f"option `{where}` of {cls.name!r}: {first['msg'].lower()}, got {first['input']!r}"
            ) from error


class ConnectedStrategy(Strategy):
    """A strategy that distinguishes pairs of draws, joined by edges on the reference set."""

    passes: ClassVar[tuple[str, ...]] = ("predictions",)

    def connect(self, pool: Pool) -> Edges:
        """Return the pairs of draws that this strategy distinguishes."""
        return connect(pool.reference, pool.threshold, pool.pairs, pool.seed, max_reference=pool.max_reference)

    def connected(self, pool: Pool) -> Edges | None:
        """Return the edges of the pool."""
        return self.edges(pool)

    def edges(self, pool: Pool) -> Edges:
        """Return the edges of the pool, computed once."""
        return pool.edges(self.connect)

    def model(self, pool: Pool) -> BalanceModel:
        """Return the closed form of Δ for evaluating batches of this strategy."""
        return BalanceModel(pool.predictions, self.edges(pool), cache_bytes=pool.cache_bytes)


def filled(pool: Pool, indices: Int[Tensor, " b"], scores: Float[Tensor, " b"]) -> Choice:
    """Return a choice of these points, completed at random, because the remaining points all have a gain of 0."""
    left = pool.candidates[~torch.isin(pool.candidates, indices)]
    order = torch.randperm(len(left), generator=pool.generator("zeros"))
    rest = left[order[: pool.batch_size - len(indices)]]
    return Choice(torch.cat([indices, rest]), scores=torch.cat([scores, torch.zeros(len(rest), dtype=torch.float64)]))


def candidate_scores(pool: Pool, scores: Float[Tensor, " N"]) -> Float[Tensor, " n"]:
    """Return the scores of the candidates, as float64 on the CPU."""
    return scores.to("cpu", torch.float64)[pool.candidates]

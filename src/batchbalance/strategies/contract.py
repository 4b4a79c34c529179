"""What a strategy is: a small frozen object with its options, which turns a problem into a choice."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, SupportsIndex

import torch
from jaxtyping import Float, Int
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from batchbalance.arguments.checks import compute_dtype
from batchbalance.arguments.seeds import generator
from batchbalance.balance.closed_form import CACHE_BYTES, BalanceModel
from batchbalance.balance.edges import Edges, MaxReference, Pairs, connect
from batchbalance.balance.greedy import Continuation, Executor
from batchbalance.batches.cover import Cover
from batchbalance.errors import UnknownNameError
from batchbalance.predictions import Predictions

Coldness = Annotated[float, Field(ge=0, allow_inf_nan=False)]  # β: 0 is uniform, larger is greedier


@dataclass(frozen=True)
class Problem:
    """What a strategy chooses from. Everything in it has been checked.

    Attributes:
        given: predictions of the whole pool, or None if there are none.
        candidates: (n,) the points that may be chosen, in ascending order.
        batch_size: B, at most n.
        seed: for the random parts.
        edges: pairs of draws to tell apart, for strategies that use them.
        reference: predictions of the same draws on the reference set; None stands for the pool itself.
        embeddings: (N, D) features of the pool, or (N, S, D) those of every draw.
        labelled_embeddings: (L, D) or (L, S, D) features of points outside the pool that have labels.
        labelled: (l,) points of the pool that have labels; no candidates.
        cache_bytes: what may be kept in memory to be faster.
        progress: show how far it is.
        executor: where the shards of a greedy run live; None for this process.
    """

    given: Predictions | None
    candidates: Int[Tensor, " n"]
    batch_size: int
    seed: int
    edges: Edges | None = None
    reference: Predictions | None = None
    embeddings: Tensor | None = None
    labelled_embeddings: Tensor | None = None
    labelled: Int[Tensor, " l"] | None = None
    cache_bytes: int = CACHE_BYTES
    progress: bool = False
    executor: Executor | None = None

    @property
    def predictions(self) -> Predictions:
        """Predictions of the whole pool, for strategies that need them."""
        if self.given is None:
            raise ValueError("`predictions` must be given for this strategy, got none")
        return self.given

    def scaled(self, scale: float) -> "Problem":
        """The same problem with all embeddings times `scale`."""
        own, others = (
            None if given is None else given.to(compute_dtype(given.dtype)) * scale
            for given in (self.embeddings, self.labelled_embeddings)
        )
        return replace(self, embeddings=own, labelled_embeddings=others)

    @property
    def mean_embeddings(self) -> Float[Tensor, "N D"]:
        """Embeddings of the pool, averaged over draws by their weights."""
        return self._mean(self._pool_embeddings)

    @property
    def mean_labelled_embeddings(self) -> Float[Tensor, "L D"] | None:
        """The same of all labelled points, those of the pool first, or None if there are none."""
        found = []
        if self.labelled is not None and len(self.labelled):
            found.append(self.mean_embedding_rows(self.labelled))
        if self.labelled_embeddings is not None and len(self.labelled_embeddings):
            found.append(self._mean(self.labelled_embeddings))
        return torch.cat(found) if found else None

    def mean_embedding_rows(self, rows: Int[Tensor, " p"]) -> Float[Tensor, "p D"]:
        """Embeddings of some points, read where they are: those of a mapped file are never in memory as a whole."""
        return self._mean(self._pool_embeddings[rows.to(self._pool_embeddings.device)])

    @property
    def _pool_embeddings(self) -> Tensor:
        if self.embeddings is None:
            raise ValueError("`embeddings` must be given for this strategy")
        return self.embeddings

    def _mean(self, embeddings: Tensor) -> Tensor:
        numbers = embeddings.to(compute_dtype(embeddings.dtype))
        if numbers.ndim == 2:
            return numbers
        if self.given is None:
            return numbers.mean(dim=1)
        return torch.einsum("s,nsd->nd", self.given.draw_weights.to(numbers), numbers)


@dataclass(frozen=True)
class Choice:
    """What a strategy chose.

    Attributes:
        indices: (B,) points of the pool, in the order they were chosen.
        scores: (B,) what the strategy ranked or sampled them by, if it has such a number.
        upper_bound: on Δ of the best batch, if the strategy found one on its way.
        continued_from: the pick (from 0) from which on nothing meaningful was left to gain.
        continuation: what was done from there on.
        clustering_rounds: how many rounds a clustering took, for strategies that cluster by Δ.
        notes: sentences for the user.
        reasons: the strategy that chose each point, for strategies that share a batch with others; else empty.
        cover: what the batch covers in the space of embeddings, if the strategy looked at that.
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
    uses: ClassVar[frozenset[str]] = frozenset()  # arguments of `select` that are not for every strategy
    needs: ClassVar[frozenset[str]] = frozenset()  # those of them that must be given
    needs_predictions: ClassVar[bool] = True
    runs_on_executors: ClassVar[bool] = False  # whether `select` may be given an executor

    @property
    def embeds_every_draw(self) -> bool:
        """Whether the embeddings it needs are those of every draw, (N, S, D), and not their mean."""
        return False

    @abstractmethod
    def choose(self, problem: Problem) -> Choice:
        """Choose `problem.batch_size` of the candidates."""

    def flops(self, problem: Problem) -> float:
        """About how many operations ``choose`` takes: a pass over all points for each pick."""
        given, embeddings = problem.given, problem.embeddings
        numbers = 0 if embeddings is None else 2 * embeddings.numel()
        if given is not None and self.needs_predictions:
            numbers += given.num_points * given.num_draws**2 * given.num_classes
        return float(numbers * problem.batch_size)

    def in_pieces(self, problem: Problem) -> bool:  # noqa: ARG002
        """Whether the long parts of ``choose`` go through ``threads.each``."""
        return False

    def memory_needed(self, problem: Problem) -> int:  # noqa: ARG002
        """Bytes that ``choose`` takes beside a streaming pass; 0 for strategies that stream."""
        return 0

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
    """A strategy that tells pairs of draws apart, joined by edges on the reference set."""

    uses: ClassVar[frozenset[str]] = frozenset({"reference", "validation_error", "threshold", "ratio", "pairs"})

    def connect(
        self,
        reference: Predictions,
        threshold: float,
        pairs: Pairs | SupportsIndex,
        seed: int,
        max_reference: MaxReference | None,
    ) -> Edges:
        """The pairs of draws that this strategy tells apart."""
        return connect(reference, threshold, pairs, seed, max_reference=max_reference)

    def model(self, problem: Problem) -> BalanceModel:
        """The closed form of Δ that batches of this strategy are valued by."""
        return BalanceModel(problem.predictions, self.edges(problem), cache_bytes=problem.cache_bytes)

    def edges(self, problem: Problem) -> Edges:
        """The edges of the problem."""
        if problem.edges is None:
            raise ValueError(f"{self.name!r} needs edges between draws; call `select`, which makes them")
        return problem.edges


def filled(problem: Problem, indices: Int[Tensor, " b"], scores: Float[Tensor, " b"]) -> Choice:
    """A choice of these points, completed at random: points worth 0 are all alike, and the first ones no better."""
    left = problem.candidates[~torch.isin(problem.candidates, indices)]
    order = torch.randperm(len(left), generator=generator(problem.seed, "zeros"))
    rest = left[order[: problem.batch_size - len(indices)]]
    return Choice(torch.cat([indices, rest]), scores=torch.cat([scores, torch.zeros(len(rest), dtype=torch.float64)]))


def candidate_scores(problem: Problem, scores: Float[Tensor, " N"]) -> Float[Tensor, " n"]:
    """The scores of the candidates, as float64 on the CPU."""
    return scores.to("cpu", torch.float64)[problem.candidates]

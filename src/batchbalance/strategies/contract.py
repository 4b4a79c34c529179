"""What a strategy is: a small frozen object with its options, which turns a problem into a choice."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from pydantic import BaseModel, ConfigDict, ValidationError
from torch import Tensor

from batchbalance.equivalence import Edges
from batchbalance.errors import UnknownNameError
from batchbalance.predictions import Predictions
from batchbalance.selection import Continuation


@dataclass(frozen=True)
class Problem:
    """What a strategy chooses from. Everything in it has been checked.

    Attributes:
        predictions: of the whole pool.
        candidates: (n,) the points that may be chosen, in ascending order.
        batch_size: B, at most n.
        seed: for the random parts.
        device: where to compute.
        edges: pairs of draws to tell apart, for strategies that use them.
    """

    predictions: Predictions
    candidates: Int[Tensor, " n"]
    batch_size: int
    seed: int
    device: str | None
    edges: Edges | None = None


@dataclass(frozen=True)
class Choice:
    """What a strategy chose.

    Attributes:
        indices: (B,) points of the pool, in the order they were chosen.
        scores: (B,) what the strategy ranked or sampled them by, if it has such a number.
        upper_bound: on Δ of the best batch, if the strategy found one on its way.
        continued_from: the pick (from 0) from which on nothing meaningful was left to gain.
        continuation: what was done from there on.
        notes: sentences for the user.
    """

    indices: Int[Tensor, " B"]
    scores: Float[Tensor, " B"] | None = None
    upper_bound: float | None = None
    continued_from: int | None = None
    continuation: Continuation | None = None
    notes: tuple[str, ...] = field(default=())


class Strategy(BaseModel, ABC):
    """A named way of choosing a batch. Subclasses declare their options as fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: ClassVar[str]
    summary: ClassVar[str]
    uses: ClassVar[frozenset[str]] = frozenset()  # arguments of `select` that are not for every strategy

    @abstractmethod
    def choose(self, problem: Problem) -> Choice:
        """Choose `problem.batch_size` of the candidates."""

    @classmethod
    def with_options(cls, options: dict[str, Any]) -> "Strategy":
        """Build from option values, which may be strings; an unknown name suggests the nearest one."""
        for name in options:
            if name not in cls.model_fields:
                raise UnknownNameError(f"option of {cls.name!r}", name, cls.model_fields)
        try:
            return cls(**options)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"]) or cls.name
            raise ValueError(
                f"option `{where}` of {cls.name!r}: {first['msg'].lower()}, got {first['input']!r}"
            ) from error


def candidate_scores(problem: Problem, scores: Float[Tensor, " N"]) -> Float[Tensor, " n"]:
    """The scores of the candidates, as float64 on the CPU."""
    return scores.to("cpu", torch.float64)[problem.candidates]

"""A part of the pool in a greedy run: it keeps bounds on the gains of its points and offers its best one.

A pool is one shard or many, here or on other machines; the run itself (``selection.greedy``) holds only the survival
matrix and what was chosen. A step is the same in all cases, so that how the pool is cut never changes a batch:
working precision may be float32, but what it cannot tell apart is decided in float64, and ties go to the lowest
position.
"""

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from batchbalance.acquisition.balance import Survival
from batchbalance.progress import Bar
from batchbalance.seeds import generator, gumbel

NEAR_TIE = 1e-4  # relative; far above what a float32 gain is off by
TIE_BITS = 40  # float64 values that agree to this many bits are a tie
PROBE = 512  # candidates looked at before deciding between a lazy step and a full pass
LAZY_SHARE = 0.25  # a lazy step that must look at more than this share of the candidates becomes a full pass
MAX_REST = 8  # full passes before laziness is tried again, once it has failed several times in a row
LOG_SMALLEST = math.log(1e-30)  # below this, float32 gains come near its smallest numbers and lose digits


def quantised(values: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """Float64 values rounded to 40 bits, so that values which differ only by rounding compare equal."""
    mantissa, exponent = torch.frexp(values.double())
    return torch.ldexp((mantissa * 2.0**TIE_BITS).round() / 2.0**TIE_BITS, exponent)


def weighed(log_scores: Float[Tensor, " n"], power: float, noise: Float[Tensor, " n"] | float) -> Float[Tensor, " n"]:
    """Power · log score + noise; -inf for a score of 0, whatever the power."""
    return torch.where(log_scores == -torch.inf, -torch.inf, power * log_scores + noise)


@runtime_checkable
class Objective(Protocol):
    """A monotone submodular set function over positions 0 … num_candidates − 1, given what survives a batch."""

    survival: Survival

    @property
    def num_candidates(self) -> int:
        """How many positions there are."""

    def gains(self, positions: Int[Tensor, " p"] | None = None, bar: Bar | None = None) -> Float[Tensor, " p"]:
        """Gains in working precision, as float64, without the scale of the survival."""

    def exact_gains(self, positions: Int[Tensor, " p"]) -> Float[Tensor, " p"]:
        """Gains computed in float64, without the scale of the survival."""

    def factors(self, position: int) -> tuple[Float[Tensor, "S E"], Float[Tensor, "S E"]]:
        """(1 − G, G) of a point: the share of the survival that it takes, and the share that it leaves."""

    def keep(self, positions: Int[Tensor, " p"]) -> None:
        """Told once, after the first pass: the positions in the order in which they are worth memory."""


@dataclass(frozen=True, eq=False)
class Step:
    """What a shard must know to make its offer; it need not have seen the steps before.

    Attributes:
        survival: what survives the points chosen so far.
        chosen: their positions.
        num_largest: B.
        num_candidates: positions of all shards together.
        seed: for the random part of stochastic greedy.
        beta: the power of stochastic greedy, or None.
        exact: look at all points in float64, because every shard found its gains too small for float32.
    """

    survival: Survival
    chosen: Int[Tensor, " b"]
    num_largest: int
    num_candidates: int
    seed: int = 0
    beta: float | None = None
    exact: bool = False


@dataclass(frozen=True, eq=False)
class Offer:
    """The best point of a shard.

    Attributes:
        position: among all candidates; -1 if no point gains anything.
        key: what offers are compared by, float64; -inf if no point gains anything.
        largest: (≤ B,) the largest gains and bounds on gains, in units of the objective.
        num_evaluations: gains computed for this step.
        too_small: no offer is made, because the gains are too small for float32.
    """

    position: int
    key: float
    largest: Float[Tensor, " b"]
    num_evaluations: int
    too_small: bool = False


class Shard:
    """Some of the candidates. Bounds are kept as unscaled logs, so that they stay comparable for ever.

    Args:
        objective: over the points of this shard.
        positions: their positions among all candidates, ascending.
        lazy: use that an old gain bounds a new one from above, to skip evaluations. Never changes an offer.
    """

    def __init__(self, objective: Objective, positions: Int[Tensor, " n"], *, lazy: bool = True):
        self.objective = objective
        self.positions = positions
        self.lazy = lazy
        self._num_evaluations = 0
        self._open = torch.ones(len(positions), dtype=torch.bool)
        self._log_bounds: Tensor | None = None  # before the first pass
        self._failures = self._rest = 0  # lazy steps in a row that became full passes; steps to go without trying

    def first_gains(self, survival: Survival, bar: Bar | None = None) -> Float[Tensor, " n"]:
        """Gains of all points given a survival, in working precision."""
        self.objective.survival = survival
        return self._log(self.objective.gains(bar=bar)).exp()

    def offer(self, step: Step, bar: Bar | None = None) -> Offer:
        """The point of largest gain, or of largest (log gain · β + noise)."""
        self.objective.survival = step.survival
        self._num_evaluations = 0
        self._open[torch.isin(self.positions, step.chosen)] = False
        power, noise, margin = 1.0, torch.zeros((), dtype=torch.float64).expand(len(self._open)), NEAR_TIE
        if step.beta is not None:
            stream = generator(step.seed, "stochastic-greedy", len(step.chosen))
            noise = gumbel(step.num_candidates, generator=stream)[self.positions]
            power, margin = step.beta, step.beta * NEAR_TIE
        bounds = self._refreshed(power, noise, margin, bar)
        if step.exact:
            contenders = self._open.nonzero().flatten()
        elif float(bounds.max()) - step.survival.log_scale < LOG_SMALLEST:
            return Offer(-1, -math.inf, self._largest(bounds, step.num_largest), self._num_evaluations, True)
        else:
            keys = weighed(bounds, power, noise)
            contenders = (keys >= keys.max() - margin).nonzero().flatten()
        gains = self.objective.exact_gains(contenders)
        bounds[contenders] = self._log(gains)
        largest = self._largest(bounds, step.num_largest)
        if not bool((gains > 0).any()):
            return Offer(-1, -math.inf, largest, self._num_evaluations)
        exact = quantised(gains) if step.beta is None else weighed(gains.log(), power, noise[contenders])
        best = int(exact.argmax())
        return Offer(int(self.positions[contenders[best]]), float(exact[best]), largest, self._num_evaluations)

    def _largest(self, bounds: Tensor, num: int) -> Tensor:
        return bounds.topk(min(num, len(bounds))).values.exp()

    def _log(self, gains: Tensor) -> Tensor:
        return gains.log() + self.objective.survival.log_scale

    def _evaluate_all(self, bar: Bar | None = None) -> Tensor:
        self._log_bounds = self._log(self.objective.gains(bar=bar))
        self._log_bounds[~self._open] = -torch.inf
        self._num_evaluations += len(self.positions)
        return self._log_bounds

    def _refreshed(self, power: float, noise: Tensor, margin: float, bar: Bar | None) -> Tensor:
        """The bounds, with every position that could still be the best or nearly so evaluated anew."""
        bounds = self._log_bounds
        if bounds is None:
            bounds = self._evaluate_all(bar)
            self.objective.keep(bounds.argsort(descending=True))
            return bounds
        bounds[~self._open] = -torch.inf
        num_open = int(self._open.sum())
        if not self.lazy or num_open <= 2 * PROBE or self._rest:
            self._rest = max(0, self._rest - 1)
            return self._evaluate_all()
        fresh = torch.zeros_like(self._open)
        block = weighed(bounds, power, noise).topk(PROBE).indices
        while len(block):
            bounds[block] = self._log(self.objective.gains(block))
            bounds[~self._open] = -torch.inf
            self._num_evaluations += len(block)
            fresh[block] = True
            keys = weighed(bounds, power, noise)
            rivals = ((keys >= keys[fresh].max() - margin) & ~fresh & self._open).nonzero().flatten()
            if len(rivals) > LAZY_SHARE * num_open:
                self._failures += 1
                self._rest = min(2**self._failures, MAX_REST)
                return self._evaluate_all()
            block = rivals[keys[rivals].topk(min(len(rivals), 4 * PROBE)).indices]
        self._failures = 0
        return bounds

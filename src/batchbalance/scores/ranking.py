"""Ranking points: top-k and power sampling by scores, and lazy greedy picks by upper bounds.

Ties go to the lowest position. For a monotone submodular objective, the old gain of a point is an upper bound on its
gain in a later greedy step, which saves evaluations. Greedy BALanCe, coverage and BatchBALD use this.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from batchbalance.arguments.seeds import gumbel

Gains = Callable[[Int[Tensor, " p"]], Float[Tensor, " p"]]
Keys = Callable[[Float[Tensor, " n"]], Float[Tensor, " n"]]
TIE_BITS = 40  # float64 values that agree to this many bits are a tie


def quantised(values: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """Return float64 values rounded to 40 bits, so that values which differ only by rounding compare equal."""
    mantissa, exponent = torch.frexp(values.double())
    return torch.ldexp((mantissa * 2.0**TIE_BITS).round() / 2.0**TIE_BITS, exponent)


def weighed(log_scores: Float[Tensor, " n"], power: float, noise: Float[Tensor, " n"] | float) -> Float[Tensor, " n"]:
    """Return power · log score + noise; -inf for a score of 0, whatever the power."""
    return torch.where(log_scores == -torch.inf, -torch.inf, power * log_scores + noise)


def top_k(scores: Float[Tensor, " n"], num: int) -> Int[Tensor, " k"]:
    """Return the positions of the `num` largest scores, best first; ties go to the lowest position."""
    return torch.sort(quantised(scores), descending=True, stable=True).indices[:num]


def power_sample(
    scores: Float[Tensor, " n"], num: int, beta: float, *, generator: torch.Generator
) -> Int[Tensor, " k"]:
    """Draw `num` positions without replacement with p ∝ score^β, by the Gumbel top-k trick, in drawing order.

    Positions with score 0 are drawn uniformly, and only after all others.
    """
    noise = gumbel(len(scores), generator=generator)
    keys = weighed(scores.double().log(), beta, noise)
    ranked = torch.sort(keys, descending=True, stable=True).indices
    num_positive = int((scores > 0).sum())
    zeros = ranked[num_positive:]
    return torch.cat([ranked[:num_positive], zeros[noise[zeros].argsort(descending=True)]])[:num]


@dataclass(frozen=True, eq=False)
class Best:
    """The best candidate of a greedy step.

    Attributes:
        position: its position; -1 if no candidate gains anything.
        key: the float64 number by which candidates are compared; -inf if no candidate gains anything.
        largest: (≤ B,) the largest gains, or upper bounds on gains, in units of the objective.
        num_evaluations: gains computed for this step.
        similarity: (T,) its κ to every target, only for coverage; None if no candidate gains anything.
    """

    position: int
    key: float
    largest: Float[Tensor, " b"]
    num_evaluations: int
    similarity: Float[Tensor, " T"] | None = None


class LazyBounds:
    """Upper bounds on the gains of n positions, in any unit in which larger is better.

    Attributes:
        values: (n,) float64; -inf for a closed position, +inf where no bound is known yet.
        is_open: (n,) whether a position may still be picked.
        num_evaluations: gains computed so far.
    """

    def __init__(self, num: int) -> None:
        self.values = torch.full((num,), torch.inf, dtype=torch.float64)
        self.is_open = torch.ones(num, dtype=torch.bool)
        self.num_evaluations = 0

    def close(self, positions: Int[Tensor, " p"]) -> None:
        """Remove positions that must not be picked again."""
        self.is_open[positions] = False
        self.values[positions] = -torch.inf

    def forget(self) -> None:
        """Reset the bounds of all open positions, because gains of another kind will follow."""
        self.values[self.is_open] = torch.inf

    def largest(self, num: int) -> Float[Tensor, " b"]:
        """Return the `num` largest values, or all if there are fewer."""
        return self.values.topk(min(num, len(self.values))).values

    def set(self, gains: Float[Tensor, " p"], positions: Int[Tensor, " p"] | None = None) -> None:
        """Replace the bounds of some positions (all if omitted) by computed gains."""
        if positions is None:
            self.values = gains.clone()
        else:
            self.values[positions] = gains
        self.num_evaluations += len(gains)
        self.values[~self.is_open] = -torch.inf

    def lower(self, bounds: Float[Tensor, " p"], positions: Int[Tensor, " p"]) -> None:
        """Combine the bounds of some positions with other upper bounds."""
        self.values[positions] = torch.minimum(self.values[positions], bounds)

    def settle(
        self,
        gains: Gains,
        *,
        margin: float,
        block: int,
        growth: int,
        largest_block: int,
        keys: Keys = lambda values: values,
        floor: float = -torch.inf,
        max_share: float = 1.0,
    ) -> bool:
        """Replace bounds by gains, largest bounds first, until no remaining bound is within `margin` of the best gain.

        Args:
            gains: computes the gains of some positions.
            margin: positions whose key is within this of the best one are computed too.
            block: positions computed in the first block.
            growth: factor by which each further block is larger.
            largest_block: the largest size of a block.
            keys: the ranking of the positions, an increasing function of their bounds; the bounds if omitted.
            floor: positions with bounds up to this are not computed.
            max_share: stop early if more than this share of the open positions would have to be computed.

        Returns:
            True if every relevant position was computed, False if it stopped early.
        """
        fresh = torch.zeros_like(self.is_open)  # positions whose value is a gain of this step, not a bound
        num_open = int(self.is_open.sum())
        ranked, best = keys(self.values), -torch.inf
        while True:
            rivals = ((ranked >= best - margin) & (self.values > floor) & ~fresh & self.is_open).nonzero().flatten()
            if not len(rivals):
                return True
            if best > -torch.inf and len(rivals) > max_share * num_open:
                return False
            picked = rivals[ranked[rivals].topk(min(block, len(rivals))).indices]
            self.set(gains(picked), picked)
            fresh[picked] = True
            ranked = keys(self.values)
            best = float(ranked[fresh].max())
            block = min(block * growth, largest_block)

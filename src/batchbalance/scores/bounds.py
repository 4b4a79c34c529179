"""Upper bounds that save evaluations: the old gain of a point is an upper bound on its new one.

This holds for every monotone submodular objective. Greedy BALanCe, coverage and BatchBALD share it.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

Gains = Callable[[Int[Tensor, " p"]], Float[Tensor, " p"]]
Keys = Callable[[Float[Tensor, " n"]], Float[Tensor, " n"]]


@dataclass(frozen=True, eq=False)
class Best:
    """The best candidate of a greedy step.

    Attributes:
        position: its position; -1 if no candidate gains anything.
        key: the float64 number by which candidates are compared; -inf if no candidate gains anything.
        largest: (≤ B,) the largest gains, or upper bounds on gains, in units of the objective.
        num_evaluations: gains computed for this step.
        similarity: (T,) its κ to every target, for coverage; None if no candidate gains anything.
    """

    position: int
    key: float
    largest: Float[Tensor, " b"]
    num_evaluations: int
    similarity: Float[Tensor, " T"] | None = None


class LazyBounds:
    """Upper bounds on the gains of n positions, in any unit in which larger is better.

    Attributes:
        values: (n,) float64; -inf for a position that is closed, infinite where nothing is known yet.
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
            max_share: give up once more than this share of the open positions would have to be computed.

        Returns:
            True if every position that matters was computed, False if it gave up.
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

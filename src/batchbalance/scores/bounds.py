"""Upper bounds that spare work: an old gain bounds a new one from above, so that few gains have to be computed anew.

This holds for every monotone submodular objective; BALanCe's greedy and BatchBALD share it.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

Gains = Callable[[Int[Tensor, " p"]], Float[Tensor, " p"]]
Keys = Callable[[Float[Tensor, " n"]], Float[Tensor, " n"]]


class LazyBounds:
    """Upper bounds on the gains of n positions, in any unit in which larger is better.

    Attributes:
        values: (n,) float64; -inf for a position that is closed. Infinite where nothing is known yet.
        is_open: (n,) whether a position may still be picked.
        num_evaluations: gains computed so far.
    """

    def __init__(self, num: int) -> None:
        self.values = torch.full((num,), torch.inf, dtype=torch.float64)
        self.is_open = torch.ones(num, dtype=torch.bool)
        self.num_evaluations = 0

    def close(self, positions: Int[Tensor, " p"] | Tensor) -> None:
        """Take positions (indices or a mask) out."""
        self.is_open[positions] = False
        self.values[positions] = -torch.inf

    def forget(self) -> None:
        """Drop all that is known: gains of another kind are to come."""
        self.values[self.is_open] = torch.inf

    def set(self, gains: Float[Tensor, " p"], positions: Int[Tensor, " p"] | None = None) -> None:
        """Put computed gains in the place of bounds, of all positions if none are named."""
        if positions is None:
            self.values = gains.clone()
        else:
            self.values[positions] = gains
        self.num_evaluations += len(gains)
        self.values[~self.is_open] = -torch.inf

    def lower(self, bounds: Float[Tensor, " p"], positions: Int[Tensor, " p"]) -> None:
        """Take other upper bounds into account."""
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
        """Replace bounds by gains, the most promising first, until no bound left could be the best or nearly so.

        Args:
            gains: computes the gains of some positions.
            margin: positions whose key is within this of the best one are computed too.
            block: positions computed at first.
            growth: how much larger each further block is.
            largest_block: no block is larger.
            keys: what positions are ranked by, a rising function of bounds; the bounds themselves if omitted.
            floor: bounds up to this are not worth a look.
            max_share: give up once more than this share of the open positions would have to be looked at.

        Returns:
            Whether all that matters was computed; False if it gave up.
        """
        fresh = torch.zeros_like(self.is_open)
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

"""The draws of a set of predictions. Two sets combine only if their draws are the same."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from batchbalance.errors import DrawMismatchError

SUMMED = 1024  # up to this many draws, a float32 sum over draws is accurate enough


@dataclass(frozen=True, eq=False)
class Draws:
    """S posterior draws.

    Attributes:
        num: S.
        ids: S distinct names, or None.
        weights: (S,) float64 weights that sum to 1, or None for equal weights.
    """

    num: int
    ids: tuple[str, ...] | None = None
    weights: Tensor | None = None

    @property
    def all_weights(self) -> Float[Tensor, " S"]:
        """The weights, float64; 1/S each if none were given."""
        if self.weights is not None:
            return self.weights
        return torch.full((self.num,), 1 / self.num, dtype=torch.float64)

    def check_same(self, other: "Draws", name: str) -> None:
        """Raise DrawMismatchError unless `other`, called `name` in messages, are the same draws.

        If only one side has ids, only S is compared.
        """
        if other.num != self.num:
            raise DrawMismatchError(
                f"`{name}` must hold the same draws as the pool: {self.num} draws, got {other.num}; "
                "predict both with one posterior"
            )
        if self.ids is not None and other.ids is not None and self.ids != other.ids:
            at = next(i for i, (a, b) in enumerate(zip(self.ids, other.ids, strict=True)) if a != b)
            raise DrawMismatchError(
                f"`{name}` must hold the same draws as the pool, got draw {other.ids[at]!r} where the pool has "
                f"{self.ids[at]!r} (position {at}); predict both with one posterior"
            )
        # Not exactly equal, because normalising again changes the last digit.
        if not torch.allclose(self.all_weights, other.all_weights, rtol=1e-9, atol=1e-12):
            raise DrawMismatchError(f"`{name}` must have the same draw weights as the pool; give both the same")


def mean_over_draws(weights: Float[Tensor, " S"], probs: Float[Tensor, "n S C"]) -> Float[Tensor, "n C"]:
    """Return the weighted mean over draws; long sums are computed in float64, because rounding adds up in float32."""
    parts = [
        torch.einsum("s,nsc->nc", *pair) for pair in zip(weights.split(SUMMED), probs.split(SUMMED, 1), strict=True)
    ]
    return parts[0] if len(parts) == 1 else torch.stack(parts).double().sum(dim=0).to(probs.dtype)

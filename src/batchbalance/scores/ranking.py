"""Ranking points by scores of their own: top-k and power sampling. Ties go to the lowest position."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from batchbalance.arguments.seeds import gumbel

TIE_BITS = 40  # float64 values that agree to this many bits are a tie


def quantised(values: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """Float64 values rounded to 40 bits, so that values which differ only by rounding compare equal."""
    mantissa, exponent = torch.frexp(values.double())
    return torch.ldexp((mantissa * 2.0**TIE_BITS).round() / 2.0**TIE_BITS, exponent)


def weighed(log_scores: Float[Tensor, " n"], power: float, noise: Float[Tensor, " n"] | float) -> Float[Tensor, " n"]:
    """Power · log score + noise; -inf for a score of 0, whatever the power."""
    return torch.where(log_scores == -torch.inf, -torch.inf, power * log_scores + noise)


def top_k(scores: Float[Tensor, " n"], num: int) -> Int[Tensor, " k"]:
    """Positions of the `num` largest scores, best first; ties go to the lowest position."""
    return torch.sort(quantised(scores), descending=True, stable=True).indices[:num]


def power_sample(
    scores: Float[Tensor, " n"], num: int, beta: float, *, generator: torch.Generator
) -> Int[Tensor, " k"]:
    """`num` positions drawn without replacement with p ∝ score^β, by the Gumbel top-k trick, in drawing order.

    Positions with score 0 are drawn, uniformly, only once no other is left.
    """
    noise = gumbel(len(scores), generator=generator)
    keys = weighed(scores.double().log(), beta, noise)
    ranked = torch.sort(keys, descending=True, stable=True).indices
    num_positive = int((scores > 0).sum())
    zeros = ranked[num_positive:]
    return torch.cat([ranked[:num_positive], zeros[noise[zeros].argsort(descending=True)]])[:num]

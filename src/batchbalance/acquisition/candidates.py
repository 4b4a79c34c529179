"""Which points may be chosen, and how many of them."""

import torch
from jaxtyping import Int
from torch import Tensor


def check_candidates(candidates: Tensor | None, num_points: int, batch_size: int) -> Int[Tensor, " n"]:
    """The points that may be chosen, or a ValueError.

    Args:
        candidates: (n,) distinct indices in ascending order; None for all points.
        num_points: N.
        batch_size: B, from 1 to n.
    """
    if candidates is None:
        candidates = torch.arange(num_points)
    if candidates.ndim != 1 or candidates.dtype != torch.long:
        shape, dtype = tuple(candidates.shape), candidates.dtype
        raise ValueError(f"`candidates` must be one row of int64 indices, got shape {shape} of {dtype}")
    if bool((candidates[1:] <= candidates[:-1]).any()):
        raise ValueError("`candidates` must be distinct and ascending, got another order; sort them")
    if len(candidates) and not 0 <= int(candidates[0]) <= int(candidates[-1]) < num_points:
        found = f"{int(candidates[0])} to {int(candidates[-1])}"
        raise ValueError(f"`candidates` must be from 0 to {num_points - 1}, got {found}")
    if not 1 <= batch_size <= len(candidates):
        raise ValueError(f"`batch_size` must be from 1 to the number of candidates {len(candidates)}, got {batch_size}")
    return candidates

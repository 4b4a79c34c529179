"""Checks of candidates and batch sizes."""

import torch
from jaxtyping import Int
from torch import Tensor

from batchbalance.arguments.checks import check_indices


def check_candidates(candidates: Tensor | None, num_points: int, batch_size: int) -> Int[Tensor, " n"]:
    """Return the points that may be chosen; raise ValueError if they or the batch size are invalid.

    Args:
        candidates: (n,) distinct indices in ascending order; None for all points.
        num_points: N.
        batch_size: B, from 1 to n.
    """
    chosen_from = (
        torch.arange(num_points) if candidates is None else check_indices("candidates", candidates, num_points)
    )
    if bool((chosen_from[1:] < chosen_from[:-1]).any()):
        raise ValueError("`candidates` must be in ascending order, got another order; sort them")
    if not 1 <= batch_size <= len(chosen_from):
        raise ValueError(f"`batch_size` must be from 1 to the {len(chosen_from)} candidates, got {batch_size}")
    return chosen_from

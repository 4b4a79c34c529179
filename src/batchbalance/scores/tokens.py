"""Uncertainty of items that a model predicts token by token, as in named-entity recognition."""

from typing import Any, Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from batchbalance.arguments.checks import as_tensor
from batchbalance.predictions import Predictions
from batchbalance.scores.points import margin


def token_weights(logits: Any, mask: Any, *, reduce: Literal["sum", "mean", "max"] = "sum") -> Float[Tensor, " N"]:
    """Return how uncertain each text is: its tokens' one minus the margin, combined; for ``select(..., weights=…)``.

    Args:
        logits: (N, T, C) class scores of every token, before the softmax, padded to T tokens.
        mask: (N, T) which tokens count: not padding, special tokens or later parts of a word.
        reduce: "sum" favours long texts, as a text is labelled as a whole; "mean" and "max" do not depend on length.

    Returns:
        Float64; 0 for texts without a token that counts.
    """
    numbers, counted = as_tensor(logits, "`logits`"), as_tensor(mask, "`mask`").bool()
    if numbers.ndim != 3 or counted.shape != numbers.shape[:2]:
        shapes = f"{tuple(numbers.shape)} and {tuple(counted.shape)}"
        raise ValueError(f"`logits` must be (N, T, C) and `mask` (N, T), got shapes {shapes}")
    if reduce not in get_args(Literal["sum", "mean", "max"]):
        raise ValueError(f"`reduce` must be 'sum', 'mean' or 'max', got {reduce!r}")
    counted = counted.to(numbers.device)
    scores = torch.zeros(counted.shape, dtype=torch.float64, device=numbers.device)
    if bool(counted.any()):
        scores[counted] = margin(Predictions.from_logits(numbers[counted], "nc"))
    if reduce == "max":
        return scores.amax(dim=1)
    total = scores.sum(dim=1)
    return total if reduce == "sum" else total / counted.sum(dim=1).clamp_min(1)

"""Scores of single points, and ranking of points."""

from batchbalance.scores.points import (
    CACHED_NUMBERS,
    MEMORY_BUDGET,
    ROUNDING,
    Combine,
    above_rounding,
    bald,
    entropies,
    entropy,
    epig,
    least_confidence,
    margin,
    mean_std,
    points_within,
    unsureness,
    variation_ratio,
)
from batchbalance.scores.tokens import token_weights

__all__ = [
    "CACHED_NUMBERS",
    "MEMORY_BUDGET",
    "ROUNDING",
    "Combine",
    "above_rounding",
    "bald",
    "entropies",
    "entropy",
    "epig",
    "least_confidence",
    "margin",
    "mean_std",
    "points_within",
    "token_weights",
    "unsureness",
    "variation_ratio",
]

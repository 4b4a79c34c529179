"""The memory budget of a selection."""

from batchbalance.predictions import CHUNK_NUMBERS, Predictions
from batchbalance.system.memory import as_text

POINT_BYTES = 100  # bounds, orders and masks of every point
CHUNK_COPIES = 4  # float64 arrays of one chunk in memory at a time


def streaming_bytes(predictions: Predictions | None, num_points: int = 0) -> int:
    """Return the bytes of one pass over a pool: a chunk of predictions, and a few numbers for each point."""
    if predictions is None:
        return POINT_BYTES * num_points
    n, s, c = predictions.shape
    return POINT_BYTES * n + CHUNK_COPIES * 8 * min(CHUNK_NUMBERS, n * s * c)


def check_budget(budget: int, least: int, strategy: str = "", needed: int = 0) -> None:
    """Raise ValueError unless the budget holds the `least` bytes of a pass plus those of a strategy."""
    if budget < least:
        raise ValueError(
            f"`memory_budget` must hold one chunk of predictions and {POINT_BYTES} bytes per point, {as_text(least)} "
            f"here, got {as_text(budget)}; raise it"
        )
    if budget < least + needed:
        raise ValueError(
            f"`memory_budget` must be at least {as_text(least + needed)} ({least + needed:,} bytes) for {strategy!r}, "
            f"which does not stream, got {as_text(budget)}; raise it, or use 'greedy-balance' or 'power-balance'"
        )

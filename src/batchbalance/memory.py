"""How much memory a selection may take: what users write, what is free, and what a streaming pass needs."""

import os
import re
from pathlib import Path

from batchbalance.predictions import CHUNK_NUMBERS, Predictions

UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
         "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}  # fmt: skip
FREE_SHARE = 0.5  # of what is free, if no budget is given
POINT_BYTES = 100  # bounds, orders and masks that are kept for every point
CHUNK_COPIES = 4  # float64 arrays of one chunk that are alive at a time


def parse_bytes(budget: int | str) -> int:
    """A number of bytes from a whole number or from a text such as "2GiB", "512 MiB" or "1.5GB"."""
    complaint = f"`memory_budget` must be a positive number of bytes, or a text such as '2GiB', got {budget!r}"
    if isinstance(budget, bool) or not isinstance(budget, int | str):
        raise ValueError(complaint)
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", str(budget).lower())
    if found is None or found[2] not in UNITS:
        raise ValueError(complaint)
    num_bytes = int(float(found[1]) * UNITS[found[2]])
    if num_bytes < 1:
        raise ValueError(complaint)
    return num_bytes


def as_text(num_bytes: int) -> str:
    """A number of bytes as people write it, rounded up."""
    for unit in ("KiB", "MiB"):
        size = UNITS[unit.lower()]
        if num_bytes < 1024 * size:
            return f"{-(-num_bytes // size)} {unit}"
    return f"{-(-num_bytes * 10 // 2**30) / 10:g} GiB"


def free_memory() -> int:
    """Bytes that this process may still take: of the machine, or of its control group if that is less."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    group = Path("/sys/fs/cgroup")
    try:
        limit = int((group / "memory.max").read_text(encoding="ascii"))
        free = min(free, limit - int((group / "memory.current").read_text(encoding="ascii")))
    except (OSError, ValueError):  # no such group, or no limit
        pass
    return max(0, free)


def streaming_bytes(predictions: Predictions) -> int:
    """What one pass over predictions takes, however many points there are: a chunk, and a few numbers a point."""
    n, s, c = predictions.stored.shape
    return POINT_BYTES * n + CHUNK_COPIES * 8 * min(CHUNK_NUMBERS, n * s * c)


def check_budget(budget: int, predictions: Predictions, strategy: str = "", needed: int = 0) -> None:
    """Raise ValueError unless a pass fits in the budget, and beside it the `needed` bytes of a strategy."""
    least = streaming_bytes(predictions)
    if budget < least:
        raise ValueError(
            f"`memory_budget` must hold one chunk of predictions and {POINT_BYTES} bytes a point, {as_text(least)} "
            f"here, got {as_text(budget)}; raise it"
        )
    if budget < least + needed:
        raise ValueError(
            f"`memory_budget` must be at least {as_text(least + needed)} ({least + needed:,} bytes) for {strategy!r}, "
            f"which does not stream, got {as_text(budget)}; raise it, or use 'greedy-balance' or 'power-balance'"
        )

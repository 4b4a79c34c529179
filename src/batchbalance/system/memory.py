"""The free memory of this machine, and the peak memory of this process."""

from contextlib import suppress
from pathlib import Path

import psutil


def as_text(num_bytes: int) -> str:
    """Format a number of bytes with a unit, rounded up."""
    for unit, size in (("KiB", 2**10), ("MiB", 2**20)):
        if num_bytes < 1024 * size:
            return f"{-(-num_bytes // size)} {unit}"
    return f"{-(-num_bytes * 10 // 2**30) / 10:g} GiB"


def free_memory() -> int:
    """Return the bytes that this process may still allocate, by the machine or by its control group."""
    free: int = psutil.virtual_memory().available
    group = Path("/sys/fs/cgroup")
    try:
        limit = int((group / "memory.max").read_text(encoding="ascii"))
        free = min(free, limit - int((group / "memory.current").read_text(encoding="ascii")))
    except (OSError, ValueError):  # no such group, or no limit
        pass
    return max(0, free)


def reset_peak_memory() -> None:
    """Reset `peak_memory`, where the system allows it (Linux)."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def peak_memory() -> int:
    """Return the peak memory since `reset_peak_memory`, in bytes; the current memory if the peak is unknown."""
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii")
        return int(status.partition("VmHWM:")[2].split()[0]) * 1024
    except (OSError, ValueError, IndexError):
        held = psutil.Process().memory_info()
        return int(getattr(held, "peak_wset", held.rss))

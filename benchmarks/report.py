"""What the benchmark found: lines, growth curves, and what they were measured on; as a table and as JSON."""

import json
import os
import platform
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from batchbalance.system.files import replacing
from benchmarks.growth import Growth

SCHEMA = 1
OURS = ("batchbalance", "torch", "numpy", "scikit-learn")


@dataclass(frozen=True)
class Measured:
    """One side of a line.

    Attributes:
        name: what was run.
        seconds: median; scaled to the whole work if only a part was run.
        runs: the seconds of each run.
        scaled: which part was run; empty if all of it.
        peak_mib: peak memory above the input in a fresh process, of the part that was run; None if not measured.
    """

    name: str
    seconds: float
    runs: tuple[float, ...]
    scaled: str = ""
    peak_mib: float | None = None


@dataclass(frozen=True)
class Line:
    """A line of the table: ours, and what it is compared with.

    Attributes:
        case: its name.
        size: what was run, by letter.
        ours: our side.
        other: the other side; None if there is none or it is absent.
        agreement: how the two results compare.
        target: the least ratio wanted, or None.
        absent: why the other side could not be run.
    """

    case: str
    size: dict[str, int]
    ours: Measured
    other: Measured | None = None
    agreement: str = ""
    target: float | None = None
    absent: str = ""

    @property
    def ratio(self) -> float | None:
        """How many times as long the other side takes, from times of this run."""
        return None if self.other is None else self.other.seconds / self.ours.seconds

    @property
    def met(self) -> bool | None:
        """Whether the ratio reaches its target; None without either."""
        return None if self.ratio is None or self.target is None else self.ratio >= self.target

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**asdict(self), "ratio": self.ratio, "met": self.met}


@dataclass(frozen=True)
class Report:
    """Everything that one run of the benchmark found."""

    environment: dict[str, Any]
    lines: tuple[Line, ...]
    growth: tuple[Growth, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "schema": SCHEMA,
            "environment": self.environment,
            "lines": [line.as_dict() for line in self.lines],
            "growth": [curve.as_dict() for curve in self.growth],
        }

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write JSON, whole or not at all."""
        with replacing(path) as temporary:
            temporary.write_text(json.dumps(self.as_dict(), indent=2, allow_nan=False) + "\n", encoding="utf-8")


def environment(seed: int, quick: bool, repeats: int) -> dict[str, Any]:
    """The machine, the versions, and how the benchmark was run."""
    return {
        "machine": processor(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "versions": versions(OURS),
        "seed": seed,
        "quick": quick,
        "repeats": repeats,
    }


def versions(packages: Sequence[str]) -> dict[str, str]:
    """The installed versions of some packages, those that there are."""
    found = {}
    for name in packages:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def processor() -> str:
    """The processor's name, as far as the system tells."""
    with suppress(OSError):  # Linux alone has this file
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown"

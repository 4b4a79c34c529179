"""How the time of exact greedy grows with N, S, C and B, one at a time around a base size."""

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from batchbalance.balance.closed_form import BalanceModel, BalanceObjective
from batchbalance.balance.edges import connect
from batchbalance.balance.greedy import GreedyOptions, greedy
from batchbalance.errors import MissingExtraError
from batchbalance.system.files import replacing
from benchmarks.inputs import random_pool
from benchmarks.measure import Side, take_turns

BASE = {"N": 10_000, "S": 40, "C": 10, "B": 10}
LIMITS = {"N": 1.0, "S": 2.0, "C": 1.0, "B": 1.0}  # the exponents wanted at most
FULL = {
    "N": (1_000, 3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000),
    "S": (10, 20, 40, 80, 160, 400),
    "C": (2, 5, 10, 30, 100, 300, 1_000),
    "B": (2, 5, 10, 30, 100, 300, 1_000, 5_000),
}
QUICK = {"N": (3_000, 10_000, 30_000), "S": (20, 40, 80), "C": (5, 10, 30), "B": (5, 10, 30)}
GROWTH_SECONDS = 10.0


@dataclass(frozen=True)
class Growth:
    """Seconds of exact greedy at several values of one letter, the others at the base size.

    Attributes:
        letter: "N", "S", "C" or "B".
        base: the base size.
        values: of the letter, ascending.
        seconds: median at each value.
        limit: the exponent wanted at most.
    """

    letter: str
    base: dict[str, int]
    values: tuple[int, ...]
    seconds: tuple[float, ...]
    limit: float

    @property
    def exponent(self) -> float | None:
        """Slope of log seconds over log value from the base size upwards; None with fewer than two values there.

        Below it, fixed costs would make the slope look smaller than it becomes.
        """
        points = [(v, s) for v, s in zip(self.values, self.seconds, strict=True) if v >= self.base[self.letter]]
        return fitted_exponent(*zip(*points, strict=True)) if len(points) > 1 else None

    @property
    def met(self) -> bool | None:
        """Whether the exponent, to one decimal, is within its limit; None over less than a factor of ten."""
        if self.exponent is None or self.values[-1] < 10 * self.base[self.letter]:
            return None
        return round(self.exponent, 1) <= self.limit

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**asdict(self), "exponent": self.exponent, "met": self.met}


def fitted_exponent(values: Sequence[int], seconds: Sequence[float]) -> float:
    """Least-squares slope of log seconds over log values."""
    xs, ys = [math.log(v) for v in values], [math.log(s) for s in seconds]
    x_mean, y_mean = sum(xs) / len(xs), sum(ys) / len(ys)
    spread = sum((x - x_mean) ** 2 for x in xs)
    return sum((x - x_mean) * (y - y_mean) for x, y in zip(xs, ys, strict=True)) / spread


def measure_growth(
    letter: str,
    values: Sequence[int],
    *,
    seed: int,
    repeats: int,
    base: dict[str, int] | None = None,
    done: Callable[[], None] = lambda: None,
) -> Growth:
    """Time greedy at each value of one letter; `done` is called after each."""
    start = base or BASE
    medians = []
    for value in values:
        size = {**start, letter: value}
        medians.append(_greedy_seconds(size, seed, repeats))
        done()
    return Growth(letter, dict(start), tuple(values), tuple(medians), LIMITS[letter])


def _greedy_seconds(size: dict[str, int], seed: int, repeats: int) -> float:
    pool = random_pool(size["N"], size["S"], size["C"], seed)
    model = BalanceModel(pool, connect(pool, 0.05, seed=seed))
    every = torch.arange(size["N"])
    side = Side("greedy", lambda: greedy(BalanceObjective(model, every), GreedyOptions(size["B"])))
    return take_turns([side], repeats, side_seconds=GROWTH_SECONDS)[0].median


def plot_growth(curves: Sequence[Growth], path: str | os.PathLike[str]) -> None:
    """Draw the curves, log-log, with their fitted exponents, into an image file."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("drawing growth curves", "report") from error
    figure = Figure(figsize=(3.2 * len(curves), 3.2), layout="constrained")
    axes = figure.subplots(1, len(curves), sharey=True, squeeze=False)[0]
    for axis, curve in zip(axes, curves, strict=True):
        axis.loglog(curve.values, curve.seconds, "o-", color="tab:blue")
        exponent = "not fitted" if curve.exponent is None else f"exponent {curve.exponent:.2f}"
        axis.set_title(f"{exponent}, wanted at most {curve.limit:g}", fontsize=9)
        axis.set_xlabel(curve.letter)
        axis.grid(alpha=0.3, which="both")
        if curve.exponent is not None:
            ends = [curve.base[curve.letter], curve.values[-1]]
            last = curve.seconds[-1]
            axis.loglog(ends, [last * (x / ends[1]) ** curve.exponent for x in ends], "--", color="tab:gray")
    axes[0].set_ylabel("seconds of exact greedy")
    base = ", ".join(f"{letter} = {value:,}" for letter, value in curves[0].base.items())
    figure.suptitle(f"One letter at a time around {base}", fontsize=10)
    with replacing(Path(path)) as temporary:
        figure.savefig(temporary, format=Path(path).suffix.removeprefix(".") or "png", dpi=120)

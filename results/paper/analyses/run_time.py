"""Figures 2 and 6 and table 1: the run time of strategies against the batch size, on random predictions.

The paper's complexities are those of its implementation. The measured exponent is the slope of log seconds against log
batch size.
"""

import math
import time
from collections.abc import Sequence
from statistics import linear_regression
from typing import Any

import torch

from analyses.trained import Setup, draw_lines, first_draws, panels
from batchbalance.arguments.sections import Section, Whole
from batchbalance.arguments.seeds import generator
from batchbalance.predictions import Predictions
from batchbalance.strategies import STRATEGIES, ConnectedStrategy, strategy_named
from batchbalance.strategies.pool import Pool

# Table 1 of the paper: the cost, and its power of B.
COMPLEXITIES: dict[str, tuple[str, int | None]] = {
    "mean-std": ("|D|(CK + log B)", 0),
    "variation-ratio": ("|D|(CK + log B)", 0),
    "power-bald": ("|D|(CK + log B)", 0),
    "batch-bald": ("|D| B M K", 1),
    "coreset": ("|D| H B", 1),
    "badge": ("|D| H C B²", 2),
    "power-balance": ("|D|(C·2K + log B)", 0),
    "greedy-balance": ("|D| B M·2K", 1),
    "cluster-balance": ("|D| C·2K + |C|²(C²·2K + T), |C| = cB", 2),
}
WARM_UP_POINTS = 100
# All except the one whose cost is C^B.
TIMED = (*COMPLEXITIES, *(name for name in STRATEGIES if name not in (*COMPLEXITIES, "enumerated-balance")))


class RunTimeOptions(Section):
    """The sizes of the random predictions, and the strategies to time.

    Attributes:
        num_points: N.
        num_draws: S.
        num_classes: C.
        num_features: D of the embeddings, the paper's H.
        batch_sizes: B, ascending.
        strategies: their names; all except enumerated-balance if omitted.
        max_seconds: a strategy that took longer is not timed at larger batches.
        threshold: τ.
        equal_draws: give all strategies all S = 2K draws; else those without edges have K.
    """

    table = "[options]"
    num_points: Whole
    num_draws: Whole
    num_classes: Whole = 10
    num_features: Whole = 128
    batch_sizes: list[Whole]
    strategies: tuple[str, ...] = TIMED
    max_seconds: float = 60.0
    threshold: float = 0.05
    equal_draws: bool = True


def compute(options: RunTimeOptions, setup: Setup) -> dict[str, Any]:
    """Measure the seconds of each strategy and batch size, and the exponents."""
    stream = generator(setup.seed, "run time")
    shape = (options.num_points, options.num_draws, options.num_classes)
    shared = 2 * torch.randn(shape[0], 1, shape[2], generator=stream)  # the part that all draws share
    pool = Predictions.from_logits(shared + torch.randn(shape, generator=stream))
    embeddings = torch.randn(options.num_points, options.num_features, generator=stream)
    few = first_draws(pool, max(1, options.num_draws // 2))
    given = {"embeddings": embeddings, "threshold": options.threshold, "max_reference": "all"}
    seconds, table = {}, []
    for name in options.strategies:
        joins = options.equal_draws or isinstance(strategy_named(name), ConnectedStrategy)
        predictions = pool if joins else few
        seconds[name] = timed(name, {**given, "predictions": predictions}, setup.seed, options)
        cost, power = COMPLEXITIES.get(name, ("not in the table", None))
        table.append(
            {
                "strategy": name,
                "num_draws": predictions.num_draws,
                "paper": cost,
                "paper_exponent": power,
                "exponent": slope(options.batch_sizes, seconds[name]),
            }
        )
    sizes = {"num_points": shape[0], "num_draws": shape[1], "num_classes": shape[2]}
    return {**sizes, "threads": torch.get_num_threads(), "batch_sizes": options.batch_sizes, "seconds": seconds,
            "complexities": table}  # fmt: skip


def timed(name: str, given: dict[str, Any], seed: int, options: RunTimeOptions) -> list[float | None]:
    """Return the seconds for each batch size; None for those not timed."""

    def choose(num_points: int, size: int) -> None:
        pool = Pool(given).to_choose(candidates=torch.arange(num_points), batch_size=size, seed=seed)
        strategy_named(name).choose(pool)

    few = min(WARM_UP_POINTS, options.num_points)
    choose(few, min(options.batch_sizes[0], few))  # the first call includes one-time costs
    found: list[float | None] = []
    for size in options.batch_sizes:
        if size > options.num_points or (found and (found[-1] is None or found[-1] > options.max_seconds)):
            found.append(None)
            continue
        started = time.perf_counter()
        choose(options.num_points, size)
        found.append(time.perf_counter() - started)
    return found


def slope(sizes: Sequence[int], seconds: Sequence[float | None]) -> float | None:
    """Return the least-squares slope of log seconds against log size; None with fewer than two values."""
    points = [(math.log(b), math.log(s)) for b, s in zip(sizes, seconds, strict=True) if s]
    if len({x for x, _ in points}) < 2:
        return None
    return linear_regression(*zip(*points, strict=True)).slope


def draw(numbers: dict[str, Any]) -> Any:
    """Draw seconds against batch size on log scales: the strategies of the complexity table, then the others."""
    seconds = numbers["seconds"]
    groups = {
        "strategies of the complexity table": [name for name in seconds if name in COMPLEXITIES],
        "other strategies": [name for name in seconds if name not in COMPLEXITIES],
    }
    shown = {title: names for title, names in groups.items() if names}
    figure, all_axes, _ = panels(len(shown))
    for axes, (title, names) in zip(all_axes, shown.items(), strict=True):
        # A batch size that was not timed is a gap in the line.
        times = {name: [math.nan if taken is None else taken for taken in seconds[name]] for name in names}
        draw_lines(axes, numbers["batch_sizes"], times)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_title(title, fontsize=10)
        axes.set_xticks(numbers["batch_sizes"], [f"{size:,}" for size in numbers["batch_sizes"]])
        axes.minorticks_off()
        axes.set_xlabel("batch size")
        axes.set_ylabel("seconds for one batch")
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.02), frameon=False, fontsize=7.5, handlelength=3.2)
    return figure

"""Saturation (ours): how soon a batch has discounted everything, and which picks are still informed after that.

With many draws a few points discount nearly all edge weight, and a random batch does so almost as fast. From there on
what counts is whether scores still tell candidates apart. A pick is informed if a single candidate has the largest
score in float32; in a tie the order of the pool decides.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from batchbalance.arguments.sections import Section, Whole
from batchbalance.arguments.seeds import generator
from batchbalance.balance.closed_form import BalanceModel, BalanceObjective, balance_path, null_path
from batchbalance.balance.edges import annealed_threshold, connect
from batchbalance.balance.estimators import ConfigurationEstimator
from batchbalance.lab.paper.figures import INK, look, panels
from batchbalance.lab.paper.trained import Setup


class SaturationOptions(Section):
    """Sizes.

    Attributes:
        batch: picks.
        repeats: sets of draws.
        max_pool: candidates, sampled from the pool.
        num_samples: M, the sampled label configurations of the estimator of the paper's text.
        num_random: random batches behind the random baseline.
    """

    table = "[options]"
    batch: Whole
    repeats: Whole
    max_pool: Whole
    num_samples: Whole = 10_000
    num_random: Whole = 20


def compute(settings: dict[str, Any], options: SaturationOptions, seed: int, data_dir: Path | None) -> dict[str, Any]:
    """Compute coverage, its baselines and the share of informed picks after each pick, as means over sets of draws."""
    setup = Setup.read(settings, seed, data_dir)
    model, error = setup.train(setup.splits.initial, seed)
    threshold = annealed_threshold(error, setup.config.edges.ratio)
    rows = setup.sampled_pool(options.max_pool)
    found: dict[str, list[Tensor]] = {
        name: [] for name in ("coverage", "random", "null", "exact_informed", "sampled_informed")
    }
    for repeat in range(options.repeats):
        draws = setup.draws(model, "saturation", repeat)
        edges = connect(setup.predict(draws, setup.splits.reference), threshold)
        if not edges.num_edges:
            raise ValueError(
                f"at least one pair of draws must differ on more than {threshold:.2%} of the reference set"
            )
        form = BalanceModel(setup.predict(draws, rows), edges)
        picks, informed = exact_picks(form, options.batch)
        found["exact_informed"].append(informed)
        found["sampled_informed"].append(sampled_picks(form, options.batch, options.num_samples, seed + repeat))
        found["coverage"].append(coverage(form, picks))
        found["null"].append(null_path(form.predictions, picks))
        orders = [
            torch.randperm(len(rows), generator=generator(seed + repeat, "random batch", i))[: options.batch]
            for i in range(options.num_random)
        ]
        found["random"].append(torch.stack([coverage(form, order) for order in orders]).mean(dim=0))
    means = {name: torch.stack(values).double().mean(dim=0).tolist() for name, values in found.items()}
    return {"num_draws": setup.num_draws, "num_candidates": len(rows), "threshold": threshold, **means}


def coverage(model: BalanceModel, picks: Tensor) -> Tensor:
    """Return Δ / Δ_max after each pick."""
    return balance_path(model, picks).gains.cumsum(dim=0) / model.edges.total_weight


def exact_picks(model: BalanceModel, batch: int) -> tuple[Tensor, Tensor]:
    """Choose greedily by the closed form in float32; also return whether each pick had the largest gain alone."""
    objective = BalanceObjective(model, torch.arange(model.predictions.num_points))
    left = torch.ones(model.predictions.num_points, dtype=torch.bool)
    picks, informed = [], []
    for _ in range(batch):
        pick, alone = best(objective.gains().to(torch.float32), left)
        informed.append(alone)
        picks.append(pick)
        left[pick] = False
        objective.add(pick)
    return torch.tensor(picks), torch.tensor(informed)


def sampled_picks(model: BalanceModel, batch: int, num_samples: int, seed: int) -> Tensor:
    """Return whether each greedy pick by the paper's estimator in float32 had the largest score alone."""
    stream = generator(seed, "configurations")
    estimator = ConfigurationEstimator(model, num_samples=num_samples, generator=stream, dtype=torch.float32)
    every = torch.arange(model.predictions.num_points)
    left = torch.ones(len(every), dtype=torch.bool)
    informed = []
    for number in range(batch):
        pick, alone = best(estimator.scores(every), left)
        informed.append(alone)
        left[pick] = False
        if number + 1 < batch:
            estimator.add(pick)
    return torch.tensor(informed)


def best(scores: Tensor, left: Tensor) -> tuple[int, bool]:
    """Return the first candidate of largest score among those left, and whether no other has that score."""
    open_scores = torch.where(left, scores.cpu(), -torch.inf)
    largest = open_scores.max()
    return int(open_scores.argmax()), int((open_scores == largest).sum()) == 1 and float(largest) > 0


def draw(numbers: dict[str, Any]) -> Any:
    """Draw coverage and its baselines above, informed picks below."""
    figure, (top, bottom) = panels(2)
    picks = range(1, len(numbers["coverage"]) + 1)
    lines = (("coverage", "greedy"), ("random", "random batches"), ("null", "null: label noise alone"))
    for index, (name, label) in enumerate(lines):
        colour, line, marker = look(index + 1, INK)
        top.plot(picks, numbers[name], color=colour, linestyle=line, marker=marker, linewidth=1.6, label=label)
    for index, (name, label) in enumerate((("exact_informed", "exact"), ("sampled_informed", "sampled"))):
        colour, line, marker = look(index + 4, INK)
        bottom.plot(picks, numbers[name], color=colour, linestyle=line, marker=marker, linewidth=1.6, label=label)
    top.set_ylabel("coverage")
    bottom.set_ylabel("share of informed picks")
    bottom.set_xlabel("pick")
    bottom.set_ylim(-0.05, 1.05)
    for axes in (top, bottom):
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.legend(frameon=False, handlelength=3.2, loc="best")
    return figure

"""How much scores depend on the draws: coefficients of variation (figure 16), Δ of one point against K (figure 8)."""

from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from batchbalance.arguments.sections import Section, Whole
from batchbalance.balance.closed_form import balance_scores
from batchbalance.balance.edges import annealed_threshold, connect
from batchbalance.lab.paper.figures import INK, legend, look, panels
from batchbalance.lab.paper.trained import Setup, first_draws
from batchbalance.predictions import Predictions
from batchbalance.scores import bald

NUM_BINS = 40


class VariationOptions(Section):
    """How many sets of draws are compared, and on how many points of the pool at most.

    Attributes:
        num_sets: sets of draws.
        max_pool: points of the pool.
        equal_draws: score BALD by all 2K draws, as BALanCe; else by the first K.
    """

    table = "[options]"
    num_sets: Whole = 5
    max_pool: Whole = 100_000
    equal_draws: bool = True


class DeltaOptions(Section):
    """The numbers of pairs, how often each is repeated, and from how many points of the pool the one is taken."""

    table = "[options]"
    num_pairs: list[Whole]
    repeats: Whole = 10
    max_pool: Whole = 1_000


def variation(scores: Float[Tensor, "R N"]) -> Float[Tensor, " N"]:
    """Return the standard deviation over R sets of draws divided by the mean, of each point; NaN if the mean is 0."""
    return scores.std(dim=0, correction=1) / scores.mean(dim=0)


def compute_variation(
    settings: dict[str, Any], options: VariationOptions, seed: int, data_dir: Path | None
) -> dict[str, Any]:
    """Compute the variation of BALanCe and BALD scores of every point, over sets of draws of one network."""
    setup = Setup.read(settings, seed, data_dir)
    model, error = setup.train(setup.splits.initial, seed)
    threshold = annealed_threshold(error, setup.config.edges.ratio)
    rows = setup.sampled_pool(options.max_pool)
    num_bald = setup.num_draws if options.equal_draws else max(1, setup.num_draws // 2)
    balance, bald_scores = [], []
    for repeat in range(options.num_sets):
        draws = setup.draws(model, "variation", repeat)
        pool, reference = setup.predict(draws, rows), setup.predict(draws, setup.splits.reference)
        balance.append(balance_scores(pool, connect(reference, threshold)).double())
        bald_scores.append(bald(first_draws(pool, num_bald)).double())
    found: dict[str, Any] = {
        "num_points": len(rows), "num_draws": setup.num_draws, "num_bald_draws": num_bald, "threshold": threshold,
    }  # fmt: skip
    for name, scores in (("balance", balance), ("bald", bald_scores)):
        values = variation(torch.stack(scores))
        defined = values[~values.isnan()]
        found[name] = {
            "num_undefined": len(values) - len(defined),
            "median": float(defined.median()) if len(defined) else None,
            "mean": float(defined.mean()) if len(defined) else None,
            "values": defined.tolist(),
        }
    return found


def draw_variation(numbers: dict[str, Any]) -> Any:
    """Draw both histograms."""
    figure, (axes,) = panels(1, legend_rows=1)
    names = {"balance": "BALanCe", "bald": "BALD"}
    largest = max((max(numbers[name]["values"], default=0.0) for name in names), default=0.0) or 1.0
    edges = [largest * i / NUM_BINS for i in range(NUM_BINS + 1)]
    for index, (name, label) in enumerate(names.items()):
        colour, line, _ = look(index + 1, INK)
        values = numbers[name]["values"]
        axes.hist(values, edges, color=colour, alpha=0.3)
        axes.hist(values, edges, histtype="step", color=colour, linestyle=line, linewidth=1.6, label=label)
    axes.set_xlabel("coefficient of variation over sets of draws")
    axes.set_ylabel("points of the pool")
    legend(figure, axes)
    return figure


def compute_delta(settings: dict[str, Any], options: DeltaOptions, seed: int, data_dir: Path | None) -> dict[str, Any]:
    """Compute mean and standard deviation of Δ of one point, the median one of a sample, for several K."""
    setup = Setup.read(settings, seed, data_dir)
    model, error = setup.train(setup.splits.initial, seed)
    threshold = annealed_threshold(error, setup.config.edges.ratio)
    draws = setup.draws(model, "the point")
    rows = setup.sampled_pool(options.max_pool)
    scores = balance_scores(
        setup.predict(draws, rows), connect(setup.predict(draws, setup.splits.reference), threshold)
    )
    row = rows[scores.argsort()[len(scores) // 2]].reshape(1)
    deltas: list[list[float]] = [[] for _ in options.num_pairs]
    for repeat in range(options.repeats):
        many = setup.draws(model, "delta", repeat, 2 * max(options.num_pairs))
        point, reference = setup.predict(many, row), setup.predict(many, setup.splits.reference)
        for found, number in zip(deltas, options.num_pairs, strict=True):
            found.append(single_delta(point, reference, 2 * number, threshold))
    values = torch.tensor(deltas, dtype=torch.float64)
    return {
        "row": int(row),
        "threshold": threshold,
        "num_pairs": options.num_pairs,
        "repeats": options.repeats,
        "mean": values.mean(dim=1).tolist(),
        "std": values.std(dim=1, correction=1).tolist() if options.repeats > 1 else [0.0] * len(deltas),
    }


def single_delta(point: Predictions, reference: Predictions, num_draws: int, threshold: float) -> float:
    """Return Δ of one point under the first draws alone."""
    edges = connect(first_draws(reference, num_draws), threshold)
    return float(balance_scores(first_draws(point, num_draws), edges))


def draw_delta(numbers: dict[str, Any]) -> Any:
    """Draw Δ against K with a bar of one standard deviation."""
    figure, (axes,) = panels(1)
    colour, _, marker = look(1, INK)
    axes.errorbar(
        numbers["num_pairs"], numbers["mean"], numbers["std"], color=colour, marker=marker, linewidth=1.6, capsize=3
    )
    axes.set_xlabel("pairs of draws K")
    axes.set_ylabel("Δ of one point, mean and std")
    return figure

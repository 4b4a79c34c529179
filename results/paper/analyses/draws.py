"""Four analyses of the draws of one trained network, each with its options, `compute` and `draw` functions.

- Posterior map (figure 1): where the draws lie, and how their mass is spread over equivalence classes. A network is
  trained on few images of an imbalanced set (appendix C.2). Distances are Hamming distances between hard predictions
  on the reference set; its true labels are one more point of the map. Accuracy is that on the reference set. The paper
  does not name the radius of its classes; here it is the smallest that leaves at most `max_classes` of them.
- Score variation (figure 16) and Δ against K (figure 8): how much scores depend on the draws.
- Saturation (ours): how soon a batch has discounted everything, and which later picks are still informed. With
  many draws a few points discount nearly all edge weight, and a random batch does so almost as fast. From there on,
  what counts is whether scores still distinguish candidates. A pick is informed if a single candidate has the largest
  score in float32; in a tie the order of the pool decides.
"""

import warnings
from bisect import bisect_left
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from analyses.trained import Setup, draw_lines, first_draws, panels
from batchbalance.arguments.sections import Section, Whole
from batchbalance.arguments.seeds import generator
from batchbalance.balance.closed_form import BalanceModel, BalanceObjective, balance_path, balance_scores, null_path
from batchbalance.balance.edges import connect, hamming_distances, partition
from batchbalance.balance.estimators import ConfigurationEstimator
from batchbalance.lab.report.figures import look
from batchbalance.scores import bald

TICKS = 6  # at most, in the lower panel of the posterior map
NUM_BINS = 40


class PosteriorMapOptions(Section):
    """The perplexity of the map, and the largest number of equivalence classes."""

    table = "[options]"
    max_classes: Whole = 10
    perplexity: float = 30.0


def compute_map(options: PosteriorMapOptions, setup: Setup) -> dict[str, Any]:
    """Compute the map and the classes, as plain numbers."""
    from sklearn.manifold import TSNE

    model, error = setup.train(setup.splits.initial)
    rows = setup.splits.reference
    reference = setup.predict(setup.draws(model, "map"), rows)
    distances = hamming_distances(reference)  # (S, S)
    wrong = (reference.hard_labels() != setup.data.train_y[rows].unsqueeze(1)).sum(dim=0)  # (S,) distance to the truth
    accuracy = 1 - wrong.double() / len(rows)
    radius, classes = fewest_classes(distances, options.max_classes)
    perplexity = min(options.perplexity, len(distances) / 3)
    sne = TSNE(metric="precomputed", init="random", perplexity=perplexity, random_state=setup.seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        x, y = sne.fit_transform(with_truth(distances, wrong).double().numpy()).T.tolist()
    members = [classes == label for label in classes.unique()]
    found = [
        {"mass": float(member.double().mean()), "mean_accuracy": float(accuracy[member].mean())} for member in members
    ]
    return {
        "num_draws": reference.num_draws,
        "num_reference": len(rows),
        "validation_error": error,
        "radius": radius / len(rows),
        "draws": {"x": x[:-1], "y": y[:-1], "accuracy": accuracy.tolist()},
        "truth": {"x": x[-1], "y": y[-1]},
        "classes": sorted(found, key=lambda each: each["mean_accuracy"]),
    }


def fewest_classes(distances: Tensor, most: int) -> tuple[int, Tensor]:
    """Return the smallest radius that gives at most `most` classes, and the class of each draw."""
    radii = distances.unique().tolist()
    # Centres are found in the same order for every radius, so a larger one never gives more of them.
    place = bisect_left(radii, True, key=lambda radius: int(partition(distances, radius).max()) < most)
    return radii[place], partition(distances, radii[place])


def with_truth(distances: Tensor, wrong: Tensor) -> Tensor:
    """Return (S + 1, S + 1) distances with the true labels as the last point."""
    row = torch.cat([wrong, torch.zeros(1, dtype=wrong.dtype)])
    return torch.cat([torch.cat([distances, wrong.unsqueeze(1)], dim=1), row.unsqueeze(0)])


def draw_map(numbers: dict[str, Any]) -> Any:
    """Draw the map above, the mass of classes below."""
    figure, (top, bottom), ink = panels(2)
    draws, truth = numbers["draws"], numbers["truth"]
    dots = top.scatter(draws["x"], draws["y"], c=draws["accuracy"], cmap="viridis", s=18)
    top.plot([truth["x"]], [truth["y"]], marker="*", color="#D55E00", markersize=15, linestyle="", label="true labels")
    top.set_xticks([])
    top.set_yticks([])
    top.set_xlabel("t-SNE of Hamming distances")
    top.legend(frameon=False, loc="lower left", bbox_to_anchor=(0, 1))
    figure.colorbar(dots, ax=top, label="accuracy of the draw")
    classes = numbers["classes"]
    bottom.bar(range(len(classes)), [each["mass"] for each in classes], color="#0072B2", edgecolor=ink, linewidth=0.4)
    bottom.set_ylabel("share of draws")
    shown = range(0, len(classes), -(-len(classes) // TICKS))
    bottom.set_xticks(list(shown), [f"{classes[i]['mean_accuracy']:.2f}" for i in shown])
    bottom.set_xlabel("equivalence classes, by their mean accuracy")
    return figure


class VariationOptions(Section):
    """The number of sets of draws to compare, and of points of the pool.

    Attributes:
        num_sets: sets of draws.
        max_pool: points of the pool.
        equal_draws: score BALD with all 2K draws, like BALanCe; else with the first K.
    """

    table = "[options]"
    num_sets: Whole = 5
    max_pool: Whole = 100_000
    equal_draws: bool = True


def compute_variation(options: VariationOptions, setup: Setup) -> dict[str, Any]:
    """Compute the variation of BALanCe and BALD scores of every point, over sets of draws of one network."""
    model, threshold = setup.train_with_threshold()
    rows = setup.sampled_pool(options.max_pool)
    num_bald = setup.num_draws if options.equal_draws else max(1, setup.num_draws // 2)
    scores: dict[str, list[Tensor]] = {"balance": [], "bald": []}
    for repeat in range(options.num_sets):
        draws = setup.draws(model, "variation", repeat)
        pool, reference = setup.predict(draws, rows), setup.predict(draws, setup.splits.reference)
        scores["balance"].append(balance_scores(pool, connect(reference, threshold)).double())
        scores["bald"].append(bald(first_draws(pool, num_bald)).double())
    found: dict[str, Any] = {
        "num_points": len(rows), "num_draws": setup.num_draws, "num_bald_draws": num_bald, "threshold": threshold,
    }  # fmt: skip
    for name, of_sets in scores.items():
        values = variation(torch.stack(of_sets))
        defined = values[~values.isnan()]
        found[name] = {
            "num_undefined": len(values) - len(defined),
            "median": float(defined.median()) if len(defined) else None,
            "mean": float(defined.mean()) if len(defined) else None,
            "values": defined.tolist(),
        }
    return found


def variation(scores: Float[Tensor, "R N"]) -> Float[Tensor, " N"]:
    """Return the standard deviation over R sets of draws divided by the mean, of each point; NaN if the mean is 0."""
    return scores.std(dim=0, correction=1) / scores.mean(dim=0)


def draw_variation(numbers: dict[str, Any]) -> Any:
    """Draw both histograms."""
    figure, (axes,), ink = panels(1, legend_rows=1)
    names = {"balance": "BALanCe", "bald": "BALD"}
    largest = max(max(numbers[name]["values"], default=0.0) for name in names) or 1.0
    edges = [largest * i / NUM_BINS for i in range(NUM_BINS + 1)]
    for index, (name, label) in enumerate(names.items()):
        colour, line, _ = look(index + 1, ink)
        values = numbers[name]["values"]
        axes.hist(values, edges, color=colour, alpha=0.3)
        axes.hist(values, edges, histtype="step", color=colour, linestyle=line, linewidth=1.6, label=label)
    axes.set_xlabel("coefficient of variation over sets of draws")
    axes.set_ylabel("points of the pool")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
    return figure


class DeltaOptions(Section):
    """The numbers of pairs, the repeats of each, and the size of the sample from which the point is taken."""

    table = "[options]"
    num_pairs: list[Whole]
    repeats: Whole = 10
    max_pool: Whole = 1_000


def compute_delta(options: DeltaOptions, setup: Setup) -> dict[str, Any]:
    """Compute mean and standard deviation of Δ of one point, the median one of a sample, for several K."""
    model, threshold = setup.train_with_threshold()
    draws = setup.draws(model, "the point")
    rows = setup.sampled_pool(options.max_pool)
    edges = connect(setup.predict(draws, setup.splits.reference), threshold)
    scores = balance_scores(setup.predict(draws, rows), edges)
    row = rows[scores.argsort()[len(scores) // 2]].reshape(1)
    deltas: list[list[float]] = [[] for _ in options.num_pairs]
    for repeat in range(options.repeats):
        many = setup.draws(model, "delta", repeat, 2 * max(options.num_pairs))
        point, reference = setup.predict(many, row), setup.predict(many, setup.splits.reference)
        for found, number in zip(deltas, options.num_pairs, strict=True):
            edges = connect(first_draws(reference, 2 * number), threshold)
            found.append(float(balance_scores(first_draws(point, 2 * number), edges)))
    values = torch.tensor(deltas, dtype=torch.float64)
    return {
        "row": int(row),
        "threshold": threshold,
        "num_pairs": options.num_pairs,
        "repeats": options.repeats,
        "mean": values.mean(dim=1).tolist(),
        "std": values.std(dim=1, correction=1).tolist() if options.repeats > 1 else [0.0] * len(deltas),
    }


def draw_delta(numbers: dict[str, Any]) -> Any:
    """Draw Δ against K with a bar of one standard deviation."""
    figure, (axes,), ink = panels(1)
    colour, _, marker = look(1, ink)
    axes.errorbar(
        numbers["num_pairs"], numbers["mean"], numbers["std"], color=colour, marker=marker, linewidth=1.6, capsize=3
    )
    axes.set_xlabel("pairs of draws K")
    axes.set_ylabel("Δ of one point, mean and std")
    return figure


class SaturationOptions(Section):
    """The sizes of the saturation analysis.

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


def compute_saturation(options: SaturationOptions, setup: Setup) -> dict[str, Any]:
    """Compute coverage, its baselines and the share of informed picks after each pick, as means over sets of draws."""
    model, threshold = setup.train_with_threshold()
    seed = setup.seed
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
    """Choose greedily by the closed form in float32; also return whether each pick was the unique maximum."""
    objective = BalanceObjective(model, torch.arange(model.predictions.num_points))
    return _greedy_picks(lambda: objective.gains().to(torch.float32), objective.add, batch)


def sampled_picks(model: BalanceModel, batch: int, num_samples: int, seed: int) -> Tensor:
    """Return whether each greedy pick by the paper's estimator in float32 was the unique maximum."""
    stream = generator(seed, "configurations")
    estimator = ConfigurationEstimator(model, num_samples=num_samples, generator=stream, dtype=torch.float32)
    every = torch.arange(model.predictions.num_points)
    return _greedy_picks(lambda: estimator.scores(every), estimator.add, batch)[1]


def _greedy_picks(scores: Callable[[], Tensor], add: Callable[[int], object], batch: int) -> tuple[Tensor, Tensor]:
    """Add the point with the largest score `batch` times; return the picks, and whether each was the unique maximum."""
    picks: list[int] = []
    informed = []
    while len(picks) < batch:
        current = scores()
        left = torch.ones(len(current), dtype=torch.bool)
        left[picks] = False
        pick, alone = best(current, left)
        picks.append(pick)
        informed.append(alone)
        if len(picks) < batch:
            add(pick)
    return torch.tensor(picks), torch.tensor(informed)


def best(scores: Tensor, left: Tensor) -> tuple[int, bool]:
    """Return the first remaining candidate with the largest score, and whether it is the unique maximum."""
    open_scores = torch.where(left, scores.cpu(), -torch.inf)
    largest = open_scores.max()
    return int(open_scores.argmax()), int((open_scores == largest).sum()) == 1 and float(largest) > 0


def draw_saturation(numbers: dict[str, Any]) -> Any:
    """Draw coverage and its baselines above, informed picks below."""
    figure, (top, bottom), _ = panels(2)
    picks = range(1, len(numbers["coverage"]) + 1)
    lines = {"greedy": "coverage", "random batches": "random", "null: label noise alone": "null"}
    draw_lines(top, picks, {label: numbers[name] for label, name in lines.items()}, first=1)
    informed = {"exact": numbers["exact_informed"], "sampled": numbers["sampled_informed"]}
    draw_lines(bottom, picks, informed, first=4)
    top.set_ylabel("coverage")
    bottom.set_ylabel("share of informed picks")
    bottom.set_xlabel("pick")
    bottom.set_ylim(-0.05, 1.05)
    for axes in (top, bottom):
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.legend(frameon=False, handlelength=3.2, loc="best")
    return figure

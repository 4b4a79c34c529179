"""Figure 1: where the draws of a posterior lie, and how their mass is spread over equivalence classes.

A network is trained on few images of an imbalanced set (appendix C.2). Distances are Hamming distances between hard
predictions on the reference set; its true labels are one more point of the map. Accuracy is that on the reference set.
The paper does not name the radius of its classes; here it is the smallest that leaves at most `max_classes` of them.
"""

import warnings
from bisect import bisect_left
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from batchbalance.arguments.sections import Section, Whole
from batchbalance.balance.edges import hamming_distances, partition
from batchbalance.lab.paper.figures import INK, panels
from batchbalance.lab.paper.trained import Setup

TICKS = 6  # of the lower panel, at most


class PosteriorMapOptions(Section):
    """The perplexity of the map, and how many equivalence classes there are at most."""

    table = "[options]"
    max_classes: Whole = 10
    perplexity: float = 30.0


def compute(settings: dict[str, Any], options: PosteriorMapOptions, seed: int, data_dir: Path | None) -> dict[str, Any]:
    """Compute the map and the classes, as plain numbers."""
    setup = Setup.read(settings, seed, data_dir)
    model, error = setup.train(setup.splits.initial, seed)
    rows = setup.splits.reference
    reference = setup.predict(setup.draws(model, "map"), rows)
    distances = hamming_distances(reference)  # (S, S)
    wrong = (reference.hard_labels() != setup.data.train_y[rows].unsqueeze(1)).sum(dim=0)  # (S,) distance to the truth
    accuracy = 1 - wrong.double() / len(rows)
    radius, classes = fewest_classes(distances, options.max_classes)
    places = embedded(with_truth(distances, wrong), options.perplexity, seed)
    members = [classes == label for label in classes.unique()]
    found = [
        {"mass": float(member.double().mean()), "mean_accuracy": float(accuracy[member].mean())} for member in members
    ]
    return {
        "num_draws": reference.num_draws,
        "num_reference": len(rows),
        "validation_error": error,
        "radius": radius / len(rows),
        "draws": {"x": places[:-1, 0].tolist(), "y": places[:-1, 1].tolist(), "accuracy": accuracy.tolist()},
        "truth": {"x": float(places[-1, 0]), "y": float(places[-1, 1])},
        "classes": sorted(found, key=lambda each: each["mean_accuracy"]),
    }


def fewest_classes(distances: Tensor, most: int) -> tuple[int, Tensor]:
    """Return the smallest radius that gives at most so many classes, and the class of each draw."""
    radii = distances.unique().tolist()
    # Centres are found in the same order whatever the radius, so a larger one never gives more of them.
    place = bisect_left(radii, True, key=lambda radius: int(partition(distances, radius).max()) < most)
    return radii[place], partition(distances, radii[place])


def with_truth(distances: Tensor, wrong: Tensor) -> Tensor:
    """Return (S + 1, S + 1) distances with the true labels as the last point."""
    size = len(distances) + 1
    full = torch.zeros(size, size, dtype=torch.long)
    full[:-1, :-1] = distances
    full[-1, :-1] = full[:-1, -1] = wrong
    return full


def embedded(distances: Tensor, perplexity: float, seed: int) -> Tensor:
    """Return (n, 2) places by t-SNE on given distances."""
    from sklearn.manifold import TSNE

    most = (len(distances) - 1) / 3
    sne = TSNE(metric="precomputed", init="random", perplexity=min(perplexity, most), random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return torch.from_numpy(sne.fit_transform(distances.double().numpy()))


def draw(numbers: dict[str, Any]) -> Any:
    """Draw the map above, the mass of classes below."""
    figure, (top, bottom) = panels(2)
    draws, truth = numbers["draws"], numbers["truth"]
    dots = top.scatter(draws["x"], draws["y"], c=draws["accuracy"], cmap="viridis", s=18)
    top.plot([truth["x"]], [truth["y"]], marker="*", color="#D55E00", markersize=15, linestyle="", label="true labels")
    top.set_xticks([])
    top.set_yticks([])
    top.set_xlabel("t-SNE of Hamming distances")
    top.legend(frameon=False, loc="lower left", bbox_to_anchor=(0, 1))
    figure.colorbar(dots, ax=top, label="accuracy of the draw")
    classes = numbers["classes"]
    bottom.bar(range(len(classes)), [each["mass"] for each in classes], color="#0072B2", edgecolor=INK, linewidth=0.4)
    bottom.set_ylabel("share of draws")
    step = -(-len(classes) // TICKS)
    shown = range(0, len(classes), step)
    bottom.set_xticks(list(shown), [f"{classes[i]['mean_accuracy']:.2f}" for i in shown])
    bottom.set_xlabel("equivalence classes, by their mean accuracy")
    return figure

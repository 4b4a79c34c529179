"""Figure 5: an example where the most informative question is not the most useful one (appendix A.1).

Hypothesis h_i lies at 2^(1−i) on a line, and the distance of two hypotheses is the share of data on which they
disagree. For every subset of the hypotheses there is a point that exactly these label 1. Labels have no noise. The
search stops when all remaining hypotheses are within σ of each other. BALD halves the hypotheses and ignores the
distances; EC² only distinguishes hypotheses further apart than σ.
"""

import math
from collections.abc import Callable
from typing import Annotated, Any

import torch
from jaxtyping import Float, Int
from pydantic import Field
from torch import Tensor

from analyses.hypotheses import HypothesisTable
from analyses.trained import Setup, draw_lines, panels
from batchbalance.arguments.sections import Section
from batchbalance.predictions import Predictions
from batchbalance.scores import bald

MAX_HYPOTHESES = 1_000  # 2^(1−n) is still representable in float64


class LineExampleOptions(Section):
    """The sizes of the searches.

    Attributes:
        num_hypotheses: n, one search for each.
        sigma: σ, the target error.
    """

    table = "[options]"
    num_hypotheses: list[Annotated[int, Field(ge=2, le=MAX_HYPOTHESES)]]
    sigma: Annotated[float, Field(gt=0, lt=1)]


def compute(options: LineExampleOptions, setup: Setup) -> dict[str, Any]:  # noqa: ARG001
    """Count the labels that BALD and EC² need in the worst case, for each n, beside ⌈log₂ n⌉ and ⌈log₂ 1/σ⌉."""
    sizes = options.num_hypotheses
    return {
        "num_hypotheses": sizes,
        "sigma": options.sigma,
        "bald": [worst_case(size, options.sigma, ask_bald) for size in sizes],
        "ec2": [worst_case(size, options.sigma, ask_ec2) for size in sizes],
        "log_n": [math.ceil(math.log2(size)) for size in sizes],
        "log_sigma": math.ceil(math.log2(1 / options.sigma)),
    }


def draw(numbers: dict[str, Any]) -> Any:
    """Draw the positions of the first hypotheses above; labels needed against n below."""
    figure, (top, bottom), ink = panels(2, legend_rows=1)
    places = positions(min(8, max(numbers["num_hypotheses"]))).tolist()
    top.plot(places, [0.0] * len(places), color=ink, marker="o", linestyle="")
    for index, place in enumerate(places[:4]):
        top.annotate(f"h{index + 1}", (place, 0.0), textcoords="offset points", xytext=(0, 8), ha="center")
    top.set_yticks([])
    top.set_xlabel("distance from the limit of the hypotheses")
    draw_lines(bottom, numbers["num_hypotheses"], {"BALD": numbers["bald"], "EC²": numbers["ec2"]}, first=1)
    bottom.axhline(numbers["log_sigma"], color=ink, linewidth=0.8, linestyle=":", label="log₂ 1/σ")
    bottom.set_xscale("log", base=2)
    bottom.set_xlabel("hypotheses n")
    bottom.set_ylabel("labels in the worst case")
    figure.legend(*bottom.get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    return figure


def positions(num_hypotheses: int) -> Float[Tensor, " n"]:
    """Return h_1 … h_n on the line, float64."""
    return torch.tensor([2.0 ** (1 - i) for i in range(1, num_hypotheses + 1)], dtype=torch.float64)


def classes_within(places: Float[Tensor, " n"], sigma: float) -> Int[Tensor, " n"]:
    """Group consecutive hypotheses of diameter at most σ into classes, from the crowded end on."""
    classes = torch.zeros(len(places), dtype=torch.long)
    first = len(places) - 1
    for i in range(len(places) - 1, -1, -1):
        if places[i] - places[first] > sigma:
            first = i
        classes[i] = first
    return classes


def labels_of_points(classes: Int[Tensor, " n"]) -> Float[Tensor, "n N"]:
    """Return labels (n, N) of the points, one for every subset of the hypotheses, up to symmetry.

    There are 2^n subsets. Members of a class are interchangeable, so only the number of members in a subset matters;
    the first members of the class are used.
    """
    labels = torch.zeros(len(classes), 1)
    for members in (classes == c for c in classes.unique()):
        size = int(members.sum())
        choices = torch.zeros(len(classes), size + 1)
        choices[members] = torch.ones(size, size + 1).triu(1)
        labels = (labels.unsqueeze(2) + choices.unsqueeze(1)).flatten(1)
    return labels


def ask_bald(table: Float[Tensor, "n N 2"], classes: Int[Tensor, " n"]) -> int:  # noqa: ARG001
    """Return the point whose label gives the most information about which hypothesis is true."""
    return int(bald(Predictions.from_probs(table, axes="snc")).argmax())


def ask_ec2(table: Float[Tensor, "n N 2"], classes: Int[Tensor, " n"]) -> int:
    """Return the point whose label is expected to cut the most edges between classes."""
    return HypothesisTable(table, classes).next_query()


def worst_case(num_hypotheses: int, sigma: float, ask: Callable[[Tensor, Tensor], int]) -> int:
    """Count the queries until the remaining hypotheses have diameter ≤ σ, for the worst target."""
    places = positions(num_hypotheses)
    classes = classes_within(places, sigma)
    labels = labels_of_points(classes)
    table = torch.stack([1 - labels, labels], dim=2).double()  # (n, N, 2)

    def queries_from(left: Tensor) -> int:
        if places[left].max() - places[left].min() <= sigma:
            return 0
        asked = ask(table[left], classes[left])
        return 1 + max(queries_from(left & (labels[:, asked] == y)) for y in (0, 1))

    return queries_from(torch.ones(num_hypotheses, dtype=torch.bool))

"""Where the most informative question is not the most useful one: the stylised example of the paper's appendix.

Hypothesis h_i lies at 2^(1−i) on a line, and two of them disagree on a share of all data that is their distance.
For every subset of the hypotheses there is a point that exactly they label 1. Labels are free of noise. The search
stops when all hypotheses left are within σ of each other. BALD halves the hypotheses and ignores the distances;
EC² only tells apart what lies further apart than σ.
"""

import math

import torch

from batchbalance import Predictions
from batchbalance.balance.finite import HypothesisTable
from batchbalance.scores import bald


def positions(num_hypotheses):
    """h_1 … h_n on the line; n may be 256, where 2^(1−n) is still a number in float64."""
    return torch.tensor([2.0 ** (1 - i) for i in range(1, num_hypotheses + 1)], dtype=torch.float64)


def classes_within(places, sigma):
    """Consecutive hypotheses of diameter at most σ form a class, from the crowded end on."""
    classes = torch.zeros(len(places), dtype=torch.long)
    first = len(places) - 1
    for i in range(len(places) - 1, -1, -1):
        if places[i] - places[first] > sigma:
            first = i
        classes[i] = first
    return classes


def labels_of_points(classes):
    """Labels (n, N) of the points, one for every subset of the hypotheses, up to symmetry.

    There are 2^n subsets. Members of one class can be exchanged for each other, so that it only matters how many of
    them a subset takes: those are the first so many of the class.
    """
    labels = torch.zeros(len(classes), 1)
    for members in (classes == c for c in classes.unique()):
        size = int(members.sum())
        choices = torch.zeros(len(classes), size + 1)
        choices[members] = torch.ones(size, size + 1).triu(1)
        labels = (labels.unsqueeze(2) + choices.unsqueeze(1)).flatten(1)
    return labels


def ask_bald(table, classes):  # noqa: ARG001
    """The point whose label tells most about which hypothesis is true."""
    return int(bald(Predictions.from_probs(table, axes="snc")).argmax())


def ask_ec2(table, classes):
    """The point whose label is expected to cut the most edges between classes."""
    return HypothesisTable(table, classes).next_query()


def worst_case(num_hypotheses, sigma, ask):
    """Queries until the hypotheses left have diameter ≤ σ, for the target that takes longest."""
    places = positions(num_hypotheses)
    classes = classes_within(places, sigma)
    labels = labels_of_points(classes)
    table = torch.stack([1 - labels, labels], dim=2).double()  # (n, N, 2)

    def queries_from(left):
        if places[left].max() - places[left].min() <= sigma:
            return 0
        asked = ask(table[left], classes[left])
        return 1 + max(queries_from(left & (labels[:, asked] == y)) for y in (0, 1))

    return queries_from(torch.ones(num_hypotheses, dtype=torch.bool))


def main(num_hypotheses=256, sigma=1 / 16):
    """Print how many labels either needs in the worst case."""
    needed = {name: worst_case(num_hypotheses, sigma, ask) for name, ask in (("BALD", ask_bald), ("EC²", ask_ec2))}
    print(f"{num_hypotheses} hypotheses, stop at diameter {sigma:g}; labels needed in the worst case:")
    print(f"  BALD {needed['BALD']}  (⌈log₂ n⌉ = {math.ceil(math.log2(num_hypotheses))})")
    print(f"  EC²  {needed['EC²']}  (at most ⌈log₂ 1/σ⌉ = {math.ceil(math.log2(1 / sigma))})")
    return needed


if __name__ == "__main__":
    main()

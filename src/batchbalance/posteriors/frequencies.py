"""Class frequencies estimated from labels, shrunk towards equal ones as far as the labels allow.

Counts of classes are multinomial. Before any label, frequencies are equal with probability ½, and otherwise from a
symmetric Dirichlet(α) of unknown α. The evidence of the counts weighs these cases: labels of a balanced pool favour
equal frequencies, while 19 labels of one class and 1 of another favour a small α.
"""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

CONCENTRATIONS = tuple(2.0**k for k in range(-3, 11))  # values of α
SKEWED = 1.0  # α up to which frequencies differ a lot: at 1 every set of frequencies is equally likely
FEW = 5.0  # labels of a class: a class without labels counts as having at most this many


class Frequencies(NamedTuple):
    """Frequencies of classes.

    Attributes:
        shares: (C,) the expected frequencies, all above 0.
        skew: the probability that α is at most `SKEWED`.
        offset: (C,) what a model adds to its logits, at most 0: the logarithms of the shares, times the skew. On
            balanced labels the counts are mostly chance, and predictions that follow them are worse. A class without
            labels is no more frequent than one with `FEW`.
    """

    shares: Float[Tensor, " C"]
    skew: float
    offset: Float[Tensor, " C"]


def class_frequencies(labels: Int[Tensor, " N"], num_classes: int) -> Frequencies:
    """Return the frequencies of classes given (N,) labels, in float64 where the labels are."""
    counts = torch.bincount(labels, minlength=num_classes).double()
    alphas = counts.new_tensor(CONCENTRATIONS)
    totals = num_classes * alphas
    each = torch.lgamma(counts + alphas[:, None]) - torch.lgamma(alphas)[:, None]
    evidence = each.sum(dim=1) + torch.lgamma(totals) - torch.lgamma(len(labels) + totals) - math.log(len(alphas))
    of_equal = evidence.new_tensor([-len(labels) * math.log(num_classes)])
    weights = torch.softmax(torch.cat([evidence, of_equal]), dim=0)
    shares = weights[:-1] @ ((counts + alphas[:, None]) / (len(labels) + totals)[:, None]) + weights[-1] / num_classes
    skew = float(weights[:-1][alphas <= SKEWED].sum())
    offset, seen = skew * (shares / shares.max()).log(), counts > 0
    if seen.any():
        highest = offset[seen].mean() - (counts[seen].mean() / FEW).clamp_min(1).log()
        offset = torch.where(seen, offset, offset.minimum(highest))
    return Frequencies(shares, skew, offset)

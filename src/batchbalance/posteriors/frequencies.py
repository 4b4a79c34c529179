"""Class frequencies that labels tell of, shrunk towards equal ones as far as the labels allow it.

Counts of classes are multinomial. Before any label, frequencies are equal with probability ½, and otherwise from a
symmetric Dirichlet(α) of unknown α. The evidence of the counts weighs these cases: labels of a balanced pool favour
equal frequencies, while 19 labels of one class and 1 of another favour a small α. A class without labels gets less than
any other.
"""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

CONCENTRATIONS = tuple(2.0**k for k in range(-3, 11))  # values of α
SKEWED = 1.0  # α up to which frequencies differ a lot: at 1 every set of frequencies is equally likely


class Frequencies(NamedTuple):
    """Frequencies of classes.

    Attributes:
        shares: (C,) the expected frequencies, all above 0.
        skew: the probability that α is at most `SKEWED`.
    """

    shares: Float[Tensor, " C"]
    skew: float

    @property
    def logs(self) -> Tensor:
        """(C,) their logarithms, moved so that the largest is 0."""
        return (self.shares / self.shares.max()).log()


def class_frequencies(labels: Int[Tensor, " N"], num_classes: int) -> Frequencies:
    """Return the frequencies of classes given (N,) labels, in float64 where the labels are."""
    counts = torch.bincount(labels, minlength=num_classes).double()
    alphas = counts.new_tensor(CONCENTRATIONS)
    totals = num_classes * alphas
    each = torch.lgamma(counts + alphas[:, None]) - torch.lgamma(alphas)[:, None]
    evidence = each.sum(dim=1) + torch.lgamma(totals) - torch.lgamma(len(labels) + totals) - math.log(len(alphas))
    of_equal = evidence.new_tensor([-len(labels) * math.log(num_classes)])
    weights = torch.softmax(torch.cat([evidence, of_equal]), dim=0)
    shares = (counts + alphas[:, None]) / (len(labels) + totals)[:, None]
    return Frequencies(weights[:-1] @ shares + weights[-1] / num_classes, float(weights[:-1][alphas <= SKEWED].sum()))

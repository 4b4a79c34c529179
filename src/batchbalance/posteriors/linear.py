"""Draws of a linear head: around the most probable weights by Laplace's approximation, or on resampled labels."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from batchbalance.posteriors.laplace import Span, deviations, is_exact
from batchbalance.posteriors.softmax import most_probable, product
from batchbalance.posteriors.tuning import USUAL_PRECISION, Folds, Resamples, Tuned, normal, resamples, tuned
from batchbalance.seeds import generator


@dataclass(frozen=True, eq=False)
class LinearDraws:
    """The weights of a linear head.

    Attributes:
        best: (D, C), the most probable ones.
        draws: (D, S, C).
        tuned: their precision and temperature.
        covariance: "exact" or "kronecker" for Laplace's approximation; None for a bootstrap.
    """

    best: Tensor
    draws: Tensor
    tuned: Tuned
    covariance: str | None = None


def laplace_draws(
    x: Float[Tensor, "N D"],
    labels: Int[Tensor, " N"],
    num_classes: int,
    num_draws: int,
    *,
    seed: int,
    precision: float | None = None,
    temperature: float | None = None,
    centre: Float[Tensor, "D C"] | None = None,
) -> LinearDraws:
    """Draws from N(W*, T·H⁻¹).

    Args:
        x: the rows.
        labels: their classes.
        num_classes: C.
        num_draws: S.
        seed: for draws and cross-validation.
        precision: λ; chosen on the labels if left out.
        temperature: T; chosen on the labels if left out.
        centre: W*; the most probable weights if left out. Labels cannot tell the precision of given weights, so that it
            is the usual one then, if left out.
    """
    span = Span.of(x)
    inner = None if centre is None else span.basis @ centre
    folds = Folds(span.rows, labels, num_classes, generator(seed, "cross-validation"), inner)
    found = tuned(folds, USUAL_PRECISION if precision is None and centre is not None else precision, temperature)
    if centre is None:
        once = x.new_ones(len(x), 1)
        inner = most_probable(span.rows, labels, num_classes, once, once[0] * found.precision)[:, 0]
        centre = span.basis.T @ inner
    exact = is_exact(x, num_classes)
    probs = torch.softmax(span.rows @ (span.basis @ centre), dim=1)
    noise = normal((x.shape[1], num_draws, num_classes), x, generator(seed, "laplace"))
    moves = deviations(span, probs, found.precision, noise, exact=exact)
    draws = centre[:, None] + found.temperature**0.5 * moves
    return LinearDraws(centre, draws, found, "exact" if exact else "kronecker")


def bootstrap_draws(
    x: Float[Tensor, "N D"],
    labels: Int[Tensor, " N"],
    num_classes: int,
    num_draws: int,
    *,
    seed: int,
    precision: float | None = None,
) -> LinearDraws:
    """The most probable weights given each of `num_draws` resamples of the rows, all found at once.

    The arguments are those of ``laplace_draws``.
    """
    span = Span.of(x)
    trials = Resamples(span.rows, labels, num_classes, generator(seed, "cross-validation"))
    found = tuned(trials, precision, 1.0)
    once = x.new_ones(len(x), 1)
    best = most_probable(span.rows, labels, num_classes, once, once[0] * found.precision)
    counts = resamples(labels, num_draws, generator(seed, "bootstrap")).to(x)
    precisions = x.new_full((num_draws,), found.precision)
    heads = most_probable(span.rows, labels, num_classes, counts, precisions, best.expand(-1, num_draws, -1))
    return LinearDraws(span.basis.T @ best[:, 0], product(span.basis.T, heads), found)

"""Draws of a linear head: around the most probable weights by Laplace's approximation, or on resampled labels."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from batchbalance.posteriors.laplace import Span, deviations, is_exact
from batchbalance.posteriors.softmax import most_probable, product
from batchbalance.posteriors.tuning import (
    PRECISIONS,
    TEMPERATURES,
    USUAL_PRECISION,
    Folds,
    Resamples,
    Tuned,
    normal,
    resamples,
    tuned,
    tuned_bootstrap,
)
from batchbalance.seeds import generator

SOLVED_AT_ONCE = 2**24  # numbers; heads that take more together are solved in parts


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
        precision: λ; chosen on the labels if omitted.
        temperature: T; chosen on the labels if omitted.
        centre: W*; the most probable weights if omitted. Labels cannot tell the precision of given weights, so that it
            is the usual one then, if omitted.
    """
    span = Span.of(x)
    inner = None if centre is None else span.basis @ centre
    folds = Folds(span.rows, labels, num_classes, generator(seed, "cross-validation"), inner)
    precisions = PRECISIONS if centre is None else (USUAL_PRECISION,)
    found = tuned(
        folds,
        precisions if precision is None else (precision,),
        TEMPERATURES if temperature is None else (temperature,),
    )
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
    rows, random = span.rows, generator(seed, "cross-validation")
    folds, resampled = (kind(rows, labels, num_classes, random) for kind in (Folds, Resamples))
    found = tuned_bootstrap(folds, resampled, precision)
    once = x.new_ones(len(x), 1)
    best = most_probable(rows, labels, num_classes, once, once[0] * found.precision)
    counts = resamples(labels, num_draws, generator(seed, "bootstrap")).to(x)
    size = max(1, SOLVED_AT_ONCE // (num_classes * max(rows.shape)))
    heads = [
        most_probable(
            rows,
            labels,
            num_classes,
            some,
            x.new_full((some.shape[1],), found.heads_precision or found.precision),
            best.expand(-1, some.shape[1], -1),
            rough=True,
        )
        for some in torch.split(counts, size, dim=1)
    ]
    return LinearDraws(span.basis.T @ best[:, 0], product(span.basis.T, torch.cat(heads, dim=1)), found)

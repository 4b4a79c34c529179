"""Draws of a linear head: around the most probable weights by Laplace's approximation, or on resampled labels.

The logits of a row x are x·W + b. The bias b = s·log π + c·w has two parts. The frequencies π are those of the labels,
shrunk towards equal ones, and s is the probability that they are skewed; w is the weight of a constant feature of size
c = s², with the prior of all other weights. On balanced labels both parts are close to 0: few labels of each class say
little about frequencies, and a free bias would fit noise. On skewed labels s is close to 1, so that rare
classes are predicted rarely.

Labels that a strategy chose can be balanced although the pool is not. The classes then differ by more than a rotation
around the centre of the pool, which only a bias can express. So a free bias, c = 1, is tried as well, and used if it
predicts held-out labels clearly better.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from batchbalance.arguments.seeds import generator
from batchbalance.posteriors.softmax import Span, class_frequencies, is_exact, most_probable, product
from batchbalance.posteriors.tuning import (
    PRECISIONS,
    TEMPERATURES,
    USUAL_PRECISION,
    Folds,
    Resamples,
    Tuned,
    deviations_of_labels,
    normal,
    resamples,
    tuned,
    tuned_heads,
    with_classes,
)

FREE = 1.0  # c of a free bias
WORTH_IT = 4.0  # required gain in held-out log likelihood by a free bias, summed over labels
SOLVED_AT_ONCE = 2**24  # numbers; heads that need more are solved in parts


@dataclass(frozen=True, eq=False)
class LinearDraws:
    """The weights of a linear head; the last row of each is the bias.

    Attributes:
        best: (D + 1, C) the most probable weights; (D + 1, L) for several labels, whose logits are log-odds.
        draws: (D + 1, S, C) the draws, or (D + 1, S, L).
        tuned: precision, temperature and bias.
        covariance: "exact" or "kronecker" for Laplace's approximation; None for a bootstrap.
    """

    best: Tensor
    draws: Tensor
    tuned: Tuned
    covariance: str | None = None


@dataclass(frozen=True, eq=False)
class Bias:
    """The bias of a linear head.

    Attributes:
        size: c, the size of the constant feature.
        offset: (1, C) s·log π, added to all logits; (L, C) for several labels.
    """

    size: float
    offset: Tensor

    @classmethod
    def chosen(cls, labels: Tensor, num_classes: int, size: float | None, like: Tensor) -> "Bias":
        """Choose the bias on the labels, unless c is given; if c is 0, frequencies are ignored too."""
        if size == 0:
            return cls(0.0, like.new_zeros(labels[0].numel(), num_classes))
        found = class_frequencies(labels, num_classes)
        return cls(found.skew**2 if size is None else size, found.offset.reshape(-1, num_classes).to(like))

    def folded(self, weights: Float[Tensor, "D1 *S L C"], labels: Tensor) -> Tensor:
        """Return weights with the bias in place of the weight of the constant feature.

        They are (D + 1, ..., C) for classes, and (D + 1, ..., L) log-odds of "yes" for several labels.
        """
        weights = torch.cat([weights[:-1], self.size * weights[-1:] + self.offset])
        return weights[..., 0, :] if labels.ndim == 1 else weights[..., 1] - weights[..., 0]


def laplace_draws(
    x: Float[Tensor, "N D"],
    labels: Int[Tensor, "N ..."],
    num_classes: int,
    num_draws: int,
    *,
    seed: int,
    precision: float | None = None,
    temperature: float | None = None,
    bias: float | None = None,
    centre: Float[Tensor, "D1 C"] | None = None,
) -> LinearDraws:
    """Return draws from N(W*, T·H⁻¹).

    Args:
        x: the rows.
        labels: their classes, (N,), or several labels of each, (N, L) of 0 and 1.
        num_classes: C; 2 for several labels.
        num_draws: S.
        seed: seed for draws and cross-validation.
        precision: λ; chosen on the labels if omitted.
        temperature: T; chosen on the labels if omitted.
        bias: c, the size of the constant feature; chosen on the labels if omitted. 0 for no bias and no frequencies.
        centre: (D + 1, C) W* and the bias; the most probable weights if omitted. Labels do not determine the precision
            of given weights, so its default is then the usual one. `bias` must be given and above 0.
    """
    tried = (USUAL_PRECISION,) if centre is not None else PRECISIONS
    tried = tried if precision is None else (precision,)
    temperatures = TEMPERATURES if temperature is None else (temperature,)
    if centre is None:
        biased, span, folds, alone = with_bias(x, labels, num_classes, bias, tried, seed)
        tried = (alone.precision,)
    else:  # the given bias includes the frequencies
        biased = Bias(bias or FREE, x.new_zeros(1, num_classes))
        centre = torch.cat([centre[:-1], centre[-1:] / biased.size])
        span = Span.of(with_constant(x, biased.size))
        random = generator(seed, "cross-validation")
        folds = Folds(span.rows, labels, num_classes, random, False, span.basis @ centre)
    x = with_constant(x, biased.size)
    found = tuned(folds, tried, temperatures)
    if centre is None:
        best = product(span.basis.T, _alone(span.rows, labels, num_classes, found.precision, biased.offset))
    else:
        best = centre[:, None]
    exact, num_labels = is_exact(x, num_classes), len(biased.offset)
    probs = torch.softmax(product(span.rows, product(span.basis, best)) + biased.offset, dim=2)
    noise = normal((x.shape[1], num_draws * num_labels, num_classes), x, generator(seed, "laplace"))
    moves = deviations_of_labels(span, probs, found.precision, noise, exact=exact)
    draws = best[:, None] + found.temperature**0.5 * moves
    found = replace(found, bias=biased.size)
    folded = biased.folded(best, labels), biased.folded(draws, labels)
    return LinearDraws(*folded, found, "exact" if exact else "kronecker")


def bootstrap_draws(
    x: Float[Tensor, "N D"],
    labels: Int[Tensor, "N ..."],
    num_classes: int,
    num_draws: int,
    *,
    seed: int,
    precision: float | None = None,
    bias: float | None = None,
) -> LinearDraws:
    """Return the most probable weights given each of `num_draws` resamples of the rows, solved together.

    The arguments are those of ``laplace_draws``.
    """
    tried = PRECISIONS if precision is None else (precision,)
    biased, span, _, alone = with_bias(x, labels, num_classes, bias, tried, seed)
    rows, offset = span.rows, biased.offset
    resampled = Resamples(rows, labels, num_classes, generator(seed, "out of bag"), offset)
    found = replace(tuned_heads(alone, resampled, given=precision is not None), bias=biased.size)
    best = _alone(rows, labels, num_classes, found.precision, offset)
    counts = resamples(labels, num_draws, generator(seed, "bootstrap"))
    size = max(1, SOLVED_AT_ONCE // (len(offset) * num_classes * max(rows.shape)))
    parts = []
    for part in torch.split(counts, size, dim=1):
        some = with_classes(labels, part).to(x)
        precisions = x.new_full((some.shape[1],), found.heads_precision or found.precision)
        start = best.repeat(1, part.shape[1], 1)
        parts.append(most_probable(rows, labels, num_classes, some, precisions, start, offset=offset, rough=True))
    draws = product(span.basis.T, torch.cat(parts, dim=1)).unflatten(1, (num_draws, -1))
    best = product(span.basis.T, best)
    return LinearDraws(biased.folded(best, labels), biased.folded(draws, labels), found)


def with_bias(
    x: Float[Tensor, "N D"],
    labels: Int[Tensor, "N ..."],
    num_classes: int,
    size: float | None,
    precisions: tuple[float, ...],
    seed: int,
) -> tuple[Bias, Span, Folds, Tuned]:
    """Choose the bias; return it, the rows with the constant feature, their folds, and the best precision."""
    followed = Bias.chosen(labels, num_classes, size, x)
    sizes = [followed.size]
    if size is None and followed.size < FREE / 2:
        sizes.append(FREE)
    found = []
    for each in sizes:
        span = Span.of(with_constant(x, each))
        folds = Folds(span.rows, labels, num_classes, generator(seed, "cross-validation"), size != 0)
        found.append((replace(followed, size=each), span, folds, tuned(folds, precisions, (0.0,))))
    first, free = found[0], found[-1]
    return free if free[-1].cost + WORTH_IT < first[-1].cost else first


def refitted(
    x: Float[Tensor, "N D"], labels: Int[Tensor, "N ..."], num_classes: int, tuned: Tuned
) -> Float[Tensor, "D1 C"]:
    """Return the most probable weights of some rows, the bias last, with the precision and bias of another head."""
    biased = Bias.chosen(labels, num_classes, tuned.bias, x)
    found = _alone(with_constant(x, biased.size), labels, num_classes, tuned.precision, biased.offset)
    return biased.folded(found, labels)


def _alone(rows: Tensor, labels: Tensor, num_classes: int, precision: float, offset: Tensor) -> Tensor:
    """Return the most probable weights of one regression on all rows for each label, (D, L, C)."""
    once = rows.new_ones(len(rows), len(offset))
    return most_probable(rows, labels, num_classes, once, once[0] * precision, offset=offset)


def linear_logits(x: Float[Tensor, "N D"], draws: Float[Tensor, "D1 S C"]) -> Float[Tensor, "N S C"]:
    """Return the logits of rows under each draw of a linear head."""
    return product(x, draws[:-1]) + draws[-1]


def with_constant(x: Float[Tensor, "N D"], size: float) -> Float[Tensor, "N D1"]:
    """Return the rows with a constant feature after the others."""
    return torch.cat([x, x.new_full((len(x), 1), size)], dim=1)

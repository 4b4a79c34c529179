"""Prior precision and temperature of a Bayesian head, chosen on its labels alone.

The precision λ is the one whose most probable weights have the lowest NLL on rows held out by folds. A penalty is added
to the summed NLL: `PULL` times the square of the number of factors of 4 between λ and the usual one. So few rows move λ
only a little, and many rows override the penalty. Draws are compared by the NLL of their mean: on the same folds for
temperatures T of the Laplace approximation, on out-of-bag rows (Breiman 1996) for bootstrap heads. The lowest NLL alone
would often make draws almost equal. So T is the highest temperature whose NLL is within `SLACK` of the best: as much
disagreement as possible without worse predictions.

Several labels of each row, (N, L) of 0 and 1, are predicted together: the NLL of a row is the sum over its labels.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from batchbalance.posteriors.softmax import (
    Span,
    by_label,
    class_frequencies,
    deviations,
    is_exact,
    most_probable,
    one_hot,
    product,
)

PRECISIONS = tuple(4.0**-k for k in range(-1, 7))
PULL = 0.3
TEMPERATURES = tuple(2.0**-k for k in range(12))
WEAKER = (1.0, 1 / 4, 1 / 16)  # candidate precisions of bootstrap heads, relative to that of the most probable weights
SLACK = 1.03
HOPELESS = 1.1  # above this multiple of the best NLL, smaller precisions are not tried
NUM_FOLDS = 5
NUM_DRAWS = 32  # draws of a Laplace approximation per comparison
NUM_HEADS = 16  # heads of a bootstrap per comparison
USUAL_PRECISION = 1 / 64
LEAST_HELD_OUT, USUAL_TEMPERATURE = 30, 0.01  # with fewer held-out rows, the usual temperature is used
LEAST_PROBABILITY = 2.0**-52


@dataclass(frozen=True)
class Tuned:
    """Precision and temperature of a head, and its held-out errors.

    Attributes:
        precision: λ of the prior.
        temperature: T, which multiplies the covariance; 0 for most probable weights alone, 1 for a bootstrap.
        num_held_out: number of rows that were held out once.
        nll: NLL on these rows, of the mean of draws, or of the most probable weights for a bootstrap; None if there are
            no such rows, so that the usual values were used. Of several labels of a row it is the sum.
        error: error rate of the most probable weights on these rows; None like `nll`. Of several labels of a row it is
            the share of wrong ones.
        frequencies_nll: NLL of the class frequencies of the other rows on these rows; None like `nll`.
        heads_precision: λ of bootstrap heads, whose mean is less confident than each head; None for others.
        bias: c, the width of the prior of the bias relative to that of other weights.
    """

    precision: float
    temperature: float
    num_held_out: int
    nll: float | None = None
    error: float | None = None
    frequencies_nll: float | None = None
    heads_precision: float | None = None
    bias: float = 0.0

    def __str__(self) -> str:
        other = f"temperature {self.temperature:.4g}"
        if self.heads_precision is not None:
            other = f"precision of heads {self.heads_precision:.4g}"
        values = f"precision {self.precision:.4g}, {other}, bias {self.bias:.2g}"
        if self.nll is None:
            return f"{values}; no row can be held out for cross-validation"
        return f"{values}; on {self.num_held_out:,} held-out rows NLL {self.nll:.3f}, error {self.error:.3f}"

    @property
    def cost(self) -> float:
        """The cost that `tuned` minimises."""
        return self.num_held_out * (self.nll or 0.0) + PULL * math.log(self.precision / USUAL_PRECISION, 4) ** 2

    @property
    def warning(self) -> str | None:
        """A warning if the head predicts held-out labels worse than class frequencies alone; else None."""
        if self.nll is None or self.frequencies_nll is None or self.nll <= self.frequencies_nll:
            return None
        return (
            f"the model predicts held-out labels worse than class frequencies alone (NLL {self.nll:.2f} against "
            f"{self.frequencies_nll:.2f} on {self.num_held_out:,} labels): do not trust its predictions until there "
            "are more labels"
        )


def tuned(
    trials: Any,
    precisions: tuple[float, ...],
    temperatures: tuple[float, ...],
    usual: float = USUAL_PRECISION,
) -> Tuned:
    """Return the best of some precisions, and the highest temperature that is about as good; both are descending.

    `trials` are `Folds` or `Resamples`; `usual` is the precision that the penalty favours.
    """
    num = trials.num_held_out
    if num < LEAST_HELD_OUT and len(temperatures) > 1:
        temperatures = (USUAL_TEMPERATURE,)
    if num == 0:
        return Tuned(precisions[0] if len(precisions) == 1 else usual, temperatures[0], num)
    best: Tuned | None = None
    least, lowest_of_best = float("inf"), float("inf")
    for precision in precisions:  # each starts from the weights of the previous one
        nll, error = trials.evaluate(precision, temperatures)
        lowest = float(nll.min())
        cost = num * lowest + PULL * math.log(precision / usual, 4) ** 2
        if cost < least:
            warmest = int((nll <= SLACK * lowest).nonzero()[0])
            of_warmest = float(nll[warmest])
            best = Tuned(precision, temperatures[warmest], num, of_warmest, error, trials.frequencies_nll)
            least, lowest_of_best = cost, lowest
        elif lowest > HOPELESS * lowest_of_best:
            break
    if best is None:
        raise ValueError("`embeddings` must give finite predictions, got NaN; check them for huge numbers")
    return best


def tuned_heads(alone: Tuned, resampled: Any, *, given: bool) -> Tuned:
    """Return the result for the most probable weights with the precision of bootstrap heads, chosen unless given."""
    shares = (1.0,) if given else WEAKER
    heads = tuned(resampled, tuple(alone.precision * share for share in shares), (1.0,), usual=alone.precision)
    return replace(alone, temperature=1.0, heads_precision=heads.precision)


class Folds:
    """Cross-validation: each fold is predicted by the Laplace approximation of the others.

    Args:
        x: (N, D) rows, in the basis of their span.
        labels: (N,) their classes, or (N, L) several labels.
        num_classes: C.
        generator: random generator for folds and draws.
        frequencies: whether the log frequencies of the classes in the other folds are added to the logits.
        centre: (D, C) the mean of the draws; the weights of each fit if omitted.
    """

    def __init__(
        self,
        x: Float[Tensor, "N D"],
        labels: Int[Tensor, "N ..."],
        num_classes: int,
        generator: torch.Generator,
        frequencies: bool,
        centre: Float[Tensor, "D C"] | None = None,
    ) -> None:
        self._x, self._labels = x, by_label(labels)
        num_labels = self._labels.shape[1]
        self._counts = x.new_ones(len(x), NUM_FOLDS)
        for fold, rows in enumerate(stratified_folds(labels, NUM_FOLDS, generator)):
            self._counts[rows.to(x.device), fold] = 0
        self._out = (self._counts == 0) & (self._counts > 0).any(dim=0)
        self.num_held_out = int(self._out.sum())
        self._frequencies = [class_frequencies(labels[known], num_classes) for known in self._counts.T > 0]
        logs = torch.cat([each.offset.reshape(-1, num_classes) for each in self._frequencies]).to(x)  # (K·L, C)
        self._offset = logs if frequencies else torch.zeros_like(logs)
        counts = self._counts.repeat_interleave(num_labels, dim=1)
        self._solve = partial(most_probable, x, labels, num_classes, counts, offset=self._offset, rough=True)
        self._exact = is_exact(x, num_classes)
        self._noise = normal((x.shape[1], NUM_DRAWS * num_labels, num_classes), x, generator)
        self._given = None if centre is None else centre[:, None].expand(-1, NUM_FOLDS, -1)
        self._start: Tensor | None = None

    def evaluate(self, precision: float, temperatures: tuple[float, ...]) -> tuple[Tensor, float]:
        """Return the NLL of the mean of draws at each temperature, and the error of the most probable weights."""
        centres = self._given
        num_labels = self._labels.shape[1]
        if centres is None:  # of each fold and label, (D, K·L, C)
            precisions = self._counts.new_full((NUM_FOLDS * num_labels,), precision)
            self._start = centres = self._solve(precisions, self._start)
        logits = (product(self._x, centres) + self._offset).unflatten(1, (NUM_FOLDS, -1))  # (N, K, L, C)
        total, wrong = torch.zeros(len(temperatures), dtype=torch.float64), 0
        for fold in range(NUM_FOLDS):
            out = self._out[:, fold]
            there, true = logits[out, fold], self._labels[out]
            wrong += int((there.argmax(dim=2) != true).sum())
            moves = logits.new_zeros(1)
            if any(temperatures):  # change of these logits by draws of the other folds at temperature 1, (n, S, L, C)
                probs = torch.softmax(logits[self._counts[:, fold] > 0, fold], dim=2)
                deviating = deviations_of_labels(self._spans[fold], probs, precision, self._noise, exact=self._exact)
                moves = product(self._x[out], deviating.flatten(1, 2)).unflatten(1, (-1, num_labels))
            for index, temperature in enumerate(temperatures):
                drawn = there[:, None] + temperature**0.5 * moves
                which = true[:, None, :, None].expand(-1, drawn.shape[1], -1, 1)
                of_label = drawn.gather(3, which)[:, :, :, 0]
                of_true = (of_label - torch.logsumexp(drawn, dim=3)).exp().mean(dim=1)
                total[index] -= of_true.clamp_min(LEAST_PROBABILITY).log().double().sum().cpu()
        return total / self.num_held_out, wrong / (self.num_held_out * num_labels)

    @cached_property
    def frequencies_nll(self) -> float | None:
        """The NLL of held-out rows by the class frequencies of the others; None if there are no such rows."""
        if self.num_held_out == 0:
            return None
        total = 0.0
        for out, found in zip(self._out.T, self._frequencies, strict=True):
            logs = found.shares.reshape(self._labels.shape[1], -1).log()  # (L, C)
            total -= float(logs.gather(1, self._labels[out].T).sum())
        return total / self.num_held_out

    @cached_property
    def _spans(self) -> list[Span]:
        """The span of the rows outside each fold."""
        return [Span.of(self._x[self._counts[:, fold] > 0]) for fold in range(NUM_FOLDS)]


class Resamples:
    """Out-of-bag validation: each row is predicted by the mean of the bootstrap heads that have not seen it.

    Args:
        x: (N, D) rows, in the basis of their span.
        labels: (N,) their classes, or (N, L) several labels.
        num_classes: C.
        generator: random generator for resamples.
        offset: (1, C), or (L, C) by label, added to all logits.
    """

    frequencies_nll: float | None = None  # computed by `Folds`

    def __init__(
        self,
        x: Float[Tensor, "N D"],
        labels: Int[Tensor, "N ..."],
        num_classes: int,
        generator: torch.Generator,
        offset: Float[Tensor, "L C"],
    ) -> None:
        self._x, self._labels, self._offset = x, by_label(labels), offset
        self._counts = with_classes(labels, resamples(labels, NUM_HEADS, generator)).to(x)
        self._solve = partial(most_probable, x, labels, num_classes, self._counts, offset=offset, rough=True)
        self._out = held_out(labels, self._counts).unflatten(1, (NUM_HEADS, -1))  # (N, M, L)
        self.num_held_out = int(self._out.flatten(1).any(dim=1).sum())
        self._start: Tensor | None = None

    def evaluate(self, precision: float, temperatures: tuple[float, ...]) -> tuple[Tensor, float]:
        """Return the NLL of the mean of heads, the same at each temperature, and its error."""
        self._start = self._solve(self._counts.new_full(self._counts.shape[1:], precision), self._start)
        unseen = self._out.any(dim=1)  # (N, L)
        weights = self._out / self._out.sum(dim=1, keepdim=True).clamp_min(1)
        logits = product(self._x, self._start).unflatten(1, (NUM_HEADS, -1)) + self._offset
        probs = (torch.softmax(logits, dim=3) * weights[..., None]).sum(dim=1)[unseen]
        true = self._labels[unseen]
        of_true = probs.gather(1, true[:, None])[:, 0].clamp_min(LEAST_PROBABILITY)
        nll = -of_true.log().double().sum().cpu() / self.num_held_out
        return nll.expand(len(temperatures)), float((probs.argmax(dim=1) != true).double().mean())


def deviations_of_labels(
    span: Span,
    probs: Float[Tensor, "N L C"],
    precision: float,
    noise: Float[Tensor, "D SL C"],
    *,
    exact: bool,
) -> Float[Tensor, "D S L C"]:
    """Return ``deviations`` of the regression of each label."""
    each = noise.unflatten(1, (-1, probs.shape[1])).unbind(dim=2)
    found = [deviations(span, p, precision, e, exact=exact) for p, e in zip(probs.unbind(dim=1), each, strict=True)]
    return torch.stack(found, dim=2)


def stratified_folds(
    labels: Int[Tensor, "N ..."], num: int, generator: torch.Generator, *, singles: bool = True
) -> list[Tensor]:
    """Return the rows of at most `num` random folds of nearly equal size, with nearly equal shares of every class.

    Without `singles`, the only label of a class is in no fold, because a fit without it would not have the class. A row
    with several labels counts as one of its rarest label.
    """
    labels = labels.cpu()
    if labels.ndim == 2:
        ranks = labels.sum(dim=0).argsort(stable=True).argsort()  # 0 for the rarest label
        labels = torch.where(labels > 0, ranks, labels.shape[1]).amin(dim=1)
    order = torch.randperm(len(labels), generator=generator)
    if not singles:
        order = order[torch.bincount(labels)[labels[order]] > 1]
    by_class = order[labels[order].sort(stable=True).indices]
    return [by_class[first::num] for first in range(min(num, len(by_class)))]


def resamples(labels: Int[Tensor, "N ..."], num: int, generator: torch.Generator) -> Float[Tensor, "N num"]:
    """Count how often each row is in each of `num` resamples."""
    picks = torch.randint(len(labels), (len(labels), num), generator=generator).to(labels.device)
    counts = torch.zeros(len(labels), num, device=labels.device)
    return counts.scatter_add_(0, picks, torch.ones_like(counts))


def with_classes(labels: Int[Tensor, "N ..."], counts: Float[Tensor, "N M"]) -> Float[Tensor, "N ML"]:
    """Return the counts of the regressions of each resample, one for each label.

    A class that was not drawn keeps all its rows; so does, in the regression of a label, "yes" or "no".
    """
    counts = counts.repeat_interleave(labels[0].numel(), dim=1)
    return torch.where(_has_class(labels, counts), counts, 1.0)


def held_out(labels: Int[Tensor, "N ..."], counts: Float[Tensor, "N ML"]) -> Tensor:
    """Return which rows a regression has not seen although it has seen their class."""
    return (counts == 0) & _has_class(labels, counts)


def _has_class(labels: Tensor, counts: Tensor) -> Tensor:
    """Return whether a regression has seen the class of a row, (N, M·L)."""
    classes = one_hot(labels, -1).to(counts.dtype)  # (N, L, C)
    by_label = counts.unflatten(1, (-1, classes.shape[1]))
    seen = (torch.einsum("nlc,nml->mlc", classes, by_label) > 0).to(counts.dtype)
    return torch.einsum("nlc,mlc->nml", classes, seen).flatten(1) > 0


def normal(shape: tuple[int, ...], like: Tensor, generator: torch.Generator) -> Tensor:
    """Return standard normal numbers with the dtype and device of `like`; the same on every device."""
    return torch.randn(shape, generator=generator, dtype=like.dtype).to(like.device)

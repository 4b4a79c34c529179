"""Prior precision and temperature of a Bayesian head, chosen on its labels alone.

What is compared is the NLL that the mean of draws has on rows held out, for every precision λ and temperature T: by
folds for the Laplace approximation, by the rows that a resample lacks (out of bag, Breiman 1996) for a bootstrap. The
best NLL decides λ. It would also make draws all but equal, where the labels say little against it; so T is the highest
at which the NLL is within `SLACK` of the best: as much disagreement as predictions can afford.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from batchbalance.posteriors.laplace import Span, deviations, is_exact
from batchbalance.posteriors.softmax import most_probable, product

PRECISIONS = tuple(4.0**-k for k in range(7))
TEMPERATURES = tuple(2.0**-k for k in range(12))
WEAKER = (1.0, 1 / 4, 1 / 16)  # times the precision of the most probable weights: precisions of bootstrap heads
SLACK = 1.03
HOPELESS = 1.1  # times the best NLL: smaller precisions are not tried
NUM_FOLDS = 5
NUM_DRAWS = 32  # of a Laplace approximation, for each comparison
NUM_HEADS = 16  # of a bootstrap, for each comparison
LEAST_HELD_OUT = 30  # rows held out; with fewer, the next two constants are used
USUAL_PRECISION, USUAL_TEMPERATURE = 1 / 64, 0.01
LEAST_PROBABILITY = 2.0**-52


@dataclass(frozen=True)
class Tuned:
    """Precision and temperature of a head, and what its labels say about it.

    Attributes:
        precision: λ of the prior.
        temperature: T, which multiplies the covariance; 0 for most probable weights alone, 1 for a bootstrap.
        num_held_out: rows that were held out once and whose class was among the rest.
        nll: of the mean of draws on these rows; None if there are fewer than 30, and the usual values were taken.
        error: share of these rows that the most probable weights get wrong; None as before.
        heads_precision: λ of bootstrap heads, whose mean is less sure than each of them; None for others.
    """

    precision: float
    temperature: float
    num_held_out: int
    nll: float | None = None
    error: float | None = None
    heads_precision: float | None = None

    def __str__(self) -> str:
        other = f"temperature {self.temperature:.4g}"
        if self.heads_precision is not None:
            other = f"that of heads {self.heads_precision:.4g}"
        values = f"precision {self.precision:.4g}, {other}"
        if self.nll is None:
            few = f"{self.num_held_out} rows can be held out and {LEAST_HELD_OUT} are needed"
            return f"{values}, the usual ones where none are given, because {few} for cross-validation"
        return f"{values}; on {self.num_held_out:,} rows held out NLL {self.nll:.3f}, error {self.error:.3f}"


@runtime_checkable
class Trials(Protocol):
    """Rows held out of regressions, and how well these predict them."""

    num_held_out: int

    def evaluate(self, precision: float, temperatures: tuple[float, ...]) -> tuple[Tensor, float]:
        """The NLL of the mean of draws at each temperature, and the error of the regressions."""


def tuned(trials: Trials, precisions: tuple[float, ...], temperatures: tuple[float, ...]) -> Tuned:
    """The best of some precisions, and the warmest of some temperatures that is about as good; both fall."""
    if trials.num_held_out < LEAST_HELD_OUT:
        precision = precisions[0] if len(precisions) == 1 else USUAL_PRECISION
        temperature = temperatures[0] if len(temperatures) == 1 else USUAL_TEMPERATURE
        return Tuned(precision, temperature, trials.num_held_out)
    best: Tuned | None = None
    least = float("inf")
    for precision in precisions:  # each from the weights of the one before
        nll, error = trials.evaluate(precision, temperatures)
        lowest = float(nll.min())
        if lowest < least:
            warmest = int((nll <= SLACK * lowest).nonzero()[0])
            best = Tuned(precision, temperatures[warmest], trials.num_held_out, float(nll[warmest]), error)
            least = lowest
        elif lowest > HOPELESS * least:
            break
    if best is None:
        raise ValueError("`embeddings` must give finite predictions, got NaN; look for huge numbers in them")
    return best


def tuned_bootstrap(folds: Trials, resampled: Trials, precision: float | None) -> Tuned:
    """The best precision of the most probable weights by folds, and from there on that of heads by resamples."""
    alone = tuned(folds, PRECISIONS if precision is None else (precision,), (0.0,))
    weaker = [alone.precision * share for share in WEAKER]
    heads = tuned(resampled, tuple(weaker) if precision is None else (precision,), (1.0,))
    own = heads.precision if heads.nll is not None else alone.precision
    return replace(alone, temperature=1.0, nll=heads.nll, heads_precision=own)


class Folds:
    """Each fold predicted by the Laplace approximation of the others.

    Args:
        x: (N, D) rows, in the basis of their span.
        labels: (N,) their classes.
        num_classes: C.
        generator: for folds and draws.
        centre: (D, C) weights to stay around; those of each fit if omitted.
    """

    def __init__(
        self,
        x: Float[Tensor, "N D"],
        labels: Int[Tensor, " N"],
        num_classes: int,
        generator: torch.Generator,
        centre: Float[Tensor, "D C"] | None = None,
    ) -> None:
        self._x, self._labels, self._num_classes = x, labels, num_classes
        self._counts = others_of_folds(labels, generator).to(x)
        self._out = held_out(labels, self._counts)
        self.num_held_out = int(self._out.sum())
        self._exact = is_exact(x, num_classes)
        self._noise = normal((x.shape[1], NUM_DRAWS, num_classes), x, generator)
        self._given = centre
        self._start: Tensor | None = None

    def evaluate(self, precision: float, temperatures: tuple[float, ...]) -> tuple[Tensor, float]:
        """The NLL of the mean of draws at each temperature, and the error of the most probable weights."""
        logits = product(self._x, self._centres(precision))
        total, wrong = torch.zeros(len(temperatures), dtype=torch.float64), 0
        for fold in range(NUM_FOLDS):
            out = self._out[:, fold]
            there, true = logits[out, fold], self._labels[out]
            wrong += int((there.argmax(dim=1) != true).sum())
            moves = self._moves(fold, logits, precision) if any(temperatures) else logits.new_zeros(1)
            for index, temperature in enumerate(temperatures):
                of_true = probs_of(there[:, None] + temperature**0.5 * moves, true)
                total[index] -= of_true.mean(dim=1).clamp_min(LEAST_PROBABILITY).log().double().sum().cpu()
        return total / self.num_held_out, wrong / self.num_held_out

    def _centres(self, precision: float) -> Tensor:
        """The weights that the draws of each fold are around, (D, K, C)."""
        if self._given is not None:
            return self._given[:, None].expand(-1, NUM_FOLDS, -1)
        precisions = self._counts.new_full((NUM_FOLDS,), precision)
        self._start = most_probable(
            self._x, self._labels, self._num_classes, self._counts, precisions, self._start, rough=True
        )
        return self._start

    def _moves(self, fold: int, logits: Tensor, precision: float) -> Tensor:
        """How far draws of the other folds move the logits of a fold at temperature 1, (n, S, C)."""
        known, span = self._counts[:, fold] > 0, self._spans[fold]
        probs = torch.softmax(logits[known, fold], dim=1)
        moves = deviations(span, probs, precision, self._noise, exact=self._exact)
        return product(self._x[self._out[:, fold]], moves)

    @cached_property
    def _spans(self) -> list[Span]:
        return [Span.of(self._x[self._counts[:, fold] > 0]) for fold in range(NUM_FOLDS)]


class Resamples:
    """Each row predicted by the mean of those heads of a bootstrap that have not seen it.

    Args:
        x: (N, D) rows, in the basis of their span.
        labels: (N,) their classes.
        num_classes: C.
        generator: for resamples.
    """

    def __init__(
        self, x: Float[Tensor, "N D"], labels: Int[Tensor, " N"], num_classes: int, generator: torch.Generator
    ) -> None:
        self._x, self._labels, self._num_classes = x, labels, num_classes
        self._counts = resamples(labels, NUM_HEADS, generator).to(x)
        self._out = held_out(labels, self._counts)
        self.num_held_out = int(self._out.any(dim=1).sum())
        self._start: Tensor | None = None

    def evaluate(self, precision: float, temperatures: tuple[float, ...]) -> tuple[Tensor, float]:
        """The NLL of the mean of heads, the same at each temperature, and its error."""
        precisions = self._counts.new_full((NUM_HEADS,), precision)
        self._start = most_probable(
            self._x, self._labels, self._num_classes, self._counts, precisions, self._start, rough=True
        )
        rows = self._out.any(dim=1)
        weights = (self._out / self._out.sum(dim=1, keepdim=True))[rows, :, None]
        probs = (torch.softmax(product(self._x[rows], self._start), dim=2) * weights).sum(dim=1)
        true = self._labels[rows]
        of_true = probs.gather(1, true[:, None])[:, 0].clamp_min(LEAST_PROBABILITY)
        nll = -of_true.log().double().mean().cpu()
        return nll.expand(len(temperatures)), float((probs.argmax(dim=1) != true).double().mean())


def others_of_folds(labels: Int[Tensor, " N"], generator: torch.Generator) -> Float[Tensor, "N K"]:
    """0 for the rows of a random fold and 1 for the others; each class is spread over as many folds as it can be."""
    order = torch.randperm(len(labels), generator=generator)
    order = order[labels.cpu()[order].sort(stable=True).indices]
    folds = torch.empty_like(order)
    folds[order] = torch.arange(len(labels)) % NUM_FOLDS
    return (folds[:, None] != torch.arange(NUM_FOLDS)).float()


def resamples(labels: Int[Tensor, " N"], num: int, generator: torch.Generator) -> Float[Tensor, "N num"]:
    """How often each row comes in each of `num` resamples of all rows; a class that gets none keeps its own rows."""
    picks = torch.randint(len(labels), (len(labels), num), generator=generator).to(labels.device)
    counts = torch.zeros(len(labels), num, device=labels.device)
    counts.scatter_add_(0, picks, torch.ones_like(counts))
    return torch.where(_has_class(labels, counts), counts, 1.0)


def held_out(labels: Int[Tensor, " N"], counts: Float[Tensor, "N M"]) -> Tensor:
    """Which rows (N, M) a regression has not seen although it has seen their class."""
    return (counts == 0) & _has_class(labels, counts)


def _has_class(labels: Tensor, counts: Tensor) -> Tensor:
    """Whether a regression has seen the class of a row, (N, M)."""
    classes = torch.nn.functional.one_hot(labels).to(counts.dtype)
    return (classes.T @ counts > 0)[labels]


def probs_of(logits: Float[Tensor, "N S C"], labels: Int[Tensor, " N"]) -> Float[Tensor, "N S"]:
    """The probability that each draw gives the label of each row."""
    of_label = logits.gather(2, labels[:, None, None].expand(-1, logits.shape[1], 1))[:, :, 0]
    return (of_label - torch.logsumexp(logits, dim=2)).exp()


def normal(shape: tuple[int, ...], like: Tensor, generator: torch.Generator) -> Tensor:
    """Standard normal numbers of the type of `like` and where it is; the same on every device."""
    return torch.randn(shape, generator=generator, dtype=like.dtype).to(like.device)

"""Softmax regressions with a Gaussian prior, many at a time, their Laplace approximation, and class frequencies.

Regression m minimises Σ_n u_nm·CE(x_n W_m, y_nm) + λ_m/2·‖W_m‖² over W_m (D, C), by Newton's method with conjugate
gradients. Resamples, held-out folds and prior precisions only change the counts u and λ over the same rows x. So one
step of all regressions is one matrix product, with weights stored as (D, M, C). Items with L labels are L regressions
with the classes "no" and "yes". Steps follow Nocedal and Wright, Numerical Optimization, algorithm 7.1, with the
diagonal of the Hessian as preconditioner.

The Laplace approximation (MacKay 1992): the negative log posterior has the Hessian
H = λI + Σ_n (diag p_n − p_n p_nᵀ) ⊗ x_n x_nᵀ. It differs from λI only in the span of the rows, of at most min(N, D)
dimensions. So H is factorised there, and outside it deviations follow the prior. This is exact, whether N or D is
smaller. From `EXACT_SIZE` numbers on, the sum in H is replaced by the Kronecker product
Σ_n x_n x_nᵀ ⊗ mean_n(diag p_n − p_n p_nᵀ) (Ritter et al. 2018).

Class frequencies are estimated from labels and shrunk towards equal ones if the labels allow it. Counts of classes
are multinomial. Before any label, frequencies are equal with probability ½, and otherwise from a symmetric Dirichlet(α)
of unknown α. The evidence of the counts weighs these cases: labels of a balanced pool favour equal frequencies, while
19 labels of one class and 1 of another favour a small α.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

MAX_NEWTON = 50
MAX_CONJUGATE = 250
MAX_HALVINGS = 30
TINY = 1e-30  # avoids 0 / 0
TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-10}  # of the gradient, relative to the gradient at weights 0
ROUGH = 1e-3
EXACT_SIZE = 2048  # min(N, D)·C; a Hessian of this size takes 32 MiB in float64
CONCENTRATIONS = tuple(2.0**k for k in range(-3, 11))  # values of α
SKEWED = 1.0  # α up to which frequencies differ a lot: at 1 every set of frequencies is equally likely
FEW = 5.0  # labels; a class without labels counts as having at most this many


def most_probable(
    x: Float[Tensor, "N D"],
    labels: Int[Tensor, "N ..."],
    num_classes: int,
    counts: Float[Tensor, "N M"],
    precisions: Float[Tensor, " M"],
    start: Float[Tensor, "D M C"] | None = None,
    *,
    offset: Float[Tensor, "_ C"] | None = None,
    rough: bool = False,
) -> Float[Tensor, "D M C"]:
    """Return the weights of M regressions that maximise their posterior densities.

    Args:
        x: the rows.
        labels: their classes, (N,); or (N, L) of 0 and 1 for several labels of each row. Then there are M/L
            regressions for each label, and those of one label follow each other at a distance of L.
        num_classes: C; 2 for several labels.
        counts: the non-negative weight of each row in each regression.
        precisions: precisions of the priors, above 0.
        start: initial weights; zeros if omitted.
        offset: added to the logits of every row, (1, C) for all regressions or (L, C) by label; zeros if omitted.
        rough: stop early, in float32, when weights change at most in the third digit.
    """
    targets = one_hot(labels, num_classes).to(x.dtype)
    if targets.shape[1] > 1:
        targets = targets.repeat(1, counts.shape[1] // targets.shape[1], 1)
    problem = _Regressions(x, targets, counts, precisions)
    weights = x.new_zeros(x.shape[1], counts.shape[1], num_classes) if start is None else start
    logits = product(x, weights)
    if offset is not None:
        logits = logits + (offset if len(offset) == 1 else offset.repeat(counts.shape[1] // len(offset), 1))
    tolerance = ROUGH if rough and x.dtype == torch.float32 else TOLERANCE[x.dtype]
    done = torch.zeros_like(precisions, dtype=torch.bool)
    for _ in range(MAX_NEWTON):
        probs = torch.softmax(logits, dim=2)
        gradient = problem.gradient(probs, weights)
        done |= _norm(gradient) <= tolerance * problem.scale
        if bool(done.all()):
            break
        step = problem.newton_step(probs, gradient, done)
        change = product(x, step)
        length = problem.step_length(logits, weights, change, step, gradient)
        done |= length == 0  # only rounding errors are left
        weights = weights + length[:, None] * step
        logits = logits + length[:, None] * change
    return weights


def one_hot(labels: Int[Tensor, "N ..."], num_classes: int) -> Int[Tensor, "N L C"]:
    """Return which class each label of each row is; rows of one class have one label."""
    return torch.nn.functional.one_hot(by_label(labels), num_classes)


def by_label(labels: Int[Tensor, "N ..."]) -> Int[Tensor, "N L"]:
    """Return the labels of each row; rows of one class have one."""
    return labels if labels.ndim == 2 else labels.unsqueeze(1)


def product(matrix: Tensor, stacked: Tensor) -> Tensor:
    """Multiply (A, B) with (B, M, C) as one matrix product."""
    return (matrix @ stacked.flatten(1)).reshape(len(matrix), *stacked.shape[1:])


class _Regressions:
    """The loss of M regressions and its derivatives; `scale` (M,) is the size of the gradient at weights 0."""

    def __init__(self, x: Tensor, targets: Tensor, counts: Tensor, precisions: Tensor) -> None:
        self._x, self._targets, self._precisions = x, targets, precisions
        self._counts = counts[:, :, None]
        residual = self._counts * (1 / targets.shape[2] - self._targets)
        self.scale = _norm(product(x.T, residual))

    def loss(self, logits: Tensor, weights: Tensor) -> Tensor:
        """Return the loss of each regression, (M,)."""
        entropies = torch.logsumexp(logits, dim=2) - (logits * self._targets).sum(dim=2)
        return (self._counts[:, :, 0] * entropies).sum(dim=0) + self._precisions / 2 * _dot(weights, weights)

    def gradient(self, probs: Tensor, weights: Tensor) -> Tensor:
        """Return the gradient of each regression's loss, (D, M, C)."""
        pull = self._precisions[:, None] * weights
        return pull + product(self._x.T, (probs - self._targets).mul_(self._counts))

    def newton_step(self, probs: Tensor, gradient: Tensor, done: Tensor) -> Tensor:
        """Return −H⁻¹·gradient by conjugate gradients, more exact near the optimum; 0 where `done`."""
        diagonal = product((self._x**2).T, self._counts * probs * (1 - probs)) + self._precisions[:, None]
        gradient = torch.where(done[:, None], 0.0, gradient)
        size = _norm(gradient)
        wanted = size * (size / self.scale.clamp_min(TINY)).sqrt().clamp_max(0.3)
        step, residual = torch.zeros_like(gradient), -gradient
        scaled = residual / diagonal
        direction, slope = scaled, _dot(residual, scaled)
        for _ in range(MAX_CONJUGATE):
            moved = product(self._x, direction).mul_(probs)
            moved -= probs * moved.sum(dim=2, keepdim=True)
            curved = product(self._x.T, moved.mul_(self._counts)).add_(
                self._precisions[:, None] * direction
            )  # H·direction
            length = (slope / _dot(direction, curved).clamp_min(TINY))[:, None]
            step += length * direction
            residual -= length * curved
            if bool((_norm(residual) <= wanted).all()):
                break
            scaled = residual / diagonal
            before, slope = slope, _dot(residual, scaled)
            direction = scaled.add_((slope / before.clamp_min(TINY))[:, None] * direction)
        return step

    def step_length(self, logits: Tensor, weights: Tensor, change: Tensor, step: Tensor, gradient: Tensor) -> Tensor:
        """Return the first of 1, ½, ¼ … that lowers the loss enough, (M,); 0 where none does."""
        before, slope = self.loss(logits, weights), _dot(gradient, step)
        length = torch.ones_like(before)
        slack = 4 * torch.finfo(before.dtype).eps * before.abs()
        for _ in range(MAX_HALVINGS):
            after = self.loss(logits + length[:, None] * change, weights + length[:, None] * step)
            worse = after > before + 1e-4 * length * slope + slack
            if not bool(worse.any()):
                return length
            length = torch.where(worse, length / 2, length)
        return torch.where(worse, 0.0, length)


def _dot(a: Tensor, b: Tensor) -> Tensor:
    """Return the inner product of each regression's weights, (M,)."""
    return (a * b).sum(dim=(0, 2))


def _norm(a: Tensor) -> Tensor:
    return _dot(a, a).sqrt()


def is_exact(x: Float[Tensor, "N D"], num_classes: int) -> bool:
    """Return whether the covariance is exact at this size."""
    return min(x.shape) * num_classes <= EXACT_SIZE


@dataclass(frozen=True, eq=False)
class Span:
    """Rows in the basis of their own span.

    Attributes:
        basis: (K, D) orthonormal rows, the eigenvectors of XᵀX.
        rows: (N, K), X in that basis.
    """

    basis: Tensor
    rows: Tensor

    @classmethod
    def of(cls, x: Float[Tensor, "N D"]) -> "Span":
        """Compute the span, from the smaller of XXᵀ and XᵀX."""
        if len(x) < x.shape[1]:
            values, vectors = torch.linalg.eigh(x @ x.T)
            kept = values > values[-1].clamp_min(0) * 10 * len(x) * torch.finfo(x.dtype).eps
            values, vectors = values[kept], vectors[:, kept]
            return cls((vectors / values.sqrt()).T @ x, vectors * values.sqrt())
        basis = torch.linalg.eigh(x.T @ x).eigenvectors.T.contiguous()
        return cls(basis, x @ basis.T)


def deviations(
    span: Span,
    probs: Float[Tensor, "N C"],
    precision: float,
    noise: Float[Tensor, "D S C"],
    *,
    exact: bool,
) -> Float[Tensor, "D S C"]:
    """Return S draws from N(0, H⁻¹).

    Args:
        span: the rows.
        probs: their class probabilities at the most probable weights.
        precision: λ.
        noise: standard normal.
        exact: whether the curvature is exact; else it is a Kronecker product.
    """
    inside = product(span.basis, noise)  # (K, S, C)
    outside = (noise - product(span.basis.T, inside)) / precision**0.5
    if exact:
        hessian = curvature(span.rows, probs)
        hessian.diagonal().add_(precision)
        flat = inside.transpose(1, 2).flatten(0, 1)
        solved = torch.linalg.solve_triangular(torch.linalg.cholesky(hessian).T, flat, upper=True)
        moves = solved.unflatten(0, (len(inside), -1)).transpose(1, 2)
    else:
        spread, basis = torch.linalg.eigh(probs.mean(dim=0).diag() - probs.T @ probs / len(probs))
        curved = (span.rows**2).sum(dim=0)[:, None] * spread.clamp_min(0)  # XᵀX is diagonal in this basis
        moves = inside / (curved + precision).sqrt()[:, None] @ basis.T
    found: Tensor = outside + product(span.basis.T, moves)
    return found


def curvature(x: Float[Tensor, "N D"], probs: Float[Tensor, "N C"]) -> Float[Tensor, "DC DC"]:
    """Return Σ_n x xᵀ ⊗ (diag p − p pᵀ), the Hessian of the summed loss over D·C weights."""
    num_features, num_classes = x.shape[1], probs.shape[1]
    hessian = x.new_empty(num_features, num_classes, num_features, num_classes)
    for c, unit in enumerate(torch.eye(num_classes, dtype=x.dtype, device=x.device)):
        spread = probs[:, c, None] * (unit - probs)  # (N, C)
        products = x.T @ (x[:, :, None] * spread[:, None, :]).flatten(1)
        hessian[:, c] = products.reshape(num_features, num_features, num_classes)
    return hessian.reshape(num_features * num_classes, -1)


class Frequencies(NamedTuple):
    """Frequencies of classes.

    Attributes:
        shares: (C,) the expected frequencies, all above 0; (L, 2) of "no" and "yes" for L labels.
        skew: the probability that α is at most `SKEWED`.
        offset: like `shares`, at most 0, added to the logits of a model: the logarithms of the shares, times the skew.
            On balanced labels the counts are mostly chance, and using them makes predictions worse. A class without
            labels is at most as frequent as one with `FEW`.
    """

    shares: Float[Tensor, "*L C"]
    skew: float
    offset: Float[Tensor, "*L C"]


def class_frequencies(labels: Int[Tensor, "N ..."], num_classes: int) -> Frequencies:
    """Return the frequencies of classes given (N,) labels, in float64 on the device of the labels.

    Several labels of each row, (N, L) of 0 and 1, share α: if most labels are rare, so are those that were never seen.
    """
    counts = one_hot(labels, num_classes).sum(dim=0).double()  # (L, C)
    alphas = counts.new_tensor(CONCENTRATIONS)
    totals = num_classes * alphas
    each = torch.lgamma(counts + alphas[:, None, None]) - torch.lgamma(alphas)[:, None, None]  # (alphas, L, C)
    normaliser = torch.lgamma(totals) - torch.lgamma(len(labels) + totals)
    evidence = each.sum(dim=(1, 2)) + len(counts) * normaliser - math.log(len(alphas))
    of_equal = evidence.new_tensor([-len(labels) * len(counts) * math.log(num_classes)])
    weights = torch.softmax(torch.cat([evidence, of_equal]), dim=0)
    of_alphas = (counts + alphas[:, None, None]) / (len(labels) + totals)[:, None, None]
    shares = torch.tensordot(weights[:-1], of_alphas, dims=1) + weights[-1] / num_classes
    skew = float(weights[:-1][alphas <= SKEWED].sum())
    offset, seen = skew * (shares / shares.amax(dim=1, keepdim=True)).log(), counts > 0
    if seen.any():
        num_seen = seen.sum(dim=1, keepdim=True)
        of_seen = (offset * seen).sum(dim=1, keepdim=True) / num_seen
        highest = of_seen - (counts.sum(dim=1, keepdim=True) / num_seen / FEW).clamp_min(1).log()
        offset = torch.where(seen, offset, offset.minimum(highest))
    shape = (*labels.shape[1:], num_classes)
    return Frequencies(shares.view(shape), skew, offset.view(shape))

"""Softmax regressions with a Gaussian prior, many at a time: Newton's method with conjugate gradients.

Regression m minimises Σ_n u_nm·CE(x_n W_m, y_n) + λ_m/2·‖W_m‖² over W_m (D, C). Resampled rows, folds held out and
prior precisions are all counts u and λ over the same rows x, so that a step of all of them is one product of matrices,
with weights kept as (D, M, C). Steps follow Nocedal and Wright, Numerical Optimization, algorithm 7.1, with the
diagonal of the Hessian as preconditioner.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

MAX_NEWTON = 50
MAX_CONJUGATE = 250
MAX_HALVINGS = 30
TINY = 1e-30  # against 0 / 0
TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-10}  # of the gradient, relative to that of weights 0
ROUGH = 1e-3


def most_probable(
    x: Float[Tensor, "N D"],
    labels: Int[Tensor, " N"],
    num_classes: int,
    counts: Float[Tensor, "N M"],
    precisions: Float[Tensor, " M"],
    start: Float[Tensor, "D M C"] | None = None,
    *,
    offset: Float[Tensor, "#M C"] | None = None,
    rough: bool = False,
) -> Float[Tensor, "D M C"]:
    """Return the weights of M regressions that maximise their posterior densities.

    Args:
        x: the rows.
        labels: their classes.
        num_classes: C.
        counts: how often each row counts in each regression, at least 0.
        precisions: of the priors, above 0.
        start: where to begin; zeros if omitted.
        offset: what is added to the logits of every row, (1, C) for all regressions; zeros if omitted.
        rough: to stop, in float32, where weights change in the third digit at most.
    """
    problem = _Regressions(x, torch.nn.functional.one_hot(labels, num_classes).to(x.dtype), counts, precisions)
    weights = x.new_zeros(x.shape[1], counts.shape[1], num_classes) if start is None else start
    logits = product(x, weights)
    if offset is not None:
        logits = logits + offset
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
        done |= length == 0  # rounding errors are all that is left
        weights = weights + length[:, None] * step
        logits = logits + length[:, None] * change
    return weights


def product(matrix: Tensor, stacked: Tensor) -> Tensor:
    """Multiply (A, B) with (B, M, C) as one product of matrices."""
    return (matrix @ stacked.flatten(1)).reshape(len(matrix), *stacked.shape[1:])


class _Regressions:
    """The loss of M regressions and its derivatives; `scale` (M,) is the size of the gradient at weights 0."""

    def __init__(self, x: Tensor, targets: Tensor, counts: Tensor, precisions: Tensor) -> None:
        self._x, self._targets, self._precisions = x, targets[:, None], precisions
        self._counts = counts[:, :, None]
        residual = self._counts * (1 / targets.shape[1] - self._targets)
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
            curved = self._curved(probs, direction)
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

    def _curved(self, probs: Tensor, direction: Tensor) -> Tensor:
        """Return H·direction, (D, M, C)."""
        moved = product(self._x, direction).mul_(probs)
        moved -= probs * moved.sum(dim=2, keepdim=True)
        return product(self._x.T, moved.mul_(self._counts)).add_(self._precisions[:, None] * direction)


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum(dim=(0, 2))


def _norm(a: Tensor) -> Tensor:
    return _dot(a, a).sqrt()

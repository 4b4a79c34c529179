"""The Laplace approximation of a softmax regression at embedding size (MacKay 1992).

The negative log posterior has the Hessian H = λI + Σ_n (diag p_n − p_n p_nᵀ) ⊗ x_n x_nᵀ. It differs from λI only in the
span of the rows, of at most min(N, D) dimensions. So H is factorised there, and outside a deviation is the prior's.
That is exact, whether N or D is the smaller. From `EXACT_SIZE` numbers on, the middle of H is replaced by the Kronecker
product Σ_n x_n x_nᵀ ⊗ mean_n(diag p_n − p_n p_nᵀ) (Ritter et al. 2018).
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from batchbalance.posteriors.softmax import product

EXACT_SIZE = 2048  # min(N, D)·C; a Hessian of this size takes 32 MiB in float64


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
    inside = product(span.basis, noise)
    curve = _exact if exact else _kronecker
    outside = (noise - product(span.basis.T, inside)) / precision**0.5
    moves: Tensor = outside + product(span.basis.T, curve(span.rows, probs, precision, inside))
    return moves


def _exact(rows: Tensor, probs: Tensor, precision: float, noise: Tensor) -> Tensor:
    (size, num_draws, num_classes), total = noise.shape, rows.shape[1] * probs.shape[1]
    hessian = curvature(rows, probs)
    hessian.diagonal().add_(precision)
    flat = noise.transpose(1, 2).reshape(total, num_draws)
    solved: Tensor = torch.linalg.solve_triangular(torch.linalg.cholesky(hessian).T, flat, upper=True)
    return solved.reshape(size, num_classes, num_draws).transpose(1, 2)


def _kronecker(rows: Tensor, probs: Tensor, precision: float, noise: Tensor) -> Tensor:
    spread, basis = torch.linalg.eigh(probs.mean(dim=0).diag() - probs.T @ probs / len(probs))
    curved = (rows**2).sum(dim=0)[:, None] * spread.clamp_min(0)  # XᵀX is diagonal in this basis
    moves: Tensor = noise / (curved + precision).sqrt()[:, None] @ basis.T
    return moves


def curvature(x: Float[Tensor, "N D"], probs: Float[Tensor, "N C"]) -> Float[Tensor, "DC DC"]:
    """Return Σ_n x xᵀ ⊗ (diag p − p pᵀ), the Hessian of the summed loss over D·C weights."""
    num_features, num_classes = x.shape[1], probs.shape[1]
    hessian = x.new_empty(num_features, num_classes, num_features, num_classes)
    for c, unit in enumerate(torch.eye(num_classes, dtype=x.dtype, device=x.device)):
        spread = probs[:, c, None] * (unit - probs)  # (N, C)
        products = x.T @ (x[:, :, None] * spread[:, None, :]).flatten(1)
        hessian[:, c] = products.reshape(num_features, num_features, num_classes)
    return hessian.reshape(num_features * num_classes, -1)

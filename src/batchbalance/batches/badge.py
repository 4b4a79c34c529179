"""BADGE: diverse gradients of the last layer (section 4, compared methods).

The gradient embeddings (p − e_ŷ) ⊗ h are never computed. With A = ‖p − e_ŷ‖², H = ‖h‖², and α, η the squared
distances of the two factors to those of a centre,

    ‖g − g'‖² = ½ [(A − A')(H − H') + α (H + H') + η (A + A') − α η].
"""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from batchbalance.batches.distances import BLOCK_NUMBERS, check_finite, distances, squared_norms, usual_scale


def badge(
    probs: Float[Tensor, "N C"] | Float[Tensor, "N S C"],
    embeddings: Float[Tensor, "points D"] | Float[Tensor, "points draws D"],
    batch_size: int,
    *,
    generator: torch.Generator,
    candidates: Tensor | None = None,
    weights: Float[Tensor, " S"] | None = None,
    of_labels: bool = False,
) -> tuple[Int[Tensor, " B"], Float[Tensor, " B"]]:
    """Choose points by k-means++ seeding on the gradients of the last layer (Ash et al. 2020).

    The gradient of a point is (p − e_ŷ) ⊗ h, where ŷ is the label of the highest mean probability. For several labels
    it is that of one sigmoid for each label: e_ŷ is 1 for the labels of mean probability above ½, else 0. The first
    point has the largest gradient. Each further one is drawn with p ∝ squared distance to the nearest chosen one.
    Once every remaining point equals a chosen one, the lowest indices fill the batch.

    Args:
        probs: mean probabilities (N, C), or those of every draw (N, S, C).
        embeddings: mean embeddings (N, D), or, with probabilities of every draw, those of every draw (N, S, D).
            The gradient is then the mean of the gradients of the draws, which costs S·C·D per point and pick.
        batch_size: B, the number of points to choose.
        generator: random generator for drawing the points.
        candidates: (n,) ascending indices of the points that may be chosen; all if omitted.
        weights: weights of the draws, for probabilities of every draw; equal if omitted.
        of_labels: whether `probs` are those of L labels instead of C classes.

    Returns:
        (B,) indices in the order chosen; (B,) distance of each to the nearest one before it, float64; for the
        first, the norm of its gradient.
    """
    if probs.ndim != embeddings.ndim or probs.shape[:-1] != embeddings.shape[:-1]:
        shapes = f"{tuple(probs.shape)} and {tuple(embeddings.shape)}"
        raise ValueError(f"`probs` and `embeddings` must agree on all axes but the last, got shapes {shapes}")
    scale = usual_scale(check_finite("embeddings", embeddings))
    candidates = torch.arange(len(probs)) if candidates is None else candidates
    factors = probs[candidates], embeddings[candidates] if scale == 1 else embeddings[candidates] * scale
    made = _mean_gradients(*factors, weights, of_labels) if probs.ndim == 3 else _gradients(*factors, of_labels)
    squared_norms, squared_distances = made
    nearest = squared_norms
    taken = torch.zeros(len(nearest), dtype=torch.bool)
    chosen = torch.empty(batch_size, dtype=torch.long)
    picked_at = torch.empty(batch_size, dtype=torch.float64)
    for i in range(batch_size):
        pick = int(nearest.argmax()) if i == 0 else _draw(nearest, generator)
        if taken[pick]:  # only duplicates are left
            pick = int((~taken).nonzero()[0])
        chosen[i], picked_at[i], taken[pick] = candidates[pick], nearest[pick].sqrt(), True
        if i + 1 < batch_size:
            apart = squared_distances(pick)
            nearest = (torch.minimum(nearest, apart) if i else apart).masked_fill(taken, 0)
    return chosen, picked_at / scale


def _gradients(
    probs: Float[Tensor, "n C"], embeddings: Float[Tensor, "n D"], of_labels: bool = False
) -> tuple[Float[Tensor, " n"], Callable[[int], Tensor]]:
    """Return squared norms of (p − e_ŷ) ⊗ h, and a function for squared distances to one of them."""
    residuals = probs - _expected(probs, of_labels)
    # In float64, because large norms are subtracted from each other below.
    a, h = (squared_norms(factor) for factor in (residuals, embeddings))

    def squared_distances(centre: int) -> Tensor:
        alpha = distances(residuals, residuals[centre]).square()
        eta = distances(embeddings, embeddings[centre]).square()
        crossed = (a - a[centre]) * (h - h[centre]) - alpha * eta
        return (crossed + alpha * (h + h[centre]) + eta * (a + a[centre])).clamp_min(0) / 2

    return a * h, squared_distances


def _mean_gradients(
    probs: Float[Tensor, "n S C"],
    embeddings: Float[Tensor, "n S D"],
    weights: Float[Tensor, " S"] | None,
    of_labels: bool = False,
) -> tuple[Float[Tensor, " n"], Callable[[int], Tensor]]:
    """Return the same for the mean over draws of (p_s − e_ŷ) ⊗ h_s, one block of points in memory at a time."""
    num_points, num_draws, num_classes = probs.shape
    equal = torch.full((num_draws,), 1 / num_draws, dtype=torch.float64)
    w = (equal if weights is None else weights.double()).to(probs.device)
    expected = _expected(torch.einsum("s,nsc->nc", w, probs.double()), of_labels)
    step = max(1, BLOCK_NUMBERS // (num_classes * embeddings.shape[2] + num_draws * embeddings.shape[2]))

    def gradients(rows: Tensor) -> Tensor:
        residuals = probs[rows].double() - expected[rows].unsqueeze(1)
        return torch.einsum("s,nsc,nsd->ncd", w, residuals, embeddings[rows].double())

    def squared_distances_to(centre: Tensor) -> Tensor:
        parts = torch.arange(num_points, device=probs.device).split(step)
        return torch.cat([(gradients(rows) - centre).square().sum(dim=(1, 2)).cpu() for rows in parts])

    def squared_distances(centre: int) -> Tensor:
        return squared_distances_to(gradients(torch.tensor([centre], device=probs.device)))

    return squared_distances_to(torch.zeros((), dtype=torch.float64, device=probs.device)), squared_distances


def _expected(probs: Float[Tensor, "n C"], of_labels: bool) -> Float[Tensor, "n C"]:
    """Return e_ŷ: 1 for the most probable class, or for each probable label."""
    return (probs > 0.5).to(probs) if of_labels else torch.zeros_like(probs).scatter_(1, probs.argmax(1, True), 1)


def _draw(weights: Float[Tensor, " n"], generator: torch.Generator) -> int:
    """Draw a position with p ∝ weight; return 0 if no weight is positive."""
    ends = weights.cumsum(0)
    place = torch.rand((), generator=generator, dtype=torch.float64) * ends[-1]
    positive = weights.nonzero()
    last = int(positive[-1]) if len(positive) else 0  # rounding may lead past it
    return min(int(torch.searchsorted(ends, place, right=True)), last)

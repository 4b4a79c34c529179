"""BAIT in its binary form: the batch that minimises the variance on the pool (arXiv 2106.09675, 2404.08981).

The Fisher information of a label at x, for "is it the most probable class?", is F(x) = w x xᵀ with w = p̂ (1 − p̂). The
batch minimises trace(F M⁻¹): F is summed over the pool, M = λ I + Σ F(x) over labelled and chosen points. A pick
changes M by rank one, so x'M⁻¹x and x'M⁻¹FM⁻¹x of all points are updated by two products with the embeddings.
"""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from batchbalance.batches.distances import check_finite, usual_scale
from batchbalance.scores.ranking import quantised


def bait(
    embeddings: Float[Tensor, "N D"],
    weights: Float[Tensor, " N"],
    batch_size: int,
    *,
    candidates: Tensor | None = None,
    labelled: tuple[Float[Tensor, "L D"], Float[Tensor, " L"]] | None = None,
    prior: float = 1.0,
    oversample: float = 2.0,
) -> tuple[Int[Tensor, " b"], Float[Tensor, " b"]]:
    """Choose more than B points greedily, then remove those whose removal costs least.

    Embeddings are divided by the root mean square of their numbers, so `prior` does not depend on their scale.

    Args:
        embeddings: embeddings of the pool.
        weights: w = p̂ (1 − p̂) of the pool.
        batch_size: B, the number of points to choose.
        candidates: (n,) ascending indices of the points that may be chosen; all if omitted.
        labelled: embeddings and weights of the labelled points. They count in F, as in the paper.
        prior: λ.
        oversample: number of points chosen before removal, as a multiple of B.

    Returns:
        (b,) indices in the order chosen, ties to the lowest; (b,) how much each lowered trace(F M⁻¹) when it was
        chosen, float64. b < B if no other point lowers it.
    """
    candidates = torch.arange(len(embeddings)) if candidates is None else candidates
    rows, known = embeddings[candidates], embeddings[:0] if labelled is None else labelled[0]
    largest = check_finite("embeddings", rows)
    if len(known):
        largest = max(largest, check_finite("labelled", known))
    rows, known = (each.double() * usual_scale(largest) for each in (rows, known.to(rows.device)))
    unit = float(rows.square().mean().sqrt()) or 1.0
    rows, known = rows / unit, known / unit
    own = weights[candidates.to(weights.device)].to(rows)
    known_weights = own[:0] if labelled is None else labelled[1].to(rows)
    information = (known.T * known_weights) @ known
    precision = information + prior * torch.eye(rows.shape[1]).to(rows)
    design = _Design(rows, own, torch.cholesky_inverse(torch.linalg.cholesky(precision)))
    design.aim((rows.T * own) @ rows + information)
    chosen: list[int] = []
    gains: list[float] = []
    for _ in range(min(len(rows), math.ceil(oversample * batch_size))):
        values = design.values(1)
        values[torch.tensor(chosen, dtype=torch.long).to(values.device)] = 0
        best = int(quantised(values).argmax())
        if not values[best] > 0:
            break
        chosen.append(best)
        gains.append(float(values[best]))
        design.change(best, 1)
    kept = list(range(len(chosen)))
    design.keep(chosen)
    while len(kept) > batch_size:
        losses = quantised(design.values(-1)).cpu()[kept]
        design.change(kept.pop(int(losses.argmin())), -1)
    return candidates[[chosen[i] for i in kept]], torch.tensor([gains[i] for i in kept], dtype=torch.float64)


class _Design:
    """Points x with weights w, and M⁻¹."""

    def __init__(self, rows: Float[Tensor, "n D"], weights: Float[Tensor, " n"], inverse: Float[Tensor, "D D"]) -> None:
        self.rows, self.weights, self.inverse = rows, weights, inverse

    def aim(self, fisher: Float[Tensor, "D D"]) -> None:
        """Compute x'M⁻¹x and x'M⁻¹FM⁻¹x of all points."""
        self.fisher = fisher
        solved = self.rows @ self.inverse
        self.leverages = (solved * self.rows).sum(dim=1)
        self.spreads = ((solved @ fisher) * solved).sum(dim=1)

    def keep(self, positions: list[int]) -> None:
        """Remove all other points."""
        where = torch.tensor(positions, dtype=torch.long).to(self.rows.device)
        self.rows, self.weights = self.rows[where], self.weights[where]
        self.leverages, self.spreads = self.leverages[where], self.spreads[where]

    def values(self, sign: int) -> Float[Tensor, " n"]:
        """Return how much trace(F M⁻¹) falls by adding each point (1), or grows by removing it (-1)."""
        return self.weights * self.spreads / (1 + sign * self.weights * self.leverages)

    def change(self, position: int, sign: int) -> None:
        """Add a point to M (1), or remove it (-1), by the Sherman-Morrison formula."""
        weight = sign * self.weights[position]
        factor = weight / (1 + weight * self.leverages[position])
        solved = self.inverse @ self.rows[position]
        aimed = self.fisher @ solved
        along, across = (self.rows @ torch.stack([solved, self.inverse @ aimed], dim=1)).T
        self.spreads += (factor * (solved @ aimed) * along - 2 * across) * factor * along
        self.spreads.clamp_min_(0)
        self.leverages -= factor * along.square()
        self.inverse -= factor * torch.outer(solved, solved)

"""BALanCe-Clustering: k-medoids under the overlap of points (the paper's Algorithm 3)."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from batchbalance.predictions import CHUNK_NUMBERS, spans_of

MAX_ROUNDS = 100


def balance_clustering(
    features: Float[Tensor, "n F"],
    scores: Float[Tensor, " n"],
    seeds: Int[Tensor, " B"],
    *,
    max_rounds: int = MAX_ROUNDS,
) -> tuple[Int[Tensor, " B"], int]:
    """Cluster points by k-medoids under I(x, y) = ⟨φ_x, φ_y⟩, I(x, x) = Δ(x) (Algorithm 3).

    The value Σ_{x∈cluster} I(x, y) of a centroid y is ⟨φ_y, Σ_x φ_x⟩ + Δ(y) − ‖φ_y‖², so the cost of a round is linear
    in the size of the clusters. A centroid stays in its own cluster; ties keep the current centroid.

    Args:
        features: φ of the points.
        scores: Δ of the points.
        seeds: positions of the first centroids.
        max_rounds: stop after this many rounds even if centroids still move.

    Returns:
        Positions of the centroids, in the order of their seeds, and the number of rounds (the paper's T). In the last
        round no centroid moved, unless the limit was reached.
    """
    num_clusters = len(seeds)
    own = scores - torch.einsum("nf,nf->n", features, features)
    tolerance = 1e-6 if features.dtype == torch.float32 else 1e-12
    centroids = seeds.clone()
    num_rounds = 0
    while num_rounds < max_rounds:
        num_rounds += 1
        assigned = _nearest(features, features[centroids], tolerance)
        assigned[centroids] = torch.arange(num_clusters, device=assigned.device)
        sums = torch.zeros(num_clusters, features.shape[1], dtype=features.dtype, device=features.device)
        sums.index_add_(0, assigned, features)
        spans = spans_of(len(features), CHUNK_NUMBERS // features.shape[1])
        values = own + torch.cat([(features[span] * sums[assigned[span]]).sum(dim=1) for span in spans])
        moved = _best_members(values, assigned, centroids, tolerance)
        if torch.equal(moved, centroids):
            break
        centroids = moved
    return centroids, num_rounds


def _nearest(features: Tensor, centres: Tensor, tolerance: float) -> Tensor:
    """Return the first centre of largest similarity to each point."""
    parts = []
    for span in spans_of(len(features), CHUNK_NUMBERS // len(centres)):
        similarity = features[span] @ centres.T
        largest = similarity.amax(dim=1, keepdim=True)
        parts.append((similarity >= largest - tolerance * largest.abs()).to(torch.uint8).argmax(dim=1))
    return torch.cat(parts)


def _best_members(values: Tensor, assigned: Tensor, centroids: Tensor, tolerance: float) -> Tensor:
    """Return the first member of largest value in each cluster, or the current centroid if it is as good."""
    best = torch.full((len(centroids),), -torch.inf, dtype=values.dtype, device=values.device)
    best.scatter_reduce_(0, assigned, values, reduce="amax")
    slack = tolerance * best.abs()
    is_best = values >= (best - slack)[assigned]
    positions = torch.arange(len(values), device=values.device)
    first = torch.full_like(centroids, len(values))
    first.scatter_reduce_(0, assigned[is_best], positions[is_best], reduce="amin")
    return torch.where(values[centroids] >= best - slack, centroids, first)

"""Cluster-Margin: points of small margin from hierarchical clusters, in turn (section 4, compared methods)."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from batchbalance.batches.distances import check_finite, usual_scale

MAX_CLUSTERED = 20_000  # hierarchical clustering stores all pairwise distances: 1.6 GB


def cluster_margin(
    scores: Float[Tensor, " N"],
    embeddings: Float[Tensor, "points D"],
    batch_size: int,
    *,
    candidates: Tensor | None = None,
    margin_factor: float = 10.0,
    num_clusters: int | None = None,
) -> tuple[Int[Tensor, " B"], Float[Tensor, " B"]]:
    """Choose points of small margin from hierarchical clusters, in turn (Citovsky et al. 2021).

    The margin_factor · B points of smallest margin are clustered by average linkage. In each round, one point is taken
    from each cluster, the smallest cluster first. Within a cluster the smallest margin goes first.

    Args:
        scores: one minus the margin of each point.
        embeddings: embeddings of the pool.
        batch_size: B, the number of points to choose.
        candidates: (n,) ascending indices of the points that may be chosen; all if omitted.
        margin_factor: number of points to cluster, as a multiple of B.
        num_clusters: number of clusters; B if omitted.

    Returns:
        (B,) indices in the order chosen, ties to the lowest; (B,) one minus the margin of each, float64.
    """
    scale = usual_scale(check_finite("embeddings", embeddings))
    if len(embeddings) != len(scores):
        raise ValueError(f"`embeddings` must have one row for each of {len(scores)} points, got {len(embeddings)}")
    if margin_factor < 1 or (num_clusters is not None and num_clusters < 1):
        raise ValueError(
            f"`margin_factor` and `num_clusters` must be at least 1, got {margin_factor:g} and {num_clusters}"
        )
    candidates = torch.arange(len(scores)) if candidates is None else candidates
    num_kept = min(len(candidates), max(batch_size, int(margin_factor * batch_size)))
    if num_kept > MAX_CLUSTERED:
        raise ValueError(
            f"`margin_factor` must leave at most {MAX_CLUSTERED:,} points to cluster, got {margin_factor:g} × "
            f"{batch_size} = {num_kept:,}; lower it or the batch size"
        )
    scores = scores.to("cpu", torch.float64)[candidates]
    kept = scores.sort(descending=True, stable=True).indices[:num_kept]
    clusters = _average_linkage(embeddings[candidates[kept]] * scale, num_clusters or batch_size)
    sizes = torch.bincount(clusters)
    first = torch.full_like(sizes, num_kept).scatter_reduce(0, clusters, torch.arange(num_kept), reduce="amin")
    ranks = _ranks_within(clusters)
    # Sorted by round, then by size of the cluster, then by the smallest margin in the cluster.
    order = sorted(range(num_kept), key=lambda i: (int(ranks[i]), int(sizes[clusters[i]]), int(first[clusters[i]])))
    picked = kept[order[:batch_size]]
    return candidates[picked], scores[picked]


def _average_linkage(embeddings: Float[Tensor, "n D"], num_clusters: int) -> Int[Tensor, " n"]:
    """Return the cluster of each point, numbered from 0."""
    from sklearn.cluster import AgglomerativeClustering  # imported here because it is slow

    if len(embeddings) == 1:
        return torch.zeros(1, dtype=torch.long)
    clusters = AgglomerativeClustering(n_clusters=min(num_clusters, len(embeddings)), linkage="average")
    return torch.from_numpy(clusters.fit_predict(embeddings.double().cpu().numpy())).long()


def _ranks_within(clusters: Int[Tensor, " n"]) -> Int[Tensor, " n"]:
    """Count the earlier points in the same cluster, for each point."""
    order = clusters.sort(stable=True).indices
    counts = torch.bincount(clusters)
    starts = (counts.cumsum(0) - counts)[clusters[order]]
    ranks = torch.empty_like(clusters)
    ranks[order] = torch.arange(len(clusters)) - starts
    return ranks

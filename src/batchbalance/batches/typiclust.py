"""TypiClust: the most typical points of unlabelled clusters (Hacohen et al. 2022, arXiv 2202.02794)."""

import warnings

import torch
from jaxtyping import Float, Int
from torch import Tensor

from batchbalance.arguments.seeds import derived_seed
from batchbalance.batches.distances import BLOCK_NUMBERS, check_finite, usual_scale
from batchbalance.predictions import spans_of
from batchbalance.scores.ranking import quantised

MAX_CLUSTERS = 500  # as in the paper: more clusters cost more and hardly help
MANY_POINTS = 20_000  # above this many points, k-means uses mini-batches
NEIGHBOURS = 20  # as in the paper


def typiclust(
    embeddings: Float[Tensor, "N D"],
    batch_size: int,
    *,
    seed: int,
    candidates: Tensor | None = None,
    labelled: Float[Tensor, "L features"] | None = None,
    max_clusters: int = MAX_CLUSTERS,
) -> Int[Tensor, " B"]:
    """Choose the most typical points of the clusters with the fewest labels.

    Candidates and labelled points form L + B clusters. A point is typical if its 20 nearest neighbours in its cluster
    are near on average. Clusters with the fewest labelled and chosen points come first, the largest of them before
    others. So the first points are from the largest clusters without labels.

    Args:
        embeddings: embeddings of the pool.
        batch_size: B, the number of points to choose.
        seed: for k-means.
        candidates: (n,) ascending indices of the points to choose from; all if omitted.
        labelled: embeddings of the labelled points.
        max_clusters: the largest number of clusters.

    Returns:
        (B,) indices in the order chosen, ties to the lowest.
    """
    largest = check_finite("embeddings", embeddings)
    candidates = torch.arange(len(embeddings)) if candidates is None else candidates
    points = embeddings[candidates].double()
    num = len(points)
    if labelled is not None:
        largest = max(largest, check_finite("labelled", labelled))
        points = torch.cat([points, labelled.to(points)])
    points *= usual_scale(largest)
    points -= points.mean(dim=0)
    clusters = k_means(points, min(len(points) - num + batch_size, max_clusters), seed)
    counts = torch.bincount(clusters[num:], minlength=int(clusters.max()) + 1)
    return candidates[typical(points[:num], clusters[:num], counts, batch_size)]


def k_means(points: Float[Tensor, "n D"], num_clusters: int, seed: int) -> Int[Tensor, " n"]:
    """Return the cluster of each point; runs on one thread, because steps are short and synchronising is slow."""
    from sklearn.cluster import KMeans, MiniBatchKMeans  # imported here because it is slow
    from sklearn.exceptions import ConvergenceWarning
    from threadpoolctl import threadpool_limits

    make = KMeans if len(points) <= MANY_POINTS else MiniBatchKMeans
    means = make(min(num_clusters, len(points)), n_init=1, random_state=derived_seed(seed, "k-means") % 2**32)
    with warnings.catch_warnings(), threadpool_limits(1):
        warnings.simplefilter("ignore", ConvergenceWarning)  # with fewer distinct points than clusters, some stay empty
        return torch.from_numpy(means.fit_predict(points.float().cpu().numpy())).long()


def typical(
    points: Float[Tensor, "n D"],
    clusters: Int[Tensor, " n"],
    counts: Int[Tensor, " K"],
    batch_size: int,
    neighbours: int = NEIGHBOURS,
) -> Int[Tensor, " B"]:
    """Return positions of the most typical points, one at a time from the cluster with the fewest labels.

    Args:
        points: the points that may be chosen.
        clusters: the cluster of each point.
        counts: the number of labelled points of each cluster.
        batch_size: B, at most n.
        neighbours: number of nearest neighbours that measure how typical a point is.
    """
    members = {int(cluster): (clusters == cluster).nonzero().flatten() for cluster in clusters.unique()}
    sizes = {cluster: len(inside) for cluster, inside in members.items()}
    counts = counts.clone()
    ranked: dict[int, list[int]] = {}
    chosen: list[int] = []
    for _ in range(batch_size):
        open_clusters = [cluster for cluster in members if len(ranked.get(cluster, [0]))]
        cluster = min(open_clusters, key=lambda c: (int(counts[c]), -sizes[c], c))
        if cluster not in ranked:
            apart = quantised(_neighbour_distances(points[members[cluster]], neighbours))
            ranked[cluster] = members[cluster][apart.sort(stable=True).indices].tolist()
        chosen.append(ranked[cluster].pop(0))
        counts[cluster] += 1
    return torch.tensor(chosen)


def _neighbour_distances(points: Float[Tensor, "n D"], num: int) -> Float[Tensor, " n"]:
    """Return the mean distance to the `num` nearest other points, or to all if fewer; 0 for a single point."""
    num = min(num, len(points) - 1)
    found = torch.zeros(len(points), dtype=torch.float64)
    if num == 0:
        return found
    shifted = points - points.mean(dim=0)
    for span in spans_of(len(points), BLOCK_NUMBERS // len(points)):
        apart = torch.cdist(shifted[span], shifted)
        apart[torch.arange(len(apart)), torch.arange(span.start, span.stop)] = torch.inf
        found[span] = apart.topk(num, dim=1, largest=False).values.mean(dim=1).cpu()
    return found

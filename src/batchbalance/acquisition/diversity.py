"""Batches that spread over embeddings: CoreSet, BADGE, Cluster-Margin (section 4, compared methods).

Distances between a point and a centre come from differences of coordinates, never from the expansion
‖a‖² + ‖b‖² − 2⟨a, b⟩, which tells a duplicate from itself. BADGE's gradient embeddings (p − e_ŷ) ⊗ h are never
formed: with A = ‖p − e_ŷ‖², H = ‖h‖², and α, η the squared distances of the two factors to those of a centre,

    ‖g − g'‖² = ½ [(A − A')(H − H') + α (H + H') + η (A + A') − α η].
"""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from batchbalance.acquisition.candidates import check_candidates

BLOCK_NUMBERS = 2**22
MAX_CLUSTERED = 20_000  # hierarchical clustering holds a distance for every pair: 1.6 GB


def k_center(
    embeddings: Float[Tensor, "N D"],
    batch_size: int,
    *,
    candidates: Tensor | None = None,
    labelled: Float[Tensor, "L features"] | None = None,
) -> tuple[Int[Tensor, " B"], Float[Tensor, " B"]]:
    """CoreSet: repeatedly the point farthest from all centres, within twice the best radius (Sener & Savarese 2018).

    Args:
        embeddings: of the pool.
        batch_size: B.
        candidates: (n,) ascending indices of the points to cover and to choose from; all if left out.
        labelled: embeddings of the labelled points, the first centres. Without them the point nearest to the mean
            of the candidates comes first.

    Returns:
        (B,) indices in the order chosen, a tie to the lowest; (B,) largest distance of a candidate to its nearest
        centre after each pick, float64.
    """
    check_finite("embeddings", embeddings)
    candidates = check_candidates(candidates, len(embeddings), batch_size)
    points = embeddings[candidates]
    if labelled is None or len(labelled) == 0:
        pick = int(_distances(points, points.mean(dim=0)).argmin())
        nearest = torch.full((len(points),), torch.inf, dtype=torch.float64)
    else:
        check_finite("labelled", labelled)
        if labelled.shape[1] != embeddings.shape[1]:
            raise ValueError(
                f"`labelled` must have the pool's {embeddings.shape[1]} features, got {labelled.shape[1]}; "
                "embed both with one network"
            )
        nearest = _nearest_distances(points, labelled.to(points))
        pick = int(nearest.argmax())
    chosen = torch.empty(batch_size, dtype=torch.long)
    radii = torch.empty(batch_size, dtype=torch.float64)
    taken = torch.zeros(len(points), dtype=torch.bool)
    for i in range(batch_size):
        chosen[i], taken[pick] = candidates[pick], True
        nearest = torch.minimum(nearest, _distances(points, points[pick]))
        radii[i] = nearest.max()
        pick = int(nearest.masked_fill(taken, -1).argmax())
    return chosen, radii


def badge(
    probs: Float[Tensor, "N C"] | Float[Tensor, "N S C"],
    embeddings: Float[Tensor, "points D"] | Float[Tensor, "points draws D"],
    batch_size: int,
    *,
    generator: torch.Generator,
    candidates: Tensor | None = None,
    weights: Float[Tensor, " S"] | None = None,
) -> tuple[Int[Tensor, " B"], Float[Tensor, " B"]]:
    """BADGE: k-means++ seeding on the gradients of the last layer (Ash et al. 2020).

    The gradient of a point is (p − e_ŷ) ⊗ h, where ŷ is the label of the highest mean probability. The first
    point has the largest gradient, each further one is drawn with p ∝ squared distance to the nearest chosen one.
    Once every point left equals a chosen one, the lowest indices fill the batch.

    Args:
        probs: mean probabilities (N, C); or those of every draw (N, S, C).
        embeddings: mean embeddings (N, D); or with probabilities of every draw, embeddings of every draw
            (N, S, D): the gradient is then the mean of the gradients of the draws, which costs S·C·D a point and pick.
        batch_size: B.
        generator: draws the points.
        candidates: (n,) ascending indices of the points that may be chosen; all if left out.
        weights: of the draws, with probabilities of every draw; equal if left out.

    Returns:
        (B,) indices in the order chosen; (B,) distance of each to the nearest one before it, float64; for the
        first, the norm of its gradient.
    """
    if probs.ndim != embeddings.ndim or probs.shape[:-1] != embeddings.shape[:-1]:
        shapes = f"{tuple(probs.shape)} and {tuple(embeddings.shape)}"
        raise ValueError(f"`probs` and `embeddings` must agree on all axes but the last, got shapes {shapes}")
    check_finite("embeddings", embeddings)
    candidates = check_candidates(candidates, len(probs), batch_size)
    factors = probs[candidates], embeddings[candidates]
    squared_norms, squared_distances = _mean_gradients(*factors, weights) if probs.ndim == 3 else _gradients(*factors)
    nearest = squared_norms
    taken = torch.zeros(len(nearest), dtype=torch.bool)
    chosen = torch.empty(batch_size, dtype=torch.long)
    picked_at = torch.empty(batch_size, dtype=torch.float64)
    for i in range(batch_size):
        pick = int(nearest.argmax()) if i == 0 else _draw(nearest, generator)
        if taken[pick]:  # nothing left but duplicates
            pick = int((~taken).nonzero()[0])
        chosen[i], picked_at[i], taken[pick] = candidates[pick], nearest[pick].sqrt(), True
        if i + 1 < batch_size:
            apart = squared_distances(pick)
            nearest = (torch.minimum(nearest, apart) if i else apart).masked_fill(taken, 0)
    return chosen, picked_at


def cluster_margin(
    probs: Float[Tensor, "N C"],
    embeddings: Float[Tensor, "points D"],
    batch_size: int,
    *,
    candidates: Tensor | None = None,
    margin_factor: float = 10.0,
    num_clusters: int | None = None,
) -> tuple[Int[Tensor, " B"], Float[Tensor, " B"]]:
    """Cluster-Margin: low-margin points, taken in turn from hierarchical clusters (Citovsky et al. 2021).

    The margin_factor · B points of smallest margin are clustered by average linkage; clusters give one point each,
    the smallest cluster first, round after round. Inside a cluster the smallest margin goes first.

    Args:
        probs: mean probabilities.
        embeddings: of the pool.
        batch_size: B.
        candidates: (n,) ascending indices of the points that may be chosen; all if left out.
        margin_factor: how many points are clustered, as a multiple of B.
        num_clusters: where the tree of clusters is cut; B if left out.

    Returns:
        (B,) indices in the order chosen, a tie to the lowest; (B,) one minus the margin of each, float64.
    """
    check_finite("embeddings", embeddings)
    if len(embeddings) != len(probs):
        raise ValueError(f"`embeddings` must have one row for each of {len(probs)} points, got {len(embeddings)}")
    if margin_factor < 1 or (num_clusters is not None and num_clusters < 1):
        raise ValueError(
            f"`margin_factor` and `num_clusters` must be at least 1, got {margin_factor:g} and {num_clusters}"
        )
    candidates = check_candidates(candidates, len(probs), batch_size)
    num_kept = min(len(candidates), max(batch_size, int(margin_factor * batch_size)))
    if num_kept > MAX_CLUSTERED:
        raise ValueError(
            f"`margin_factor` must leave at most {MAX_CLUSTERED:,} points to cluster, got {margin_factor:g} × "
            f"{batch_size} = {num_kept:,}; lower it or the batch size"
        )
    top = torch.nn.functional.pad(probs[candidates].double(), (0, 1)).topk(2, dim=1).values
    scores = 1 - (top[:, 0] - top[:, 1])
    kept = scores.sort(descending=True, stable=True).indices[:num_kept]
    clusters = _average_linkage(embeddings[candidates[kept]], num_clusters or batch_size)
    sizes = torch.bincount(clusters)
    first = torch.full_like(sizes, num_kept).scatter_reduce(0, clusters, torch.arange(num_kept), reduce="amin")
    ranks = _ranks_within(clusters)
    # In turn: by round, then by size of the cluster, then by the most promising point of the cluster.
    order = sorted(range(num_kept), key=lambda i: (int(ranks[i]), int(sizes[clusters[i]]), int(first[clusters[i]])))
    picked = kept[order[:batch_size]]
    return candidates[picked], scores[picked]


def check_finite(name: str, embeddings: Tensor) -> None:
    """Raise unless the embeddings are finite real numbers."""
    if not bool(torch.isfinite(embeddings).all()):
        where = (~torch.isfinite(embeddings)).nonzero()[0].tolist()
        raise ValueError(
            f"`{name}` must be finite, got NaN or infinity (first at point {where[0]}, feature {where[-1]})"
        )


def _distances(points: Float[Tensor, "n D"], centre: Float[Tensor, " D"]) -> Float[Tensor, " n"]:
    """Distances to one centre by differences, float64; exactly 0 for a duplicate."""
    apart = torch.cdist(points, centre.unsqueeze(0), compute_mode="donot_use_mm_for_euclid_dist")
    return apart[:, 0].double().cpu()


def _nearest_distances(points: Float[Tensor, "n D"], centres: Float[Tensor, "L D"]) -> Float[Tensor, " n"]:
    """Distance to the nearest of many centres: it is found by matrix products, then measured by differences."""
    middle = centres.mean(dim=0)
    shifted = centres - middle
    half_norms = shifted.square().sum(dim=1) / 2
    found = []
    for block in points.split(max(1, BLOCK_NUMBERS // max(centres.shape))):
        nearest = ((block - middle) @ shifted.T - half_norms).argmax(dim=1)
        found.append((block.double() - centres[nearest].double()).square().sum(dim=1).sqrt().cpu())
    return torch.cat(found)


def _gradients(
    probs: Float[Tensor, "n C"], embeddings: Float[Tensor, "n D"]
) -> tuple[Float[Tensor, " n"], Callable[[int], Tensor]]:
    """Squared norms of (p − e_ŷ) ⊗ h, and squared distances to one of them."""
    residuals = probs.scatter_add(1, probs.argmax(dim=1, keepdim=True), -torch.ones_like(probs[:, :1]))
    zero = torch.zeros(())
    a, h = (_distances(factor, zero.to(factor).expand(factor.shape[1])).square() for factor in (residuals, embeddings))

    def squared_distances(centre: int) -> Tensor:
        alpha = _distances(residuals, residuals[centre]).square()
        eta = _distances(embeddings, embeddings[centre]).square()
        crossed = (a - a[centre]) * (h - h[centre]) - alpha * eta
        return (crossed + alpha * (h + h[centre]) + eta * (a + a[centre])).clamp_min(0) / 2

    return a * h, squared_distances


def _mean_gradients(
    probs: Float[Tensor, "n S C"], embeddings: Float[Tensor, "n S D"], weights: Float[Tensor, " S"] | None
) -> tuple[Float[Tensor, " n"], Callable[[int], Tensor]]:
    """The same for the mean over draws of (p_s − e_ŷ) ⊗ h_s, one block of points in memory at a time."""
    num_points, num_draws, num_classes = probs.shape
    equal = torch.full((num_draws,), 1 / num_draws, dtype=torch.float64)
    w = (equal if weights is None else weights.double()).to(probs.device)
    labels = torch.einsum("s,nsc->nc", w, probs.double()).argmax(dim=1)
    step = max(1, BLOCK_NUMBERS // (num_classes * embeddings.shape[2] + num_draws * embeddings.shape[2]))

    def gradients(rows: Tensor) -> Tensor:
        residuals = probs[rows].double() - torch.nn.functional.one_hot(labels[rows], num_classes).unsqueeze(1)
        return torch.einsum("s,nsc,nsd->ncd", w, residuals, embeddings[rows].double())

    def squared_distances_to(centre: Tensor) -> Tensor:
        parts = torch.arange(num_points, device=probs.device).split(step)
        return torch.cat([(gradients(rows) - centre).square().sum(dim=(1, 2)).cpu() for rows in parts])

    def squared_distances(centre: int) -> Tensor:
        return squared_distances_to(gradients(torch.tensor([centre], device=probs.device)))

    return squared_distances_to(torch.zeros((), dtype=torch.float64, device=probs.device)), squared_distances


def _draw(weights: Float[Tensor, " n"], generator: torch.Generator) -> int:
    """A position with p ∝ weight; 0 if no weight is positive."""
    ends = weights.cumsum(0)
    place = torch.rand((), generator=generator, dtype=torch.float64) * ends[-1]
    positive = weights.nonzero()
    last = int(positive[-1]) if len(positive) else 0  # rounding may lead beyond it
    return min(int(torch.searchsorted(ends, place, right=True)), last)


def _average_linkage(embeddings: Float[Tensor, "n D"], num_clusters: int) -> Int[Tensor, " n"]:
    """Cluster of each point, from 0."""
    from sklearn.cluster import AgglomerativeClustering  # takes longer to import than all the rest

    if len(embeddings) == 1:
        return torch.zeros(1, dtype=torch.long)
    clusters = AgglomerativeClustering(n_clusters=min(num_clusters, len(embeddings)), linkage="average")
    return torch.from_numpy(clusters.fit_predict(embeddings.double().cpu().numpy())).long()


def _ranks_within(clusters: Int[Tensor, " n"]) -> Int[Tensor, " n"]:
    """How many earlier points lie in the same cluster."""
    order = clusters.sort(stable=True).indices
    counts = torch.bincount(clusters)
    starts = (counts.cumsum(0) - counts)[clusters[order]]
    ranks = torch.empty_like(clusters)
    ranks[order] = torch.arange(len(clusters)) - starts
    return ranks

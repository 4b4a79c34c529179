"""CoreSet: a batch that covers the pool, by k-center greedy (section 4, compared methods)."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from batchbalance.batches.distances import check_finite, distances, nearest_distances, usual_scale


def k_center(
    embeddings: Float[Tensor, "N D"],
    batch_size: int,
    *,
    candidates: Tensor | None = None,
    labelled: Float[Tensor, "L features"] | None = None,
) -> tuple[Int[Tensor, " B"], Float[Tensor, " B"]]:
    """Choose the point farthest from all centres, B times; the radius is within twice the best (Sener & Savarese 2018).

    Args:
        embeddings: embeddings of the pool.
        batch_size: B, the number of points to choose.
        candidates: (n,) ascending indices of the points to cover and to choose from; all if omitted.
        labelled: embeddings of the labelled points, the first centres. Without them the point nearest to the mean
            of the candidates comes first.

    Returns:
        (B,) indices in the order chosen, ties to the lowest; (B,) largest distance of a candidate to its nearest
        centre after each pick, float64.
    """
    largest = check_finite("embeddings", embeddings)
    if labelled is not None and len(labelled):
        largest = max(largest, check_finite("labelled", labelled))
    scale = usual_scale(largest)
    candidates = torch.arange(len(embeddings)) if candidates is None else candidates
    points = embeddings[candidates] if scale == 1 else embeddings[candidates] * scale
    if labelled is None or len(labelled) == 0:
        pick = int(distances(points, points.mean(dim=0)).argmin())
        nearest = torch.full((len(points),), torch.inf, dtype=torch.float64)
    else:
        if labelled.shape[1] != embeddings.shape[1]:
            raise ValueError(
                f"`labelled` must have the pool's {embeddings.shape[1]} features, got {labelled.shape[1]}; "
                "embed both with one network"
            )
        nearest = nearest_distances(points, labelled.to(points) * scale)
        pick = int(nearest.argmax())
    chosen = torch.empty(batch_size, dtype=torch.long)
    radii = torch.empty(batch_size, dtype=torch.float64)
    taken = torch.zeros(len(points), dtype=torch.bool)
    for i in range(batch_size):
        chosen[i], taken[pick] = candidates[pick], True
        nearest = torch.minimum(nearest, distances(points, points[pick]))
        radii[i] = nearest.max()
        pick = int(nearest.masked_fill(taken, -1).argmax())
    return chosen, radii / scale

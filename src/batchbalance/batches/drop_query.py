"""DropQuery: diverse points on which predictions disagree (Gupte et al. 2024, arXiv 2401.14555)."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from batchbalance.batches.distances import directions, distances
from batchbalance.batches.typiclust import k_means
from batchbalance.predictions import Predictions, mean_over_draws
from batchbalance.scores.ranking import quantised


def disagreements(predictions: Predictions, draws: Int[Tensor, " M"]) -> Int[Tensor, " N"]:
    """Count, for each point, the given draws that predict another class than the mean of all draws."""
    found = torch.empty(predictions.num_points, dtype=torch.long)
    for rows, chunk in predictions.chunks():
        usual = mean_over_draws(predictions.draw_weights.to(chunk), chunk.exp()).argmax(dim=1, keepdim=True)
        found[rows] = (chunk[:, draws.to(chunk.device)].argmax(dim=-1) != usual).sum(dim=1).cpu()
    return found


def central_points(embeddings: Float[Tensor, "n D"], num: int, seed: int) -> Int[Tensor, " k"]:
    """Cluster the directions of embeddings by k-means, and return the point nearest to the mean of each cluster.

    Args:
        embeddings: embeddings of the points.
        num: the number of clusters, at most n.
        seed: for k-means.

    Returns:
        (k,) positions, large clusters first, ties to the lowest; k < num if there are duplicates.
    """
    points = directions(embeddings.double(), torch.zeros_like(embeddings[0], dtype=torch.float64))
    clusters = k_means(points, num, seed)
    members = [(clusters == cluster).nonzero().flatten() for cluster in clusters.unique()]
    members.sort(key=lambda inside: (-len(inside), int(inside[0])))
    found = []
    for inside in members:
        apart = distances(points[inside], points[inside].mean(dim=0))
        found.append(int(inside[quantised(apart).argmin()]))
    return torch.tensor(found)

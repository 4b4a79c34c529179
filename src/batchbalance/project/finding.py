"""Items like others: the nearest ones in the space that the default model works in."""

from dataclasses import dataclass

import numpy as np
import torch

from batchbalance.batches.distances import directions, nearest_distances
from batchbalance.strategies.pool import Metric, is_unit

BLOCK = 4096  # items compared at a time


@dataclass(frozen=True)
class Found:
    """An item that is like others.

    Attributes:
        id: of the item.
        distance: to the nearest of those it is like; at most 2 if rows have unit length.
    """

    id: str
    distance: float


def nearest(
    vectors: np.ndarray, queries: np.ndarray, rows: np.ndarray, count: int, *, metric: Metric
) -> list[tuple[int, float]]:
    """Return the rows nearest to any of the queries with their distances, the nearest first, ties by row.

    Args:
        vectors: (N, D) embeddings of all items.
        queries: (Q, D) embeddings of what to look for.
        rows: (n,) items to look at.
        count: how many to return.
        metric: how distances are measured, as in ``select``.
    """
    unit = is_unit(metric, vectors.shape[1])
    centre = torch.zeros(vectors.shape[1], dtype=torch.float64)
    for start in range(0, len(vectors), BLOCK):
        centre += torch.from_numpy(np.array(vectors[start : start + BLOCK], dtype=np.float64)).sum(dim=0)
    centre /= len(vectors)

    def placed(some: np.ndarray) -> torch.Tensor:
        points = torch.from_numpy(np.array(some, dtype=np.float64))
        return directions(points, centre) if unit else points

    wanted = placed(queries)
    parts = [nearest_distances(placed(vectors[rows[i : i + BLOCK]]), wanted) for i in range(0, len(rows), BLOCK)]
    apart = torch.cat(parts).numpy() if parts else np.zeros(0)
    order = np.argsort(apart, kind="stable")[:count]
    return [(int(rows[i]), float(apart[i])) for i in order]

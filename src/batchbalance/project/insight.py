"""Explain why an item is worth a label: the votes of the draws, which draws its label would separate, similar items."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from batchbalance.arguments.seeds import derived_seed
from batchbalance.batches.distances import directions, nearest_distances
from batchbalance.project.labelling import predicted
from batchbalance.project.learning import Trained, draw_votes
from batchbalance.project.store import ProjectStore
from batchbalance.strategies.pool import Metric, is_unit

SAMPLE = 500  # items on which two groups of draws are compared
NUM_LIKE = 4
BLOCK = 4096  # items compared at a time


@dataclass(frozen=True)
class Group:
    """Draws that vote for the same class; with several labels, for or against the label they disagree most about."""

    label: str
    num_draws: int


@dataclass(frozen=True)
class Insight:
    """An explanation of what the model would learn from an item.

    Attributes:
        id: the item's id.
        guess: the most probable class, as it is reported; with several labels as `a;b`.
        confidence: its probability.
        votes: the share of draws that vote for each class, the largest first; classes without a vote are omitted.
        num_draws: the number of draws.
        groups: the two largest groups of draws; empty if all draws agree.
        apart: the share of all items, or of all labels, on which the majorities of these groups disagree; None without
            groups.
        like: the nearest labelled items by cosine distance, with their labels, the nearest first.
    """

    id: str
    guess: str
    confidence: float
    votes: tuple[tuple[str, float], ...]
    num_draws: int
    groups: tuple[Group, ...]
    apart: float | None
    like: tuple[tuple[str, str], ...]


def insights(
    model: Trained | None,
    vectors: np.ndarray,
    store: ProjectStore,
    rows: Sequence[int],
    seed: int,
) -> list[Insight] | None:
    """Explain why some items are worth a label; None without a model.

    Args:
        model: the trained model.
        vectors: (N, D) the embeddings of all items.
        store: the store of the items.
        rows: (n,) the items to explain.
        seed: the seed of the sample on which groups are compared.
    """
    if model is None:
        return None
    random = np.random.default_rng(derived_seed(seed, "insight"))
    sample = np.sort(random.choice(len(vectors), min(SAMPLE, len(vectors)), replace=False))
    labelling, classes, is_multi = model.labelling, model.labelling.classes, model.labelling.is_multi
    elsewhere, _ = draw_votes(model, vectors[sample])  # (M, S, C) of 0 and 1
    here, weights = draw_votes(model, vectors[list(rows)])
    probs = model.probs(vectors, list(rows))
    said, sure = labelling.values(labelling.predicted(probs)), labelling.confidence(probs)
    known = [labelling.text(each) for each in labelling.values(model.labels)]
    centre, labelled_names = vectors[sample].mean(axis=0), store.ids(model.rows.tolist())
    labelled = _unit(vectors[model.rows] - centre)
    found = []
    for i, (row, name) in enumerate(zip(rows, store.ids(rows), strict=True)):
        counts = here[i].sum(axis=0)
        shares = weights @ here[i]
        if is_multi:
            c = int(np.abs(2 * counts - here.shape[1]).argmin())
            groups = [(classes[c], here[i][:, c] == 1), (f"not {classes[c]}", here[i][:, c] == 0)]
        else:
            groups = [(classes[c], here[i][:, c] == 1) for c in np.argsort(-counts, kind="stable")[:2]]
        is_split = all(draws.any() for _, draws in groups)
        sides = (
            [predicted(elsewhere[:, draws].mean(axis=1), is_multi=is_multi) for _, draws in groups] if is_split else []
        )
        voted = sorted(((classes[c], float(shares[c])) for c in range(len(classes)) if counts[c]), key=lambda x: -x[1])
        by_cosine = np.argsort(-(labelled @ _unit(vectors[[row]] - centre)[0]), kind="stable")
        like = [int(k) for k in by_cosine if model.rows[k] != row][:NUM_LIKE]
        found.append(
            Insight(
                name,
                labelling.text(said[i]),
                float(sure[i]),
                tuple(voted),
                here.shape[1],
                tuple(Group(each, int(draws.sum())) for each, draws in groups) if is_split else (),
                float((sides[0] != sides[1]).mean()) if is_split else None,
                tuple((labelled_names[k], known[k]) for k in like),
            )
        )
    return found


def _unit(vectors: np.ndarray) -> np.ndarray:
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(norms > 0, norms, 1)


@dataclass(frozen=True)
class Found:
    """A similar item.

    Attributes:
        id: the item's id.
        distance: the distance to the nearest query; at most 2 for rows of unit length.
    """

    id: str
    distance: float


def nearest(
    vectors: np.ndarray, queries: np.ndarray, rows: np.ndarray, count: int, *, metric: Metric
) -> list[tuple[int, float]]:
    """Return the rows nearest to any of the queries with their distances, the nearest first, ties by row.

    Args:
        vectors: (N, D) embeddings of all items.
        queries: (Q, D) embeddings to search for.
        rows: (n,) items to search.
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

"""Suggestions by machines that are most likely wrong, for people to review first."""

from dataclasses import dataclass

import numpy as np

from batchbalance.project.learning import Trained, class_probs
from batchbalance.project.state import State
from batchbalance.project.suggestions import NONE, sources_of
from batchbalance.selection import select
from batchbalance.strategies.pool import Metric

MOST_COMPARED = 2000  # the most doubtful ones, of which some that cover the others come first


@dataclass(frozen=True)
class Doubtful:
    """A suggestion to review.

    Attributes:
        row: the item.
        source: who suggests it.
        label: the number of the suggested class.
        wrong: the probability that it is wrong, by a model that learned from people's labels only.
    """

    row: int
    source: str
    label: int
    wrong: float


def doubtful(
    state: State,
    vectors: np.ndarray,
    trained: Trained | None,
    free: np.ndarray,
    count: int,
    metric: Metric,
    only: str | None = None,
) -> list[Doubtful]:
    """Return suggestions for items without a label, spread over those that the model disagrees with most.

    Args:
        state: the suggestions of each source; of an item with several, the most doubtful counts.
        vectors: (N, D) the embeddings of all items.
        trained: the model; without one, a source's own confidence counts, or 1/2.
        free: (N,) which items may be listed: never those that measure the model.
        count: how many to return.
        metric: the space of distances.
        only: the name of one source; None for all.
    """
    worst: dict[int, Doubtful] = {}
    for name, source in sources_of(state, len(vectors)).items():
        rows = np.flatnonzero(free & (source.labels != NONE) & (only in (None, name)))
        labels = source.labels[rows]
        if trained is not None and len(rows):
            right = class_probs(trained.posterior, vectors[rows])[np.arange(len(rows)), labels]
        else:
            right = np.full(len(rows), 0.5) if source.confidence is None else source.confidence[rows]
        for row, label, wrong in zip(rows.tolist(), labels.tolist(), (1 - right).tolist(), strict=True):
            if row not in worst or wrong > worst[row].wrong:
                worst[row] = Doubtful(row, name, label, wrong)
    ranked = sorted(worst.values(), key=lambda each: (-each.wrong, each.row))[:MOST_COMPARED]
    if not ranked:
        return []
    weights = np.maximum([each.wrong for each in ranked], 1e-6)
    points = vectors[[each.row for each in ranked]]
    num = min(count, len(ranked))
    chosen = select(embeddings=points, batch_size=num, strategy="max-herding", weights=weights, metric=metric)
    return [ranked[place] for place in chosen.indices.tolist()]

"""Why an item is worth a label: how the draws vote, which of them its label would tell apart, and what is like it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from batchbalance.arguments.seeds import derived_seed
from batchbalance.project.model import Trained, as_inputs

SAMPLE = 500  # items on which two groups of draws are compared
NUM_LIKE = 4


@dataclass(frozen=True)
class Group:
    """Draws that vote for the same class."""

    label: str
    num_draws: int


@dataclass(frozen=True)
class Insight:
    """What the model knows about an item without a label.

    Attributes:
        id: of the item.
        guess: the most probable class.
        votes: the share of draws that vote for each class, the largest first; classes without a vote are omitted.
        num_draws: how many draws there are.
        groups: the two largest groups of draws; empty if all draws agree.
        apart: the share of all items on which these groups, each by majority, disagree; None without groups.
        like: the labelled items nearest to it by cosine, with their labels, the nearest first.
    """

    id: str
    guess: str
    votes: tuple[tuple[str, float], ...]
    num_draws: int
    groups: tuple[Group, ...]
    apart: float | None
    like: tuple[tuple[str, str], ...]


def insights(
    model: Trained, vectors: np.ndarray, rows: Sequence[int], names: Sequence[str], classes: Sequence[str],
    labelled_names: Sequence[str], seed: int,
) -> list[Insight]:  # fmt: skip
    """Return why some items are worth a label.

    Args:
        model: trained on some of them.
        vectors: (N, D) the embeddings of all items.
        rows: (n,) the items to look at.
        names: (n,) their ids.
        classes: (C,) the names of the classes.
        labelled_names: the ids of the items that the model was trained on.
        seed: of the sample on which groups are compared.
    """
    random = np.random.default_rng(derived_seed(seed, "insight"))
    sample = np.sort(random.choice(len(vectors), min(SAMPLE, len(vectors)), replace=False))
    elsewhere = _votes(model, vectors[sample], len(classes))[0]  # (M, S, C) of 0 and 1
    here, weights, probs = _votes(model, vectors[list(rows)], len(classes))
    nearest = _nearest(vectors, rows, model.rows, vectors[sample].mean(axis=0))
    found = []
    for i, name in enumerate(names):
        counts = here[i].sum(axis=0)
        shares = weights @ here[i]
        groups = [int(c) for c in np.argsort(-counts, kind="stable")[:2] if counts[c]]
        is_split = len(groups) == 2
        sides = [elsewhere[:, here[i][:, c] == 1].sum(axis=1).argmax(axis=1) for c in groups] if is_split else []
        voted = sorted(((classes[c], float(shares[c])) for c in range(len(classes)) if counts[c]), key=lambda x: -x[1])
        found.append(
            Insight(
                name,
                classes[int(probs[i].argmax())],
                tuple(voted),
                here.shape[1],
                tuple(Group(classes[c], int(counts[c])) for c in groups) if is_split else (),
                float((sides[0] != sides[1]).mean()) if is_split else None,
                tuple((labelled_names[k], classes[int(model.labels[k])]) for k in nearest[i]),
            )
        )
    return found


def _votes(model: Trained, vectors: np.ndarray, num_classes: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (n, S, C) one vote of each draw; (S,) the weights of draws; (n, C) mean probabilities."""
    predictions = model.posterior.predict(as_inputs(vectors))
    votes = torch.nn.functional.one_hot(predictions.hard_labels(), num_classes).numpy()
    return votes, predictions.draw_weights.numpy(), predictions.mean_probs().numpy()


def _nearest(vectors: np.ndarray, rows: Sequence[int], labelled: np.ndarray, centre: np.ndarray) -> list[list[int]]:
    """Return, for each row, the places in `labelled` of the items nearest by cosine; never the row itself."""
    found = []
    others = _unit(vectors[labelled] - centre)
    for row in rows:
        likeness = others @ _unit(vectors[[row]] - centre)[0]
        order = np.argsort(-likeness, kind="stable")
        found.append([int(k) for k in order if labelled[k] != row][:NUM_LIKE])
    return found


def _unit(vectors: np.ndarray) -> np.ndarray:
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(norms > 0, norms, 1)

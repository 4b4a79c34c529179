"""Labels that are probably wrong, exact copies, and the cross-validation behind both ε and the first.

A model that has not seen a label judges it: folds of the training labels, stratified by class. Labels that it finds
least likely, and would have given otherwise, are worth a second look (Northcutt et al. 2021 count them as we do).
"""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchbalance.checks import check_whole

NUM_FOLDS = 5
NUM_SHOWN, UNLIKELY = 10, 0.2  # labels shown at most, and how probable they may be

# Trains on some rows of the labelled items and gives class probabilities (n, C) of others.
TrainAndPredict = Callable[[NDArray[np.int64], NDArray[np.int64]], NDArray[Any]]


@dataclass(frozen=True)
class Suspect:
    """A label that the model finds unlikely.

    Attributes:
        row: its place among the labels.
        label: the class that was told.
        suggested: the class that the model would have told.
        probability: of the label.
        suggested_probability: of the suggestion.
    """

    row: int
    label: int
    suggested: int
    probability: float
    suggested_probability: float


@dataclass(frozen=True)
class Duplicates:
    """Exact copies among the items.

    Attributes:
        num_copies: items that equal an earlier one.
        num_groups: contents that occur more than once.
        conflicts: groups of rows whose labels differ.
        num_audit_copies: audit items that equal an item trained on; they make the model look better than it is.
    """

    num_copies: int = 0
    num_groups: int = 0
    conflicts: tuple[tuple[int, ...], ...] = ()
    num_audit_copies: int = 0


def folds(labels: NDArray[Any], num_folds: int = NUM_FOLDS, seed: int = 0) -> NDArray[np.int64]:
    """(L,) a fold for each label; every class is spread over them as evenly as it can be."""
    check_whole("num_folds", num_folds, 2)
    shuffled = np.random.default_rng(seed).permutation(len(labels))
    order = shuffled[np.argsort(np.asarray(labels)[shuffled], kind="stable")]
    found = np.empty(len(labels), dtype=np.int64)
    found[order] = np.arange(len(labels)) % num_folds
    return found


def cross_validated(
    labels: NDArray[Any], train_and_predict: TrainAndPredict, num_folds: int = NUM_FOLDS, seed: int = 0
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Class probabilities of every label by a model that has not seen it, and which of them can be judged.

    A label cannot be judged if no other of its class is outside its fold: no model could have given it. Its row is 0.

    Args:
        labels: (L,) classes.
        train_and_predict: trains on rows of them and predicts other rows.
        num_folds: fewer if there are fewer labels; with fewer than two labels nothing is judged.
        seed: of the folds.

    Returns:
        Probabilities (L, C), and (L,) whether they count.
    """
    labels = np.asarray(labels)
    num_folds = min(num_folds, len(labels))
    judged = np.zeros(len(labels), dtype=bool)
    if num_folds < 2:
        return np.zeros((len(labels), 0)), judged
    fold = folds(labels, num_folds, seed)
    rows, found = [], []
    for each in range(num_folds):
        test, train = np.flatnonzero(fold == each), np.flatnonzero(fold != each)
        judged[test] = np.isin(labels[test], labels[train])
        rows.append(test)
        found.append(np.asarray(train_and_predict(train, test), dtype=np.float64))
    probs = np.concatenate(found)[np.argsort(np.concatenate(rows))]
    return np.where(judged[:, None], probs, 0.0), judged


def cross_validated_error(probs: NDArray[Any], labels: NDArray[Any], judged: NDArray[Any]) -> float | None:
    """The share of judged labels that the cross-validated model gets wrong; None if none is judged."""
    wrong = probs[judged].argmax(axis=1) != np.asarray(labels)[judged] if judged.any() else np.empty(0)
    return float(wrong.mean()) if len(wrong) else None


def likely_errors(
    probs: NDArray[Any], labels: NDArray[Any], judged: NDArray[Any], limit: int = NUM_SHOWN
) -> list[Suspect]:
    """The labels that the model finds least likely, below 0.2, and would have given otherwise; the least likely first.

    Args:
        probs: (L, C) by models that have not seen the label.
        labels: (L,) classes.
        judged: (L,) which rows count.
        limit: how many at most.
    """
    labels = np.asarray(labels)
    rows = np.flatnonzero(judged)
    suggested = probs[rows].argmax(axis=1) if len(rows) else rows
    rows, suggested = rows[suggested != labels[rows]], suggested[suggested != labels[rows]]
    own = probs[rows, labels[rows]] if len(rows) else np.empty(0)
    return [
        Suspect(
            int(rows[i]), int(labels[rows[i]]), int(suggested[i]), float(own[i]), float(probs[rows[i], suggested[i]])
        )
        for i in np.argsort(own, kind="stable")[:limit]
        if own[i] < UNLIKELY
    ]


def row_digests(embeddings: NDArray[Any]) -> list[bytes]:
    """A digest for each row; equal rows have equal ones, and 0 and −0 are equal."""
    return [hashlib.blake2b((row + 0.0).tobytes(), digest_size=16).digest() for row in embeddings]


def duplicates(
    contents: Iterable[Any], labels: Sequence[int | None] | None = None, is_audit: NDArray[Any] | None = None
) -> Duplicates:
    """Count exact copies.

    Args:
        contents: (N,) what each item is, as anything hashable: a text, a digest of a file or of an embedding.
        labels: (N,) the class of each item, None if it has none.
        is_audit: (N,) which items are set aside.
    """
    groups: dict[Any, list[int]] = {}
    for row, content in enumerate(contents):
        groups.setdefault(content, []).append(row)
    repeated = [rows for rows in groups.values() if len(rows) > 1]
    if labels is None:
        return Duplicates(sum(map(len, repeated)) - len(repeated), len(repeated))
    told = [[row for row in rows if labels[row] is not None] for rows in repeated]
    conflicts = tuple(tuple(rows) for rows in told if len({labels[row] for row in rows}) > 1)
    leaked = 0
    if is_audit is not None:
        for rows, with_label in zip(repeated, told, strict=True):
            if any(not is_audit[row] for row in with_label):
                leaked += sum(bool(is_audit[row]) for row in rows)
    return Duplicates(sum(map(len, repeated)) - len(repeated), len(repeated), conflicts, leaked)

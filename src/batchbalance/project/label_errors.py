"""Labels that are probably wrong, exact copies, agreement, and the cross-validation that also estimates ε.

Each label is judged by a model that has not seen it. Training labels use cross-validation, stratified by class; audit
labels use the current model, which never trains on them. Where label and prediction differ, either may be wrong. The
share of wrong labels and the reliability of the model are estimated jointly from all labels. So a weak model reports
nothing, and a good one reports how many of its suspects are expected to be wrong.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchbalance.arguments.checks import check_whole
from batchbalance.project.state import ANSWERS, State, Who

NUM_FOLDS = 5
LEAST_JUDGED = 20  # labels needed to look for errors among them
NONE_WRONG = 0.9  # probability, before any label is judged, that no label is wrong
TEMPERATURES = np.geomspace(0.25, 64, 33)  # factors by which the log-probabilities may be too large
LEAST_PROBABILITY = 1e-12  # floor of probabilities: votes of few members are often 0
RATES = np.geomspace(0.002, 0.5, 40)  # shares of wrong labels to consider, besides none

# Trains on some rows of the labelled items and returns class probabilities (n, C) of others.
TrainAndPredict = Callable[[NDArray[np.int64], NDArray[np.int64]], NDArray[Any]]


@dataclass(frozen=True)
class Suspect:
    """A label that the model finds unlikely.

    Attributes:
        row: its position among the labels.
        label: the class that was given.
        suggested: the class that the model predicts.
        probability: the label's probability.
        wrong: the probability that the label is wrong, given all labels.
    """

    row: int
    label: int
    suggested: int
    probability: float
    wrong: float


@dataclass(frozen=True)
class Duplicates:
    """Exact copies among the items.

    Attributes:
        num_copies: items that equal an earlier one.
        num_groups: contents that occur more than once.
        conflicts: groups of rows whose labels differ.
        num_audit_copies: audit items that equal an item trained on; they inflate the accuracy.
    """

    num_copies: int = 0
    num_groups: int = 0
    conflicts: tuple[tuple[int, ...], ...] = ()
    num_audit_copies: int = 0


def folds(labels: NDArray[Any], num_folds: int = NUM_FOLDS, seed: int = 0) -> NDArray[np.int64]:
    """Return (L,) a fold for each label; every class is spread over the folds as evenly as possible."""
    check_whole("num_folds", num_folds, 2)
    shuffled = np.random.default_rng(seed).permutation(len(labels))
    order = shuffled[np.argsort(np.asarray(labels)[shuffled], kind="stable")]
    found = np.empty(len(labels), dtype=np.int64)
    found[order] = np.arange(len(labels)) % num_folds
    return found


def cross_validated(
    labels: NDArray[Any], train_and_predict: TrainAndPredict, num_folds: int = NUM_FOLDS, seed: int = 0
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return class probabilities for every label by a model that has not seen it, and which labels can be judged.

    A label cannot be judged if its class does not occur outside its fold: no model could predict it. Its row is 0.

    Args:
        labels: (L,) classes.
        train_and_predict: trains on some rows and predicts others.
        num_folds: fewer if there are fewer labels; with fewer than two labels nothing is judged.
        seed: the seed of the folds.

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
    """Return the share of judged labels that the cross-validated model gets wrong; None if none is judged."""
    wrong = probs[judged].argmax(axis=1) != np.asarray(labels)[judged] if judged.any() else np.empty(0)
    return float(wrong.mean()) if len(wrong) else None


def likely_errors(probs: NDArray[Any], labels: NDArray[Any], judged: NDArray[Any]) -> list[Suspect]:
    """Return the labels that are more likely wrong than right, the most probable errors first.

    Their mean `wrong` is the share of them that is expected to be wrong. The list is empty if the model's own errors
    explain the unlikely labels equally well.

    Args:
        probs: (L, C) class probabilities by models that have not seen the label.
        labels: (L,) classes.
        judged: (L,) which rows count.
    """
    labels, rows = np.asarray(labels), np.flatnonzero(judged)
    if len(rows) < LEAST_JUDGED:
        return []
    wrong = wrong_probabilities(probs[rows], labels[rows])
    suggested = probs[rows].argmax(axis=1)
    order = [i for i in np.argsort(-wrong, kind="stable") if wrong[i] > 0.5 and suggested[i] != labels[rows[i]]]
    own = probs[rows, labels[rows]]
    return [
        Suspect(int(rows[i]), int(labels[rows[i]]), int(suggested[i]), float(own[i]), float(wrong[i])) for i in order
    ]


def wrong_probabilities(probs: NDArray[Any], labels: NDArray[Any]) -> NDArray[np.float64]:
    """Return the probability (n,) that each label is wrong.

    Let p be the model's probabilities at a temperature, and r the share of labels replaced by another class. The
    likelihood of a label y is (1 − r) p(y) + r (1 − p(y)) / (C − 1), and its second term is the part due to wrong
    labels. That part is averaged over the posterior of temperatures and shares. The prior gives odds of nine to one
    that no label is wrong; all temperatures and all other shares of the grid are equally likely. The most likely pair
    alone would be overconfident, because a badly fitted model resembles wrong labels. `python -m torture.rates`
    measures the result.
    """
    logs = np.log(np.maximum(np.asarray(probs, dtype=np.float64), LEAST_PROBABILITY))
    rates = np.concatenate([[0.0], RATES])
    prior = np.log(np.concatenate([[NONE_WRONG], np.full(len(RATES), (1 - NONE_WRONG) / len(RATES))]))
    logs_posterior, parts = [], []
    for temperature in TEMPERATURES:
        tempered = np.exp((logs - logs.max(axis=1, keepdims=True)) / temperature)
        tempered /= tempered.sum(axis=1, keepdims=True)
        own = tempered[np.arange(len(labels)), labels]
        wrong = np.outer((1 - own) / (logs.shape[1] - 1), rates)  # (n, R)
        either = np.maximum(np.outer(own, 1 - rates) + wrong, 1e-300)
        logs_posterior.append(np.log(either).sum(axis=0) + prior)
        parts.append(wrong / either)
    posterior = np.exp(np.array(logs_posterior) - np.max(logs_posterior))  # (T, R)
    averaged: NDArray[np.float64] = np.einsum("tr,tnr->n", posterior / posterior.sum(), np.array(parts))
    return averaged


def duplicates(
    contents: Iterable[Any], labels: Sequence[int | None] | None = None, is_audit: NDArray[Any] | None = None
) -> Duplicates:
    """Count exact copies.

    Args:
        contents: (N,) the content of each item, hashable: a text, or a digest of a file or an embedding.
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


@dataclass(frozen=True)
class Agreement:
    """The agreement of two people on the items that both answered.

    Attributes:
        first, second: the two people.
        num_items: how many items both answered.
        share: the share of these on which they agree.
        kappa: Cohen's κ; NaN if both gave one and the same answer throughout.
    """

    first: Who
    second: Who
    num_items: int
    share: float
    kappa: float


def cohen_kappa(first: Sequence[int] | NDArray[Any], second: Sequence[int] | NDArray[Any]) -> float:
    """Return (p_o − p_e) / (1 − p_e), the agreement beyond chance of two lists of classes; NaN if p_e is 1.

    It equals scikit-learn's ``cohen_kappa_score``, whose import would add a second to every command.
    """
    ours, theirs = np.asarray(first), np.asarray(second)
    if not len(ours):
        return math.nan
    classes, codes = np.unique(np.concatenate([ours, theirs]), return_inverse=True)
    shares = [np.bincount(each, minlength=len(classes)) / len(ours) for each in np.split(codes, 2)]
    by_chance = float(shares[0] @ shares[1])
    return math.nan if by_chance == 1 else (float((ours == theirs).mean()) - by_chance) / (1 - by_chance)


def agreements(state: State) -> list[Agreement]:
    """Return the agreement of every pair of people with items in common, by their first answers.

    Disputed items are asked again until people agree, so later answers agree by design.
    """
    firsts: dict[int, dict[Who, int]] = {}
    for event in state.history():
        if event.kind in ANSWERS and event.item is not None:
            firsts.setdefault(event.item, {}).setdefault(event.who, event.value)
    found = []
    for first, second in combinations(state.annotators(), 2):
        both = [answers for answers in firsts.values() if first in answers and second in answers]
        if both:
            ours, theirs = [each[first] for each in both], [each[second] for each in both]
            share = sum(a == b for a, b in zip(ours, theirs, strict=True)) / len(both)
            found.append(Agreement(first, second, len(both), share, cohen_kappa(ours, theirs)))
    return found

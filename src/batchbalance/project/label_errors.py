"""Labels that are probably wrong, exact copies, agreement, and the cross-validation that also estimates ε.

Each label is judged by a model that has not seen it. Training labels use cross-validation, stratified by class; audit
labels use the current model, which never trains on them. Where label and prediction differ, either may be wrong. The
share of wrong labels and the reliability of the model are estimated jointly from all labels. So a weak model reports
nothing, and a good one reports how many of its suspects are expected to be wrong.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchbalance.arguments.checks import check_whole
from batchbalance.project.labelling import Labelling, Value, predicted
from batchbalance.project.state import ANSWERS, State, Who, as_value

NO_NAME = "(no name)"
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
        label: the answer that was given.
        suggested: the answer that the model suggests.
        probability: the label's probability.
        wrong: the probability that the label is wrong, given all labels.
    """

    row: int
    label: Value
    suggested: Value
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
    kinds = np.unique(labels, axis=0, return_inverse=True)[1].reshape(-1)
    order = shuffled[np.argsort(kinds[shuffled], kind="stable")]
    found = np.empty(len(labels), dtype=np.int64)
    found[order] = np.arange(len(labels)) % num_folds
    return found


def cross_validated(
    labels: NDArray[Any], train_and_predict: TrainAndPredict, num_folds: int = NUM_FOLDS, seed: int = 0
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return class probabilities for every label by a model that has not seen it, and which labels can be judged.

    A label cannot be judged if its class does not occur outside its fold: no model could predict it. Its row is 0. Of
    several labels for each item, each is judged for itself.

    Args:
        labels: (L,) classes, or (L, C) of 0 and 1.
        train_and_predict: trains on some rows and predicts others.
        num_folds: fewer if there are fewer labels; with fewer than two labels nothing is judged.
        seed: the seed of the folds.

    Returns:
        Probabilities (L, C), and (L,) or (L, C) whether they count.
    """
    labels = np.asarray(labels)
    num_folds = min(num_folds, len(labels))
    columns = labels.reshape(len(labels), math.prod(labels.shape[1:]))
    judged = np.zeros(columns.shape, dtype=bool)
    if num_folds < 2:
        return np.zeros((len(labels), 0)), judged.reshape(labels.shape)
    fold = folds(labels, num_folds, seed)
    rows, found = [], []
    for each in range(num_folds):
        test, train = np.flatnonzero(fold == each), np.flatnonzero(fold != each)
        pairs = zip(columns[test].T, columns[train].T, strict=True)
        judged[test] = np.stack([np.isin(ours, theirs) for ours, theirs in pairs], axis=1)
        rows.append(test)
        found.append(np.asarray(train_and_predict(train, test), dtype=np.float64))
    probs = np.concatenate(found)[np.argsort(np.concatenate(rows))]
    return np.where(judged, probs, 0.0), judged.reshape(labels.shape)


def cross_validated_error(probs: NDArray[Any], labels: NDArray[Any], judged: NDArray[Any]) -> float | None:
    """Return the share of judged labels that the cross-validated model gets wrong; None if none is judged."""
    if not judged.any():
        return None
    said = predicted(probs, is_multi=np.ndim(labels) == 2)
    return float((said != labels)[judged].mean())


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


def doubted(probs: NDArray[Any], labelling: Labelling, labels: Sequence[Value], judged: NDArray[Any]) -> list[Suspect]:
    """Return ``likely_errors``; of several labels for each item each is judged for itself, as a "no" or a "yes".

    An item with several doubtful labels is listed once, with the figures of the most doubtful one.

    Args:
        probs: (L, C) probabilities by models that have not seen the label.
        labelling: the classes.
        labels: (L,) answers.
        judged: (L,) or (L, C) which count.
    """
    given = labelling.array(labels)
    if not labelling.is_multi:
        return likely_errors(probs, given, judged)
    by_row: dict[int, list[tuple[int, Suspect]]] = {}
    for each in range(given.shape[1]):
        yes = np.stack([1 - probs[:, each], probs[:, each]], axis=1)
        for found in likely_errors(yes, given[:, each], judged[:, each]):
            by_row.setdefault(found.row, []).append((each, found))
    suspects = []
    for row, found_there in by_row.items():
        worst = max((found for _, found in found_there), key=lambda found: found.wrong)
        flipped = {each for each, _ in found_there} ^ set(np.flatnonzero(given[row]).tolist())
        suspects.append(replace(worst, label=labels[row], suggested=tuple(sorted(flipped))))
    return sorted(suspects, key=lambda found: (-found.wrong, found.row))


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
    contents: Iterable[Any], labels: Sequence[Value | None] | None = None, is_audit: NDArray[Any] | None = None
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
        label: the label that this is about, in a project with several labels; else "".
    """

    first: Who
    second: Who
    num_items: int
    share: float
    kappa: float
    label: str = ""

    @property
    def name(self) -> str:
        """The two people, and the label if there are several."""
        return f"{self.first or NO_NAME} and {self.second or NO_NAME}{f', {self.label}' if self.label else ''}"


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
    """Return the agreement of every pair of people with items in common, by their first answers, label by label.

    Disputed items are asked again until people agree, so later answers agree by design.
    """
    firsts: dict[int, dict[Who, Value]] = {}
    for event in state.history():
        if event.kind in ANSWERS and event.item is not None:
            firsts.setdefault(event.item, {}).setdefault(event.who, as_value(event.value))
    found = []
    for first, second in combinations(state.annotators(), 2):
        both = [answers for answers in firsts.values() if first in answers and second in answers]
        if both:
            ours, theirs = (
                state.labelling.array(each[who] for each in both).reshape(len(both), -1) for who in (first, second)
            )
            for label, a, b in zip(state.classes if state.is_multi else [""], ours.T, theirs.T, strict=True):
                found.append(Agreement(first, second, len(both), float((a == b).mean()), cohen_kappa(a, b), label))
    return found

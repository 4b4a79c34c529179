"""The model's prediction and what machines suggest, combined by how good both are on labels they have not seen.

A source that suggests s says y with a probability from labelled items: s is right with a probability q, estimated for
its class and the fifth of confidences that it is in, and errors are spread as they were seen. All estimates are shrunk
towards coarser ones. The combined prediction is proportional to head(y) · Π source(y)^w. The weights w maximise the
likelihood of the training labels, each predicted by a head and by tables that have not seen it; 0 omits the source.
Labels of the audit set have no part in it, so that it measures the combination too.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from batchbalance.project.label_errors import NUM_FOLDS, folds
from batchbalance.project.suggestions import NONE, Source

WEIGHTS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5)
SHRUNK = 4.0  # labels that the estimate of a class or a fifth is shrunk by
SPREAD = 2.0  # labels that the errors of a class are shrunk by, towards all other classes alike
SOFTENED = 0.01  # share of a uniform distribution in the head's predictions
FIFTHS = (0.2, 0.4, 0.6, 0.8)
ASSUMED = 0.8  # confidence of a source without confidences, before there are labels
PASSES = 2  # over the sources, when several have weights


@dataclass(frozen=True, eq=False)
class Mixture:
    """The sources that change a model's predictions.

    Attributes:
        weights: the weight of each source that helps.
        sources: the sources by name.
        rows: (L,) the training items.
        labels: (L,) their classes.
    """

    weights: Mapping[str, float]
    sources: Mapping[str, Source]
    rows: np.ndarray
    labels: np.ndarray

    def evidence(self, rows: np.ndarray | Sequence[int] | slice, num_classes: int) -> np.ndarray:
        """Return (n, C) the logarithm of what all sources say together about some items."""
        every = np.arange(max(len(each.labels) for each in self.sources.values()))
        total = np.zeros((len(every[rows]), num_classes))
        for name, weight in self.weights.items():
            total += weight * source_logs(self.sources[name], self.rows, self.labels, every[rows], num_classes)
        return total

    def combined(self, probs: np.ndarray, rows: np.ndarray | Sequence[int] | slice) -> np.ndarray:
        """Return class probabilities (n, C) of a model for some items, combined with the sources."""
        return np.asarray(np.exp(normalised(softened(probs) + self.evidence(rows, probs.shape[1]))))


def mixture_of(
    sources: Mapping[str, Source],
    rows: np.ndarray,
    labels: np.ndarray,
    probs: np.ndarray,
    judged: np.ndarray,
    seed: int,
) -> Mixture | None:
    """Choose the weights of sources; None if none helps.

    Args:
        sources: by name.
        rows: (L,) the training items.
        labels: (L,) their classes.
        probs: (L, C) predictions of heads that have not seen the label.
        judged: (L,) whether such a head could predict the label at all; else its prediction counts as uniform.
        seed: the seed of the folds.
    """
    num_classes = probs.shape[1]
    head = softened(np.where(judged[:, None], probs, 1 / num_classes))
    num_folds = min(NUM_FOLDS, len(labels))
    fold = folds(labels, num_folds, seed)
    unseen = {name: np.zeros(head.shape) for name in sources}
    for name, source in sources.items():
        for each in range(num_folds):
            train, test = fold != each, fold == each
            unseen[name][test] = source_logs(source, rows[train], labels[train], rows[test], num_classes)
    weights = dict.fromkeys(sources, 0.0)

    def likelihood(name: str, weight: float) -> float:
        tried = {**weights, name: weight}
        total = normalised(head + sum(tried[other] * unseen[other] for other in sources))
        return float(total[np.arange(len(labels)), labels].sum())

    for _ in range(PASSES if len(sources) > 1 else 1):
        for name in sources:
            weights[name] = max(WEIGHTS, key=lambda weight, name=name: likelihood(name, weight))  # type: ignore[misc]
    used = {name: weight for name, weight in weights.items() if weight}
    return Mixture(used, sources, rows, labels) if used else None


def source_logs(
    source: Source, rows: np.ndarray, labels: np.ndarray, wanted: np.ndarray, num_classes: int
) -> np.ndarray:
    """Return (n, C) log-probabilities by a source for the `wanted` items, estimated on labelled ones; 0 without one."""
    has = source.labels[rows] != NONE
    rows, labels = rows[has], labels[has]
    said = source.labels[rows]
    is_right = said == labels
    overall = (is_right.sum() + 1) / (len(rows) + 2)

    def shrunk(groups: np.ndarray, count: int) -> np.ndarray:
        right, total = (np.bincount(groups[which], minlength=count) for which in (is_right, slice(None)))
        return np.asarray((right + SHRUNK * overall) / (total + SHRUNK))

    errors = np.full((num_classes, num_classes), SPREAD / max(1, num_classes - 1))
    np.add.at(errors, (said[~is_right], labels[~is_right]), 1)
    np.fill_diagonal(errors, 0)
    errors /= errors.sum(axis=1, keepdims=True)
    found = np.zeros((len(wanted), num_classes))
    known = np.flatnonzero(source.labels[wanted] != NONE)
    new = source.labels[wanted[known]]
    odds = _logit(shrunk(said, num_classes))[new]
    if source.confidence is not None:
        edges = np.quantile(source.confidence[source.labels != NONE], FIFTHS)
        fifths = _logit(shrunk(np.digitize(source.confidence[rows], edges), len(FIFTHS) + 1)) - _logit(overall)
        odds = odds + fifths[np.digitize(source.confidence[wanted[known]], edges)]
    right = 1 / (1 + np.exp(-odds))
    probs = (1 - right)[:, None] * errors[new]
    probs[np.arange(len(new)), new] = right
    found[known] = np.log(probs)
    return found


def doubts(sources: Mapping[str, Source], num_classes: int) -> np.ndarray:
    """Return (N,) one minus the largest mean probability of a class over sources, before there are labels.

    The rest of a source's confidence is spread over all other classes. Items without a suggestion are uniform.
    """
    mean = np.zeros((max(len(each.labels) for each in sources.values()), num_classes))
    for each in sources.values():
        sure = np.full(len(mean), ASSUMED) if each.confidence is None else each.confidence
        sure = np.where(each.labels == NONE, 1 / num_classes, sure)
        other = (1 - sure) / max(1, num_classes - 1)
        mean += other[:, None]
        mean[np.arange(len(mean)), each.labels] += np.where(each.labels == NONE, 0.0, sure - other)
    return np.asarray(1 - mean.max(axis=1) / len(sources))


def softened(probs: np.ndarray) -> np.ndarray:
    """Return the logarithm of probabilities (n, C), with a small uniform share."""
    return np.asarray(np.log((1 - SOFTENED) * probs + SOFTENED / probs.shape[1]))


def normalised(logs: np.ndarray) -> np.ndarray:
    """Return log-probabilities (n, C) that add up to 1."""
    logs = logs - logs.max(axis=1, keepdims=True)
    return np.asarray(logs - np.log(np.exp(logs).sum(axis=1, keepdims=True)))


def _logit(share: np.ndarray | float) -> np.ndarray:
    kept = np.clip(share, 1e-4, 1 - 1e-4)
    return np.asarray(np.log(kept / (1 - kept)))

"""The random arm: a test of whether the strategy beats choosing at random in this project.

Such a test needs some labels that were chosen at random. With `--random-arm 0.2` a fifth of the training labels are
uniform. Two heads are trained on equally many labels, one on the strategy's first and one on the uniform ones, and
compared on the audit set.

Other labels would have given other heads, so an interval for these two heads alone is too narrow. If the strategy were
only as good as random, its labels and the uniform ones would be exchangeable. So the labels are shuffled and split
between two heads repeatedly. The share of splits with at least the observed difference is the p-value of a permutation
test, which is exact for any model.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchbalance.project.audit import ALPHA
from batchbalance.project.label_errors import TrainAndPredict
from batchbalance.project.labelling import is_same, predicted

LEAST_FOR_ARM = 10  # labels in each arm, and audit labels
NUM_SPLITS, LEVEL = 39, ALPHA / 2  # strict, because people look more than once


@dataclass(frozen=True)
class ArmComparison:
    """A comparison of two heads on the same audit items.

    Attributes:
        num_labels: labels that each was trained on.
        total: audit items.
        only_chosen: items that the head of the strategy's labels alone gets right.
        only_random: items that the head of uniform labels alone gets right.
        num_splits: how often the labels were shuffled and split between two heads; 0 if training takes too long.
        num_as_far: how many of these splits differ by at least as much.
    """

    num_labels: int
    total: int
    only_chosen: int
    only_random: int
    num_splits: int
    num_as_far: int

    @property
    def difference(self) -> float:
        """Accuracy of the strategy's head minus that of the other."""
        return (self.only_chosen - self.only_random) / self.total

    @property
    def p(self) -> float:
        """The p-value of the permutation test; 1 if there was no test."""
        return (1 + self.num_as_far) / (1 + self.num_splits)

    def sentence(self) -> str:
        """Return the comparison in one sentence."""
        found = (
            f"{100 * self.difference:+.1f} points of accuracy against random, two heads of {self.num_labels} labels "
            f"each on {self.total} audit items"
        )
        if not self.num_splits:
            return f"{found}. The difference was not tested: this kind of model takes too long to retrain."
        if self.p > LEVEL:
            verdict = "the strategy and random are statistically indistinguishable so far"
        else:
            verdict = f"the strategy is {'better' if self.difference > 0 else 'worse'} than random here"
        return (
            f"{found}. Of {self.num_splits} random splits of these labels, {self.num_as_far} differ by at least as "
            f"much (p = {self.p:.3f}, for one look): {verdict}."
        )


def compare_arms(
    chosen: NDArray[Any],
    uniform: NDArray[Any],
    audit: NDArray[Any],
    labels: NDArray[Any],
    train: TrainAndPredict,
    *,
    num_splits: int = NUM_SPLITS,
    seed: int = 0,
) -> ArmComparison | None:
    """Train two heads on equally many labels and compare them; None with fewer than 10 labels in an arm or audit.

    Args:
        chosen: rows that the strategy chose, in the order they were asked.
        uniform: rows of the random arm, in the same order. A row may be in both.
        audit: rows of audit items with a label.
        labels: (N,) the class of every row named above; (N, C) of 0 and 1 if an item may have several.
        train: trains on some rows and returns the probabilities (n, C) of others.
        num_splits: the number of random splits; 0 for no test.
        seed: the seed of the splits.
    """
    count = min(len(chosen), len(uniform))
    if min(count, len(audit)) < LEAST_FOR_ARM:
        return None
    first, second = np.asarray(chosen)[:count], np.asarray(uniform)[:count]
    truth = np.asarray(labels)[audit]

    def answers(rows: NDArray[Any]) -> tuple[NDArray[np.bool_], float]:
        """Return which items a head gets right, and a score: their number, with ties broken by confidence."""
        known = np.unique(labels[rows], axis=0)
        if len(known) == 1:  # labels that are all alike cannot be fitted, and their prediction is certain
            right = is_same(truth, np.broadcast_to(known[0], truth.shape))
            return right, int(right.sum()) + float(right.mean())
        probs = train(rows, np.asarray(audit))
        right = is_same(predicted(probs, is_multi=truth.ndim == 2), truth)
        own = probs[np.arange(len(truth)), truth] if truth.ndim == 1 else np.where(truth == 1, probs, 1 - probs)
        return right, int(right.sum()) + float(own.mean())

    (ours, our_score), (theirs, their_score) = answers(first), answers(second)
    shared = np.intersect1d(first, second)
    dealt = np.concatenate([np.setdiff1d(first, shared), np.setdiff1d(second, shared)])
    random, num_as_far = np.random.default_rng(seed), 0
    for _ in range(num_splits):
        halves = np.split(random.permutation(dealt), 2)
        one, other = (answers(np.concatenate([shared, half]))[1] for half in halves)
        num_as_far += abs(one - other) >= abs(our_score - their_score)
    only = int((ours & ~theirs).sum()), int((theirs & ~ours).sum())
    return ArmComparison(count, len(audit), *only, num_splits, num_as_far)

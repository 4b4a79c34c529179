"""The random arm: whether the strategy is better than choosing at random, in this very project.

Within one project that cannot be known without labels that were chosen at random. With `--random-arm 0.2` a fifth of
the training labels are uniform. Two heads are trained on equally many labels, one on the strategy's first and one on
the uniform ones, and compared on the audit set.

Other labels would have given other heads, so that an interval for these two heads says too little. If the strategy were
as good as random, its labels and the uniform ones could change places. So they are shuffled and dealt to two heads
again and again; how often these differ by as much is the p-value of a permutation test, exact for any model.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchbalance.project.audit import ALPHA
from batchbalance.project.label_errors import TrainAndPredict

LEAST_FOR_ARM = 10  # labels in either arm, and audit labels
NUM_SPLITS, LEVEL = 39, ALPHA / 2  # a verdict only if none of them differs by as much: people look more than once


@dataclass(frozen=True)
class ArmComparison:
    """Two heads on the same audit items.

    Attributes:
        num_labels: labels that each was trained on.
        total: audit items.
        only_chosen: items that the head of the strategy's labels alone gets right.
        only_random: items that the head of uniform labels alone gets right.
        num_splits: how often the labels were shuffled and dealt to two heads; 0 if training takes too long for that.
        num_as_far: how many of these pairs of heads differ by as much.
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
        """The p-value of the permutation test; 1 without one."""
        return (1 + self.num_as_far) / (1 + self.num_splits)

    def sentence(self) -> str:
        """Return the comparison in one sentence."""
        found = (
            f"{100 * self.difference:+.1f} points of accuracy against random, two heads of {self.num_labels} labels "
            f"each on {self.total} audit items"
        )
        if not self.num_splits:
            return f"{found}. Whether that is chance is not known: this kind of model takes too long to train again."
        if self.p > LEVEL:
            verdict = "the strategy and random are statistically indistinguishable so far"
        else:
            verdict = f"the strategy is {'better' if self.difference > 0 else 'worse'} than random here"
        return (
            f"{found}. Of {self.num_splits} random deals of these labels to two heads {self.num_as_far} differ by as "
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
    """Train the two heads at equal counts and compare them; None with fewer than 10 labels in an arm or audit.

    Args:
        chosen: rows that the strategy chose, in the order they were asked.
        uniform: rows of the random arm, likewise. A row may be in both.
        audit: rows of audit items with a label.
        labels: (N,) the class of every row named above.
        train: trains on rows and gives the class probabilities (n, C) of others.
        num_splits: how often labels are dealt anew; 0 for no test.
        seed: of the deals.
    """
    count = min(len(chosen), len(uniform))
    if min(count, len(audit)) < LEAST_FOR_ARM:
        return None
    first, second = np.asarray(chosen)[:count], np.asarray(uniform)[:count]
    truth = np.asarray(labels)[audit]

    def answers(rows: NDArray[Any]) -> tuple[NDArray[np.bool_], float]:
        """Return which items a head gets right; and how many, where the mean probability of the truth breaks ties."""
        known = np.unique(labels[rows])
        if len(known) == 1:  # of one class no model is made, and none is needed
            right, sure = np.asarray(truth == known[0]), float((truth == known[0]).mean())
        else:
            probs = train(rows, np.asarray(audit))
            right, sure = np.asarray(probs.argmax(axis=1) == truth), float(probs[np.arange(len(truth)), truth].mean())
        return right, int(right.sum()) + sure

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

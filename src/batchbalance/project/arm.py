"""The random arm: whether the strategy is better than choosing at random, in this very project.

Within one project that cannot be known without labels that were chosen at random. With `--random-arm 0.2` a fifth of
the training labels are uniform. Two heads are trained on equally many labels, one on the strategy's first and one on
the uniform ones, and compared on the audit set, item by item. The interval is Bonett and Price's (2012) for paired
shares: each kind of disagreement gets one more count.
"""

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchbalance.project.audit import ALPHA, Interval
from batchbalance.project.label_errors import TrainAndPredict

LEAST_FOR_ARM = 10  # labels in either arm, and audit labels


@dataclass(frozen=True)
class ArmComparison:
    """Two heads on the same audit items.

    Attributes:
        num_labels: labels that each was trained on.
        total: audit items.
        only_chosen: items that the head of the strategy's labels alone gets right.
        only_random: items that the head of uniform labels alone gets right.
        interval: of the difference in accuracy, strategy minus random.
    """

    num_labels: int
    total: int
    only_chosen: int
    only_random: int
    interval: Interval

    @property
    def difference(self) -> float:
        """Accuracy of the strategy's head minus that of the other."""
        return (self.only_chosen - self.only_random) / self.total

    def sentence(self) -> str:
        """The comparison in one sentence."""
        found = f"{100 * self.difference:+.1f} points [{100 * self.interval.low:+.1f}, {100 * self.interval.high:+.1f}]"
        if self.interval.low > 0:
            verdict = "the strategy is better than random here"
        elif self.interval.high < 0:
            verdict = "the strategy is worse than random here"
        else:
            verdict = "the strategy and random are statistically indistinguishable so far"
        return (
            f"{found} of accuracy against random, two heads of {self.num_labels} labels each on {self.total} audit "
            f"items (95 %, for one look): {verdict}."
        )


def paired_interval(only_first: int, only_second: int, total: int, alpha: float = ALPHA) -> Interval:
    """The interval of p₁ − p₂ for two classifiers on the same items, from the items that just one gets right."""
    first, second = (only_first + 1) / (total + 2), (only_second + 1) / (total + 2)
    reach = NormalDist().inv_cdf(1 - alpha / 2) * math.sqrt((first + second - (first - second) ** 2) / (total + 2))
    return Interval(max(-1.0, first - second - reach), min(1.0, first - second + reach))


def compared(chosen_right: NDArray[Any], random_right: NDArray[Any], num_labels: int) -> ArmComparison:
    """Compare two heads by which of the same audit items each gets right, (n,) both."""
    chosen, uniform = np.asarray(chosen_right, dtype=bool), np.asarray(random_right, dtype=bool)
    if chosen.shape != uniform.shape or not len(chosen):
        raise ValueError(f"both heads must answer the same audit items, got {len(chosen)} and {len(uniform)}")
    only_chosen, only_random = int((chosen & ~uniform).sum()), int((uniform & ~chosen).sum())
    interval = paired_interval(only_chosen, only_random, len(chosen))
    return ArmComparison(num_labels, len(chosen), only_chosen, only_random, interval)


def compare_arms(
    chosen: NDArray[Any], uniform: NDArray[Any], audit: NDArray[Any], labels: NDArray[Any], train: TrainAndPredict
) -> ArmComparison | None:
    """Train the two heads at equal counts and compare them; None with fewer than 10 labels in an arm or audit.

    Args:
        chosen: rows that the strategy chose, in the order they were asked.
        uniform: rows of the random arm, likewise.
        audit: rows of audit items with a label.
        labels: (N,) the class of every row named above.
        train: trains on rows and gives the class probabilities (n, C) of others.
    """
    count = min(len(chosen), len(uniform))
    if min(count, len(audit)) < LEAST_FOR_ARM:
        return None
    truth = np.asarray(labels)[audit]
    right = [train(np.asarray(rows)[:count], np.asarray(audit)).argmax(axis=1) == truth for rows in (chosen, uniform)]
    return compared(right[0], right[1], count)

"""Whether machine labels that `export --accept` accepts are right as often as it promises.

A project is simulated without a model: a source with confidences that say more or less, or the opposite, about its
errors; people who label audit items and, in between, the items that are least or most sure, or any; and an export
after every ten labels. The promise is broken if at any of these exports too many of the accepted labels are wrong.
Targets lie close to the precision of the surer suggestions, where it is easiest to break.
"""

import random as randomness
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from batchbalance.project.accepting import accept
from batchbalance.project.suggestions import Source
from torture.campaign import Finding, campaign
from torture.looks import HARDLY_EVER, TOGETHER, chance_of

CLASSES, EXPORT_EVERY, LEAST_ITEMS, MOST_ITEMS = 4, 10, 400, 2000


@dataclass(frozen=True)
class Exports:
    """All exports of a project: whether any accepted labels, the largest share of items, and if any was wrong."""

    num_accepting: int
    most_accepted: float
    is_broken: bool


def exports(seed: int) -> Exports:
    """Simulate a project, and export again and again."""
    random = np.random.default_rng(seed)
    num = int(random.integers(LEAST_ITEMS, MOST_ITEMS))
    truth, sure = random.integers(CLASSES, size=num), random.beta(2, 1, size=num).round(int(random.integers(1, 4)))
    accuracy, slope = random.uniform(0.6, 1), random.choice([-0.2, 0.0, 0.3, 1.0])
    chance = np.clip(accuracy + slope * (sure - 0.67), 0, 1)
    is_right = random.random(num) < chance
    labels = np.where(is_right, truth, (truth + random.integers(1, CLASSES, size=num)) % CLASSES)
    surest = sure >= np.quantile(sure, random.choice([0.0, 0.3, 0.5, 0.8]))
    target = float(np.clip(is_right[surest].mean() - random.uniform(-0.02, 0.2), 0.3, 0.99))
    source = Source("gpt", labels, sure if random.random() < 0.8 else None)
    audit, others = np.split(random.permutation(num), [num // 3])
    keys = {"sure": -sure, "unsure": sure, "right": -chance, "any": random.random(num)}
    others = others[np.argsort(keys[str(random.choice(list(keys)))][others], kind="stable")]
    share, num_labels = random.uniform(0.1, 1), int(random.integers(50, 500))
    closed, found = random.random(num) < random.choice([0.0, 0.05]), list[float]()
    closed[audit] = False
    num_broken = 0
    for count in range(EXPORT_EVERY, num_labels + 1, EXPORT_EVERY):
        asked = audit[: int(share * count)]
        known = {int(row): int(truth[row]) for row in (*asked, *others[: count - len(asked)]) if not closed[row]}
        rows = accept(source, asked, known, closed, target).rows
        num_broken += len(rows) > 0 and is_right[rows].mean() < target
        found += [len(rows) / num] * (len(rows) > 0)
    return Exports(len(found), max(found, default=0.0), num_broken > 0)


@campaign("accepted machine labels", "of 20 projects no more accept too many wrong labels than chance allows at 5 %")
def promises_hold(_: Path, random: randomness.Random) -> Finding:
    """Simulate some projects and count those with a broken promise."""
    num = sum(exports(random.getrandbits(32)).is_broken for _ in range(TOGETHER))
    what = f"{num} of {TOGETHER} projects accept labels of which too many are wrong"
    return Finding("different" if chance_of(num, TOGETHER) < HARDLY_EVER else "intact", what)

"""Whether the audit's intervals hold what they say, in whole projects: real questions, answers and retraining.

Each project has data of its own; its model is another one at every look, trained on what the strategy chose, and ε of
the audit goes back into the strategy.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np

from batchbalance.project.audit import ALPHA, clopper_pearson, look_number
from batchbalance.project.project import Project
from torture.campaign import Finding, campaign

POOL, FRESH, FEATURES = 500, 2000, 3
AUDIT, BATCH, ROUNDS = 0.4, 12, 8  # 38 audit labels in all: looks at 10, 15, 22 and 33
HEAD = {"kind": "bayesian-head", "method": "laplace", "num_draws": 6, "prior_precision": 0.05, "temperature": 0.05}
STRATEGIES = ("auto", "margin", "batch-balance", "random")
TOGETHER = 20  # projects of one attempt of the campaign
HARDLY_EVER = 1e-4  # chance of that many misses at α in one attempt


@dataclass(frozen=True)
class Seen:
    """What one look came to.

    Attributes:
        number: t.
        holds: whether the 95 % interval for one look holds the model's accuracy on fresh data.
        holds_always: the same for the interval at level α / (t (t + 1)).
    """

    number: int
    holds: bool
    holds_always: bool


def simulated(folder: Path, seed: int) -> list[Seen]:
    """All looks of one project."""
    random = np.random.default_rng(seed)
    num_classes = int(random.integers(2, 5))
    centres = random.normal(size=(num_classes, FEATURES)) * random.uniform(0.7, 2)
    classes = random.choice(num_classes, POOL + FRESH, p=random.dirichlet(np.full(num_classes, 4.0)))
    points = (centres[classes] + random.normal(size=(POOL + FRESH, FEATURES))).astype(np.float32)
    np.save(folder / "pool.npy", points[:POOL])
    np.save(folder / "fresh.npy", points[POOL:])
    project = Project.create(
        folder / "project",
        classes=[str(each) for each in range(num_classes)],
        embeddings=folder / "pool.npy",
        audit=AUDIT,
        model=HEAD,
        strategy=STRATEGIES[seed % len(STRATEGIES)],
        seed=seed,
    )
    accuracies: dict[int, float] = {}
    for _ in range(ROUNDS):
        project.tell({name: str(classes[int(name)]) for name in project.ask(BATCH)})
        labels = project.labels
        is_audit = project.is_audit(labels)
        seen = {label for label, set_aside in zip(labels.values(), is_audit, strict=True) if not set_aside}
        if look_number(sum(is_audit)) and len(seen) > 1:  # of one class no model is made
            guesses = project.predict(folder / "fresh.npy")
            right = np.array([int(each.text) for each in guesses]) == classes[POOL:]
            accuracies[len(labels) - sum(is_audit)] = float(right.mean())
    looks = project.status().looks
    project.close()
    return [
        Seen(
            look.number,
            accuracies[look.num_labels] in clopper_pearson(look.correct, look.total),
            accuracies[look.num_labels] in look.interval,
        )
        for look in looks
    ]


def missed(looks: Iterable[Seen]) -> bool:
    """Whether any look at its own level misses."""
    return any(not look.holds_always for look in looks)


@campaign("looks at the audit", "of 20 projects no more have a look that misses than chance allows at 5 %")
def looks_hold(folder: Path, random: Random) -> Finding:
    """Run some projects and count those with a look that misses."""
    num_missed = 0
    for number in range(TOGETHER):
        (folder / str(number)).mkdir()
        num_missed += missed(simulated(folder / str(number), random.getrandbits(32)))
    what = f"{num_missed} of {TOGETHER} projects have a look that misses"
    return Finding("different" if chance_of(num_missed, TOGETHER) < HARDLY_EVER else "intact", what)


def chance_of(least: int, total: int) -> float:
    """The chance that at least so many projects miss, if each does with probability α."""
    return math.fsum(math.comb(total, k) * ALPHA**k * (1 - ALPHA) ** (total - k) for k in range(least, total + 1))

"""Whether what `status` claims is true as often as it says, in whole projects: real questions, answers and retraining.

- The random arm: in projects whose strategy is random, "better" or "worse than random" is false. 5 % may say so.
- Suspected labels: where all labels are right, none is listed; else as many of those listed are wrong as is said.

`python -m torture.rates --projects 200` prints the shares.
"""

import random as randomness
from pathlib import Path

import numpy as np

from batchbalance.project.arm import LEVEL
from batchbalance.project.project import Project
from torture.campaign import Finding, campaign
from torture.looks import HARDLY_EVER, TOGETHER, chance_of

ITEMS, FEATURES, BATCH, ROUNDS = 300, 4, 30, 4  # 120 questions: 36 audit items, and 42 labels in either arm
NUM_TOLD, NOISE = 200, 0.1  # items with a label, and the share of wrong labels in every other project
DATA = ("digits", "overlapping classes")
HEAD = {"kind": "bayesian-head", "method": "laplace", "num_draws": 4, "prior_precision": 0.05, "temperature": 0.05}


def p_of_random(folder: Path, seed: int) -> float:
    """Return the p-value that a project in which both arms are random ends with; 1 if it makes no test."""
    random = np.random.default_rng(seed)
    num_classes = int(random.integers(2, 5))
    centres = random.normal(size=(num_classes, FEATURES)) * random.uniform(0.5, 1.5)
    classes = random.integers(num_classes, size=ITEMS)
    np.save(folder / "pool.npy", (centres[classes] + random.normal(size=(ITEMS, FEATURES))).astype(np.float32))
    project = Project.create(
        folder / "project",
        classes=[str(each) for each in range(num_classes)],
        embeddings=folder / "pool.npy",
        audit=0.3,
        random_arm=0.5,
        model=HEAD,
        strategy="random",
        seed=seed,
    )
    for _ in range(ROUNDS):
        project.tell({name: str(classes[int(name)]) for name in project.ask(BATCH)})
    arm = project.status().facts.arm
    project.close()
    return 1.0 if arm is None else arm.p  # None for labels of one class


@campaign(
    "random arm of projects",
    "of 20 projects with a random strategy no more name a difference than chance allows at 5 %",
)
def arms_are_alike(folder: Path, random: randomness.Random) -> Finding:
    """Run some projects and count those with a verdict."""
    num = 0
    for number in range(TOGETHER):
        (folder / str(number)).mkdir()
        num += p_of_random(folder / str(number), random.getrandbits(32)) <= LEVEL
    what = f"{num} of {TOGETHER} projects with a random strategy call it better or worse than random"
    return Finding("different" if chance_of(num, TOGETHER) < HARDLY_EVER else "intact", what)


def suspected(folder: Path, seed: int, noise: float, data: str) -> tuple[int, int, float]:
    """How many labels of a project are suspected, how many of these are wrong, and how many should be.

    Args:
        folder: for its files.
        seed: of data and errors.
        noise: the share of wrong labels.
        data: "digits", or "overlapping classes": two, of which one may be rare, and a best model errs in 7 % at most.
    """
    random = np.random.default_rng(seed)
    vectors, truth = digits(random) if data == DATA[0] else overlapping(random)
    num_classes = int(truth.max()) + 1
    told = truth.copy()
    is_wrong = random.random(ITEMS) < noise
    told[is_wrong] = (told[is_wrong] + random.integers(1, num_classes, is_wrong.sum())) % num_classes
    np.save(folder / "pool.npy", vectors.astype(np.float32))
    project = Project.create(
        folder / "project",
        classes=range(num_classes),
        embeddings=folder / "pool.npy",
        seed=seed,
        model={"num_draws": 4},
    )
    project.tell({str(row): str(told[row]) for row in range(NUM_TOLD)})
    found = project.suspects()
    project.close()
    return len(found), sum(bool(is_wrong[int(x.item.id)]) for x in found), sum(x.wrong for x in found)


def digits(random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return some of scikit-learn's digits and their classes."""
    from sklearn.datasets import load_digits

    pixels, classes = load_digits(return_X_y=True)
    rows = random.permutation(len(pixels))[:ITEMS]
    return pixels[rows], classes[rows]


def overlapping(random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return points of two classes, 3 standard deviations apart, the second with a share of 5 to 50 %."""
    classes = (random.random(ITEMS) < random.uniform(0.05, 0.5)).astype(np.int64)
    points = random.normal(size=(ITEMS, 2 * FEATURES))
    points[:, 0] += 3 * classes
    return points, classes


@campaign(
    "suspected labels of projects", "of 5 without errors at most 1 lists any; of 5 others as many are wrong as said"
)
def suspicions_hold(folder: Path, random: randomness.Random) -> Finding:
    """Run projects with and without wrong labels."""
    made = []
    for number in range(10):
        (folder / str(number)).mkdir()
        data = DATA[number // 2 % 2]
        made.append(suspected(folder / str(number), random.getrandbits(32), NOISE * (number % 2), data))
    num_listing = sum(found > 0 for found, _, _ in made[::2])
    found, right, expected = (sum(each) for each in zip(*made[1::2], strict=True))
    what = f"{num_listing} of 5 without errors list some; {right} of {found} are wrong, {expected:.1f} were expected"
    holds = right >= expected - 4 * max(1.0, found * 0.1) ** 0.5 - 0.05 * found
    return Finding("intact" if num_listing <= 1 and holds else "different", what)

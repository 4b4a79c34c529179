"""Stand-ins for the published data sets: generated inputs of the same shape, with the same number of classes.

They let every experiment be tried in seconds and without any download. Each class has a random pattern of its own, and
an input is the pattern of its class under noise, so that a network can learn something from a few labels.
"""

import numpy as np

from batchbalance.arguments.seeds import derived_seed
from batchbalance.errors import UnknownNameError
from batchbalance.lab.data.dataset import Dataset, assemble
from batchbalance.lab.data.published import PUBLISHED
from batchbalance.lab.data.splits import imbalance

PREFIX = "generated-"
IMBALANCED = "imbalanced-"
SHAPES: dict[str, tuple[int, ...]] = {
    "mnist": (1, 28, 28),
    "imbalanced-mnist": (1, 28, 28),
    "fashion-mnist": (1, 28, 28),
    "emnist-balanced": (1, 28, 28),
    "emnist-bymerge": (1, 28, 28),
    "emnist-byclass": (1, 28, 28),
    "svhn": (3, 32, 32),
    "cifar-10": (3, 32, 32),
    "cifar-100": (3, 32, 32),
    "cinic-10": (3, 32, 32),
    "har": (561,),
    "drift": (128,),
    "dry-bean": (16,),
}
GENERATED = tuple(PREFIX + name for name in SHAPES)
NUM_TRAIN, NUM_TEST = 800, 100
NOISE = 1.0  # deviation of an input from its class's pattern; the patterns themselves have deviation 1


def load_generated(name: str, seed: int) -> Dataset:
    """Generate a data set by name, such as "generated-mnist"; the same seed gives the same inputs."""
    if name not in GENERATED:
        raise UnknownNameError("generated data set", name, GENERATED)
    stands_for = name.removeprefix(PREFIX)
    shape, class_names = SHAPES[stands_for], PUBLISHED[stands_for.removeprefix(IMBALANCED)].class_names
    stream = np.random.default_rng(derived_seed(seed, name))
    patterns = stream.standard_normal((len(class_names), *shape), dtype=np.float32)
    # All classes in turn, so that each has its share of both parts.
    y = np.arange(NUM_TRAIN + NUM_TEST) % len(class_names)
    x = patterns[y] + NOISE * stream.standard_normal((len(y), *shape), dtype=np.float32)
    if len(shape) == 3:
        x = np.clip(128 + 40 * x, 0, 255).astype(np.uint8)
    whole = assemble(name, (x[:NUM_TRAIN], y[:NUM_TRAIN]), (x[NUM_TRAIN:], y[NUM_TRAIN:]), class_names)
    return imbalance(whole, seed) if stands_for.startswith(IMBALANCED) else whole

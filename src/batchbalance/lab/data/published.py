"""The published data sets by name: their files, and how to read them.

Sizes are the publishers'. An incomplete data set (some CIFAR batches, a text file that lost lines) loads only with
`partial`, with a warning that gives its size.
"""

import os
import string
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from batchbalance.arguments.seeds import derived_seed, generator
from batchbalance.errors import FileFormatError, UnknownNameError
from batchbalance.lab.data import formats, sources
from batchbalance.lab.data.dataset import Dataset, assemble
from batchbalance.lab.data.sources import DataSource, Files
from batchbalance.lab.data.splits import imbalance

Part = tuple[NDArray[Any], NDArray[Any]]  # inputs and integer classes

DIGITS = tuple(string.digits)
EMNIST_47 = (*DIGITS, *string.ascii_uppercase, *"abdefghnqrt")
EMNIST_62 = (*DIGITS, *string.ascii_uppercase, *string.ascii_lowercase)
OBJECTS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
NUMBERS_100 = tuple(str(i) for i in range(100))
CLOTHES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
ACTIVITIES = ("walking", "walking upstairs", "walking downstairs", "sitting", "standing", "laying")
GASES = ("Ethanol", "Ethylene", "Ammonia", "Acetaldehyde", "Acetone", "Toluene")
BEANS = ("SEKER", "BARBUNYA", "BOMBAY", "CALI", "HOROZ", "SIRA", "DERMASON")


@dataclass(frozen=True)
class Published:
    """One published data set.

    Attributes:
        source: the source of its files.
        read: reads its training and test parts; the test part is None if the publisher provides only one part.
        num_train: the publisher's number of training inputs, or of all inputs if there is only one part.
        num_test: the publisher's number of test inputs, or the number to draw if there is only one part.
        class_names: one name for each class.
        shape: the shape of one input.
        names_file: a file of class names that comes with the data, used if present.
    """

    source: DataSource
    read: Callable[[Files], tuple[Part, Part | None]]
    num_train: int
    num_test: int
    class_names: tuple[str, ...]
    shape: tuple[int, ...]
    names_file: str | None = None


def _read_idx(files: Files, train: str, test: str) -> tuple[Part, Part]:
    """Read images and labels of two parts, whose files begin with these names."""
    files.need(*(f"{name}-{kind}-ubyte" for name in (train, test) for kind in ("images-idx3", "labels-idx1")))
    parts = []
    for name in (train, test):
        images_path, labels_path = files.need(f"{name}-images-idx3-ubyte", f"{name}-labels-idx1-ubyte")
        x, y = formats.read_idx(images_path, 3), formats.read_idx(labels_path, 1)
        if x.shape[1:] != (28, 28):
            raise FileFormatError(f"{images_path} must hold images of 28×28 pixels, got {x.shape[2]}×{x.shape[1]}")
        if len(x) != len(y):
            raise FileFormatError(f"{labels_path} must hold a label for each of {len(x):,} images, got {len(y):,}")
        parts.append((x, y))
    return parts[0], parts[1]


def _read_mnist(files: Files) -> tuple[Part, Part]:
    return _read_idx(files, "train", "t10k")


def _read_emnist(variant: str, files: Files) -> tuple[Part, Part]:
    """Read EMNIST, whose images are stored column by column."""
    (train_x, train_y), (test_x, test_y) = _read_idx(files, f"emnist-{variant}-train", f"emnist-{variant}-test")
    return (train_x.transpose(0, 2, 1), train_y), (test_x.transpose(0, 2, 1), test_y)


def _read_pair(train: str, test: str, read: Callable[[Path], Part], files: Files) -> tuple[Part, Part]:
    """Read two files, one for each part."""
    train_path, test_path = files.need(train, test)
    return read(train_path), read(test_path)


_read_svhn = partial(_read_pair, "train_32x32.mat", "test_32x32.mat", formats.read_svhn)
_read_cifar_100 = partial(_read_pair, "train.bin", "test.bin", partial(formats.read_cifar, label_bytes=2))


def _read_cifar_10(files: Files) -> tuple[Part, Part]:
    batches = [formats.read_cifar(p, 1) for p in files.need_some(*(f"data_batch_{i}.bin" for i in range(1, 6)))]
    return _joined(batches), formats.read_cifar(files.need("test_batch.bin")[0], 1)


def _read_cinic_10(files: Files) -> tuple[Part, Part]:
    """Read CINIC-10. Its train and valid folders form the training part: the paper splits 180,000 images."""
    parts = []
    for folder in files.need("train", "valid", "test"):
        x, labels = formats.read_image_folder(folder)
        if x.shape[1:] == (1, 32, 32):  # a few grey images alone; with one colour image among them x has 3 channels
            x = np.repeat(x, 3, axis=1)
        if x.shape[1:] != (3, 32, 32):
            raise FileFormatError(f"{folder} must hold images of 32×32 pixels, got {x.shape[3]}×{x.shape[2]}")
        parts.append((x, named_classes(folder, labels, OBJECTS)))
    return _joined(parts[:2]), parts[2]


def _read_har(files: Files) -> tuple[Part, Part]:
    files.need(*(f"{part}/{kind}_{part}.txt" for part in ("train", "test") for kind in "Xy"))
    parts = []
    for part in ("train", "test"):
        x_path, y_path = files.need(f"{part}/X_{part}.txt", f"{part}/y_{part}.txt")
        x, y = formats.read_numbers(x_path, 561), formats.read_numbers(y_path, 1)[:, 0]
        if len(x) != len(y):
            raise FileFormatError(f"{y_path} must hold a label for each of {len(x):,} rows, got {len(y):,}")
        parts.append((x, y.astype(np.int64) - 1))
    return parts[0], parts[1]


def _read_drift(files: Files) -> tuple[Part, None]:
    paths = files.need_some(*(f"batch{i}.dat" for i in range(1, 11)))
    x, y = _joined([formats.read_svmlight(path, 128) for path in paths])
    return (x, y - 1), None


def _read_dry_bean(files: Files) -> tuple[Part, None]:
    (path,) = files.need("Dry_Bean_Dataset.arff")
    x, labels = formats.read_arff(path)
    if x.shape[1] != 16:
        raise FileFormatError(f"{path} must have 16 features and a class, got {x.shape[1]} features")
    return (x, named_classes(path, labels, BEANS)), None


def _joined(parts: list[Part]) -> Part:
    return np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts])


def named_classes(path: Path, labels: list[str], class_names: tuple[str, ...]) -> NDArray[np.int64]:
    """Return the number of each label's class."""
    number = {name: i for i, name in enumerate(class_names)}
    unknown = sorted(set(labels) - number.keys())
    if unknown:
        raise FileFormatError(f"{path} must have the classes {', '.join(class_names)}, got {unknown[0]!r}")
    return np.array([number[label] for label in labels], dtype=np.int64)


GREY, COLOUR = (1, 28, 28), (3, 32, 32)
PUBLISHED = {
    "mnist": Published(sources.MNIST, _read_mnist, 60_000, 10_000, DIGITS, GREY),
    "fashion-mnist": Published(sources.FASHION_MNIST, _read_mnist, 60_000, 10_000, CLOTHES, GREY),
    "emnist-balanced": Published(sources.EMNIST, partial(_read_emnist, "balanced"), 112_800, 18_800, EMNIST_47, GREY),
    "emnist-bymerge": Published(sources.EMNIST, partial(_read_emnist, "bymerge"), 697_932, 116_323, EMNIST_47, GREY),
    "emnist-byclass": Published(sources.EMNIST, partial(_read_emnist, "byclass"), 697_932, 116_323, EMNIST_62, GREY),
    "svhn": Published(sources.SVHN, _read_svhn, 73_257, 26_032, DIGITS, COLOUR),
    "cifar-10": Published(sources.CIFAR_10, _read_cifar_10, 50_000, 10_000, OBJECTS, COLOUR),
    "cifar-100": Published(
        sources.CIFAR_100, _read_cifar_100, 50_000, 10_000, NUMBERS_100, COLOUR, names_file="fine_label_names.txt"
    ),
    "cinic-10": Published(sources.CINIC_10, _read_cinic_10, 180_000, 90_000, OBJECTS, COLOUR),
    "har": Published(sources.HAR, _read_har, 7_352, 2_947, ACTIVITIES, (561,)),
    "drift": Published(sources.DRIFT, _read_drift, 13_910, 2_000, GASES, (128,)),
    "dry-bean": Published(sources.DRY_BEAN, _read_dry_bean, 13_611, 2_000, BEANS, (16,)),
}


def load_published(
    name: str, root: str | os.PathLike[str] | None, *, seed: int, partial: bool, download: bool
) -> Dataset:
    """Load a published data set by name; see ``batchbalance.lab.data.load``."""
    if name not in PUBLISHED:
        raise UnknownNameError("data set", name, PUBLISHED)
    entry = PUBLISHED[name]
    files = Files(entry.source, sources.data_folder(root), partial, download)
    try:
        train, test = entry.read(files)
        for _, y in (train,) if test is None else (train, test):
            if not len(y) or y.min() < 0 or y.max() >= len(entry.class_names):
                got = f"{y.min()} to {y.max()}" if len(y) else "none"
                last = len(entry.class_names) - 1
                raise FileFormatError(f"the classes of {name} must be numbers from 0 to {last}, got {got}")
        counts = [(len(train[1]), entry.num_train, "training")]
        if test is not None:
            counts.append((len(test[1]), entry.num_test, "test"))
        if any(num != whole for num, whole, _ in counts):
            found = " and ".join(f"{num:,} of {whole:,} {part} inputs" for num, whole, part in counts)
            if not partial:
                raise FileFormatError(f"{name} is incomplete: got {found}; to work on that part, pass `partial=True`")
            warnings.warn(f"{name} is loaded in part: {found}", stacklevel=3)
    except FileFormatError as error:
        places = ", ".join(entry.source.downloads)
        raise FileFormatError(f"{error}; get the file again from {places}") from error
    if test is None:
        train, test = draw_test(train, entry.num_test, seed)
    names_path = files.have(entry.names_file) if entry.names_file else None
    listed = tuple(formats.text(names_path).split()) if names_path else ()
    return assemble(name, train, test, listed if len(listed) == len(entry.class_names) else entry.class_names)


def draw_test(part: Part, num_test: int, seed: int) -> tuple[Part, Part]:
    """Split a part without a published test set into a training and a test part, drawn from `seed`.

    At most a fifth of the inputs are drawn.
    """
    x, y = part
    num_test = min(num_test, len(y) // 5)
    if num_test < 1:
        raise ValueError(f"drawing a test part needs at least 5 inputs, got {len(y)}; provide more data")
    order = torch.randperm(len(y), generator=generator(seed, "test part")).numpy()
    test, train = np.sort(order[:num_test]), np.sort(order[num_test:])
    return (x[train], y[train]), (x[test], y[test])


def load_digits(seed: int) -> Dataset:
    """Load scikit-learn's 1,797 digits of 8×8 pixels; 297 of them, drawn from `seed`, are the test part."""
    from sklearn.datasets import load_digits as bundled

    digits = bundled()
    train, test = draw_test((digits.images.astype(np.uint8), digits.target.astype(np.int64)), 297, seed)
    return assemble("digits", train, test, DIGITS)


# Substitutes for the published data sets: generated inputs of the same shape, with the same number of classes. They let
# every experiment run in seconds and without a download.
PREFIX = "generated-"
IMBALANCED = "imbalanced-"
GENERATED = tuple(PREFIX + name for name in ("imbalanced-mnist", *PUBLISHED))
NUM_TRAIN, NUM_TEST = 800, 100
NOISE = 1.0  # deviation of an input from its class's pattern; the patterns themselves have deviation 1


def load_generated(name: str, seed: int) -> Dataset:
    """Generate a data set by name, such as "generated-mnist"; the same seed gives the same inputs.

    Each class has its own random pattern, and an input is the pattern of its class plus noise, so a network can learn
    from a few labels.
    """
    if name not in GENERATED:
        raise UnknownNameError("generated data set", name, GENERATED)
    stands_for = name.removeprefix(PREFIX)
    entry = PUBLISHED[stands_for.removeprefix(IMBALANCED)]
    shape, class_names = entry.shape, entry.class_names
    stream = np.random.default_rng(derived_seed(seed, name))
    patterns = stream.standard_normal((len(class_names), *shape), dtype=np.float32)
    # Classes alternate, so that each has its share of both parts.
    y = np.arange(NUM_TRAIN + NUM_TEST) % len(class_names)
    x = patterns[y] + NOISE * stream.standard_normal((len(y), *shape), dtype=np.float32)
    if len(shape) == 3:
        x = np.clip(128 + 40 * x, 0, 255).astype(np.uint8)
    whole = assemble(name, (x[:NUM_TRAIN], y[:NUM_TRAIN]), (x[NUM_TRAIN:], y[NUM_TRAIN:]), class_names)
    return imbalance(whole, seed) if stands_for.startswith(IMBALANCED) else whole

"""Data sets by name or path, and the splits that trials are run on.

``prepare`` returns the data and split of one trial; it combines ``load`` and ``split``.
"""

import os
from collections.abc import Callable
from dataclasses import replace

from batchbalance.errors import UnknownNameError
from batchbalance.lab.data.dataset import Dataset
from batchbalance.lab.data.embedded import OwnData
from batchbalance.lab.data.own import is_own, load_own
from batchbalance.lab.data.published import GENERATED, PUBLISHED, load_digits, load_generated, load_published
from batchbalance.lab.data.sources import data_folder
from batchbalance.lab.data.splits import (
    NOISE,
    PAPER_SIZES,
    Splits,
    SplitSizes,
    default_sizes,
    imbalance,
    repeat_pool,
    smaller_test,
    split,
)

__all__ = [
    "DATASETS",
    "GENERATED",
    "PAPER_SIZES",
    "Dataset",
    "OwnData",
    "SplitSizes",
    "Splits",
    "data_folder",
    "default_sizes",
    "imbalance",
    "load",
    "prepare",
    "repeat_pool",
    "smaller_test",
    "split",
]

REPEATED_COPIES = 3  # the paper replicates the pool two times
VARIANTS = ("repeated-mnist", "imbalanced-mnist", "imbalanced-mnist-figure-1")
DATASETS = ("digits", *PUBLISHED, *VARIANTS)
AS_IT_IS = OwnData()


def load(
    name: str | os.PathLike[str],
    *,
    data_dir: str | os.PathLike[str] | None = None,
    seed: int = 0,
    partial: bool = False,
    download: bool = True,
    own: OwnData = AS_IT_IS,
    progress: bool = False,
) -> Dataset:
    """Load a data set into memory.

    Args:
        name: one of ``DATASETS``, or a path to a user's own data: a folder of class-named image folders, a ``.npz``
            file with `x` and `y`, a file of rows with a header, or a ``.npy`` file of embeddings. A known name takes
            precedence over a path; write "./digits" for a folder of that name. A name in ``GENERATED``, such as
            "generated-mnist", is generated data of the same shape.
        data_dir: the folder of published data sets and downloads; default: the variable BATCHBALANCE_DATA, else a
            per-user cache folder.
        seed: draws the test part where the publisher gives none (digits, drift, dry-bean, own data), and the shares of
            imbalanced-mnist.
        partial: accept a part of a published data set, with a warning.
        download: fetch missing files; if False, a missing file is an error.
        own: of a user's own data: the column of the labels, the encoder, and so on.
        progress: show the progress of an encoder.

    Raises:
        UnknownNameError: if there is no data set of that name.
        FileNotFoundError: if files are missing and cannot be downloaded; the message names them, their folder and their
            source.
        FileFormatError: if a file is truncated, damaged or of another format.
    """
    name = os.fspath(name)
    if name == "digits":
        return load_digits(seed)
    if name in PUBLISHED:
        return load_published(name, data_dir, seed=seed, partial=partial, download=download)
    if name in VARIANTS:
        mnist = load_published("mnist", data_dir, seed=seed, partial=partial, download=download)
        named = replace(mnist, name=name)
        return imbalance(named, seed) if name == "imbalanced-mnist" else named
    if name in GENERATED:
        return load_generated(name, seed)
    if is_own(name):
        return load_own(name, own, lambda: data_folder(data_dir), seed=seed, progress=progress)
    raise UnknownNameError("data set", name, DATASETS)


def prepare(
    name: str | os.PathLike[str],
    sizes: SplitSizes | Callable[[SplitSizes], SplitSizes] | None = None,
    *,
    seed: int,
    data_dir: str | os.PathLike[str] | None = None,
    copies: int | None = None,
    noise: float = NOISE,
    partial: bool = False,
    download: bool = True,
    own: OwnData = AS_IT_IS,
) -> tuple[Dataset, Splits]:
    """Return the data set and the split of one trial; both depend on the arguments only.

    Args:
        name: as in ``load``.
        sizes: sizes of the sets, or a function of the default sizes; the paper's if omitted.
        seed: the trial's seed.
        data_dir: as in ``load``.
        copies: how often each pool input occurs, with Gaussian noise; 3 for repeated-mnist, else 1, if omitted.
        noise: standard deviation of that noise, on normalised inputs.
        partial: as in ``load``.
        download: as in ``load``.
        own: as in ``load``.
    """
    dataset = load(name, data_dir=data_dir, seed=seed, partial=partial, download=download, own=own)
    if not isinstance(sizes, SplitSizes):
        sizes = default_sizes(dataset) if sizes is None else sizes(default_sizes(dataset))
    splits = split(dataset, sizes, seed)
    if copies is None:
        copies = REPEATED_COPIES if dataset.name == "repeated-mnist" else 1
    return repeat_pool(smaller_test(dataset, sizes.test, seed), splits, copies, noise=noise, seed=seed)

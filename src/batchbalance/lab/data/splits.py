"""Splits of the training part as the paper's appendix gives them, drawn from the trial's seed.

Each trial splits the training part into an initial labelled set, the pool, a validation set and the reference set
(the paper's D̄pool) on which posterior draws are compared. A split depends on the seed alone, so all strategies of
one trial start from the same sets.
"""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Int64
from torch import Tensor

from batchbalance.arguments.checks import check_flag, check_whole
from batchbalance.arguments.seeds import generator
from batchbalance.lab.data.dataset import Dataset

NOISE = 0.1
LEAST_SHARE = 0.1


@dataclass(frozen=True)
class SplitSizes:
    """The number of inputs of each set; the rest is the pool.

    Attributes:
        initial_per_class: labelled inputs of each class to start from: one number, or one for each class.
        initial: further labelled inputs to start from, drawn at random regardless of class.
        validation: inputs of the validation set.
        reference: inputs of the reference set, or "pool" to use the pool as reference set.
        pool: the maximum size of the pool; all if omitted.
        small_validation: never use more validation labels than there are training labels.
        test: the maximum number of test inputs to measure on, drawn at random; all if omitted.
    """

    initial_per_class: int | tuple[int, ...] = 0
    initial: int = 0
    validation: int = 0
    reference: int | Literal["pool"] = "pool"
    pool: int | None = None
    small_validation: bool = False
    test: int | None = None

    def __post_init__(self) -> None:
        per_class = self.initial_per_class
        for number in per_class if isinstance(per_class, tuple) else (per_class,):
            check_whole("initial_per_class", number, 0)
        check_whole("initial", self.initial, 0)
        check_whole("validation", self.validation, 0)
        if isinstance(self.reference, str) and self.reference != "pool":
            raise ValueError(f"`reference` must be a whole number or 'pool', got {self.reference!r}")
        if self.reference != "pool":
            check_whole("reference", self.reference, 0)
        for name in ("pool", "test"):
            if getattr(self, name) is not None:
                check_whole(name, getattr(self, name), least=1)
        check_flag("small_validation", self.small_validation)

    def num_initial(self, num_classes: int) -> int:
        """Return the number of labels to start from."""
        per_class = self.initial_per_class
        return self.initial + (sum(per_class) if isinstance(per_class, tuple) else per_class * num_classes)


@dataclass(frozen=True, eq=False)
class Splits:
    """Disjoint sets of rows of the training part; only the reference set may be the pool itself.

    Attributes:
        initial: labelled rows to start from, ascending.
        pool: unlabelled rows to choose from, ascending.
        validation: rows of the validation set in the order drawn, so that every prefix is a random sample.
        reference: rows of the reference set, ascending.
        small_validation: whether ``validation_rows`` is limited to the number of training labels.
    """

    initial: Int64[Tensor, " i"]
    pool: Int64[Tensor, " p"]
    validation: Int64[Tensor, " v"]
    reference: Int64[Tensor, " r"]
    small_validation: bool = False

    def validation_rows(self, num_labelled: int) -> Int64[Tensor, " n"]:
        """Return the validation rows that may be used once `num_labelled` training labels are known."""
        return self.validation[:num_labelled] if self.small_validation else self.validation


MNIST_SIZES = SplitSizes(initial_per_class=2, validation=10_000, reference=10_000)
EMNIST_SIZES = SplitSizes(validation=18_800, reference=18_800)
CIFAR_SIZES = SplitSizes(initial=5_000, validation=5_000, reference=5_000)
# The appendix gives no initial set for the tables; two of each class as for MNIST.
TABLE_SIZES = SplitSizes(initial_per_class=2, validation=2_000, reference="pool")

PAPER_SIZES = {
    "digits": SplitSizes(initial_per_class=2, validation=200, reference=200),  # ours; not in the paper
    "mnist": MNIST_SIZES,
    "repeated-mnist": MNIST_SIZES,
    "imbalanced-mnist": MNIST_SIZES,
    # Figure 1: 28 images of each digit from 1 to 8, one of 0 and one of 9.
    "imbalanced-mnist-figure-1": replace(MNIST_SIZES, initial_per_class=(1, *[28] * 8, 1)),
    "fashion-mnist": MNIST_SIZES,
    "emnist-balanced": EMNIST_SIZES,
    "emnist-bymerge": EMNIST_SIZES,
    "emnist-byclass": EMNIST_SIZES,
    "svhn": replace(CIFAR_SIZES, reference=2_000),
    "cifar-10": CIFAR_SIZES,
    "cifar-100": CIFAR_SIZES,
    "cinic-10": SplitSizes(initial_per_class=20, validation=20_000, reference=40_000),
    "har": TABLE_SIZES,
    "drift": TABLE_SIZES,
    "dry-bean": TABLE_SIZES,
}


def default_sizes(dataset: Dataset) -> SplitSizes:
    """Return the paper's sizes for its data sets; else 2 of each class, a tenth for validation, pool as reference.

    If an input may have several labels, the default is to start without any.
    """
    if dataset.name in PAPER_SIZES:
        return PAPER_SIZES[dataset.name]
    per_class = 0 if dataset.is_multi else 2
    return SplitSizes(per_class, validation=min(2_000, len(dataset.train_y) // 10), reference="pool")


def split(dataset: Dataset, sizes: SplitSizes, seed: int) -> Splits:
    """Draw a split of the training part.

    The initial set is drawn first, then validation, then reference, so changing a later size does not affect the
    earlier sets.
    """
    order = torch.randperm(len(dataset.train_y), generator=generator(seed, "split"))
    per_class, order = _draw_per_class(dataset, sizes.initial_per_class, order)
    num_reference = 0 if sizes.reference == "pool" else sizes.reference
    needed = sizes.initial + sizes.validation + num_reference
    if needed >= len(order):
        raise ValueError(
            f"the split sizes must leave a pool: {dataset.name} has {len(dataset.train_y):,} training inputs, "
            f"{len(per_class):,} go to the initial set by class, got {sizes.initial:,} initial, {sizes.validation:,} "
            f"validation and {num_reference:,} reference inputs for the other {len(order):,}; make the sets smaller"
        )
    ends = (sizes.initial, sizes.initial + sizes.validation, needed)
    initial, validation, reference, pool = (part.clone() for part in order.tensor_split(ends))
    pool = pool[: sizes.pool].sort().values
    return Splits(
        initial=torch.cat([per_class, initial]).sort().values,
        pool=pool,
        validation=validation,
        reference=pool if sizes.reference == "pool" else reference.sort().values,
        small_validation=sizes.small_validation,
    )


def _draw_per_class(dataset: Dataset, per_class: int | tuple[int, ...], order: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first rows of each class in `order`, and the other rows in their order."""
    wanted = per_class if isinstance(per_class, tuple) else (per_class,) * dataset.num_classes
    if len(wanted) != dataset.num_classes:
        raise ValueError(
            f"`initial_per_class` must be one number, or one for each of {dataset.num_classes} classes, "
            f"got {len(wanted)} numbers"
        )
    if dataset.is_multi and any(wanted):
        raise ValueError("`initial_per_class` must be 0 if an input may have several labels; use `initial`")
    labels = dataset.train_y[order]
    taken = torch.zeros(len(order), dtype=torch.bool)
    for label, number in enumerate(wanted):
        places = (labels == label).nonzero()[:, 0]
        if len(places) < number:
            raise ValueError(
                f"`initial_per_class` must be at most {len(places)} for class {dataset.class_names[label]!r} of "
                f"{dataset.name}, got {number}; request fewer"
            )
        taken[places[:number]] = True
    return order[taken], order[~taken]


def smaller_test(dataset: Dataset, num: int | None, seed: int) -> Dataset:
    """Keep at most `num` inputs of the test part, drawn at random; all if None."""
    if num is None or num >= len(dataset.test_y):
        return dataset
    rows = torch.randperm(len(dataset.test_y), generator=generator(seed, "test part"))[:num].sort().values
    return replace(dataset, test_x=dataset.test_x[rows], test_y=dataset.test_y[rows])


def repeat_pool(
    dataset: Dataset, splits: Splits, copies: int, *, noise: float = NOISE, seed: int
) -> tuple[Dataset, Splits]:
    """Repeat every pool input `copies` times, each with its own Gaussian noise on the normalised input.

    The first copy replaces the original; the others are appended to the training part, copy by copy. Initial,
    validation and test inputs do not change. If the reference set is the pool, it becomes the repeated pool.

    Args:
        dataset: the data set; the result holds its training part as float32.
        splits: a split of it.
        copies: how often each pool input occurs; 1 changes nothing.
        noise: standard deviation.
        seed: the seed of the noise.
    """
    check_whole("copies", copies, least=1)
    if not 0 <= noise < float("inf"):
        raise ValueError(f"`noise` must be a finite number of at least 0, got {noise!r}")
    if copies == 1:
        return dataset, splits
    num_train, num_pool = len(dataset.train_y), len(splits.pool)
    x = torch.empty(num_train + (copies - 1) * num_pool, *dataset.input_shape)
    x[:num_train] = dataset.train_inputs()
    clean = x[splits.pool]
    noises = generator(seed, "repeated pool")
    x[splits.pool] += noise * torch.randn(clean.shape, generator=noises)
    for block in x[num_train:].chunk(copies - 1):
        block[:] = clean + noise * torch.randn(clean.shape, generator=noises)
    added = torch.arange(num_train, len(x))
    pool = torch.cat([splits.pool, added])
    pool_is_reference = torch.equal(splits.reference, splits.pool)
    return (
        replace(
            dataset,
            train_x=x,
            train_y=torch.cat([dataset.train_y, *[dataset.train_y[splits.pool]] * (copies - 1)]),
            test_x=dataset.test_inputs(),
            mean=None,
            std=None,
        ),
        replace(splits, pool=pool, reference=pool if pool_is_reference else splits.reference),
    )


def imbalance(dataset: Dataset, seed: int) -> Dataset:
    """Remove a random share of each class from the training part (Appendix, effect of K and τ).

    The share kept is uniform between a tenth and all, so no class disappears.
    """
    draws = generator(seed, "imbalance")
    shares = LEAST_SHARE + (1 - LEAST_SHARE) * torch.rand(dataset.num_classes, generator=draws)
    kept = torch.zeros(len(dataset.train_y), dtype=torch.bool)
    for label, share in enumerate(shares.tolist()):
        rows = (dataset.train_y == label).nonzero()[:, 0]
        order = torch.randperm(len(rows), generator=draws)
        kept[rows[order[: max(1, round(share * len(rows)))]]] = True
    return replace(dataset, train_x=dataset.train_x[kept], train_y=dataset.train_y[kept])

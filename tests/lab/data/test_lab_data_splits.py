"""Splits: sizes, disjointness, pairing over strategies, repeated and imbalanced data."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import published_files as files
from batchbalance.lab.data import DATASETS, PAPER_SIZES, SplitSizes, imbalance, load, prepare, repeat_pool, split
from batchbalance.lab.data.dataset import Dataset, assemble

pytestmark = pytest.mark.typed


def toy(num: int = 120, num_classes: int = 4) -> Dataset:
    x = np.random.default_rng(5).normal(size=(num, 3))
    y = files.labels(num, num_classes)
    return assemble("toy", (x, y), (x[:20], y[:20]), [str(i) for i in range(num_classes)])


@settings(max_examples=60, deadline=None)
@given(
    per_class=st.integers(0, 5),
    initial=st.integers(0, 20),
    validation=st.integers(0, 30),
    reference=st.one_of(st.just("pool"), st.integers(0, 30)),
    cap=st.one_of(st.none(), st.integers(1, 20)),
    seed=st.integers(0, 99),
)
def test_sets_are_disjoint_and_complete(per_class, initial, validation, reference, cap, seed) -> None:
    data = toy()
    splits = split(data, SplitSizes(per_class, initial, validation, reference, cap), seed)
    sets = [splits.initial.tolist(), splits.pool.tolist(), splits.validation.tolist()]
    if reference == "pool":
        assert splits.reference.tolist() == splits.pool.tolist()
    else:
        sets.append(splits.reference.tolist())
        assert len(splits.reference) == reference
    rows = [row for one in sets for row in one]
    assert len(set(rows)) == len(rows)
    assert set(rows) <= set(range(120))
    left = 120 - 4 * per_class - initial - validation - (0 if reference == "pool" else reference)
    assert len(splits.pool) == (left if cap is None else min(left, cap))
    assert len(splits.validation) == validation
    assert len(splits.initial) == 4 * per_class + initial
    assert splits.pool.tolist() == sorted(splits.pool.tolist())


def test_initial_set_has_its_number_of_each_class() -> None:
    data = toy()
    splits = split(data, SplitSizes(initial_per_class=3), seed=0)
    assert torch.bincount(data.train_y[splits.initial]).tolist() == [3, 3, 3, 3]
    splits = split(data, SplitSizes(initial_per_class=(1, 0, 5, 2)), seed=0)
    assert torch.bincount(data.train_y[splits.initial]).tolist() == [1, 0, 5, 2]


def test_the_seed_alone_decides_and_later_sizes_leave_earlier_sets() -> None:
    data = toy()
    sizes = SplitSizes(initial_per_class=2, initial=3, validation=10, reference=5)
    first, again, other = (split(data, sizes, seed) for seed in (1, 1, 2))
    for name in ("initial", "pool", "validation", "reference"):
        assert torch.equal(getattr(first, name), getattr(again, name))
    assert not torch.equal(first.initial, other.initial)
    wider = split(data, dataclasses.replace(sizes, reference=30), 1)
    assert torch.equal(wider.initial, first.initial)
    assert torch.equal(wider.validation, first.validation)


def test_small_validation_follows_the_training_labels() -> None:
    sizes = SplitSizes(initial_per_class=1, validation=30, small_validation=True)
    splits = split(toy(), sizes, seed=0)
    assert len(splits.validation_rows(0)) == 0
    assert splits.validation_rows(7).tolist() == splits.validation.tolist()[:7]
    assert len(splits.validation_rows(500)) == 30
    whole = split(toy(), dataclasses.replace(sizes, small_validation=False), seed=0)
    assert len(whole.validation_rows(7)) == 30


def test_a_validation_prefix_is_a_random_sample() -> None:
    # Ascending rows would put the first rows of the data set into every prefix: mean 0 instead of the middle.
    means = [split(toy(), SplitSizes(validation=60), seed).validation[:10].double().mean() for seed in range(50)]
    middle, error = 119 / 2, (120 / 12**0.5) / (10 * 50) ** 0.5
    assert abs(float(torch.stack(means).mean()) - middle) < 4 * error


@pytest.mark.parametrize(
    ("sizes", "complaint"),
    [
        (lambda: SplitSizes(initial_per_class=31), "at most 30 for class '0' of toy, got 31"),
        (lambda: SplitSizes(initial_per_class=(1, 2)), "one for each of 4 classes, got 2"),
        (lambda: SplitSizes(validation=60, reference=60), "must leave a pool"),
        (lambda: SplitSizes(validation=-1), "`validation` must be a whole number of at least 0, got -1"),
        (lambda: SplitSizes(initial_per_class=(1, -2)), "`initial_per_class` must be a whole number"),
    ],
)
def test_sizes_that_do_not_fit(sizes, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        split(toy(), sizes(), seed=0)


@pytest.mark.parametrize("reference", ["pool", 15])
def test_repeated_pool(reference) -> None:
    data = toy(4000)
    splits = split(data, SplitSizes(initial_per_class=2, validation=10, reference=reference), seed=0)
    repeated, wider = repeat_pool(data, splits, 3, seed=0)
    num_pool = len(splits.pool)
    assert len(wider.pool) == 3 * num_pool
    assert len(repeated.train_y) == 4000 + 2 * num_pool
    assert torch.equal(repeated.train_y[wider.pool], data.train_y[splits.pool].repeat(3))
    for name in ("initial", "validation"):
        rows = getattr(splits, name)
        assert torch.equal(getattr(wider, name), rows)
        assert torch.equal(repeated.train_inputs(rows), data.train_inputs(rows))
    assert torch.equal(wider.reference, wider.pool if reference == "pool" else splits.reference)
    assert torch.equal(repeated.test_inputs(), data.test_inputs())
    # Each copy has noise of its own with standard deviation 0.1.
    noise = repeated.train_inputs(wider.pool).double() - data.train_inputs(splits.pool).double().repeat(3, 1)
    num = noise.numel()
    assert abs(float(noise.mean())) < 4 * 0.1 / num**0.5
    assert abs(float(noise.std()) - 0.1) < 4 * 0.1 / (2 * num) ** 0.5
    first, second, third = noise.reshape(3, -1)
    for a, b in ((first, second), (second, third), (first, third)):
        assert abs(float((a * b).mean())) < 4 * 0.01 / len(a) ** 0.5
    again, _ = repeat_pool(data, splits, 3, seed=0)
    assert torch.equal(again.train_x, repeated.train_x)


def test_one_copy_changes_nothing_and_none_is_refused() -> None:
    data = toy()
    splits = split(data, SplitSizes(), seed=0)
    assert repeat_pool(data, splits, 1, seed=0) == (data, splits)
    with pytest.raises(ValueError, match="`copies` must be a whole number of at least 1, got 0"):
        repeat_pool(data, splits, 0, seed=0)
    with pytest.raises(ValueError, match="`noise` must be a finite number"):
        repeat_pool(data, splits, 2, noise=-1.0, seed=0)


def test_repeated_digits() -> None:
    plain, plain_splits = prepare("digits", seed=4)
    data, splits = prepare("digits", seed=4, copies=2, noise=0.0)
    assert len(splits.pool) == 2 * len(plain_splits.pool) == 2 * 1080
    rows = splits.pool[len(plain_splits.pool) :]
    torch.testing.assert_close(data.train_inputs(rows), plain.train_inputs(plain_splits.pool), atol=1e-6, rtol=0)


def test_imbalance_removes_a_share_of_each_class() -> None:
    data = toy(4000)
    thin, again, other = imbalance(data, 1), imbalance(data, 1), imbalance(data, 2)
    assert torch.equal(thin.train_x, again.train_x)
    counts = torch.bincount(thin.train_y, minlength=4)
    assert counts.tolist() != torch.bincount(other.train_y, minlength=4).tolist()
    assert counts.min() >= 100
    assert counts.max() <= 1000
    assert len(set(counts.tolist())) > 1
    kept = {tuple(row) for row in thin.train_x.tolist()}
    assert len(kept) == len(thin.train_y)
    assert kept <= {tuple(row) for row in data.train_x.tolist()}
    label = {tuple(row): y for row, y in zip(data.train_x.tolist(), data.train_y.tolist(), strict=True)}
    assert [label[tuple(row)] for row in thin.train_x.tolist()] == thin.train_y.tolist()


@pytest.mark.filterwarnings("ignore:mnist is loaded in part:UserWarning")
def test_variants_of_mnist(tmp_path: Path) -> None:
    files.write_mnist(tmp_path / "mnist", num_train=600)
    sizes = SplitSizes(initial_per_class=2, validation=20, reference=30)
    options = {"seed": 0, "data_dir": tmp_path, "partial": True, "download": False}
    _, plain = prepare("mnist", sizes, **options)
    data, repeated = prepare("repeated-mnist", sizes, **options)
    assert data.name == "repeated-mnist"
    assert (len(plain.pool), len(repeated.pool)) == (530, 3 * 530)
    thin = load("imbalanced-mnist", **options)
    assert 60 <= len(thin.train_y) < 600
    few = dataclasses.replace(PAPER_SIZES["imbalanced-mnist-figure-1"], validation=20, reference=30)
    data, splits = prepare("imbalanced-mnist-figure-1", few, **options)
    assert torch.bincount(data.train_y[splits.initial]).tolist() == [1, 28, 28, 28, 28, 28, 28, 28, 28, 1]


def test_every_named_data_set_has_sizes() -> None:
    assert set(PAPER_SIZES) == set(DATASETS)
    assert PAPER_SIZES["svhn"] == SplitSizes(initial=5_000, validation=5_000, reference=2_000)


def test_a_smaller_test_part_is_a_sample_that_follows_the_seed() -> None:
    whole, _ = prepare("digits", seed=0)
    smaller, _ = prepare("digits", SplitSizes(initial_per_class=2, test=50), seed=0)
    again, _ = prepare("digits", SplitSizes(initial_per_class=2, test=50), seed=0)
    rows = [(whole.test_x == x).flatten(1).all(dim=1).nonzero().flatten().tolist() for x in smaller.test_x]
    assert len(smaller.test_y) == 50
    assert all(
        label in whole.test_y[places].tolist() for label, places in zip(smaller.test_y.tolist(), rows, strict=True)
    )
    assert torch.equal(smaller.test_x, again.test_x)
    assert torch.equal(smaller.train_x, whole.train_x)
    assert len(prepare("digits", SplitSizes(test=10_000), seed=0)[0].test_y) == len(whole.test_y)
    with pytest.raises(ValueError, match="`test` must be a whole number of at least 1, got 0"):
        SplitSizes(test=0)

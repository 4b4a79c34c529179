"""Normalisation of inputs, against plain NumPy in float64."""

import numpy as np
import pytest
import torch

import published_files as files
from batchbalance.lab.data.dataset import assemble

pytestmark = pytest.mark.typed


def test_images_are_normalised_by_the_training_part() -> None:
    train, test = files.images(9, (3, 5, 4), 0), files.images(4, (3, 5, 4), 1) // 3
    data = assemble("own", (train, files.labels(9, 2)), (test, files.labels(4, 2)), ("a", "b"))
    assert data.train_x.dtype == torch.uint8
    for channel in range(3):
        scaled = train[:, channel].astype(np.float64) / 255
        mean, std = scaled.mean(), scaled.std()
        got = data.test_inputs([3, 1])[:, channel].numpy()
        np.testing.assert_allclose(got, (test[[3, 1], channel] / 255 - mean) / std, atol=1e-5)
    inputs = data.train_inputs()
    assert inputs.dtype == torch.float32
    torch.testing.assert_close(inputs.mean(dim=(0, 2, 3)), torch.zeros(3), atol=1e-5, rtol=0)
    assert torch.equal(data.train_inputs(torch.tensor([2, 2])), inputs[[2, 2]])
    assert torch.equal(data.train_inputs(slice(1, 3)), inputs[1:3])


def test_reading_inputs_leaves_the_stored_images_alone() -> None:
    x = files.images(5, (4, 4), 0)
    data = assemble("own", (x, files.labels(5, 2)), (x, files.labels(5, 2)), ("a", "b"))
    data.train_inputs().fill_(0)
    np.testing.assert_array_equal(data.train_x[:, 0].numpy(), x)


def test_constant_inputs_stay_finite() -> None:
    black = np.zeros((6, 4, 4), dtype=np.uint8)
    data = assemble("own", (black, files.labels(6, 2)), (black + 255, files.labels(6, 2)), ("a", "b"))
    assert torch.equal(data.train_inputs(), torch.zeros(6, 1, 4, 4))
    assert torch.isfinite(data.test_inputs()).all()
    table = np.full((6, 2), 0.1)
    table[:, 1] = np.arange(6)
    data = assemble("own", (table, files.labels(6, 2)), (table + 1, files.labels(6, 2)), ("a", "b"))
    torch.testing.assert_close(data.train_x[:, 0], torch.zeros(6))
    torch.testing.assert_close(data.test_x[:, 0], torch.ones(6))


def test_float_images_are_standardised_by_channel() -> None:
    x = np.random.default_rng(0).normal(loc=3, scale=[[[2.0]], [[5.0]]], size=(50, 2, 3, 3))
    data = assemble("own", (x, files.labels(50, 2)), (x[:2], files.labels(2, 2)), ("a", "b"))
    for channel in range(2):
        expected = (x[:, channel] - x[:, channel].mean()) / x[:, channel].std()
        np.testing.assert_allclose(data.train_x[:, channel].numpy(), expected, atol=1e-5)


def test_parts_must_have_one_shape() -> None:
    labels = files.labels(2, 2)
    with pytest.raises(ValueError, match=r"one shape, got \(4, 4\) and \(5, 5\)"):
        assemble("own", (files.images(2, (4, 4), 0), labels), (files.images(2, (5, 5), 0), labels), ("a", "b"))

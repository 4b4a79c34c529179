import pytest
import torch

from batchbalance.errors import UnknownNameError
from batchbalance.lab.data import GENERATED, load
from batchbalance.lab.data.published import PUBLISHED, load_generated


@pytest.mark.parametrize("name", GENERATED)
def test_shape_and_classes_of_what_it_stands_for(name):
    data = load(name, seed=3)
    shapes = {"har": (561,), "drift": (128,), "dry-bean": (16,)}
    stands_for = name.removeprefix("generated-")
    small = stands_for.endswith("mnist") or stands_for.startswith("emnist")
    assert data.input_shape == shapes.get(stands_for, (1, 28, 28) if small else (3, 32, 32))
    assert data.class_names == PUBLISHED[stands_for.removeprefix("imbalanced-")].class_names
    assert set(data.train_y.tolist()) == set(data.test_y.tolist()) == set(range(data.num_classes))
    again, other = load(name, seed=3), load(name, seed=4)
    assert torch.equal(data.train_x, again.train_x)
    assert not torch.equal(data.train_x, other.train_x)


def test_classes_can_be_told_apart():
    data = load("generated-dry-bean")
    x, y = data.train_inputs(), data.train_y
    centres = torch.stack([x[y == label].mean(dim=0) for label in range(data.num_classes)])
    nearest = torch.cdist(data.test_inputs(), centres).argmin(dim=1)
    assert float((nearest == data.test_y).double().mean()) > 0.7


def test_unknown_name():
    with pytest.raises(UnknownNameError, match="generated-mnist"):
        load_generated("generated-mnst", 0)


def test_imbalanced_stand_in_has_unequal_classes():
    counts = load("generated-imbalanced-mnist", seed=3).train_y.bincount()
    assert int(counts.min()) >= 8
    assert int(counts.max()) <= 80
    assert len(set(counts.tolist())) > 3

"""Users' own data by path."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import published_files as files
from batchbalance.errors import FileFormatError
from batchbalance.lab.data import OwnData, load, prepare
from batchbalance.lab.data.published import draw_test


def test_csv(tmp_path: Path) -> None:
    body = "".join(f"{i},{i % 3 + 9},{i * i}\n" for i in range(20))
    path = files.write(tmp_path / "own.csv", ("a,kind,b\n" + body).encode(), packed=True)
    data = load(str(path), own=OwnData(label="kind"))
    assert (len(data.train_y), len(data.test_y), data.input_shape) == (16, 4, (2,))
    assert data.class_names == ("9", "10", "11")
    again = load(str(path), own=OwnData(label="kind"), seed=0)
    assert torch.equal(again.train_x, data.train_x)
    with pytest.raises(FileFormatError, match="name the right one with `label`"):
        load(str(path))


@pytest.mark.parametrize("kind", ["csv", "npz", "folders"])
def test_whole_numbers_are_classes_in_their_order(tmp_path: Path, kind: str) -> None:
    numbers = np.random.default_rng(1).permutation(60) % 12
    if kind == "csv":
        path = files.write(tmp_path / "own.csv", ("label,a\n" + "".join(f"{n},{n}\n" for n in numbers)).encode())
    elif kind == "npz":
        path = tmp_path / "own.npz"
        np.savez(path, x=numbers[:, None] * 1.0, y=numbers.astype(str))
    else:
        path = tmp_path / "own"
        for i, n in enumerate(numbers):
            (path / str(n)).mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.full((2, 2), 20 * n, dtype=np.uint8)).save(path / str(n) / f"{i}.png")
    data = load(path)
    assert data.class_names == tuple(str(n) for n in range(12))
    # the input tells the label: it is the number, shifted and scaled
    for x, y in ((data.train_x, data.train_y), (data.test_x, data.test_y)):
        values = x.flatten(1)[:, 0].double()
        known = numbers if kind == "csv" else numbers[_drawn(60)]  # the encoder of tables reads all rows
        labels = values / 20 if kind == "folders" else values * known.std() + known.mean()
        np.testing.assert_allclose(labels, y, atol=1e-5)


def _drawn(num: int) -> np.ndarray:
    """The rows of the training part that seed 0 draws."""
    rows = np.arange(num)
    (train, _), _ = draw_test((rows, rows), num, 0)
    return train


@pytest.mark.parametrize(
    ("labels", "complaint"),
    [
        (["1", "2", "1.5"], "whole numbers or names, got '1.5'"),
        (["1", "2", "01"], "spelled in one way, got '01' and '1'"),
        (["a", "b", ""], "must be labels, got '' at 2"),
        (["a", "NaN", "b"], "must be labels, got 'NaN' at 1"),
    ],
)
def test_labels_that_are_no_classes(tmp_path: Path, labels: list[str], complaint: str) -> None:
    np.savez(tmp_path / "own.npz", x=np.ones((9, 2)), y=np.array(labels * 3))
    with pytest.raises(FileFormatError, match=complaint):
        load(tmp_path / "own.npz")


def test_names_of_any_kind_are_classes(tmp_path: Path) -> None:
    for labels, names in ((["1.0", "10.0", "2.0"], ("1.0", "2.0", "10.0")), (["b", "a", "7"], ("7", "a", "b"))):
        np.savez(tmp_path / "own.npz", x=np.ones((9, 2)), y=np.array(labels * 3))
        assert load(tmp_path / "own.npz").class_names == names


def test_npz_keeps_the_given_test_part(tmp_path: Path) -> None:
    x, y = np.random.default_rng(0).normal(size=(12, 3)), np.array([2, 10, 9] * 4)
    np.savez(tmp_path / "own.npz", x=x, y=y, x_test=x[:5] + 1, y_test=y[:5])
    data = load(str(tmp_path / "own.npz"))
    assert data.class_names == ("2", "9", "10")
    assert data.train_y.tolist() == [0, 2, 1] * 4
    assert data.test_y.tolist() == [0, 2, 1, 0, 2]
    np.testing.assert_allclose(data.test_x.numpy(), (x[:5] + 1 - x.mean(axis=0)) / x.std(axis=0), atol=1e-5)


def test_npz_images_and_names(tmp_path: Path) -> None:
    x = files.images(10, (6, 6), 0)
    np.savez(tmp_path / "own.npz", x=x, y=np.array(["cat", "ant"] * 5))
    data = load(str(tmp_path / "own.npz"))
    assert (data.class_names, data.input_shape, data.train_x.dtype) == (("ant", "cat"), (1, 6, 6), torch.uint8)
    assert (len(data.train_y), len(data.test_y)) == (8, 2)


@pytest.mark.parametrize(
    ("arrays", "complaint"),
    [
        ({"x": np.ones((4, 2))}, "arrays named x and y, got x"),
        ({"x": np.ones(4), "y": np.arange(4)}, r"`x` must be numbers of shape \(N, …\)"),
        ({"x": np.ones((4, 2)), "y": np.arange(3)}, "for each of 4 inputs"),
        ({"x": np.ones((4, 2)), "y": np.ones(4)}, "whole number or a name"),
        ({"x": np.full((4, 2), np.nan), "y": np.arange(4)}, "must be finite"),
        ({"x": np.ones((9, 2)), "y": np.zeros(9, dtype=int)}, "at least 2 classes, got 1"),
        ({"x": np.ones((9, 2)), "y": np.arange(9), "x_test": np.ones((1, 2))}, "x_test and y_test"),
    ],
)
def test_npz_that_does_not_fit(tmp_path: Path, arrays: dict[str, np.ndarray], complaint: str) -> None:
    np.savez(tmp_path / "own.npz", **arrays)
    with pytest.raises(FileFormatError, match=complaint):
        load(str(tmp_path / "own.npz"))


@pytest.mark.parametrize("parts", [("",), ("train", "test")])
def test_image_folders(tmp_path: Path, parts: tuple[str, ...]) -> None:
    for part in parts:
        for name in ("ant", "cat"):
            (tmp_path / part / name).mkdir(parents=True)
            for i in range(5):
                Image.fromarray(files.images(1, (8, 8, 3), i)[0]).save(tmp_path / part / name / f"{i}.png")
    data = load(tmp_path)
    assert data.class_names == ("ant", "cat")
    assert (len(data.train_y), len(data.test_y)) == ((8, 2) if len(parts) == 1 else (10, 10))
    assert data.input_shape == (3, 8, 8)


@pytest.mark.parametrize("shape", [(32, 32, 3), (28, 20, 1), (4, 4, 3), (6, 6, 2)])
def test_npz_images_with_the_channels_last_are_refused(tmp_path: Path, shape: tuple[int, ...]) -> None:
    x = files.images(10, shape, 0)
    np.savez(tmp_path / "own.npz", x=x, y=np.arange(10) % 2)
    with pytest.raises(FileFormatError, match=r"channels last; save x\.transpose\(0, 3, 1, 2\)"):
        load(tmp_path / "own.npz")
    np.savez(tmp_path / "own.npz", x=x.transpose(0, 3, 1, 2), y=np.arange(10) % 2)
    assert load(tmp_path / "own.npz").input_shape == (shape[2], *shape[:2])


def test_too_little_data(tmp_path: Path) -> None:
    np.savez(tmp_path / "own.npz", x=np.ones((4, 2)), y=np.arange(4))
    with pytest.raises(ValueError, match="at least 5 inputs"):
        load(str(tmp_path / "own.npz"))


def test_paths_that_are_not_data(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="neither a file nor a folder"):
        load(str(tmp_path / "gone.npz"))
    path = files.write(tmp_path / "own.pkl", b"\x80")
    with pytest.raises(FileFormatError, match=r"end in \.csv"):
        load(str(path))


def test_own_data_in_a_trial(tmp_path: Path) -> None:
    np.savez(tmp_path / "mnist.npz", x=np.random.default_rng(0).normal(size=(100, 3)), y=np.arange(100) % 4)
    data, splits = prepare(str(tmp_path / "mnist.npz"), seed=3)
    assert (len(splits.initial), len(splits.validation), len(splits.pool)) == (8, 8, 64)
    assert torch.equal(splits.reference, splits.pool)
    assert data.num_classes == 4

"""Published data sets from small files in the publishers' formats."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import torch
from PIL import Image

import published_files as files
from batchbalance.errors import FileFormatError, UnknownNameError
from batchbalance.lab.data import DATASETS, load, published

pytestmark = pytest.mark.filterwarnings("ignore:.* is loaded in part:UserWarning")


def load_part(name: str, folder: Path):
    return load(name, data_dir=folder, partial=True, download=False)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_mnist(tmp_path: Path, name: str, packed: bool) -> None:
    arrays = files.write_mnist(tmp_path / name, packed=packed)
    data = load_part(name, tmp_path)
    np.testing.assert_array_equal(data.train_x[:, 0].numpy(), arrays["train-images-idx3-ubyte"])
    np.testing.assert_array_equal(data.train_y.numpy(), arrays["train-labels-idx1-ubyte"])
    np.testing.assert_array_equal(data.test_x[:, 0].numpy(), arrays["t10k-images-idx3-ubyte"])
    np.testing.assert_array_equal(data.test_y.numpy(), arrays["t10k-labels-idx1-ubyte"])


@pytest.mark.parametrize(("variant", "num_classes"), [("balanced", 47), ("bymerge", 47), ("byclass", 62)])
def test_emnist_is_turned_upright(tmp_path: Path, variant: str, num_classes: int) -> None:
    arrays = files.write_emnist(tmp_path / "emnist", variant, num_classes, packed=True)
    data = load_part(f"emnist-{variant}", tmp_path)
    assert data.num_classes == num_classes
    assert len(set(data.class_names)) == num_classes
    assert data.test_y.tolist() == files.labels(20, num_classes).tolist()
    for point in range(20):
        np.testing.assert_array_equal(data.test_x[point, 0].numpy(), arrays["test"][point].T)


def test_svhn(tmp_path: Path) -> None:
    (tmp_path / "svhn").mkdir()
    y = np.array([[10], [1], [2], [3]], dtype=np.uint8)
    for part in ("train", "test"):
        scipy.io.savemat(tmp_path / "svhn" / f"{part}_32x32.mat", {"X": files.images(32, (32, 3, 4), 0), "y": y})
    data = load_part("svhn", tmp_path)
    assert data.train_y.tolist() == [0, 1, 2, 3]
    assert data.input_shape == (3, 32, 32)


def test_cifar_10_joins_its_batches_in_order(tmp_path: Path) -> None:
    *batches, test = files.write_cifar_10(tmp_path / "cifar-10-batches-bin")
    data = load_part("cifar-10", tmp_path)
    np.testing.assert_array_equal(data.train_x.numpy(), np.concatenate(batches))
    np.testing.assert_array_equal(data.test_x.numpy(), test)


@pytest.mark.filterwarnings("default")
def test_a_part_of_cifar_10_only_on_request(tmp_path: Path) -> None:
    files.write_cifar_10(tmp_path / "cifar-10-batches-bin", range(1, 3), packed=True)
    with pytest.raises(FileNotFoundError, match=r"data_batch_3\.bin.*partial=True"):
        load("cifar-10", data_dir=tmp_path, download=False)
    with pytest.warns(UserWarning, match="8 of 50,000 training inputs and 4 of 10,000 test inputs"):
        assert len(load_part("cifar-10", tmp_path).train_y) == 8


@pytest.mark.parametrize("with_names", [False, True])
def test_cifar_100_uses_fine_labels(tmp_path: Path, with_names: bool) -> None:
    folder = tmp_path / "cifar-100-binary"
    x, fine = files.images(6, (3, 32, 32), 0), np.array([99, 0, 5, 50, 20, 7])
    for part in ("train", "test"):
        files.write(folder / f"{part}.bin", files.cifar(x, np.full(6, 3), fine))
    if with_names:
        files.write(folder / "fine_label_names.txt", "\n".join(f"thing{i}" for i in range(100)).encode() + b"\n\n")
    data = load_part("cifar-100", tmp_path)
    assert data.train_y.tolist() == fine.tolist()
    assert data.class_names[99] == ("thing99" if with_names else "99")


def test_cinic_10_trains_on_train_and_valid(tmp_path: Path) -> None:
    for seed, part in enumerate(("train", "valid", "test")):
        for name in ("bird", "truck"):
            path = tmp_path / "cinic-10" / part / name / "a.png"
            path.parent.mkdir(parents=True)
            Image.fromarray(files.images(1, (32, 32, 3), seed)[0]).save(path)
    data = load_part("cinic-10", tmp_path)
    assert data.train_y.tolist() == [2, 9, 2, 9]
    assert len(data.test_y) == 2
    np.testing.assert_array_equal(data.train_x[2].numpy(), files.images(1, (32, 32, 3), 1)[0].transpose(2, 0, 1))


def test_cinic_10_of_an_unknown_class(tmp_path: Path) -> None:
    for part in ("train", "valid", "test"):
        path = tmp_path / "cinic-10" / part / "unicorn" / "a.png"
        path.parent.mkdir(parents=True)
        Image.new("RGB", (32, 32)).save(path)
    with pytest.raises(FileFormatError, match="got 'unicorn'"):
        load_part("cinic-10", tmp_path)


@pytest.mark.parametrize(("folder", "packed"), [("har", False), ("UCI HAR Dataset", True)])
def test_har(tmp_path: Path, folder: str, packed: bool) -> None:
    x = files.write_har(tmp_path / folder, packed=packed)
    data = load_part("har", tmp_path)
    assert data.train_y.tolist() == files.labels(12, 6).tolist()
    expected = (x - x.mean(axis=0)) / x.std(axis=0)
    np.testing.assert_allclose(data.train_x.numpy(), expected, atol=1e-5)


def test_har_with_a_label_too_few(tmp_path: Path) -> None:
    files.write_har(tmp_path / "har")
    path = tmp_path / "har" / "test" / "y_test.txt"
    path.write_text("\n".join(path.read_text().split()[:-1]))
    with pytest.raises(FileFormatError, match=r"y_test\.txt must hold a label for each of 12 rows, got 11"):
        load_part("har", tmp_path)


def test_drift_joins_ten_batches(tmp_path: Path) -> None:
    for batch in range(1, 11):
        files.write(tmp_path / "drift" / "Dataset" / f"batch{batch}.dat", files.drift_lines(batch).encode())
    data = load_part("drift", tmp_path)
    assert (len(data.train_y), len(data.test_y)) == (24, 6)
    counts = torch.bincount(torch.cat([data.train_y, data.test_y]), minlength=6).tolist()
    assert counts == (10 * np.bincount(files.labels(3, 6), minlength=6)).tolist()


@pytest.mark.parametrize("form", ["arff", "arff.gz"])
def test_dry_bean(tmp_path: Path, form: str) -> None:
    rows = files.bean_rows()
    path = tmp_path / "dry-bean" / "Dry_Bean_Dataset.arff"
    files.write(path, files.arff(rows).encode(), packed=form == "arff.gz")
    data = load_part("dry-bean", tmp_path)
    assert (len(data.train_y), len(data.test_y), data.class_names) == (17, 4, files.BEANS)
    torch.testing.assert_close(data.train_x.mean(dim=0), torch.zeros(16), atol=1e-5, rtol=0)
    torch.testing.assert_close(data.train_x.std(dim=0, correction=0), torch.ones(16), atol=1e-5, rtol=0)


def test_a_drawn_test_part_depends_on_the_seed_alone(tmp_path: Path) -> None:
    files.write(tmp_path / "dry-bean" / "Dry_Bean_Dataset.arff", files.arff(files.bean_rows(70)).encode())
    first, again, other = (
        load("dry-bean", data_dir=tmp_path, partial=True, seed=seed, download=False) for seed in (1, 1, 2)
    )
    assert torch.equal(first.test_x, again.test_x)
    assert not torch.equal(first.test_y, other.test_y)
    # Test inputs do not move the scale of the training part.
    x = np.array([row[:-1] for row in files.bean_rows(70)])
    order = np.random.default_rng(0).permutation(70)
    (train_x, _), (test_x, _) = published.draw_test((x, order), 14, 1)
    assert len(test_x) == 14
    expected = (test_x - train_x.mean(axis=0)) / train_x.std(axis=0)
    np.testing.assert_allclose(first.test_x.numpy(), expected, atol=1e-5)
    both = np.concatenate([train_x, test_x])
    np.testing.assert_array_equal(both[np.lexsort(both.T)], x[np.lexsort(x.T)])


@pytest.mark.filterwarnings("default")
def test_a_whole_data_set_gives_no_warning(tmp_path: Path, monkeypatch, recwarn) -> None:
    files.write_mnist(tmp_path / "mnist")
    with pytest.raises(FileFormatError, match="mnist is incomplete: got 60 of 60,000 training inputs") as caught:
        load("mnist", data_dir=tmp_path, download=False)
    assert next(iter(published.PUBLISHED["mnist"].source.downloads)) in str(caught.value)
    whole = dataclasses.replace(published.PUBLISHED["mnist"], num_train=60, num_test=30)
    monkeypatch.setitem(published.PUBLISHED, "mnist", whole)
    assert len(load("mnist", data_dir=tmp_path, download=False).train_y) == 60
    assert not recwarn.list


def test_damage_says_where_to_get_the_file(tmp_path: Path) -> None:
    files.write_mnist(tmp_path / "mnist")
    path = tmp_path / "mnist" / "train-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(FileFormatError) as caught:
        load_part("mnist", tmp_path)
    assert str(path) in str(caught.value)
    assert "truncated" in str(caught.value)
    assert "https://ossci-datasets.s3.amazonaws.com/mnist/train-images-idx3-ubyte.gz" in str(caught.value)


@pytest.mark.parametrize(
    ("array", "complaint"),
    [
        (files.labels(59, 10), "a label for each of 60 images, got 59"),
        (files.labels(60, 10) + 1, "numbers from 0 to 9, got 1 to 10"),
    ],
)
def test_labels_that_do_not_fit(tmp_path: Path, array: np.ndarray, complaint: str) -> None:
    files.write_mnist(tmp_path / "mnist")
    files.write(tmp_path / "mnist" / "train-labels-idx1-ubyte", files.idx(array))
    with pytest.raises(FileFormatError, match=complaint):
        load_part("mnist", tmp_path)


def test_images_of_another_size(tmp_path: Path) -> None:
    files.write_mnist(tmp_path / "mnist")
    files.write(tmp_path / "mnist" / "train-images-idx3-ubyte", files.idx(files.images(60, (20, 28), 0)))
    with pytest.raises(FileFormatError, match="28×28 pixels, got 28×20"):
        load_part("mnist", tmp_path)


def test_digits_come_with_scikit_learn() -> None:
    data = load("digits")
    assert (len(data.train_y), len(data.test_y), data.input_shape) == (1500, 297, (1, 8, 8))
    assert data.train_x.dtype == torch.uint8
    assert int(data.train_x.max()) == 16


def test_unknown_names_suggest_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'fashion-mnist'"):
        load("fashion-mnst")
    with pytest.raises(UnknownNameError, match="unknown data set ''"):
        load("")
    assert len(DATASETS) == 16

"""Readers against small files written in each published format: whole, gzipped, truncated and wrong."""

import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import scipy.io
from PIL import Image

import published_files as files
from batchbalance.errors import FileFormatError, MissingExtraError
from batchbalance.lab.data import formats


@pytest.mark.parametrize("packed", [False, True])
def test_idx_round_trip(tmp_path: Path, packed: bool) -> None:
    x = files.images(5, (28, 20), 0)
    path = files.write(tmp_path / "x-idx3-ubyte", files.idx(x), packed=packed)
    np.testing.assert_array_equal(formats.read_idx(path, 3), x)


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (lambda raw: raw[:-1], "truncated"),
        (lambda raw: raw + b"\0", "too long"),
        (lambda raw: raw[:10], "idx file of unsigned bytes"),
        (lambda _: b"", "an empty file"),
        (lambda raw: b"\0\0\x0d" + raw[3:], "got 00000d03"),
        (lambda _: b"<html>not found</html>", "idx file"),
    ],
)
def test_idx_damage_names_the_file(tmp_path: Path, damage, complaint: str) -> None:
    path = files.write(tmp_path / "x-idx3-ubyte", damage(files.idx(files.images(5, (4, 4), 0))))
    with pytest.raises(FileFormatError, match=complaint) as caught:
        formats.read_idx(path, 3)
    assert str(path) in str(caught.value)


def test_labels_are_not_images(tmp_path: Path) -> None:
    path = files.write(tmp_path / "y-idx1-ubyte", files.idx(files.labels(30, 10)))
    with pytest.raises(FileFormatError, match="3 axes"):
        formats.read_idx(path, 3)


def test_truncated_gzip_names_the_file(tmp_path: Path) -> None:
    path = files.write(tmp_path / "x-idx3-ubyte", files.idx(files.images(5, (28, 28), 0)), packed=True)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(FileFormatError, match=r"x-idx3-ubyte\.gz is truncated or damaged"):
        formats.read_idx(path, 3)


@pytest.mark.parametrize("packed", [False, True])
def test_cifar_keeps_pixels_and_the_fine_label(tmp_path: Path, packed: bool) -> None:
    x, coarse, fine = files.images(3, (3, 32, 32), 0), np.array([1, 2, 3]), np.array([50, 99, 0])
    path = files.write(tmp_path / "train.bin", files.cifar(x, coarse, fine), packed=packed)
    read_x, read_y = formats.read_cifar(path, 2)
    np.testing.assert_array_equal(read_x, x)
    np.testing.assert_array_equal(read_y, fine)


@pytest.mark.parametrize("size", [0, 3072, 3073 * 3 - 1])
def test_cifar_of_broken_records(tmp_path: Path, size: int) -> None:
    path = files.write(tmp_path / "data_batch_1.bin", b"\1" * size)
    with pytest.raises(FileFormatError, match="whole records of 3073 bytes"):
        formats.read_cifar(path, 1)


def test_svhn_turns_axes_and_label_ten(tmp_path: Path) -> None:
    x = files.images(32, (32, 3, 6), 0)
    y = np.array([[10], [1], [2], [9], [10], [5]], dtype=np.uint8)
    path = tmp_path / "train_32x32.mat"
    scipy.io.savemat(path, {"X": x, "y": y})
    read_x, read_y = formats.read_svhn(path)
    assert read_y.tolist() == [0, 1, 2, 9, 0, 5]
    for point in range(6):
        for channel in range(3):
            np.testing.assert_array_equal(read_x[point, channel], x[:, :, channel, point])


def test_svhn_of_another_shape(tmp_path: Path) -> None:
    path = tmp_path / "train_32x32.mat"
    scipy.io.savemat(path, {"X": files.images(28, (28, 3, 2), 0), "y": np.ones((2, 1))})
    with pytest.raises(FileFormatError, match=r"\(32, 32, 3, N\)"):
        formats.read_svhn(path)
    scipy.io.savemat(path, {"images": np.ones(3)})
    with pytest.raises(FileFormatError, match="must hold uint8 images X"):
        formats.read_svhn(path)


@pytest.mark.parametrize("raw", [b"", b"MATLAB 5.0 MAT-file" + b"\0" * 300, b"\x89HDF\r\n\x1a\n" + b"\0" * 600])
def test_mat_damage(tmp_path: Path, raw: bytes) -> None:
    path = files.write(tmp_path / "train_32x32.mat", raw)
    with pytest.raises(FileFormatError, match=r"train_32x32\.mat must"):
        formats.read_svhn(path)


def test_arff_round_trip(tmp_path: Path) -> None:
    rows = files.bean_rows()
    x, names = formats.read_arff(files.write(tmp_path / "beans.arff", files.arff(rows).encode(), packed=True))
    np.testing.assert_allclose(x, np.array([row[:-1] for row in rows]), rtol=1e-12)
    assert names == [row[-1] for row in rows]


@pytest.mark.parametrize("change", [lambda t: t[:60], lambda t: t.replace("SEKER\n", "PEA\n", 1), lambda t: t[:-25]])
def test_arff_damage(tmp_path: Path, change) -> None:
    path = files.write(tmp_path / "beans.arff", change(files.arff(files.bean_rows())).encode())
    with pytest.raises(FileFormatError, match=r"beans\.arff"):
        formats.read_arff(path)


def test_arff_gap_is_an_error(tmp_path: Path) -> None:
    rows = files.bean_rows()
    rows[4][2] = "?"
    path = files.write(tmp_path / "beans.arff", files.arff(rows).encode())
    with pytest.raises(FileFormatError, match="nan in row 4, feature 2"):
        formats.read_arff(path)


@pytest.mark.parametrize("amounts", [False, True])
def test_svmlight_with_and_without_amounts(tmp_path: Path, amounts: bool) -> None:
    lines = files.drift_lines(1, amounts=amounts)
    x, y = formats.read_svmlight(files.write(tmp_path / "batch1.dat", lines.encode()), 128)
    for row, line in enumerate(lines.splitlines()):
        head, *cells = line.split()
        assert y[row] == int(head.split(";")[0])
        assert [float(cell.split(":")[1]) for cell in cells] == x[row].tolist()


@pytest.mark.parametrize("raw", ["", "1 129:0.5\n", "1 1:abc\n", "1.5 1:2\n", "1 1:nan\n"])
def test_svmlight_damage(tmp_path: Path, raw: str) -> None:
    path = files.write(tmp_path / "batch1.dat", raw.encode())
    with pytest.raises(FileFormatError, match=r"batch1\.dat must"):
        formats.read_svmlight(path, 128)


@pytest.mark.parametrize("raw", ["", "1 2\n", "1 2 3\n4 5\n", "1 2 x\n", "1 2 nan\n"])
def test_number_lines_damage(tmp_path: Path, raw: str) -> None:
    path = files.write(tmp_path / "X_train.txt", raw.encode())
    with pytest.raises(FileFormatError, match=r"X_train\.txt must"):
        formats.read_numbers(path, 3)


def test_image_folder_mixes_grey_and_colour(tmp_path: Path) -> None:
    colour, grey = files.images(1, (6, 4, 3), 0)[0], files.images(1, (6, 4), 1)[0]
    for name, pixels in (("cat/b.png", colour), ("ant/a.PNG", grey)):
        (tmp_path / name).parent.mkdir()
        Image.fromarray(pixels).save(tmp_path / name)
    files.write(tmp_path / "ant" / "notes.txt", b"not an image")
    x, names = formats.read_image_folder(tmp_path)
    assert names == ["ant", "cat"]
    np.testing.assert_array_equal(x[1], colour.transpose(2, 0, 1))
    for channel in range(3):
        np.testing.assert_array_equal(x[0, channel], grey)


def test_image_folder_damage(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match="folders named after classes"):
        formats.read_image_folder(tmp_path)
    for name, size in (("ant/a.png", (4, 4)), ("cat/b.png", (5, 4))):
        (tmp_path / name).parent.mkdir()
        Image.new("L", size).save(tmp_path / name)
    with pytest.raises(FileFormatError, match=r"b\.png must have the size of .*a\.png, 4×4, got 5×4"):
        formats.read_image_folder(tmp_path)
    files.write(tmp_path / "cat" / "b.png", b"\x89PNG")
    with pytest.raises(FileFormatError, match=r"b\.png is damaged"):
        formats.read_image_folder(tmp_path)


def test_npz_is_never_unpickled(tmp_path: Path) -> None:
    np.savez(tmp_path / "own.npz", x=np.array([{"a": 1}], dtype=object))
    with pytest.raises(FileFormatError, match="pickled objects are never loaded"):
        formats.read_npz(tmp_path / "own.npz", ["x"])


def test_missing_extra_names_the_command(tmp_path: Path, monkeypatch) -> None:
    files.write(tmp_path / "ant" / "a.png", b"\x89PNG")
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'batchbalance\[image\]'"):
        formats.read_image_folder(tmp_path)


def test_a_gzipped_file_that_memory_cannot_hold_is_refused(tmp_path: Path, monkeypatch) -> None:
    path = files.write(tmp_path / "batch1.dat", b"1 1:2\n" * 1000, packed=True)
    monkeypatch.setattr(formats, "free_memory", lambda: 2000)
    with pytest.raises(FileFormatError, match="half of the free memory, 1 KiB, once unpacked"):
        formats.read_svmlight(path, 128)


def test_only_named_members_of_an_npz_file_are_read(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "own.npz", "w") as archive:
        with archive.open("x.npy", "w") as member:
            np.lib.format.write_array(member, np.arange(3))
        archive.writestr("unrelated.npy", b"no array")
        with archive.open("y.npy", "w") as member:
            header = {"descr": "<f8", "fortran_order": False, "shape": (10**12, 10**3)}
            np.lib.format.write_array_header_1_0(member, header)
    assert formats.read_npz(tmp_path / "own.npz", ["x", "z"])["x"].tolist() == [0, 1, 2]
    with pytest.raises(FileFormatError, match="`y` must fit in memory"):
        formats.read_npz(tmp_path / "own.npz", ["x", "y"])

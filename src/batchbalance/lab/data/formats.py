"""Readers for the file formats of published data sets, plain or gzipped. Nothing is ever unpickled.

A reader returns NumPy arrays as stored in the file. It raises FileFormatError, with the file and the expected format,
if the file is truncated, damaged or of another shape.
"""

import gzip
import io
import math
import re
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from batchbalance.encoders.images import IMAGE_ENDINGS, read_image
from batchbalance.errors import FileFormatError
from batchbalance.system.files import archived_arrays
from batchbalance.system.memory import as_text, free_memory

Array = NDArray[Any]
T = TypeVar("T")

PIECE_BYTES = 2**24


def content(path: Path) -> bytes:
    """Return the bytes of a file, unpacked if it is gzipped, regardless of its name.

    A few megabytes may unpack to gigabytes, so memory is checked.
    """
    raw = path.read_bytes()
    if raw[:2] != b"\x1f\x8b":
        return raw
    most, unpacked = free_memory() // 2, io.BytesIO()
    try:
        with gzip.open(path) as stream:
            while piece := stream.read(PIECE_BYTES):
                if unpacked.tell() + len(piece) > most:
                    raise FileFormatError(f"{path} must fit in half of the free memory, {as_text(most)}, once unpacked")
                unpacked.write(piece)
    except (EOFError, OSError, zlib.error) as error:
        raise FileFormatError(f"{path} is truncated or damaged: {error}") from error
    return unpacked.getvalue()


def text(path: Path) -> str:
    """Return the text of a file, unpacked if it is gzipped."""
    try:
        return content(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FileFormatError(f"{path} must be a text file in UTF-8: {error}") from error


def parsed(path: Path, expected: str, parse: Callable[[], T]) -> T:
    """Return the result of `parse`; an exception of a third-party parser becomes a FileFormatError."""
    try:
        return parse()
    except (FileFormatError, MemoryError):
        raise
    except Exception as error:  # third-party parsers raise a dozen types for a damaged file
        raise FileFormatError(f"{path} must be {expected}; it is damaged or of another format: {error}") from error


def read_idx(path: Path, num_axes: int) -> Array:
    """Read an idx file of unsigned bytes: images with 3 axes, labels with 1."""
    raw = content(path)
    start = 4 + 4 * num_axes
    if raw[:4] != bytes([0, 0, 8, num_axes]) or len(raw) < start:
        raise FileFormatError(
            f"{path} must be an idx file of unsigned bytes with {num_axes} axes (it starts with "
            f"{bytes([0, 0, 8, num_axes]).hex()}), got {raw[:4].hex() or 'an empty file'}"
        )
    shape = tuple(int(n) for n in np.frombuffer(raw, dtype=">u4", count=num_axes, offset=4))
    if len(raw) - start != math.prod(shape):
        raise FileFormatError(
            f"{path} must hold {math.prod(shape):,} bytes after its header, as its shape {shape} says, "
            f"got {len(raw) - start:,}; it is {'truncated' if len(raw) - start < math.prod(shape) else 'too long'}"
        )
    return np.frombuffer(raw, dtype=np.uint8, offset=start).reshape(shape)


def read_cifar(path: Path, label_bytes: int) -> tuple[Array, Array]:
    """Read a CIFAR binary file: (N, 3, 32, 32) images and (N,) labels, the last one of each record (the fine one)."""
    raw = content(path)
    record = label_bytes + 3 * 32 * 32
    if not raw or len(raw) % record:
        raise FileFormatError(
            f"{path} must hold whole records of {record} bytes, got {len(raw):,} bytes; it is truncated or damaged"
        )
    records = np.frombuffer(raw, dtype=np.uint8).reshape(-1, record)
    return records[:, label_bytes:].reshape(-1, 3, 32, 32), records[:, label_bytes - 1]


def read_svhn(path: Path) -> tuple[Array, Array]:
    """Read an SVHN cropped-digits file: (N, 3, 32, 32) images and (N,) digits; label 10 in the file is digit 0."""
    from scipy.io import loadmat

    arrays = parsed(path, "a MATLAB file, version 5", lambda: loadmat(io.BytesIO(content(path)), simplify_cells=True))
    x, y = np.asarray(arrays.get("X")), np.asarray(arrays.get("y")).reshape(-1)
    if x.dtype != np.uint8 or x.ndim != 4 or x.shape[:3] != (32, 32, 3) or y.shape != x.shape[3:]:
        raise FileFormatError(
            f"{path} must hold uint8 images X (32, 32, 3, N) and labels y (N, 1), got X {x.shape} and y {y.shape}"
        )
    return x.transpose(3, 2, 0, 1), y.astype(np.int64) % 10


def read_arff(path: Path) -> tuple[Array, list[str]]:
    """Read an ARFF table: (N, D) float64 features and N labels, the last column."""
    from scipy.io import arff

    rows, meta = parsed(path, "an ARFF table", lambda: arff.loadarff(io.StringIO(text(path))))
    *features, label = meta.names()
    x = np.stack([rows[name].astype(np.float64) for name in features], axis=1)
    check_finite(path, x)
    return x, [value.decode() for value in rows[label].tolist()]


def read_svmlight(path: Path, num_features: int) -> tuple[Array, Array]:
    """Read an svmlight file: (N, D) features and (N,) labels. "label;amount", as in Drift, is a label too."""
    from sklearn.datasets import load_svmlight_file

    raw = re.sub(rb"(?m)^([^\s;]+);\S*", rb"\1", content(path))
    sparse, y = parsed(
        path,
        f"an svmlight file with {num_features} features",
        lambda: load_svmlight_file(io.BytesIO(raw), n_features=num_features, zero_based=False),
    )
    x = sparse.toarray()
    check_finite(path, x)
    if not len(x) or (y != y.round()).any():
        raise FileFormatError(
            f"{path} must hold lines 'class 1:value 2:value …' with whole classes, got {len(x)} lines"
        )
    return x, y.astype(np.int64)


def read_numbers(path: Path, num_columns: int) -> Array:
    """Read a text file of numbers separated by blanks: (N, num_columns) float64."""
    lines = text(path).splitlines()
    x = parsed(path, f"lines of {num_columns} numbers", lambda: np.loadtxt(lines, ndmin=2)) if lines else np.empty(0)
    if x.ndim != 2 or x.shape[1] != num_columns:
        raise FileFormatError(f"{path} must hold lines of {num_columns} numbers, got an array of shape {x.shape}")
    check_finite(path, x)
    return x


def check_finite(path: Path, x: Array) -> None:
    """Raise unless all numbers are finite."""
    bad = np.argwhere(~np.isfinite(x))
    if len(bad):
        row, column = bad[0]
        raise FileFormatError(f"{path} must hold finite numbers, got {x[row, column]} in row {row}, feature {column}")


def read_image_folder(folder: Path) -> tuple[Array, list[str]]:
    """Read images in folders named after their class: (N, channels, height, width) uint8 and N class names.

    There are 3 channels if any image is in colour, else 1. All images must have the same size.
    """
    folders = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    paths = [path for each in folders for path in sorted(each.iterdir()) if path.suffix.lower() in IMAGE_ENDINGS]
    if not paths:
        raise FileFormatError(f"{folder} must hold folders named after classes with images in them, got none")
    width, height = read_image(paths[0]).size
    images = np.empty((len(paths), 3, height, width), dtype=np.uint8)
    for pixels, path in zip(images, paths, strict=True):
        image = read_image(path)
        if image.size != (width, height):
            raise FileFormatError(
                f"{path} must have the size of {paths[0]}, {width}×{height}, got {image.width}×{image.height}; "
                "resize the images to the same size"
            )
        pixels[:] = np.asarray(image).transpose(2, 0, 1)
    is_grey = all((pixels == pixels[:1]).all() for pixels in images)
    return images[:, :1] if is_grey else images, [path.parent.name for path in paths]


def read_npz(path: Path, names: Sequence[str]) -> dict[str, Array]:
    """Read the named arrays that exist in a ``.npz`` file."""
    expected = "a .npz file of plain arrays (pickled objects are never loaded)"
    return parsed(path, expected, lambda: archived_arrays(path, names))

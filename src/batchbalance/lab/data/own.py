"""Users' own data: class-named image folders, files of rows with a label column, ``.npz`` and ``.npy`` files."""

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from batchbalance.encoders.rows import ROW_ENDINGS
from batchbalance.errors import FileFormatError
from batchbalance.lab.data import formats
from batchbalance.lab.data.dataset import Dataset, assemble
from batchbalance.lab.data.embedded import ARRAYS, VECTORS, Labelled, OwnData, read_embedded
from batchbalance.lab.data.published import Part, draw_test
from batchbalance.learner.labels.names import is_blank
from batchbalance.project.labelling import Labelling, listed

WHOLE = re.compile(r"[+-]?\d+(\.0*)?")
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def is_own(name: str) -> bool:
    """Return whether a data set's name is a path: a folder, or a file with one of the endings of data."""
    endings = (ARRAYS, VECTORS, *ROW_ENDINGS)
    return bool(name) and (
        name.removesuffix(".gz").endswith(endings) or "/" in name or "\\" in name or Path(name).is_dir()
    )


def load_own(name: str, own: OwnData, folder: Callable[[], Path], *, seed: int, progress: bool = False) -> Dataset:
    """Load a data set from a path.

    Args:
        name: the path: a folder with a folder of images for each class, or with two such folders `train` and `test`;
            a ``.npz`` file with `x`, `y` and optionally `x_test`, `y_test`; a file of rows; or a ``.npy`` file of
            embeddings.
        own: how to read it.
        folder: returns the folder for embeddings.
        seed: the seed for drawing a fifth of the inputs as test part if there is none.
        progress: show the progress of an encoder.
    """
    path = Path(name)
    if not path.exists():
        raise FileNotFoundError(f"no such data: {path} is neither a file nor a folder")
    test = None
    is_embedded = path.suffix == VECTORS or own.encoder_of(path) is not None
    if is_embedded:
        train, test = read_embedded(path, own, folder(), progress=progress)
    elif path.is_dir() and all((path / part).is_dir() for part in ("train", "test")):
        train, test = formats.read_image_folder(path / "train"), formats.read_image_folder(path / "test")
    elif path.is_dir():
        train = formats.read_image_folder(path)
    else:
        arrays = formats.read_npz(path, ("x", "y", "x_test", "y_test"))
        train = _checked(path, arrays, "x", "y")
        if "x_test" in arrays or "y_test" in arrays:
            test = _checked(path, arrays, "x_test", "y_test")
    labels = [*train[1], *(() if test is None else test[1])]
    try:
        names = ordered(name for label in labels for name in (listed(label) if own.multi_label else [label]))
    except ValueError as error:
        raise FileFormatError(f"{path}: {error}") from error
    if len(names) < 2:
        raise FileFormatError(f"{path} must hold at least 2 classes, got {len(names)}")
    numbered = _numbered(train, names, own)
    parts = draw_test(numbered, len(numbered[1]), seed) if test is None else (numbered, _numbered(test, names, own))
    if is_embedded:
        (x, y), (test_x, test_y) = ((torch.from_numpy(x).float(), torch.from_numpy(y)) for x, y in parts)
        return Dataset(name, x, y, test_x, test_y, tuple(names))
    return assemble(name, *parts, names)


def ordered(labels: Iterable[str]) -> list[str]:
    """Return the distinct labels in the order of their classes.

    Whole numbers are in the order of their values, so that classes 0 to C − 1 keep their numbers; names are sorted.

    Raises:
        ValueError: if all are numbers but not all are whole, or a number is written in two ways.
    """
    names = sorted(set(labels))
    if not all(NUMBER.fullmatch(name) for name in names):
        return names
    spelled: dict[int, str] = {}
    for name in names:
        if not WHOLE.fullmatch(name):
            raise ValueError(f"labels must be whole numbers or names, got {name!r}; round it, or give it a name")
        number = int(name.partition(".")[0])
        if number in spelled:
            raise ValueError(f"a class must be spelled in one way, got {spelled[number]!r} and {name!r}")
        spelled[number] = name
    return [spelled[number] for number in sorted(spelled)]


def _numbered(part: Labelled, names: list[str], own: OwnData) -> Part:
    if own.multi_label:
        labelling = Labelling(tuple(names), is_multi=True)
        return part[0], labelling.array([labelling.read(label) for label in part[1]])
    number = {name: i for i, name in enumerate(names)}
    return part[0], np.array([number[name] for name in part[1]], dtype=np.int64)


def _checked(path: Path, arrays: dict[str, NDArray[Any]], x_name: str, y_name: str) -> Labelled:
    """Return inputs and labels of a ``.npz`` file after checking them."""
    if x_name not in arrays or y_name not in arrays:
        raise FileFormatError(
            f"{path} must hold arrays named {x_name} and {y_name}, got {', '.join(arrays) or 'neither'}; "
            "save them by name"
        )
    x, y = arrays[x_name], arrays[y_name]
    if x.ndim < 2 or x.dtype.kind not in "fiub" or len(x) == 0:
        raise FileFormatError(f"{path}: `{x_name}` must be numbers of shape (N, …), got {x.dtype} of shape {x.shape}")
    shape = x.shape
    if len(shape) == 4 and shape[3] <= 4 and (shape[1] > 4 or shape[1] == shape[2] != shape[3]):
        raise FileFormatError(
            f"{path}: `{x_name}` must be images of shape (N, channels, height, width), got {shape} with the channels "
            f"last; save {x_name}.transpose(0, 3, 1, 2)"
        )
    if y.shape != x.shape[:1] or y.dtype.kind not in "iubU":
        raise FileFormatError(
            f"{path}: `{y_name}` must hold a whole number or a name for each of {len(x)} inputs, "
            f"got {y.dtype} of shape {y.shape}"
        )
    if not np.isfinite(x).all():
        raise FileFormatError(f"{path}: `{x_name}` must be finite, got NaN or infinity; fill gaps first")
    names = [str(name).strip() for name in y.tolist()]
    blank = next((i for i, name in enumerate(names) if is_blank(name)), None)
    if blank is not None:
        raise FileFormatError(f"{path}: `{y_name}` must be labels, got {names[blank]!r} at {blank}; drop these inputs")
    return (x if x.dtype == np.uint8 else x.astype(np.float64)), names

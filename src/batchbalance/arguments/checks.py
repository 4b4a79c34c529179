"""Argument checks: whole numbers, fractions, sizes in bytes, arrays of real numbers, point indices."""

import math
import operator
import warnings
from collections.abc import Sequence, Set
from contextlib import suppress
from typing import Any, SupportsFloat

import numpy as np
import torch
import torch.utils.dlpack
from pydantic import ByteSize, TypeAdapter, ValidationError
from torch import Tensor

from batchbalance.errors import sentence

Indices = Sequence[Any] | Set[Any] | np.ndarray | Tensor  # accepted from users; `check_indices` makes a tensor

BYTES = TypeAdapter(ByteSize)


def check_whole(name: str, value: Any, least: int = 1, most: int | None = None, *, limit: str = "") -> int:
    """Return the value as an int, if it is a whole number (Python, NumPy or torch) from `least` to `most`.

    `limit` describes `most` in the message: "the points that are left".
    """
    try:
        number = None if isinstance(value, bool | np.bool_) else operator.index(value)
    except TypeError:
        number = None
    if number is None or number < least:
        raise ValueError(f"`{name}` must be a whole number of at least {least}, got {value!r}")
    if most is not None and number > most:
        raise ValueError(f"`{name}` must be at most {most}" + (f", {limit}" if limit else "") + f", got {value!r}")
    return number


def check_real(name: str, value: Any, least: float = 0.0, *, above: bool = False) -> float:
    """Return the value as a float, if it is a finite number of at least `least`, or `above` it."""
    number = _as_float(value)
    if not math.isfinite(number) or number < least or (above and number == least):
        raise ValueError(
            f"`{name}` must be a finite number {'above' if above else 'of at least'} {least:g}, got {value!r}"
        )
    return number


def check_flag(name: str, value: Any) -> bool:
    """Return the value if it is a bool; strings and numbers are refused."""
    if not isinstance(value, bool):
        raise ValueError(f"`{name}` must be true or false, got {value!r}")
    return value


def check_unit(name: str, value: SupportsFloat) -> float:
    """Return the value as a float, if it is a number in [0, 1]."""
    number = _as_float(value)
    if not 0 <= number <= 1:
        raise ValueError(f"`{name}` must be a number from 0 to 1, got {value!r}")
    return number


def _as_float(value: Any) -> float:
    """Return a number as a float, or NaN for anything else, including strings such as "1"."""
    if not isinstance(value, bool | str | bytes):
        with suppress(TypeError, ValueError, OverflowError):
            return float(value)
    return math.nan


def check_bytes(name: str, value: int | str) -> int:
    """Return a number of bytes from a whole number or a string such as "2GiB", "512 MiB" or "1.5GB"."""
    try:
        if isinstance(value, str):
            return check_whole(name, int(BYTES.validate_python(value)))
        return check_whole(name, value)
    except (ValidationError, ValueError, OverflowError):
        raise ValueError(
            f"`{name}` must be a positive number of bytes, or a string such as '2GiB', got {value!r}"
        ) from None


def check_device(name: str, device: str | torch.device) -> torch.device:
    """Return the device if torch can compute on it on this machine."""
    try:
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        said = sentence(error)
        raise ValueError(f"`{name}` must be one that torch can use here, got {str(device)!r}: {said}") from error
    return torch.device(device)


def check_dense(name: str, tensor: Tensor) -> None:
    """Raise ValueError if a tensor is sparse."""
    if tensor.layout != torch.strided:
        raise ValueError(f"{name} must be dense, got a tensor of layout {tensor.layout}; use its to_dense()")


def unmasked(name: str, x: Any) -> Any:
    """Return the argument; raise ValueError for a NumPy array with masked entries, whose mask would be ignored."""
    if isinstance(x, np.ma.MaskedArray):
        if np.ma.is_masked(x):
            raise ValueError(
                f"{name} must not have masked entries, got {int(np.ma.getmaskarray(x).sum())}; fill or drop them"
            )
        return x.data
    return x


def as_tensor(x: Any, name: str = "predictions") -> Tensor:
    """Return an array of real numbers as a tensor that shares its memory where possible."""
    if isinstance(x, Tensor):
        check_dense(name, x)
        tensor = x.detach()
    elif isinstance(x, np.ndarray) or not hasattr(x, "__dlpack__"):
        try:
            array = np.asarray(unmasked(name, x))
        except ValueError as error:
            if "inhomogeneous" not in str(error):
                raise
            raise ValueError(f"{name} must have rows of one length, got rows of different lengths") from error
        if array.dtype.kind not in "fbiu" or array.dtype.itemsize > 8:
            raise ValueError(f"{name} must be real numbers of at most 64 bits, got dtype {array.dtype}")
        if not array.dtype.isnative:
            array = array.astype(array.dtype.newbyteorder("="))
        if any(stride < 0 for stride in array.strides):  # torch does not support negative strides
            array = array.copy()
        with warnings.catch_warnings():
            # A mapped file may be read-only and larger than memory: it is not copied, and nothing here writes to it.
            warnings.filterwarnings("ignore", "The given NumPy array is not writable")
            tensor = torch.from_numpy(array)
    else:
        tensor = torch.utils.dlpack.from_dlpack(x).detach()
    if tensor.is_complex():
        raise ValueError(f"{name} must be real numbers, got dtype {tensor.dtype}")
    return tensor


def compute_dtype(stored: torch.dtype) -> torch.dtype:
    """Return the dtype to compute in for a stored dtype: float64 for float64, else float32."""
    return torch.float64 if stored == torch.float64 else torch.float32


def check_indices(name: str, indices: Indices, num_points: int) -> Tensor:
    """Return distinct point indices in [0, N) as an int64 tensor in the given order."""
    indices = unmasked(f"`{name}`", indices)
    try:
        given = torch.as_tensor(sorted(indices) if isinstance(indices, set | frozenset) else indices)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"`{name}` must be a list of whole numbers, got {indices!r}") from error
    if given.numel() == 0:
        return torch.empty(0, dtype=torch.long)
    if given.ndim != 1 or given.is_floating_point() or given.is_complex() or given.dtype == torch.bool:
        raise ValueError(f"`{name}` must be a list of whole numbers, got shape {tuple(given.shape)}, {given.dtype}")
    rows = given.detach().cpu().long()
    outside = rows[(rows < 0) | (rows >= num_points)]
    if len(outside):
        raise ValueError(f"`{name}` must be indices from 0 to {num_points - 1}, got {int(outside[0])}")
    values, counts = rows.unique(return_counts=True)
    if len(values) != len(rows):
        raise ValueError(f"`{name}` must be distinct, got {int(values[counts > 1][0])} more than once")
    return rows


def check_embeddings(name: str, given: Any, num_draws: int | None, num_points: int | None = None) -> Tensor | None:
    """Return embeddings (N, D), or of every draw (N, S, D), as a tensor that shares their memory; None stays None."""
    if given is None:
        return None
    tensor = as_tensor(given, f"`{name}`")
    is_per_draw = tensor.ndim == 3 and num_draws in (None, tensor.shape[1])
    if not (tensor.ndim == 2 or is_per_draw) or 0 in tensor.shape[1:]:
        draws = "draws" if num_draws is None else f"{num_draws} draws"
        raise ValueError(
            f"`{name}` must be points × features, or points × {draws} × features, got {tuple(tensor.shape)}"
        )
    if num_points is not None and len(tensor) != num_points:
        raise ValueError(f"`{name}` must have one row for each of {num_points} points, got {len(tensor)}")
    return tensor

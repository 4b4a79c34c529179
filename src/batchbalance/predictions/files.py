"""Reading and writing predictions: ``.npy``, ``.npz`` and ``.safetensors``; nothing is ever unpickled."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, get_args

import numpy as np
import torch
from torch import Tensor

from batchbalance.errors import FileFormatError
from batchbalance.files import replacing
from batchbalance.predictions.arrays import Values


@dataclass(frozen=True, eq=False)
class FoundArray:
    """What a file holds.

    Attributes:
        array: the numbers, as an array or tensor.
        values: what its name says they are, or None.
        draw_ids: names of the draws, or None.
        weights: of the draws, or None.
    """

    array: Any
    values: Values | None = None
    draw_ids: list[str] | None = None
    weights: Any = None


def read_array(path: Path, values: Values | None) -> FoundArray:
    """The array of a file; `values` tells what an array without a telling name is."""
    _check_suffix(path)
    if not path.is_file():
        raise FileNotFoundError(f"no such file: {path}")
    if path.stat().st_size == 0:
        raise FileFormatError(f"{path} is empty")
    try:
        if path.suffix == ".npy":
            return FoundArray(np.load(path, mmap_mode="c", allow_pickle=False))
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as archive:
                arrays = {name: archive[name] for name in archive.files}
            ids = arrays.pop("draw_ids", None)
            return _named(path, arrays, values, None if ids is None else ids.tolist())
        from safetensors import safe_open

        with safe_open(path, framework="pt") as opened:
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
            listed = (opened.metadata() or {}).get("draw_ids")
        return _named(path, tensors, values, None if listed is None else json.loads(listed))
    except FileFormatError:
        raise
    except Exception as error:  # the readers raise a dozen types for a damaged file
        _raise_unreadable(path, error)


def write_predictions(
    path: Path,
    shape: tuple[int, int, int],
    dtype: torch.dtype,
    chunks: Iterable[Tensor],
    draw_ids: tuple[str, ...] | None,
    weights: Tensor | None,
) -> None:
    """Write log-probabilities, which come in consecutive chunks, to a file, whole or not at all."""
    if path.suffix == ".npy" and (draw_ids is not None or weights is not None):
        raise ValueError(f"a .npy file keeps neither draw ids nor weights; save {path.stem} as .npz instead")
    _check_suffix(path)
    with replacing(path) as temporary:
        if path.suffix == ".npy":
            number = np.float64 if dtype == torch.float64 else np.float32
            written = np.lib.format.open_memmap(temporary, mode="w+", dtype=number, shape=shape)
            start = 0
            for chunk in chunks:
                written[start : start + len(chunk)] = chunk.cpu().numpy()
                start += len(chunk)
            written.flush()
            return
        arrays = {"log_probs": torch.cat([chunk.cpu() for chunk in chunks])}
        if weights is not None:
            arrays["weights"] = weights
        if path.suffix == ".npz":
            named: dict[str, Any] = {name: tensor.numpy() for name, tensor in arrays.items()}
            if draw_ids is not None:
                named["draw_ids"] = np.array(draw_ids, dtype=np.str_)
            np.savez(temporary, **named)
            return
        from safetensors.torch import save_file

        metadata = None if draw_ids is None else {"draw_ids": json.dumps(draw_ids)}
        save_file({name: tensor.contiguous() for name, tensor in arrays.items()}, temporary, metadata=metadata)


def _check_suffix(path: Path) -> None:
    if path.suffix not in (".npy", ".npz", ".safetensors"):
        raise FileFormatError(f"{path} must end in .npy, .npz or .safetensors, got {path.suffix or 'no ending'!r}")


def _named(path: Path, arrays: dict[str, Any], values: Values | None, draw_ids: list[str] | None) -> FoundArray:
    weights = arrays.get("weights")
    for name in get_args(Values):
        if name.replace("-", "_") in arrays:
            return FoundArray(arrays[name.replace("-", "_")], name, draw_ids, weights)
    others = [name for name in arrays if name != "weights"]
    if values is not None and len(others) == 1:
        return FoundArray(arrays[others[0]], None, draw_ids, weights)
    raise FileFormatError(
        f"{path} must hold an array named probs, logits or log_probs, got {', '.join(sorted(arrays)) or 'none'}; "
        "a file with one array of another name needs `values` to say what it holds"
    )


def _raise_unreadable(path: Path, error: Exception) -> NoReturn:
    if "pickle" in str(error).lower() or "Python objects" in str(error):
        raise FileFormatError(f"{path} holds pickled objects, which are never loaded; save a plain array") from error
    raise FileFormatError(f"{path} is damaged or not a {path.suffix} file: {error}") from error

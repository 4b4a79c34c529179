"""Reading and writing predictions: ``.npy``, ``.npz`` and ``.safetensors``; nothing is ever unpickled."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, get_args

import numpy as np
import torch
from torch import Tensor

from batchbalance.errors import FileFormatError, is_out_of_files
from batchbalance.predictions.arrays import Label, Values
from batchbalance.predictions.notes import note_path, read_note, write_note
from batchbalance.system.files import archived_arrays, archived_names, check_is_file, mapped_array, replacing
from batchbalance.system.sealed import tensors_digest

BESIDE = ("draw_ids", "classes", "sha256")  # in a .npz file, beside the arrays of numbers


@dataclass(frozen=True, eq=False)
class FoundArray:
    """The contents of a file.

    Attributes:
        array: the numbers, as an array or tensor.
        values: their kind according to the name of the array, or None.
        draw_ids: names of the draws, or None.
        weights: weights of the draws, or None.
        classes: names of the classes, or None.
    """

    array: Any
    values: Values | None = None
    draw_ids: list[Any] | None = None
    weights: Any = None
    classes: list[Any] | None = None


def read_array(path: Path, values: Values | None, axes: str = "nsc") -> FoundArray:
    """Return the array of a file; `values` is the kind of an array whose name does not tell it."""
    if not path.is_dir():
        _check_suffix(path)
    check_is_file(path)
    if path.stat().st_size == 0:
        raise FileFormatError(f"{path} is empty")
    try:
        if path.suffix == ".npy":
            array = mapped_array(path)
            note = read_note(path, array.shape, axes)
            if note is None:
                return FoundArray(array)
            return FoundArray(array, note.values, note.draw_ids, note.weights, note.classes)
        if path.suffix == ".npz":
            name, kind = _which(path, [each for each in archived_names(path) if each not in BESIDE], values)
            arrays = archived_arrays(path, (name, "weights", *BESIDE))
            beside = {each: arrays.pop(each) for each in BESIDE if each in arrays}
            metadata = {each: str(x) if x.ndim == 0 else json.dumps(x.tolist()) for each, x in beside.items()}
        else:
            from safetensors import safe_open

            with safe_open(path, framework="pt") as opened:
                name, kind = _which(path, list(opened.keys()), values)
                arrays = {each: opened.get_tensor(each) for each in opened.keys() if each in (name, "weights")}  # noqa: SIM118
                metadata = opened.metadata() or {}
        # Only files written by this package have a checksum.
        if "sha256" in metadata and metadata["sha256"] != _seal(arrays, metadata):
            raise FileFormatError(f"{path} is damaged: it does not match its checksum; write it again")
        ids, classes = (json.loads(metadata[each]) if each in metadata else None for each in ("draw_ids", "classes"))
        return FoundArray(arrays[name], kind, ids, arrays.get("weights"), classes)
    except FileFormatError:
        raise
    except Exception as error:  # a damaged file raises many types of errors
        _raise_unreadable(path, error)


def write_predictions(
    path: Path,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    chunks: Iterable[Tensor],
    draw_ids: tuple[str, ...] | None,
    weights: Tensor | None,
    classes: tuple[Label, ...] | None = None,
) -> None:
    """Write log-probabilities, given in consecutive chunks, to a file, atomically."""
    _check_suffix(path)
    if path.suffix == ".npy":
        with replacing(path, first=note_path(path)) as temporary:
            number = np.float64 if dtype == torch.float64 else np.float32
            written = np.lib.format.open_memmap(temporary, mode="w+", dtype=number, shape=shape)
            rows = written.reshape(-1, *shape[-2:])
            start = 0
            for chunk in chunks:
                rows[start : start + len(chunk)] = chunk.cpu().numpy()
                start += len(chunk)
            written.flush()
        write_note(path, shape, "log-probs", draw_ids, weights, classes)
        return
    with replacing(path) as temporary:
        arrays = {"log_probs": torch.cat([chunk.cpu() for chunk in chunks]).view(shape)}
        if weights is not None:
            arrays["weights"] = weights
        listed = {"draw_ids": draw_ids, "classes": classes}
        metadata = {name: json.dumps(each) for name, each in listed.items() if each is not None}
        metadata["sha256"] = _seal(arrays, metadata)  # neither format has a checksum
        if path.suffix == ".npz":
            named: dict[str, Any] = {name: tensor.numpy() for name, tensor in arrays.items()}
            np.savez(temporary, **(named | {name: np.array(text) for name, text in metadata.items()}))
            return
        from safetensors.torch import save_file

        save_file({name: tensor.contiguous() for name, tensor in arrays.items()}, temporary, metadata=metadata)


def _seal(arrays: Mapping[str, Any], metadata: Mapping[str, str]) -> str:
    """Return a hash of the contents of a file."""
    tensors = {name: torch.as_tensor(each) for name, each in arrays.items()}
    return tensors_digest(tensors, metadata.get("draw_ids"), metadata.get("classes"))


def _check_suffix(path: Path) -> None:
    if path.suffix not in (".npy", ".npz", ".safetensors"):
        raise FileFormatError(f"{path} must end in .npy, .npz or .safetensors, got {path.suffix or 'no ending'!r}")


def _which(path: Path, names: list[str], values: Values | None) -> tuple[str, Values | None]:
    """Return the name of the array that holds the numbers, and the kind of values that the name tells."""
    named: dict[str, Values] = {kind.replace("-", "_"): kind for kind in get_args(Values)}
    telling = [name for name in named if name in names]
    if len(telling) > 1:
        raise FileFormatError(
            f"{path} must hold one array of predictions, got {' and '.join(telling)}; save one of them alone"
        )
    if telling:
        return telling[0], named[telling[0]]
    others = [name for name in names if name != "weights"]
    if values is not None and len(others) == 1:
        return others[0], None
    raise FileFormatError(
        f"{path} must hold an array named probs, logits or log_probs, got {', '.join(sorted(names)) or 'none'}; "
        "for several labels of an item, label_probs or label_logits; for a file with one array of another name, set "
        "`values` to what it holds"
    )


def _raise_unreadable(path: Path, error: Exception) -> NoReturn:
    if is_out_of_files(error):
        raise error
    if "pickle" in str(error).lower() or "Python objects" in str(error):
        raise FileFormatError(f"{path} holds pickled objects, which are never loaded; save a plain array") from error
    raise FileFormatError(f"{path} is damaged or not a {path.suffix} file: {error}") from error

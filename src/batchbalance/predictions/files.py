"""Reading and writing predictions: ``.npy``, ``.npz`` and ``.safetensors``; nothing is ever unpickled."""

import json
from collections.abc import Iterable
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
            beside = ("draw_ids", "classes", "sha256")
            name, kind = _which(path, [n for n in archived_names(path) if n not in beside], values)
            arrays = archived_arrays(path, (name, "weights", *beside))
            ids, classes = arrays.get("draw_ids"), arrays.get("classes")
            if "sha256" in arrays:  # only files written by this package have one
                metadata = {} if ids is None else {"draw_ids": str(ids.tolist())}
                if classes is not None:
                    metadata["classes"] = str(classes.tolist())
                numbers = {each: torch.from_numpy(arrays[each]) for each in (name, "weights") if each in arrays}
                _check_sealed(path, numbers, {**metadata, "sha256": str(arrays["sha256"])})
            return FoundArray(
                arrays[name],
                kind,
                None if ids is None else ids.tolist(),
                arrays.get("weights"),
                None if classes is None else _listed(classes),
            )
        from safetensors import safe_open

        with safe_open(path, framework="pt") as opened:
            names = list(opened.keys())
            name, kind = _which(path, names, values)
            metadata = opened.metadata() or {}
            listed = metadata.get("draw_ids")
            if "sha256" in metadata:  # only files written by this package have one
                _check_sealed(path, {each: opened.get_tensor(each) for each in names}, metadata)
            return FoundArray(
                opened.get_tensor(name),
                kind,
                None if listed is None else json.loads(listed),
                opened.get_tensor("weights") if "weights" in names else None,
                json.loads(metadata["classes"]) if "classes" in metadata else None,
            )
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
        if path.suffix == ".npz":
            named: dict[str, Any] = {name: tensor.numpy() for name, tensor in arrays.items()}
            if draw_ids is not None:
                named["draw_ids"] = np.array(draw_ids, dtype=np.str_)
            listed = {} if draw_ids is None else {"draw_ids": str(named["draw_ids"].tolist())}
            if classes is not None:
                listed["classes"] = json.dumps(classes)
                named["classes"] = np.array(listed["classes"])  # JSON keeps strings and numbers distinct
            np.savez(temporary, sha256=np.array(_seal(arrays, listed)), **named)  # detects truncation
            return
        from safetensors.torch import save_file

        arrays = {name: tensor.contiguous() for name, tensor in arrays.items()}
        metadata = {} if draw_ids is None else {"draw_ids": json.dumps(draw_ids)}
        if classes is not None:
            metadata["classes"] = json.dumps(classes)
        save_file(arrays, temporary, metadata={**metadata, "sha256": _seal(arrays, metadata)})


def _seal(arrays: dict[str, Tensor], metadata: dict[str, str]) -> str:
    """Return a hash of all contents of a file: neither .safetensors nor .npz has a checksum."""
    return tensors_digest(arrays, metadata.get("draw_ids"), metadata.get("classes"))


def _check_sealed(path: Path, arrays: dict[str, Tensor], metadata: dict[str, str]) -> None:
    if metadata["sha256"] != _seal(arrays, metadata):
        raise FileFormatError(f"{path} is damaged: it does not match its checksum; write it again")


def _listed(classes: np.ndarray) -> Any:
    """Return the class names in a ``.npz`` file: JSON if this package wrote it, else an array."""
    return json.loads(str(classes)) if classes.ndim == 0 else classes.tolist()


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

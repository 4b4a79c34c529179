"""Notes: a small JSON file, ``pool.npy.json``, that describes the predictions in ``pool.npy``.

A ``.npy`` file holds only an array. The note records the kind of numbers, the draws, and a hash of the array, so that
a file which was replaced by another program is detected.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from torch import Tensor

from batchbalance.errors import FileFormatError
from batchbalance.predictions.arrays import Label, Values
from batchbalance.system.sealed import read_checked, write_sealed

FORMAT, VERSION = "batchbalance predictions", 1
LOOKED_AT = 2**20  # bytes hashed at each end of the file, because a pool may be larger than memory


@dataclass(frozen=True)
class Note:
    """The description of the array in a file."""

    values: Values
    draw_ids: list[Any] | None
    weights: list[Any] | None
    classes: list[Any] | None = None


def note_path(path: Path) -> Path:
    """Return the path of the note about a file."""
    return path.with_name(path.name + ".json")


def write_note(
    path: Path,
    shape: tuple[int, ...],
    values: Values,
    draw_ids: tuple[str, ...] | None,
    weights: Tensor | None,
    classes: tuple[Label, ...] | None = None,
) -> None:
    """Write the note about an existing ``.npy`` file: its axes, "nsc" or "nlsc", these values, draws and classes."""
    content = {
        "format": FORMAT,
        "version": VERSION,
        "values": values,
        "axes": usual_axes("nsc", len(shape)),
        "shape": list(shape),
        "draw_ids": None if draw_ids is None else list(draw_ids),
        "weights": None if weights is None else weights.tolist(),
        "digest": _digest(path),
    }
    if classes is not None:
        content["classes"] = list(classes)
    write_sealed(note_path(path), content, indent=1)


def read_note(path: Path, shape: tuple[int, ...], axes: str) -> Note | None:
    """Return the note about a ``.npy`` file whose array has this shape; None if there is none.

    Raises:
        FileFormatError: if it is damaged or about another array, or has other `axes`.
    """
    beside = note_path(path)
    if not beside.is_file():
        return None
    try:
        content, is_sealed = read_checked(beside)
    except FileFormatError:
        content, is_sealed = {}, False
    if content.get("format") != FORMAT:
        raise FileFormatError(f"{beside} must describe {path.name}, got something else; {REMEDY}")
    if content.get("version") != VERSION:
        raise FileFormatError(f"{beside} must be of version {VERSION}, got {content.get('version')!r}; {REMEDY}")
    if not is_sealed:
        raise FileFormatError(f"{beside} is damaged: it does not match its checksum; {REMEDY}")
    if content.get("values") not in get_args(Values):
        raise FileFormatError(f"{beside} must name the values of {path.name}, got {content.get('values')!r}; {REMEDY}")
    if content.get("shape") != list(shape) or content.get("digest") != _digest(path):
        raise FileFormatError(f"{beside} must describe the current {path.name}, got a note on another array; {REMEDY}")
    if content.get("axes") != usual_axes(axes, len(shape)):
        raise FileFormatError(f"{path} holds axes {content.get('axes')!r}, but `axes` is {axes!r}; omit `axes`")
    ids, weights, classes = (_checked_list(beside, content, name) for name in ("draw_ids", "weights", "classes"))
    return Note(content["values"], ids, weights, classes)


def usual_axes(axes: str, ndim: int) -> str:
    """Return the axes of an array; if those of the default do not fit, "nlsc", as in files of several labels."""
    return "nlsc" if axes == "nsc" and ndim == 4 else axes


REMEDY = "delete it, or write both files again"


def _checked_list(path: Path, content: dict[str, Any], name: str) -> Any:
    if not isinstance(content.get(name), list | None):
        raise FileFormatError(f"{path} must hold a list as `{name}`, got {content.get(name)!r}; {REMEDY}")
    return content.get(name)


def _digest(path: Path) -> str:
    """Return a hash of the size and of both ends of a file, including the header."""
    size = path.stat().st_size
    with path.open("rb") as file:
        found = hashlib.sha256(f"{size} ".encode() + file.read(LOOKED_AT))
        file.seek(max(LOOKED_AT, size - LOOKED_AT))
        found.update(file.read(LOOKED_AT))
    return found.hexdigest()

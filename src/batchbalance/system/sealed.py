"""Files with a checksum: JSON objects that contain their own, and checksums of arrays and tensors in other files.

Damage is detected when a file is read. The error names the file and the remedy.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from batchbalance.errors import FileFormatError
from batchbalance.system.files import replacing

if TYPE_CHECKING:
    from torch import Tensor


def write_sealed(path: Path, content: Mapping[str, Any], *, indent: int | None = None) -> None:
    """Write a JSON object with its checksum, atomically."""
    with replacing(path) as temporary:
        text = json.dumps({**content, "checksum": checksum(content)}, indent=indent)
        temporary.write_text(text + "\n", encoding="utf-8")


def read_sealed(path: Path, remedy: str) -> dict[str, Any]:
    """Return the object that `write_sealed` wrote.

    Raises:
        FileFormatError: if the file holds anything else; the message ends with `remedy`.
    """
    try:
        content, is_sealed = read_checked(path)
    except FileFormatError:
        is_sealed = False
    if not is_sealed:
        raise damaged(path, remedy)
    return content


def read_checked(path: Path) -> tuple[dict[str, Any], bool]:
    """Return the JSON object of a file without its checksum, and whether the checksum is right.

    Raises:
        FileFormatError: if the file does not hold a JSON object.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{path} must be JSON, got damaged content: {error}") from error
    if not isinstance(content, dict):
        raise FileFormatError(f"{path} must hold a JSON object, got {type(content).__name__}")
    seal = content.pop("checksum", None)
    return content, seal == checksum(content)


def damaged(path: Path, remedy: str, record: str = "") -> FileFormatError:
    """Return the error for a file that does not match its checksum, which is stored in `record` if not in the file."""
    where = f" in {record}" if record else ""
    return FileFormatError(f"{path} is damaged: it does not match its checksum{where}; {remedy}")


def checksum(content: Mapping[str, Any]) -> str:
    """Return the checksum of a JSON object, independent of the order of its keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def array_digest(array: np.ndarray) -> str:
    """Return a hash of the numbers of an array, in about a second per GB."""
    return hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()[:32]


def tensors_digest(tensors: "Mapping[str, Tensor]", *words: object) -> str:
    """Return a hash of some words, and of the name, type, shape and numbers of each tensor."""
    import torch

    digest = hashlib.sha256(repr(words).encode())
    for name, value in sorted(tensors.items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()

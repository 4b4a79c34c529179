"""Atomic file writes, and safe reads of files that may be truncated while they are read."""

import math
import mmap
import os
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from batchbalance.errors import FileFormatError, is_out_of_files
from batchbalance.system.memory import as_text, free_memory


@contextmanager
def replacing(path: str | os.PathLike[str], *, first: Path | None = None) -> Iterator[Path]:
    """Yield a temporary path beside `path`; move it to `path` if the block raises no error.

    The file `first`, which describes the old file, is removed just before the move.

    If the block raises an error or the process is killed, the old file at `path` is unchanged.

    Raises:
        OSError: if the folder does not exist or cannot be written to.
    """
    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(f"cannot write {path}: it is a folder; give a file name")
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-", suffix=path.suffix)
    except OSError as error:
        raise OSError(f"cannot write {path}: {error.strerror or error}") from error
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb+") as written:
            os.fsync(written.fileno())
        # mkstemp creates private files; a result should have the usual permissions of a new file.
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        if first is not None:
            first.unlink(missing_ok=True)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@dataclass(frozen=True)
class MappedFile:
    """A memory-mapped file. Reading past the end of a file that shrank kills the process; call `check` before reading.

    Attributes:
        path: its path, for messages.
        size: its expected size in bytes.
        axes: the order of the axes in the file.
        mapping: the memory map; it keeps the size of its file even if `path` has been replaced by another file.
    """

    path: Path
    size: int
    mapping: mmap.mmap
    axes: str = "nsc"

    @classmethod
    def of(cls, array: np.memmap, path: Path, axes: str = "nsc") -> "MappedFile | None":
        """Return the file behind a memory-mapped array; None if there is none."""
        base: Any = array
        while base is not None and not isinstance(base, mmap.mmap):
            base = getattr(base, "base", None)
        return None if base is None else cls(path, array.offset + array.nbytes, base, axes)

    def check(self) -> None:
        """Raise FileFormatError if the file has shrunk."""
        size = self.mapping.size()
        if size < self.size:
            raise FileFormatError(
                f"{self.path} must not change while it is read, got {size:,} bytes instead of {self.size:,}; "
                "write it again and start over"
            )


def check_is_file(path: Path) -> None:
    """Raise unless there is a file at `path`."""
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; give a file in it")
    if not path.is_file():
        raise FileNotFoundError(f"no such file: {path}")


def archived_names(path: Path) -> list[str]:
    """Return the names of the arrays in a ``.npz`` file."""
    with zipfile.ZipFile(path) as archive:
        return [name.removesuffix(".npy") for name in archive.namelist()]


def archived_arrays(path: Path, names: Iterable[str]) -> dict[str, np.ndarray]:
    """Return those of the named arrays that a ``.npz`` file holds. Other arrays are not read. Nothing is unpickled.

    Raises:
        FileFormatError: if an array is larger than memory according to its header.
    """
    with zipfile.ZipFile(path) as archive:
        held = set(archive.namelist())
        members = {name: next((m for m in (f"{name}.npy", name) if m in held), None) for name in names}
        return {name: _archived(archive, member, name, path) for name, member in members.items() if member is not None}


def _archived(archive: zipfile.ZipFile, member: str, name: str, path: Path) -> np.ndarray:
    with archive.open(member) as stream:
        version = np.lib.format.read_magic(stream)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(stream)
    size, free = math.prod(shape) * dtype.itemsize, free_memory()
    if size > free:
        raise FileFormatError(
            f"{path}: `{name}` must fit in memory, {as_text(free)} are free, got {as_text(size)} by its header; "
            "save it as .npy, which is read piece by piece"
        )
    with archive.open(member) as stream:
        return np.lib.format.read_array(stream, allow_pickle=False)


def mapped_array(path: Path) -> np.memmap:
    """Return the array of a ``.npy`` file, memory-mapped.

    Raises:
        FileFormatError: if the file is truncated or not a ``.npy`` file.
    """
    check_is_file(path)
    try:
        with path.open("rb") as file:
            begins = file.read(len(np.lib.format.MAGIC_PREFIX))
        if begins != np.lib.format.MAGIC_PREFIX:
            raise ValueError("it does not begin like one" if begins else "it is empty")
        return np.lib.format.open_memmap(path, mode="c")
    except (FileNotFoundError, PermissionError):
        raise
    except Exception as error:  # NumPy parses the header as a Python literal, so damage may raise anything
        if is_out_of_files(error):
            raise
        if "Python objects" in str(error):
            raise FileFormatError(f"{path} holds pickled objects, which are never loaded; save an array") from error
        raise FileFormatError(f"{path} is damaged or not a .npy file: {error}") from error

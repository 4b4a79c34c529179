"""Writing a file whole or not at all, and reading one that may be cut short meanwhile."""

import mmap
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from batchbalance.errors import FileFormatError


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a temporary path beside `path`; put it in place of `path` if the block ends well.

    An error, or a killed process, leaves whatever stood at `path` before untouched.

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
        # mkstemp makes files private; a result should be as readable as any other new file.
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@dataclass(frozen=True)
class MappedFile:
    """A memory-mapped file. Reading past the end of one that shrank would kill the process, so look before each read.

    Attributes:
        path: its name, for messages.
        size: the bytes that it must have.
        axes: the order of the axes in the file.
        mapping: the map; it knows the size of the file it was made from, whatever the path now names.
    """

    path: Path
    size: int
    mapping: mmap.mmap
    axes: str = "nsc"

    @classmethod
    def of(cls, array: np.memmap, path: Path, axes: str = "nsc") -> "MappedFile | None":
        """The file behind a memory-mapped array; None if there is none."""
        base: Any = array
        while base is not None and not isinstance(base, mmap.mmap):
            base = getattr(base, "base", None)
        return None if base is None else cls(path, array.offset + array.nbytes, base, axes)

    def check(self) -> None:
        """Raise FileFormatError if the file is shorter than it was."""
        size = self.mapping.size()
        if size < self.size:
            raise FileFormatError(
                f"{self.path} must stay as it is while it is read, got {size:,} bytes where there were {self.size:,}; "
                "write it again and start over"
            )


def mapped_array(path: Path) -> np.memmap:
    """The array of a ``.npy`` file, memory-mapped.

    Raises:
        FileFormatError: if the file is cut short or of another kind.
    """
    try:
        array = np.load(path, mmap_mode="c", allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise FileFormatError(f"{path} must be a whole .npy file, got damage or another kind: {error}") from error
    if not isinstance(array, np.memmap):
        raise FileFormatError(f"{path} must be a .npy file of one array, got another kind")
    return array

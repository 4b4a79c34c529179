"""Embeddings that grow batch by batch in files, and can be resumed after an interruption.

While they grow, ``e.npy.part`` holds the vectors (a memory-mapped array with space for all of them), ``e.ids.txt.part``
the ids, and ``e.npy.journal`` the progress: first the settings, then a record for each batch with a hash of its items
and hashes of all vectors and ids so far. A batch is complete once its record is written. At the end the parts are
renamed, and ``e.embed.json`` records the settings and the last of those hashes, so damage is detected on later use.
"""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

from batchbalance.encoders.contract import Vectors
from batchbalance.errors import FileFormatError
from batchbalance.system.files import mapped_array
from batchbalance.system.ids import ids_path, line_of
from batchbalance.system.journal import Journal, sync_folder
from batchbalance.system.memory import as_text
from batchbalance.system.sealed import array_digest, read_sealed, write_sealed

HEADER_BYTES = 128
NUMBER = np.dtype("<f4")


class BatchRecord(TypedDict):
    """The record of a batch.

    Attributes:
        key: hash of the ids and contents of its items.
        rows: the number of its vectors.
        dim: the size of a vector; 0 if there are none.
        id_bytes: the size of its ids in the file of ids.
        skipped: id and reason of each item that was skipped.
        digests: hashes of all vectors and of all lines of ids, including those of earlier batches.
    """

    key: str
    rows: int
    dim: int
    id_bytes: int
    skipped: list[list[str]]
    digests: list[str]


@dataclass(frozen=True)
class EmbeddingPaths:
    """The paths of the files.

    Attributes:
        output: the vectors.
        ids: the ids.
    """

    output: Path
    ids: Path

    @property
    def vectors_part(self) -> Path:
        """The vectors while they grow."""
        return self.output.with_name(f"{self.output.name}.part")

    @property
    def ids_part(self) -> Path:
        """The ids while they grow."""
        return self.ids.with_name(f"{self.ids.name}.part")

    @property
    def journal(self) -> Path:
        """The progress while they grow."""
        return self.output.with_name(f"{self.output.name}.journal")

    @property
    def record(self) -> Path:
        """The record of the finished embeddings."""
        return self.output.with_name(f"{self.output.stem}.embed.json")

    def remove_journal(self) -> None:
        """Remove the journal, which must be closed, and its lock."""
        self.journal.unlink(missing_ok=True)
        self.journal.with_name(f".{self.journal.name}.lock").unlink(missing_ok=True)

    def check(self) -> None:
        """Raise an error before any work if a file cannot be written."""
        if self.output.suffix != ".npy":
            raise ValueError(f"--output must end in .npy, got {str(self.output)!r}")
        for path in (self.output, self.ids):
            if path.is_dir() or not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
                raise OSError(f"cannot write {path}: {path.parent} must be a folder that can be written to")


class EmbeddingFiles:
    """Growing files of embeddings, open in one process at a time.

    Args:
        places: the paths of the files.
        settings: the settings that every vector depends on. If they differ from an earlier run, everything starts over.
        room: the maximum number of vectors.

    Attributes:
        batches: the records of the batches that are done.
        started_over: why an earlier run was not resumed, or "".
    """

    def __init__(self, places: EmbeddingPaths, settings: dict[str, Any], room: int) -> None:
        self.batches: list[BatchRecord] = []
        self.started_over = ""
        self._places, self._settings, self._room = places, settings, room
        self._map: np.memmap | None = None
        self._rows = self._id_bytes = 0
        self._hashes = hashlib.sha256(), hashlib.sha256()  # of the vectors and of the lines of ids
        self._journal = Journal(places.journal)
        try:
            self._continue(list(self._journal))
        except BaseException:
            self._journal.close()
            raise

    def _continue(self, entries: list[dict[str, Any]]) -> None:
        start = max((i for i, entry in enumerate(entries) if "settings" in entry), default=None)
        if start is None:
            self._journal.append({"settings": self._settings})
            return
        earlier: dict[str, Any] = entries[start]["settings"]
        batches: list[BatchRecord] = [entry["batch"] for entry in entries[start + 1 :]]
        change = next((key for key, value in self._settings.items() if earlier.get(key) != value), None)
        if change is not None:
            what = {"encoder": "the encoder", "fingerprint": "the encoder", "batch_size": "the batch size"}[change]
            self.start_over(f"{what} has changed since they were started")
            return
        rows, id_bytes = sum(batch["rows"] for batch in batches), sum(batch["id_bytes"] for batch in batches)
        dim = max((batch["dim"] for batch in batches), default=0)
        if rows:
            sizes = [path.stat().st_size if path.is_file() else -1 for path in self._parts]
            if sizes[0] < HEADER_BYTES + rows * dim * NUMBER.itemsize or sizes[1] < id_bytes:
                self.start_over("they were damaged in the meantime")
                return
            vectors = np.memmap(self._parts[0], NUMBER, mode="r", offset=HEADER_BYTES, shape=(rows, dim))
            self._hashes = hashlib.sha256(vectors.data), hashlib.sha256(self._parts[1].read_bytes()[:id_bytes])
            if self.digests != batches[-1].get("digests"):
                self.start_over("they were damaged in the meantime")
                return
            self._map = self._mapped(dim)
        self.batches, self._rows, self._id_bytes = batches, rows, id_bytes

    def start_over(self, reason: str) -> None:
        """Discard all batches."""
        self.started_over = reason if self.batches or len(self._journal) > 1 else ""
        self._map, self.batches, self._rows, self._id_bytes = None, [], 0, 0
        self._hashes = hashlib.sha256(), hashlib.sha256()
        for path in self._parts:
            path.unlink(missing_ok=True)
        self._journal.append({"settings": self._settings})

    def append(self, key: str, ids: Sequence[str], vectors: Vectors | None, skipped: Sequence[tuple[str, str]]) -> None:
        """Add a batch durably: once this returns, the batch survives a crash."""
        lines = "".join(f"{line_of(name)}\n" for name in ids).encode()
        if vectors is not None:
            if self._map is None:
                self._map = self._mapped(vectors.shape[1])
            if vectors.shape[1] != self._map.shape[1]:
                raise ValueError(
                    f"the encoder must return {self._map.shape[1]} numbers for every item, got {vectors.shape[1]}"
                )
            self._map[self._rows : self._rows + len(vectors)] = vectors
            self._map.flush()
            self._hashes[0].update(np.ascontiguousarray(vectors, dtype=NUMBER).data)
            self._hashes[1].update(lines)
            with self._places.ids_part.open("r+b" if self._id_bytes else "wb") as file:
                file.seek(self._id_bytes)
                file.truncate()
                file.write(lines)
                file.flush()
                os.fsync(file.fileno())
        batch: BatchRecord = {
            "key": key,
            "rows": 0 if vectors is None else len(vectors),
            "dim": 0 if vectors is None else vectors.shape[1],
            "id_bytes": len(lines),
            "skipped": [list(pair) for pair in skipped],
            "digests": self.digests,
        }
        self._journal.append({"batch": batch})
        self.batches.append(batch)
        self._rows += batch["rows"]
        self._id_bytes += batch["id_bytes"]

    def finish(self, record: dict[str, Any]) -> None:
        """Rename the finished files. A crash in between cannot leave vectors next to the ids of other items."""
        if self._map is None:
            raise FileFormatError("there must be at least one item that can be embedded, got none")
        dim = self._map.shape[1]
        self._map = None
        with self._places.vectors_part.open("r+b") as file:
            file.write(header(self._rows, dim))
            file.truncate(HEADER_BYTES + self._rows * dim * NUMBER.itemsize)
            os.fsync(file.fileno())
        with self._places.ids_part.open("r+b") as file:
            file.truncate(self._id_bytes)
            os.fsync(file.fileno())
        self._places.output.unlink(missing_ok=True)
        write_sealed(self._places.record, {**record, "digests": self.digests}, indent=2)
        self._places.ids_part.replace(self._places.ids)
        self._places.vectors_part.replace(self._places.output)
        sync_folder(self._places.output.parent)
        self._journal.close()
        self._places.remove_journal()

    def __enter__(self) -> "EmbeddingFiles":
        return self

    def __exit__(self, *_: object) -> None:
        """Close the files, so that other processes can resume them."""
        self._map = None
        self._journal.close()

    @property
    def digests(self) -> list[str]:
        """The hashes of all vectors and of all lines of ids."""
        return [each.hexdigest()[:32] for each in self._hashes]

    @property
    def _parts(self) -> tuple[Path, Path]:
        return self._places.vectors_part, self._places.ids_part

    def _mapped(self, dim: int) -> np.memmap:
        """Map the file of vectors, with disk space for all of them: a map of a sparse file fails on a full disk."""
        path, size = self._places.vectors_part, HEADER_BYTES + self._room * dim * NUMBER.itemsize
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(handle, 0, size)
            os.ftruncate(handle, max(size, os.fstat(handle).st_size))
        except OSError as error:
            raise OSError(f"cannot write {path} of {as_text(size)}: {error.strerror or error}; free space") from error
        finally:
            os.close(handle)
        return np.memmap(path, dtype=NUMBER, mode="r+", offset=HEADER_BYTES, shape=(self._room, dim))


def mapped_embeddings(path: Path) -> np.memmap:
    """Return the embeddings of a ``.npy`` file, memory-mapped; those that `embed` made are read once and checked.

    Raises:
        FileFormatError: if they are not numbers (N, D), or if they or their ids do not match the hashes in
            ``e.embed.json``.
    """
    array, places = mapped_array(path), EmbeddingPaths(path, ids_path(path))
    if array.ndim != 2 or not array.size or array.dtype.kind not in "fiu":
        raise FileFormatError(f"{path} must hold embeddings (N, D), got {array.dtype} of shape {array.shape}")
    if not places.record.is_file():
        return array
    remedy = f"embed again with the same command, or delete {places.record.name} if you changed the embeddings yourself"
    record = read_sealed(places.record, remedy)
    for file, is_same in ((path, has_vectors(record, array)), (places.ids, has_ids(record, places.ids))):
        if file.is_file() and not is_same:
            raise FileFormatError(f"{file} must match the hash in {places.record.name}, got other contents; {remedy}")
    return array


def has_vectors(record: dict[str, Any], array: np.ndarray) -> bool:
    """Return whether an array holds the vectors of a record."""
    is_alike = array.dtype == NUMBER and list(array.shape) == [record.get("rows"), record.get("dim")]
    return is_alike and array_digest(array) == record.get("digests", [""])[0]


def has_ids(record: dict[str, Any], path: Path) -> bool:
    """Return whether a file holds the ids of a record."""
    return path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest()[:32] == record.get("digests", [""])[-1]


def header(num_rows: int, dim: int) -> bytes:
    """Return the header of a ``.npy`` file of float32, which has the same size for every shape."""
    text = f"{{'descr': '{NUMBER.str}', 'fortran_order': False, 'shape': ({num_rows}, {dim}), }}"
    start = b"\x93NUMPY\x01\x00" + (HEADER_BYTES - 10).to_bytes(2, "little")
    return start + text.encode("ascii").ljust(HEADER_BYTES - 11) + b"\n"

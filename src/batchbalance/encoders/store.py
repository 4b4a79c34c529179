"""Embeddings that grow batch by batch in a file, and can be resumed after an interruption.

While they grow, ``e.npy.part`` holds the vectors (a memory-mapped array with space for all of them), and
``e.npy.journal`` the progress: first the settings, then a record for each batch with its ids, a hash of its items and a
hash of all vectors so far. A batch is complete once its record is written. At the end the ids are written and the part
is renamed, and ``e.embed.json`` records the settings and hashes of both files, so damage is detected on later use.
"""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypedDict

import numpy as np

from batchbalance.encoders.contract import Vectors
from batchbalance.errors import FileFormatError
from batchbalance.system.files import mapped_array, replacing
from batchbalance.system.ids import ids_path, line_of
from batchbalance.system.journal import Journal, sync_folder
from batchbalance.system.memory import as_text
from batchbalance.system.sealed import array_digest, read_sealed, write_sealed

NUMBER = np.dtype("<f4")
CAUSES = {"encoder": "the encoder", "fingerprint": "the encoder", "batch_size": "the batch size"}


class BatchRecord(TypedDict):
    """The record of a batch.

    Attributes:
        key: hash of the ids and contents of its items.
        ids: the ids of its vectors.
        skipped: id and reason of each item that was skipped.
        digest: hash of all vectors, including those of earlier batches.
    """

    key: str
    ids: list[str]
    skipped: list[list[str]]
    digest: str


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
    def part(self) -> Path:
        """The vectors while they grow."""
        return self.output.with_name(f"{self.output.name}.part")

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
    """Growing embeddings, open in one process at a time.

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
        self._hash = hashlib.sha256()  # of the vectors
        self._journal = Journal(places.journal)
        try:
            obstacle = self._continue(list(self._journal))
            if obstacle is not None:
                self.start_over(obstacle)
        except BaseException:
            self._journal.close()
            raise

    def _continue(self, entries: list[dict[str, Any]]) -> str | None:
        """Take over the batches of an earlier run; return why that is not possible, or None."""
        start = max((i for i, entry in enumerate(entries) if "settings" in entry), default=None)
        if start is None:
            return ""
        change = next(
            (key for key, value in self._settings.items() if entries[start]["settings"].get(key) != value), ""
        )
        if change:
            return f"{CAUSES[change]} has changed since they were started"
        batches: list[BatchRecord] = [entry["batch"] for entry in entries[start + 1 :]]
        rows = sum(len(batch["ids"]) for batch in batches)
        if rows:
            try:
                vectors = mapped_array(self._places.part)[:rows]
            except (OSError, FileFormatError):
                return "they were damaged in the meantime"
            self._hash = hashlib.sha256(vectors.data)
            if self._digest != batches[-1]["digest"]:
                return "they were damaged in the meantime"
            self._map = self._mapped(vectors.shape[1])
        self.batches = batches
        return None

    def start_over(self, reason: str) -> None:
        """Discard all batches."""
        self.started_over = reason if len(self._journal) > 1 else ""
        self._map, self.batches, self._hash = None, [], hashlib.sha256()
        self._places.part.unlink(missing_ok=True)
        self._journal.append({"settings": self._settings})

    @property
    def num_rows(self) -> int:
        """The number of vectors so far."""
        return sum(len(batch["ids"]) for batch in self.batches)

    def append(self, key: str, ids: Sequence[str], vectors: Vectors | None, skipped: Sequence[tuple[str, str]]) -> None:
        """Add a batch durably: once this returns, the batch survives a crash."""
        if vectors is not None:
            if self._map is None:
                self._map = self._mapped(vectors.shape[1])
            if vectors.shape[1] != self._map.shape[1]:
                raise ValueError(
                    f"the encoder must return {self._map.shape[1]} numbers for every item, got {vectors.shape[1]}"
                )
            self._map[self.num_rows : self.num_rows + len(vectors)] = vectors
            self._map.flush()
            self._hash.update(np.ascontiguousarray(vectors, dtype=NUMBER).data)
        batch: BatchRecord = {
            "key": key,
            "ids": list(ids),
            "skipped": [list(e) for e in skipped],
            "digest": self._digest,
        }
        self._journal.append({"batch": batch})
        self.batches.append(batch)

    def finish(self, items: str) -> list[tuple[str, str]]:
        """Write the ids, rename the vectors, and return the skipped items. `items` is a hash of all items.

        A crash in between cannot leave vectors next to the ids of other items.
        """
        if self._map is None:
            raise FileFormatError("there must be at least one item that can be embedded, got none")
        rows, dim = self.num_rows, self._map.shape[1]
        self._map = None
        with self._places.part.open("r+b") as file:
            file.truncate(_write_header(file, rows, dim) + rows * dim * NUMBER.itemsize)
            os.fsync(file.fileno())
        lines = "".join(f"{line_of(name)}\n" for batch in self.batches for name in batch["ids"]).encode()
        skipped = [(name, reason) for batch in self.batches for name, reason in batch["skipped"]]
        self._places.output.unlink(missing_ok=True)
        digests = [self._digest, _ids_digest(lines)]
        record = {**self._settings, "items": items, "rows": rows, "dim": dim, "skipped": skipped, "digests": digests}
        write_sealed(self._places.record, record, indent=2)
        with replacing(self._places.ids) as temporary:
            temporary.write_bytes(lines)
        self._places.part.replace(self._places.output)
        sync_folder(self._places.output.parent)
        self._journal.close()
        self._places.remove_journal()
        return skipped

    def __enter__(self) -> "EmbeddingFiles":
        return self

    def __exit__(self, *_: object) -> None:
        """Close the files, so that other processes can resume them."""
        self._map = None
        self._journal.close()

    @property
    def _digest(self) -> str:
        return self._hash.hexdigest()[:32]

    def _mapped(self, dim: int) -> np.memmap:
        """Map the file of vectors, with disk space for all of them: a map of a sparse file fails on a full disk."""
        path = self._places.part
        path.touch()
        with path.open("r+b") as file:
            size = _write_header(file, self._room, dim) + self._room * dim * NUMBER.itemsize
            file.flush()
            try:
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(file.fileno(), 0, size)
                file.truncate(max(size, os.fstat(file.fileno()).st_size))
            except OSError as error:
                raise OSError(
                    f"cannot write {path} of {as_text(size)}: {error.strerror or error}; free space"
                ) from error
        return np.lib.format.open_memmap(path, mode="r+")


def _write_header(file: BinaryIO, rows: int, dim: int) -> int:
    """Write the header of a ``.npy`` file, which has the same size for any number of rows; return its size."""
    shape = {"descr": NUMBER.str, "fortran_order": False, "shape": (rows, dim)}
    np.lib.format.write_array_header_1_0(file, shape)
    return file.tell()


def _ids_digest(lines: bytes) -> str:
    return hashlib.sha256(lines).hexdigest()[:32]


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
    return path.is_file() and _ids_digest(path.read_bytes()) == record.get("digests", [""])[-1]

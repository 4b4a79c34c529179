"""The embeddings of a project's items: made from a source, extended with it, and made again for another encoder."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout

from batchbalance.encoders import Encoder, FittedEncoder, embed
from batchbalance.encoders.contract import encoded as encode_batch
from batchbalance.errors import FileFormatError
from batchbalance.project import items as sources
from batchbalance.project.audit import is_audit
from batchbalance.project.items import KINDS, RECORD, VECTORS, StoredItems
from batchbalance.project.settings import Data, ProjectSettings
from batchbalance.project.store import NewItem, ProjectStore, normal_id
from batchbalance.system.files import mapped_array, replacing
from batchbalance.system.ids import check_unicode
from batchbalance.system.sealed import array_digest, damaged, read_sealed, write_sealed

NEW = "new.npy"  # the name of the vectors while they are made
LOCK = ".embeddings.lock"  # of the process that embeds
BLOCK = 8192  # vectors copied, or items hashed, at a time
CHECKED_BYTES = 2**30  # of embeddings that are compared with their hash on opening, which takes about a second


class Embeddings:
    """The embeddings of a project's items, one for each row of the store.

    Args:
        folder: of the project.
        store: its database.
        settings: of the project.
        notes: gets a sentence for what is worth knowing.
        progress: show progress.
    """

    def __init__(
        self, folder: Path, store: ProjectStore, settings: ProjectSettings, notes: list[str], *, progress: bool
    ) -> None:
        self._folder, self._store, self._settings = folder, store, settings
        self._notes, self._progress = notes, progress

    @property
    def root(self) -> Path | None:
        """The folder that files are in; None if items are not files."""
        data = self._settings.data
        return sources.folder_of(data, self._folder) if data.kind == "images" else None

    @property
    def roots(self) -> tuple[Path, ...]:
        """All folders that files are in: `root`, and those that items were added from."""
        root = self.root
        if root is None:
            return ()
        with self._store.reading() as state:
            added = [self._settings.data.model_copy(update={"path": path}) for path in state.sources[1:]]
        return tuple(dict.fromkeys([root, *(sources.folder_of(data, self._folder) for data in added)]))

    def array(self) -> np.ndarray:
        """Return the embeddings (N, D); they are made again if `project.toml` names another encoder."""
        with self._store.lock:
            recorded, settings = recorded_encoder(self._folder), self._settings
            wanted = settings.encoder or (recorded and recorded["encoder"]), settings.image_size
            if settings.data.kind != "embeddings" and (
                recorded is None or wanted != (recorded["encoder"], recorded["image_size"])
            ):
                using = self._encoder()
                if recorded is not None:
                    self._notes.append(f"the encoder was {recorded['encoder']} and is {using.name}: embedded again")
                with self._alone():
                    embed(self._stored_items(), using, output=self._folder / NEW, progress=self._progress)
                    install(self._folder, 0, using, settings.image_size)
            return read_vectors(self._folder, self._store.num_items)

    def add(self, data: Data) -> int:
        """Embed and add the items of a source; return their number. An interrupted call continues where it ended."""
        with self._alone():
            if data.kind == "embeddings":
                vectors, names = sources.given_vectors(data, self._folder)
                copy_vectors([vectors], self._folder / NEW)
                costs = sources.read_costs(self._folder / data.cost) if data.cost is not None else {}
                made = sources.vector_items(vectors, names, costs)
                using = None
            else:
                found = sources.open_source(data, self._folder)
                self._notes += found.notes
                using = self._encoder()
                embedded = embed(
                    found, using, output=self._folder / NEW, skip_bad=data.skip_bad, progress=self._progress
                )
                self._notes += [f"skipped: {reason}" for _, reason in embedded.skipped]
                self._notes += embedded.notes
                names = embedded.ids
                root = sources.folder_of(self._settings.data, self._folder)
                made = sources.new_items(data, self._folder, names, found, root)
            self._check_new(names)
            install(self._folder, self._store.num_items, using, self._settings.image_size)
            return self._store.add_items(self._with_audit(made), data.path)

    def encoded(self, data: Data, dim: int) -> tuple[list[str], np.ndarray]:
        """Return the ids and embeddings (n, `dim`) of items that are not added."""
        if data.kind == "embeddings":
            given, names = sources.given_vectors(data, self._folder)
            vectors = np.asarray(given, dtype=np.float32)
        else:
            found = sources.open_source(data, self._folder)
            made = embed(found, self._encoder(), skip_bad=data.skip_bad, progress=self._progress)
            names, vectors = made.ids, made.vectors
        if vectors.shape[1] != dim:
            raise ValueError(f"new data must have {dim} numbers each, got {vectors.shape[1]}")
        return names, vectors

    def encoded_text(self, text: str) -> np.ndarray:
        """Return the embedding (1, D) of a text that a user typed."""
        kind = self._settings.data.kind
        if kind != "texts":
            raise ValueError(
                f"`text` must be for a project of texts, whose encoder takes one, got one of {kind}; name items with "
                "`like`"
            )
        if not text.strip():
            raise ValueError("`text` must say what to look for, got an empty text")
        vector = encode_batch(self._encoder(), [check_unicode("`text`", text)])
        if not vector.any():
            raise ValueError(f"`text` must have words that the encoder knows, got {text!r}; say it in other words")
        return vector

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Let one process at a time write embeddings, with the items that others have added."""
        try:
            acquired = FileLock(self._folder / LOCK).acquire(timeout=0)
        except Timeout as error:
            raise BlockingIOError(
                f"another process embeds items of {self._folder}; try again when it has ended"
            ) from error
        with acquired:
            self._store.events()
            yield

    def _encoder(self) -> Encoder:
        """Return the project's encoder; one that is fitted is fitted to the items that the project began with."""
        using = sources.project_encoder(self._settings)
        if self._store.num_items and isinstance(using, FittedEncoder) and using.dim is None:
            first = next(event for event in self._store.events() if event.kind == "items added")
            using.fit(self._stored_items(first.value["count"]).values())
        return using

    def _stored_items(self, count: int | None = None) -> StoredItems:
        """Return the first `count` items as the project stores them; all if omitted."""
        data = self._settings.data
        if data.kind == "embeddings":
            raise ValueError("bare embeddings have nothing to embed; remove `encoder` from project.toml")
        rows = range(self._store.num_items if count is None else count)
        root = sources.folder_of(data, self._folder)
        return StoredItems(KINDS[data.kind], self._store.ids(rows), self._store.contents(rows), root)

    def _check_new(self, names: list[str]) -> None:
        """Refuse repeated and known ids before anything is written."""
        seen: set[str] = set()
        for name in map(normal_id, names):
            if name in seen:
                raise FileFormatError(f"items must have distinct ids, got {name!r} more than once")
            if self._store.num_items and self._store.has(name):
                raise ValueError(
                    f"new items must have ids of their own, got {name!r}, which is there already; without ids items "
                    "are numbered from 0, so give new ones a column of other ids"
                )
            seen.add(name)

    def _with_audit(self, made: Iterator[NewItem]) -> Iterator[NewItem]:
        """Yield items, each with whether it belongs to the audit set."""
        while block := list(islice(made, BLOCK)):
            aside = is_audit([item.id for item in block], self._settings.seed, self._settings.audit)
            for item, audit in zip(block, aside.tolist(), strict=True):
                yield NewItem(item.id, item.content, item.digest, item.cost, audit)


def install(folder: Path, num_before: int, using: Encoder | None, image_size: int | None) -> None:
    """Put the vectors of NEW behind the first `num_before` of a project's, and record their encoder.

    The record comes last and keeps the hashes of fewer vectors: a process that is killed on the way leaves vectors
    that match it, or the record of another encoder.
    """
    made, target = folder / NEW, folder / VECTORS
    digests: dict[str, str] = {}
    if num_before:
        append_vectors(target, read_vectors(folder, num_before, whole=True), mapped_array(made))
        digests |= _digests(folder)
    else:
        made.replace(target)
    array = mapped_array(target)
    digests[str(len(array))] = array_digest(array)
    record = {"encoder": using and using.name, "fingerprint": using and using.fingerprint, "image_size": image_size}
    write_sealed(folder / RECORD, {**record, "digests": digests})
    for rest in (made, folder / "new.ids.txt", folder / "new.embed.json"):
        rest.unlink(missing_ok=True)


def append_vectors(target: Path, before: np.ndarray, more: np.ndarray) -> None:
    """Replace a file by its vectors and some more, atomically."""
    if before.shape[1:] != more.shape[1:]:
        raise FileFormatError(f"new items must have {before.shape[1]} numbers each, got {more.shape[1]}")
    with replacing(target) as temporary:
        copy_vectors([before, more], temporary)


def copy_vectors(parts: Sequence[np.ndarray], path: Path) -> None:
    """Write arrays one after the other as float32, block by block."""
    shape = (sum(map(len, parts)), parts[0].shape[1])
    out = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=shape)
    done = 0
    for part in parts:
        for start in range(0, len(part), BLOCK):
            block = np.asarray(part[start : start + BLOCK], dtype=np.float32)
            if not np.isfinite(block).all():
                bad = start + int(np.flatnonzero(~np.isfinite(block).all(axis=1))[0])
                raise FileFormatError(f"embeddings must be finite float32 numbers, got others in row {bad}")
            out[done : done + len(block)] = block
            done += len(block)
    out.flush()


def read_vectors(folder: Path, num_items: int, *, whole: bool = False) -> np.ndarray:
    """Return the embeddings (N, D) of a project, memory-mapped; checked if they are not large, or if `whole`.

    Raises:
        FileFormatError: if they are not as they were written.
    """
    path = folder / VECTORS
    array = mapped_array(path)
    remedy = f"restore it from a copy, or delete it and {RECORD} to embed again"
    if array.ndim != 2 or len(array) < num_items or array.dtype != np.float32:
        raise FileFormatError(
            f"{path} must hold {num_items:,} embeddings of float32, got {array.dtype} of shape {array.shape}; {remedy}"
        )
    if (folder / RECORD).is_file() and (whole or array.nbytes <= CHECKED_BYTES):
        found = _digest_in_file(path, num_items, path.stat().st_mtime_ns)
        if found != _digests(folder).get(str(num_items)):
            raise damaged(path, remedy, RECORD)
    return array[:num_items]


def recorded_encoder(folder: Path) -> dict[str, Any] | None:
    """Return the name and the image size of the encoder of a project's embeddings; None if there are none yet."""
    path = folder / RECORD
    if not path.is_file() or not (folder / VECTORS).is_file():
        return None
    found = read_sealed(path, "delete it to embed again")
    return {"encoder": found["encoder"], "image_size": found["image_size"]}


@lru_cache(maxsize=16)  # a long-running process reads a file once, until it changes
def _digest_in_file(path: Path, num_rows: int, _changed: int) -> str:
    return array_digest(mapped_array(path)[:num_rows])


def _digests(folder: Path) -> dict[str, str]:
    """Return the hash of the first n vectors, for each n that was the number of items at some time."""
    path = folder / RECORD
    return dict(read_sealed(path, "delete it to embed again").get("digests", {})) if path.is_file() else {}

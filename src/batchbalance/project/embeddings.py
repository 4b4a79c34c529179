"""The embeddings of a project's items: computed, extended with new items, and recomputed for another encoder."""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout

from batchbalance.encoders import DEFAULTS, Encoder, FittedEncoder, Items, embed, encoder, open_items, read_ids
from batchbalance.encoders.contract import Kind
from batchbalance.encoders.contract import encoded as encode_batch
from batchbalance.encoders.items import Item
from batchbalance.encoders.store import mapped_embeddings
from batchbalance.errors import FileFormatError
from batchbalance.project.audit import is_audit
from batchbalance.project.settings import Data, ProjectSettings, SourceKind
from batchbalance.project.store import NewItem, ProjectStore, digest_of, normal_id
from batchbalance.system.files import mapped_array, replacing
from batchbalance.system.ids import check_unicode, ids_path, repeated_id
from batchbalance.system.sealed import array_digest, damaged, read_sealed, write_sealed

KINDS: dict[SourceKind, Kind] = {"images": "images", "texts": "texts", "table": "rows"}
VECTORS = "embeddings.npy"
RECORD = "embeddings.json"  # the encoder of the embeddings, and their hash
NEW = "new.npy"  # the name of the vectors while they are computed
LOCK = ".embeddings.lock"  # held by the process that embeds
BLOCK = 8192  # vectors copied, or items hashed, at a time
CHECKED_BYTES = 2**30  # up to this size, hashes are checked on opening, which takes about a second


def seen_from(folder: Path, path: str | os.PathLike[str]) -> str:
    """Return a path relative to a folder, with `/`; absolute if it is on another drive."""
    try:
        return Path(os.path.relpath(Path(path).resolve(), folder.resolve())).as_posix()
    except ValueError:
        return Path(path).resolve().as_posix()


def source_path(data: Data, folder: Path) -> Path:
    """Return the path of a source's file or folder."""
    return (folder / data.path).resolve()


def folder_of(data: Data, folder: Path) -> Path:
    """Return the folder that the files of a source are in."""
    path = source_path(data, folder)
    return path if path.is_dir() else path.parent


def project_encoder(settings: ProjectSettings) -> Encoder:
    """Return the encoder that the settings name."""
    name = settings.encoder or DEFAULTS[KINDS[settings.data.kind]]
    return encoder(name, image_size=settings.image_size)


def open_source(data: Data, folder: Path) -> Items:
    """Return the items of a source other than bare embeddings."""
    kind = KINDS[data.kind]
    path = source_path(data, folder)
    found = open_items(path, kind=kind, columns=data.column, id_column=data.id, drop=data.drop)
    if found.kind != kind:
        raise FileFormatError(f"{path} must hold {data.kind}, got {found.kind}")
    return found


def new_items(embedded: Sequence[str], items: Items, root: Path) -> Iterator[NewItem]:
    """Yield the items that were embedded, in that order, with contents; files relative to `root`."""
    names = iter(embedded)
    wanted = next(names, None)
    for item in items:
        if item.id == wanted:
            content, digest = content_of(item, items.kind, root)
            yield NewItem(normal_id(item.id), content, digest)
            wanted = next(names, None)
    if wanted is not None:
        raise FileFormatError(f"{items.name} has changed while it was embedded: {wanted!r} is gone; start again")


def content_of(item: Item, kind: Kind, root: Path) -> tuple[str, str]:
    """Return the stored content of an item, and a digest of it."""
    if item.path is not None and kind == "images":
        try:
            path = os.path.relpath(item.path, root)
        except ValueError:  # on another drive
            path = str(item.path)
        return Path(path).as_posix(), digest_of(item.path.read_bytes())
    value = item.read()
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text, digest_of(text.encode())


def vector_items(vectors: np.ndarray, names: Sequence[str]) -> Iterator[NewItem]:
    """Yield items that consist of an embedding only."""
    for start in range(0, len(vectors), BLOCK):
        block = np.ascontiguousarray(vectors[start : start + BLOCK], dtype=np.float32) + 0.0  # -0 is 0
        for name, vector in zip(names[start : start + BLOCK], block, strict=True):
            yield NewItem(normal_id(name), None, digest_of(vector.tobytes()))


def given_vectors(data: Data, folder: Path) -> tuple[np.ndarray, list[str]]:
    """Return the user's own embeddings, and their ids."""
    path = source_path(data, folder)
    vectors = mapped_embeddings(path)
    beside = ids_path(path) if data.ids is None else folder / data.ids
    if not beside.is_file():
        if data.ids is not None:
            raise FileNotFoundError(f"no such file of ids: {beside}")
        return vectors, [str(row) for row in range(len(vectors))]
    names = read_ids(beside)
    if len(names) != len(vectors):
        raise FileFormatError(f"{beside} must have one id for each of {len(vectors)} rows of {path}, got {len(names)}")
    twice = repeated_id(names)
    if twice is not None:
        raise FileFormatError(f"{beside} must have distinct ids, got {twice!r} more than once")
    return vectors, names


class StoredItems(Items):
    """The items of a project as stored, to embed them again or to fit an encoder to them."""

    def __init__(self, kind: Kind, ids: Sequence[str], contents: Sequence[str], root: Path) -> None:
        self.name, self.kind = "the project", kind
        self._ids, self._contents, self._root = ids, contents, root

    def __len__(self) -> int:
        return len(self._ids)

    def __iter__(self) -> Iterator[Item]:
        from batchbalance.encoders.images import read_image

        for name, content in zip(self._ids, self._contents, strict=True):
            key, path = f"{name}\0{content}", self._root / content
            if self.kind == "images":
                yield Item(name, key, partial(read_image, path), path)
            else:
                yield Item(name, key, partial(str if self.kind == "texts" else json.loads, content))


class Embeddings:
    """The embeddings of a project's items, one for each row of the store. Remarks for the user go to `notes`."""

    def __init__(
        self, folder: Path, store: ProjectStore, settings: ProjectSettings, notes: list[str], *, progress: bool
    ) -> None:
        self._folder, self._store, self._settings = folder, store, settings
        self._notes, self._progress = notes, progress

    @property
    def root(self) -> Path | None:
        """The folder that files are in; None if items are not files."""
        data = self._settings.data
        return folder_of(data, self._folder) if data.kind == "images" else None

    @property
    def roots(self) -> tuple[Path, ...]:
        """All folders that files are in: `root`, and those that items were added from."""
        root = self.root
        if root is None:
            return ()
        with self._store.reading() as state:
            added = [self._settings.data.model_copy(update={"path": path}) for path in state.sources[1:]]
        return tuple(dict.fromkeys([root, *(folder_of(data, self._folder) for data in added)]))

    def array(self) -> np.ndarray:
        """Return the embeddings (N, D); they are recomputed if `project.toml` names another encoder."""
        with self._store.lock:
            settings, record = self._settings, _record(self._folder) if (self._folder / VECTORS).is_file() else {}
            before = record.get("encoder"), record.get("image_size")
            wanted = settings.encoder or before[0], settings.image_size
            if settings.data.kind != "embeddings" and (not record or wanted != before):
                using = self._encoder()
                if record:
                    self._notes.append(f"the encoder was {before[0]} and is {using.name}: embedded again")
                with self._alone():
                    embed(self._stored_items(), using, output=self._folder / NEW, progress=self._progress)
                    install(self._folder, 0, using, settings.image_size)
            return read_vectors(self._folder, self._store.num_items)

    def add(self, data: Data) -> int:
        """Embed and add the items of a source; return their number. A call continues an interrupted one."""
        with self._alone():
            if data.kind == "embeddings":
                vectors, names = given_vectors(data, self._folder)
                copy_vectors([vectors], self._folder / NEW)
                made = vector_items(vectors, names)
                using = None
            else:
                found = open_source(data, self._folder)
                self._notes += found.notes
                using = self._encoder()
                embedded = embed(
                    found, using, output=self._folder / NEW, skip_bad=data.skip_bad, progress=self._progress
                )
                self._notes += [f"skipped: {reason}" for _, reason in embedded.skipped]
                self._notes += embedded.notes
                names = embedded.ids
                root = folder_of(self._settings.data, self._folder)
                made = new_items(names, found, root)
            self._check_new(names)
            install(self._folder, self._store.num_items, using, self._settings.image_size)
            return self._store.add_items(self._with_audit(made), data.path)

    def encoded(self, data: Data, dim: int) -> tuple[list[str], np.ndarray]:
        """Return the ids and embeddings (n, `dim`) of items without adding them."""
        if data.kind == "embeddings":
            given, names = given_vectors(data, self._folder)
            vectors = np.asarray(given, dtype=np.float32)
        else:
            found = open_source(data, self._folder)
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
                f"`text` must be used with a project of texts, got a project of {kind}; name items with `like`"
            )
        if not text.strip():
            raise ValueError("`text` must describe what to look for, got an empty text")
        vector = encode_batch(self._encoder(), [check_unicode("`text`", text)])
        if not vector.any():
            raise ValueError(f"`text` must have words that the encoder knows, got {text!r}; rephrase it")
        return vector

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Let one process at a time write embeddings, with the items that others have added."""
        try:
            acquired = FileLock(self._folder / LOCK).acquire(timeout=0)
        except Timeout as error:
            raise BlockingIOError(
                f"another process is embedding items of {self._folder}; try again when it has finished"
            ) from error
        with acquired:
            self._store.events()
            yield

    def _encoder(self) -> Encoder:
        """Return the project's encoder. If it needs fitting, it is fitted to the project's first items."""
        using = project_encoder(self._settings)
        if self._store.num_items and isinstance(using, FittedEncoder) and using.dim is None:
            first = next(event for event in self._store.events() if event.kind == "items added")
            using.fit([item.read() for item in self._stored_items(first.value["count"])])
        return using

    def _stored_items(self, count: int | None = None) -> StoredItems:
        """Return the first `count` items as stored; all if omitted."""
        data = self._settings.data
        if data.kind == "embeddings":
            raise ValueError("bare embeddings have nothing to embed; remove `encoder` from project.toml")
        rows = range(self._store.num_items if count is None else count)
        root = folder_of(data, self._folder)
        contents = [content or "" for content in self._store.contents(rows)]
        return StoredItems(KINDS[data.kind], self._store.ids(rows), contents, root)

    def _check_new(self, names: list[str]) -> None:
        """Refuse repeated and known ids before anything is written."""
        seen: set[str] = set()
        for name in map(normal_id, names):
            if name in seen:
                raise FileFormatError(f"items must have distinct ids, got {name!r} more than once")
            if self._store.num_items and self._store.has(name):
                raise ValueError(
                    f"new items must have new ids, got {name!r}, which exists already; without ids items "
                    "are numbered from 0, so give new ones a column of other ids"
                )
            seen.add(name)

    def _with_audit(self, made: Iterator[NewItem]) -> Iterator[NewItem]:
        """Yield items after marking those that belong to the audit set."""
        while block := list(islice(made, BLOCK)):
            aside = is_audit([item.id for item in block], self._settings.seed, self._settings.audit)
            for item, audit in zip(block, aside.tolist(), strict=True):
                yield replace(item, is_audit=audit)


def install(folder: Path, num_before: int, using: Encoder | None, image_size: int | None) -> None:
    """Append the vectors of NEW to the first `num_before` of a project, and record their encoder.

    The record is written last and keeps the hashes of shorter arrays. So a process that is killed midway leaves vectors
    that match the record, or the record of another encoder.
    """
    made, target = folder / NEW, folder / VECTORS
    digests: dict[str, str] = {}
    if num_before:
        append_vectors(target, read_vectors(folder, num_before, whole=True), mapped_array(made))
        digests |= _record(folder).get("digests", {})
    else:
        made.replace(target)
    array = mapped_array(target)
    digests[str(len(array))] = array_digest(array)
    record = {"encoder": using and using.name, "fingerprint": using and using.fingerprint, "image_size": image_size}
    write_sealed(folder / RECORD, {**record, "digests": digests})
    for rest in (made, folder / "new.ids.txt", folder / "new.embed.json"):
        rest.unlink(missing_ok=True)


def append_vectors(target: Path, before: np.ndarray, more: np.ndarray) -> None:
    """Append vectors to a file atomically."""
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
        FileFormatError: if they differ from what was written.
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
        if found != _record(folder).get("digests", {}).get(str(num_items)):
            raise damaged(path, remedy, RECORD)
    return array[:num_items]


@lru_cache(maxsize=16)  # a long-running process reads a file again only if it changed
def _digest_in_file(path: Path, num_rows: int, _changed: int) -> str:
    return array_digest(mapped_array(path)[:num_rows])


def _record(folder: Path) -> dict[str, Any]:
    """Return the encoder of a project's embeddings, and the hash of the first n vectors for each stored n."""
    path = folder / RECORD
    return read_sealed(path, "delete it to embed again") if path.is_file() else {}

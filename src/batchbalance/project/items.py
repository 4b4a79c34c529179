"""From a source to items and embeddings: what a project is made of, and what is added to it later."""

import json
import os
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from batchbalance.encoders import DEFAULTS, Encoder, FittedEncoder, Items, encoder, open_items, read_ids
from batchbalance.encoders.contract import Kind
from batchbalance.encoders.items import Item
from batchbalance.encoders.rows import open_rows
from batchbalance.encoders.store import mapped_embeddings
from batchbalance.errors import FileFormatError
from batchbalance.project.settings import Data, Settings, SourceKind
from batchbalance.project.store import NewItem, digest_of
from batchbalance.system.files import array_digest, mapped_array, read_sealed, replacing, write_sealed
from batchbalance.system.ids import check_unicode, ids_path, repeated_id

KINDS: dict[SourceKind, Kind] = {"images": "images", "texts": "texts", "table": "rows"}
VECTORS = "embeddings.npy"
RECORD = "embeddings.json"  # which encoder made them, and a hash of them
NEW = "new.npy"  # while they are made
BLOCK = 8192  # vectors copied at a time
CHECKED_BYTES = 2**30  # of embeddings compared with their hash where they are opened, which takes about a second


@dataclass(frozen=True)
class Vectors:
    """The embeddings of a project's items, row by row; memory-mapped."""

    array: np.ndarray  # (N, D) float32

    @property
    def dim(self) -> int:
        """The number of features of an item, D."""
        return int(self.array.shape[1])


def source_path(data: Data, folder: Path) -> Path:
    """Where the items are."""
    return (folder / data.path).resolve()


def folder_of(path: Path) -> Path:
    """The folder that the files of a source are in."""
    return path if path.is_dir() else path.parent


def project_encoder(settings: Settings) -> Encoder:
    """The encoder that the settings name."""
    name = settings.encoder or DEFAULTS[KINDS[settings.data.kind]]
    return encoder(name, image_size=settings.image_size)


def open_source(data: Data, folder: Path) -> Items:
    """The items of a source other than bare embeddings."""
    kind = KINDS[data.kind]
    drop = list(data.drop)
    path = source_path(data, folder)
    if data.kind == "table" and data.cost is not None and not is_cost_file(data, folder):
        drop.append(data.cost)
    found = open_items(path, kind=kind, columns=data.column, id_column=data.id, drop=drop)
    if found.kind != kind:
        raise FileFormatError(f"{path} must hold {data.kind}, got {found.kind}")
    return found


def new_items(data: Data, folder: Path, embedded: Sequence[str], items: Items, root: Path) -> Iterator[NewItem]:
    """The items that were embedded, in that order, with their contents and costs; files as seen from `root`."""
    costs = costs_of(data, folder, items)
    kept = iter(embedded)
    wanted = next(kept, None)
    for item in items:
        if item.id == wanted:
            content, digest = content_of(item, items.kind, root)
            yield NewItem(normal_id(item.id), content, digest, costs.get(item.id, 1.0))
            wanted = next(kept, None)
    if wanted is not None:
        raise FileFormatError(f"{items.name} has changed while it was embedded: {wanted!r} is gone; start again")


def content_of(item: Item, kind: Kind, root: Path) -> tuple[str, str]:
    """What is kept of an item, and a digest of what it is."""
    if item.path is not None and kind == "images":
        return _seen_from(root, item.path), digest_of(item.path.read_bytes())
    value = item.read()
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text, digest_of(text.encode())


def _seen_from(root: Path, path: Path) -> str:
    try:
        return Path(os.path.relpath(path, root)).as_posix()
    except ValueError:  # on another drive
        return path.as_posix()


def vector_items(vectors: np.ndarray, names: Sequence[str], costs: Mapping[str, float]) -> Iterator[NewItem]:
    """Items that are nothing but an embedding."""
    for start in range(0, len(vectors), BLOCK):
        block = np.ascontiguousarray(vectors[start : start + BLOCK], dtype=np.float32) + 0.0  # -0 is 0
        for name, vector in zip(names[start : start + BLOCK], block, strict=True):
            yield NewItem(normal_id(name), None, digest_of(vector.tobytes()), costs.get(normal_id(name), 1.0))


def normal_id(name: str) -> str:
    """An id as it is kept: in Unicode's normal form C."""
    return name if name.isascii() else unicodedata.normalize("NFC", check_unicode("an id", name))


def install(folder: Path, num_before: int, using: Encoder | None, image_size: int | None) -> None:
    """Put the vectors of NEW behind the first `num_before` of a project's, and say which encoder made them.

    The record comes last and keeps the hashes of fewer vectors: a process that is killed on the way leaves vectors
    that match it, or the record of another encoder.
    """
    made, target = folder / NEW, folder / VECTORS
    digests: dict[str, str] = {}
    if num_before:
        append_vectors(target, vectors_of(folder, num_before, whole=True).array, mapped_array(made))
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
    """Write vectors and some more in the place of a file, whole or not at all."""
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


def given_vectors(data: Data, folder: Path) -> tuple[np.ndarray, list[str]]:
    """The embeddings that a user gives, and their ids."""
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


def vectors_of(folder: Path, num_items: int, *, whole: bool = False) -> Vectors:
    """Return the embeddings of a project's items; they are compared with their hash if they are not large, or `whole`.

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
            raise FileFormatError(f"{path} is damaged: it does not match its checksum in {RECORD}; {remedy}")
    return Vectors(array[:num_items])


@lru_cache(maxsize=16)  # so that a process that stays reads a file once, until it changes
def _digest_in_file(path: Path, num_rows: int, _changed: int) -> str:
    return array_digest(mapped_array(path)[:num_rows])


def _digests(folder: Path) -> dict[str, str]:
    """Return the hash of the first n vectors, for each n that was the number of items at some time."""
    path = folder / RECORD
    return dict(read_sealed(path, "delete it to embed again").get("digests", {})) if path.is_file() else {}


def recorded_encoder(folder: Path) -> dict[str, Any] | None:
    """The name and the image size of the encoder that made a project's embeddings; None if there are none yet."""
    path = folder / RECORD
    if not path.is_file() or not (folder / VECTORS).is_file():
        return None
    found = read_sealed(path, "delete it to embed again")
    return {"encoder": found["encoder"], "image_size": found["image_size"]}


class Kept(Items):
    """The items of a project as it keeps them, to be embedded anew or to fit an encoder to."""

    def __init__(self, kind: Kind, ids: Sequence[str], contents: Sequence[str | None], root: Path) -> None:
        self.name, self.kind = "the project", kind
        self._ids, self._contents, self._root = ids, contents, root

    def __len__(self) -> int:
        return len(self._ids)

    def __iter__(self) -> Iterator[Item]:
        for name, content in zip(self._ids, self._contents, strict=True):
            yield kept_item(self.kind, name, content or "", self._root)


def kept_item(kind: Kind, name: str, content: str, root: Path) -> Item:
    """An item from what a project keeps of it."""
    if kind == "images":
        from batchbalance.encoders.images import read_image

        path = root / content
        return Item(name, f"{name}\0{content}", lambda: read_image(path), path)
    if kind == "texts":
        return Item(name, f"{name}\0{content}", lambda: content)
    return Item(name, f"{name}\0{content}", lambda: json.loads(content))


def fit_to(using: Encoder, kept: Items) -> None:
    """Fit an encoder that looks at all items first to those of a project."""
    if isinstance(using, FittedEncoder) and using.dim is None:
        using.fit(_Values(kept))


@dataclass(frozen=True)
class _Values:
    items: Items

    def __iter__(self) -> Iterator[Any]:
        return (item.read() for item in self.items)


def is_cost_file(data: Data, folder: Path) -> bool:
    """Whether costs are in a file of their own, and not in a column."""
    return data.cost is not None and (folder / data.cost).is_file()


def costs_of(data: Data, folder: Path, items: Items) -> dict[str, float]:
    """The cost of each id, if there are any."""
    if data.cost is None:
        return {}
    if is_cost_file(data, folder):
        return read_costs(folder / data.cost)
    path = source_path(data, folder)
    if path.is_dir():
        raise ValueError(f"`cost` must be a CSV file with columns id and cost for files in a folder, got {data.cost!r}")
    file = open_rows(path)
    if data.cost not in file.columns:
        raise FileFormatError(f"{path} must have a column {data.cost!r}, got columns {', '.join(file.columns)}")
    return {
        item.id: cost_of(row[data.cost], f"the cost of {item.id!r} in {path}")
        for item, row in zip(items, file, strict=True)
    }


def read_costs(path: Path) -> dict[str, float]:
    """Costs by id from a CSV file."""
    file = open_rows(path)
    for column in ("id", "cost"):
        if column not in file.columns:
            raise FileFormatError(f"{path} must have columns id and cost, got {', '.join(file.columns)}")
    return {normal_id(str(row["id"])): cost_of(row["cost"], f"the cost of {row['id']!r} in {path}") for row in file}


def cost_of(value: Any, where: str) -> float:
    """A cost: a finite number above 0."""
    try:
        cost = float(value)
    except (TypeError, ValueError):
        cost = float("nan")
    if not 0 < cost < float("inf"):
        raise FileFormatError(f"{where} must be a number above 0, got {value!r}")
    return cost

"""From a source to items: what a project is made of, and what is added to it later."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from batchbalance.encoders import DEFAULTS, Encoder, Items, encoder, open_items, read_ids
from batchbalance.encoders.contract import Kind
from batchbalance.encoders.items import Item
from batchbalance.encoders.rows import open_rows
from batchbalance.encoders.store import mapped_embeddings
from batchbalance.errors import FileFormatError
from batchbalance.project.settings import Data, ProjectSettings, SourceKind
from batchbalance.project.store import NewItem, digest_of, normal_id
from batchbalance.system.ids import ids_path, repeated_id

KINDS: dict[SourceKind, Kind] = {"images": "images", "texts": "texts", "table": "rows"}
VECTORS = "embeddings.npy"
RECORD = "embeddings.json"  # the encoder of the embeddings, and their hash
BLOCK = 8192  # vectors hashed at a time


def seen_from(folder: Path, path: str | os.PathLike[str]) -> str:
    """Return a path relative to a folder, with `/`; absolute if it is on another drive."""
    try:
        return Path(os.path.relpath(Path(path).resolve(), folder.resolve())).as_posix()
    except ValueError:
        return Path(path).resolve().as_posix()


def source_path(data: Data, folder: Path) -> Path:
    """Return the file or folder of a source."""
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
    drop = list(data.drop)
    path = source_path(data, folder)
    if data.kind == "table" and data.cost is not None and not is_cost_file(data, folder):
        drop.append(data.cost)
    found = open_items(path, kind=kind, columns=data.column, id_column=data.id, drop=drop)
    if found.kind != kind:
        raise FileFormatError(f"{path} must hold {data.kind}, got {found.kind}")
    return found


def new_items(data: Data, folder: Path, embedded: Sequence[str], items: Items, root: Path) -> Iterator[NewItem]:
    """Yield the items that were embedded, in that order, with contents and costs; files relative to `root`."""
    costs = costs_of(data, folder, items)
    names = iter(embedded)
    wanted = next(names, None)
    for item in items:
        if item.id == wanted:
            content, digest = content_of(item, items.kind, root)
            yield NewItem(normal_id(item.id), content, digest, costs.get(item.id, 1.0))
            wanted = next(names, None)
    if wanted is not None:
        raise FileFormatError(f"{items.name} has changed while it was embedded: {wanted!r} is gone; start again")


def content_of(item: Item, kind: Kind, root: Path) -> tuple[str, str]:
    """Return what is stored of an item, and a digest of its content."""
    if item.path is not None and kind == "images":
        try:
            path = os.path.relpath(item.path, root)
        except ValueError:  # on another drive
            path = str(item.path)
        return Path(path).as_posix(), digest_of(item.path.read_bytes())
    value = item.read()
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text, digest_of(text.encode())


def vector_items(vectors: np.ndarray, names: Sequence[str], costs: Mapping[str, float]) -> Iterator[NewItem]:
    """Yield items that are only an embedding."""
    for start in range(0, len(vectors), BLOCK):
        block = np.ascontiguousarray(vectors[start : start + BLOCK], dtype=np.float32) + 0.0  # -0 is 0
        for name, vector in zip(names[start : start + BLOCK], block, strict=True):
            yield NewItem(normal_id(name), None, digest_of(vector.tobytes()), costs.get(normal_id(name), 1.0))


def given_vectors(data: Data, folder: Path) -> tuple[np.ndarray, list[str]]:
    """Return the embeddings that a user gives, and their ids."""
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
    """The items of a project as it stores them, to embed them again or to fit an encoder to them."""

    def __init__(self, kind: Kind, ids: Sequence[str], contents: Sequence[str | None], root: Path) -> None:
        self.name, self.kind = "the project", kind
        self._ids, self._contents, self._root = ids, contents, root

    def __len__(self) -> int:
        return len(self._ids)

    def __iter__(self) -> Iterator[Item]:
        for name, content in zip(self._ids, self._contents, strict=True):
            yield stored_item(self.kind, name, content or "", self._root)

    def values(self) -> Iterable[Any]:
        """Return the contents of the items, which can be read more than once."""
        return _Values(self)


class _Values:
    """The contents of items, read anew in each pass."""

    def __init__(self, items: Items) -> None:
        self._items = items

    def __iter__(self) -> Iterator[Any]:
        return (item.read() for item in self._items)


def stored_item(kind: Kind, name: str, content: str, root: Path) -> Item:
    """Return an item from what a project stores of it."""
    key = f"{name}\0{content}"
    if kind == "images":
        from batchbalance.encoders.images import read_image

        path = root / content
        return Item(name, key, lambda: read_image(path), path)
    return Item(name, key, lambda: content if kind == "texts" else json.loads(content))


def is_cost_file(data: Data, folder: Path) -> bool:
    """Return whether costs are in a file of their own, and not in a column."""
    return data.cost is not None and (folder / data.cost).is_file()


def costs_of(data: Data, folder: Path, items: Items) -> dict[str, float]:
    """Return the cost of each id; empty without costs."""
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
    """Return costs by id from a CSV file."""
    file = open_rows(path)
    for column in ("id", "cost"):
        if column not in file.columns:
            raise FileFormatError(f"{path} must have columns id and cost, got {', '.join(file.columns)}")
    return {normal_id(str(row["id"])): cost_of(row["cost"], f"the cost of {row['id']!r} in {path}") for row in file}


def cost_of(value: Any, where: str) -> float:
    """Return a cost, which must be a finite number above 0."""
    try:
        cost = float(value)
    except (TypeError, ValueError):
        cost = float("nan")
    if not 0 < cost < float("inf"):
        raise FileFormatError(f"{where} must be a number above 0, got {value!r}")
    return cost

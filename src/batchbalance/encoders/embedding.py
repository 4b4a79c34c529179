"""Embedding of files, batch by batch, in memory or in files that can be resumed after an interruption.

Encoders are looked up by name here.
"""

import hashlib
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np

from batchbalance.arguments.checks import check_whole
from batchbalance.arguments.registry import imported
from batchbalance.encoders.contract import MOST_CHARACTERS, Encoder, FittedEncoder, Kind, Vectors, as_encoder, encoded
from batchbalance.encoders.images import EfficientNetLite0, Pixels, Timm
from batchbalance.encoders.items import Item, Items, open_items
from batchbalance.encoders.store import EmbeddingFiles, EmbeddingPaths, has_ids, has_vectors
from batchbalance.encoders.tables import TableEncoder
from batchbalance.encoders.texts import SentenceTransformers, Tfidf, WordLlama
from batchbalance.errors import FileFormatError, UnknownNameError
from batchbalance.system.files import mapped_array
from batchbalance.system.ids import ids_path, read_ids
from batchbalance.system.journal import Journal
from batchbalance.system.progress import progress as shown_progress
from batchbalance.system.sealed import read_sealed

BATCH_SIZES: dict[Kind, int] = {"images": 64, "texts": 1024, "rows": 1024}
DEFAULTS: dict[Kind, str] = {"images": "efficientnet-lite0", "texts": "wordllama", "rows": "table"}
ENCODERS: dict[str, tuple[Callable[..., Encoder], tuple[str, ...]]] = {  # with the options of each
    "efficientnet-lite0": (EfficientNetLite0, ("image_size", "device")),
    "pixels": (Pixels, ("image_size",)),
    "wordllama": (WordLlama, ()),
    "tfidf": (Tfidf, ()),
    "table": (TableEncoder, ()),
    "timm:MODEL": (Timm, ("image_size", "device")),
    "sentence-transformers:MODEL": (SentenceTransformers, ("device",)),
}

Skipped = tuple[tuple[str, str], ...]  # id and reason


def metric_of(encoder: str | None) -> Literal["auto", "raw"]:
    """Return how to measure distances between the vectors of an encoder, as in ``select``; tables are standardised."""
    return "raw" if encoder == DEFAULTS["rows"] else "auto"


def encoder(name: str, *, image_size: int | None = None, device: str | None = None) -> Encoder:
    """Return the encoder with this name.

    Args:
        name: "efficientnet-lite0", "pixels", "wordllama", "tfidf", "table", "timm:MODEL",
            "sentence-transformers:MODEL", or "package.module:function" for a function `f(batch) -> (n, D)`, a class
            of encoders or an encoder. Modules in the current folder are found too.
        image_size: side of the square, in pixels, that an image encoder reads.
        device: where to compute, such as "cuda"; the CPU if omitted.

    Raises:
        UnknownNameError: if the name is unknown.
        MissingExtraError: if a package is missing.
        OSError: if a model cannot be downloaded.
        ValueError: if the encoder does not take an option.
    """
    family, _, model = name.partition(":")
    factory, takes = ENCODERS.get(f"{family}:MODEL" if model else name, (None, ()))
    if factory is None and not model:
        raise UnknownNameError("encoder", name, (*ENCODERS, "PACKAGE.MODULE:FUNCTION"))
    options: dict[str, Any] = {"image_size": image_size, "device": device}
    given = {key: value for key, value in options.items() if value is not None}
    for key in given:
        if key not in takes:
            raise ValueError(f"`{key}` is not used by encoder {name!r}; omit it")
    if factory is None:
        return as_encoder(imported("encoder", name), name)
    return factory(*[model] if model else [], **given)


def runs_own_code(name: str) -> bool:
    """Return whether the encoder with this name imports code that is not a dependency of ours."""
    family, colon, model = name.partition(":")
    # A folder of sentence-transformers lists the classes to import.
    return bool(colon) and family != "timm" and (family != "sentence-transformers" or Path(model).exists())


@dataclass(frozen=True, eq=False)
class Embeddings:
    """Vectors and their ids.

    Attributes:
        vectors: (N, D) float32; memory-mapped if they are in a file.
        ids: N names.
        encoder: the name of the encoder.
        skipped: id and reason of each item that was skipped.
        num_resumed: number of vectors from an earlier run; all of them if the file was up to date.
        cut: ids of texts that were truncated in this call.
    """

    vectors: Vectors
    ids: list[str]
    encoder: str
    skipped: Skipped = ()
    num_resumed: int = 0
    cut: tuple[str, ...] = ()

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks for the user about how they were made."""
        if not self.cut:
            return ()
        return (
            f"only the first {MOST_CHARACTERS:,} characters were read of {len(self.cut):,} texts, e.g. {self.cut[0]!r}",
        )


def embed(
    source: str | os.PathLike[str] | Sequence[Any] | Items,
    encoder: Encoder | Callable[[Sequence[Any]], Any] | str | None = None,
    *,
    output: str | os.PathLike[str] | None = None,
    ids_output: str | os.PathLike[str] | None = None,
    skip_bad: bool = False,
    batch_size: int | None = None,
    progress: bool = False,
) -> Embeddings:
    """Embed images, texts or rows of a table.

    Args:
        source: a path, a list of texts, of images or of dicts, or the result of `open_items` (for columns and ids).
        encoder: an encoder, its name, or a function `f(batch) -> (n, D)`; by default the one for the kind of items.
        output: a ``.npy`` file to write to, batch by batch. After an interruption, the same call resumes and ends
            with the same bytes. If omitted, everything is kept in memory.
        ids_output: the file for the ids; by default ``e.ids.txt`` beside ``e.npy``.
        skip_bad: omit damaged files and empty texts instead of raising an error.
        batch_size: items per batch; by default 64 images, or 1,024 texts or rows.
        progress: show progress.

    Raises:
        FileFormatError: if an item is damaged or empty, unless `skip_bad`.
        MissingExtraError: if the encoder needs a package that is not installed.
        ValueError: if encoder and items do not fit together.
    """
    using = None if encoder is None else _encoder_of(encoder)
    items = source if isinstance(source, Items) else open_items(source, kind=None if using is None else using.kind)
    if not len(items):
        raise FileFormatError(f"{items.name} must hold at least one item, got none")
    using = _encoder_of(DEFAULTS[items.kind]) if using is None else using
    if using.kind is not None and using.kind != items.kind:
        raise ValueError(f"encoder {using.name!r} must get {using.kind}, got {items.kind} in {items.name}")
    if output is None and ids_output is not None:
        raise ValueError("`ids_output` needs `output`; omit it, or name a file for the vectors too")
    size = check_whole("batch_size", BATCH_SIZES[items.kind] if batch_size is None else batch_size)
    work = _Work(items, using, size, skip_bad, progress)
    places = None
    if output is not None:
        places = EmbeddingPaths(Path(output), ids_path(Path(output)) if ids_output is None else Path(ids_output))
        places.check()
    if isinstance(using, FittedEncoder) and using.dim is None:
        using.fit(_Values(items, skip_bad))
    return work.in_memory() if places is None else work.in_files(places)


def _encoder_of(given: Any) -> Encoder:
    """Return an encoder by its name, or from anything that `as_encoder` takes."""
    return encoder(given) if isinstance(given, str) else as_encoder(given)


@dataclass(frozen=True)
class _Work:
    """One call of `embed`."""

    items: Items
    encoder: Encoder
    batch_size: int
    skip_bad: bool
    progress: bool
    cut: list[str] = field(default_factory=list)  # ids

    def in_memory(self) -> Embeddings:
        parts, ids, skipped = [], list[str](), list[tuple[str, str]]()
        with shown_progress("embedding", len(self.items), self.progress) as bar:
            for batch in self._batches():
                names, vectors, bad = self._encoded(batch)
                ids += names
                skipped += bad
                parts += [] if vectors is None else [vectors]
                bar.advance(len(batch))
        if not parts:
            raise FileFormatError("there must be at least one item that can be embedded, got none")
        return Embeddings(np.concatenate(parts), ids, self.encoder.name, tuple(skipped), cut=tuple(self.cut))

    def in_files(self, places: EmbeddingPaths) -> Embeddings:
        settings = {
            "encoder": self.encoder.name,
            "fingerprint": self.encoder.fingerprint,
            "batch_size": self.batch_size,
        }
        existing = self._existing(places, settings)
        if existing is not None:
            return existing
        with EmbeddingFiles(places, settings, len(self.items)) as store:
            num_resumed = self._resume(store)
            if store.started_over:
                warnings.warn(
                    f"the unfinished embeddings for {places.output} are made again from the start: "
                    f"{store.started_over}",
                    stacklevel=3,
                )
            done_before = len(store.batches)
            with shown_progress("embedding", len(self.items), self.progress) as bar:
                for number, batch in enumerate(self._batches()):
                    if number >= done_before:
                        store.append(_key(batch), *self._encoded(batch))
                    bar.advance(len(batch))
            skipped = store.finish(_joint_key([done["key"] for done in store.batches]))
        made = mapped_array(places.output), read_ids(places.ids), self.encoder.name
        return Embeddings(*made, tuple(skipped), num_resumed, tuple(self.cut))

    def _resume(self, store: EmbeddingFiles) -> int:
        """Check that the finished batches match the items as they are now; return how many vectors are kept."""
        changed = len(store.batches) > -(-len(self.items) // self.batch_size)
        for record, batch in zip(store.batches, self._batches(), strict=False):
            changed = changed or _key(batch) != record["key"]
            if changed:
                store.start_over(f"{self.items.name} has changed since they were started")
                break
            if record["skipped"] and not self.skip_bad:
                raise _refusal(record["skipped"][0][1])
        return store.num_rows

    def _existing(self, places: EmbeddingPaths, settings: dict[str, Any]) -> Embeddings | None:
        """Return the existing embeddings if they were made of these items with this encoder; else None."""
        try:
            record = read_sealed(places.record, "embed again")
            same = all(record[key] == value for key, value in settings.items())
            if not same or (record["skipped"] and not self.skip_bad):
                return None
            vectors = mapped_array(places.output)
            if record["items"] != _joint_key([_key(batch) for batch in self._batches()]):
                return None
            if not has_vectors(record, vectors) or not has_ids(record, places.ids):
                warnings.warn(f"{places.output} is made again: it or its ids were changed", stacklevel=4)
                return None
        except (OSError, ValueError, KeyError, TypeError):  # no record, or of another program
            return None
        if places.journal.exists():  # left by a process that was killed right before it ended
            Journal(places.journal).close()  # raises an error if another process has it open
            places.remove_journal()
        skipped = tuple((name, reason) for name, reason in record["skipped"])
        return Embeddings(vectors, read_ids(places.ids), self.encoder.name, skipped, record["rows"])

    def _batches(self) -> Iterator[list[Item]]:
        items = iter(self.items)
        while batch := list(islice(items, self.batch_size)):
            yield batch

    def _encoded(self, batch: list[Item]) -> tuple[list[str], Vectors | None, list[tuple[str, str]]]:
        """Return the ids and vectors of a batch, and the items that were skipped."""
        ids, values, skipped = [], [], []
        for item in batch:
            try:
                values.append(item.read())
                ids.append(item.id)
                if isinstance(values[-1], str) and len(values[-1]) > MOST_CHARACTERS:
                    self.cut.append(item.id)
            except (FileFormatError, FileNotFoundError, PermissionError) as error:
                if not self.skip_bad:
                    raise _refusal(str(error)) from error
                skipped.append((item.id, str(error)))
        return ids, encoded(self.encoder, values) if values else None, skipped


@dataclass(frozen=True)
class _Values:
    """The contents of items, which `fit` may iterate over several times."""

    items: Items
    skip_bad: bool

    def __iter__(self) -> Iterator[Any]:
        for item in self.items:
            try:
                yield item.read()
            except FileFormatError as error:
                if not self.skip_bad:
                    raise _refusal(str(error)) from error


def _refusal(reason: str) -> FileFormatError:
    """Return the error for an item that cannot be embedded."""
    return FileFormatError(f"{reason}; repair or remove it, or omit such items with `skip_bad=True`")


def _key(batch: list[Item]) -> str:
    return _joint_key([item.key for item in batch])


def _joint_key(keys: list[str]) -> str:
    """Return a hash of keys in this order."""
    digest = hashlib.sha256()
    for key in keys:
        content = key.encode("utf-8", "surrogatepass")
        digest.update(len(content).to_bytes(8, "little") + content)
    return digest.hexdigest()[:32]

"""Making a project: its folder, its items, its embeddings; and adding to them."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path

import numpy as np
from filelock import FileLock, Timeout

from batchbalance.encoders import Encoder, embed
from batchbalance.encoders.contract import encoded as encode_batch
from batchbalance.errors import FileFormatError
from batchbalance.project import items as sources
from batchbalance.project.audit import is_audit
from batchbalance.project.items import KINDS, Kept, folder_of, source_path
from batchbalance.project.settings import Data, Settings
from batchbalance.project.store import NewItem, ProjectStore
from batchbalance.system.ids import check_unicode

BLOCK = 10_000  # items hashed at a time
LOCK = ".embeddings.lock"  # of the process that embeds
OWN_FILES = ("project.toml", "labels.sqlite", sources.VECTORS, sources.RECORD, LOCK)  # what a project is made of


class Maker:
    """Fills a store with items and a folder with embeddings.

    Args:
        folder: of the project.
        store: its database.
        settings: of the project.
        progress: show how far it is.
    """

    def __init__(self, folder: Path, store: ProjectStore, settings: Settings, *, progress: bool) -> None:
        self._folder, self._store, self._settings, self._progress = folder, store, settings, progress
        self.notes: list[str] = []

    def add(self, data: Data) -> int:
        """Embed and add the items of a source; how many there were. An interrupted call goes on where it ended."""
        with self._alone():
            return self._add(data)

    def _add(self, data: Data) -> int:
        if data.kind == "embeddings":
            vectors, names = sources.given_vectors(data, self._folder)
            new = self._folder / sources.NEW
            sources.copy_vectors([vectors], new)
            costs = sources.read_costs(self._folder / data.cost) if data.cost is not None else {}
            made = sources.vector_items(vectors, names, costs)
            using = None
        else:
            found = sources.open_source(data, self._folder)
            self.notes += found.notes
            using = self.encoder()
            names = self._embedded(found, using, data.skip_bad)
            made = sources.new_items(data, self._folder, names, found, self._root)
        self._check_new(names)
        sources.install(self._folder, self._store.num_items, using, self._settings.image_size)
        return self._store.add_items(self._with_audit(made), data.path)

    def embed_anew(self, using: Encoder) -> None:
        """Embed all items again, with another encoder."""
        with self._alone():
            embed(self.kept(), using, output=self._folder / sources.NEW, progress=self._progress)
            sources.install(self._folder, 0, using, self._settings.image_size)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Let one process at a time write embeddings, and tell it of items that others have added."""
        try:
            acquired = FileLock(self._folder / LOCK).acquire(timeout=0)
        except Timeout as error:
            raise BlockingIOError(
                f"another process embeds items of {self._folder}; try again when it has ended"
            ) from error
        with acquired:
            self._store.events()
            yield

    def encoder(self) -> Encoder:
        """The project's encoder; one that learns from items has learned from those that the project began with."""
        using = sources.project_encoder(self._settings)
        if self._store.num_items:
            sources.fit_to(using, self.kept(first=True))
        return using

    def encoded(self, data: Data) -> tuple[list[str], np.ndarray]:
        """The ids and embeddings of items that are not added."""
        if data.kind == "embeddings":
            vectors, names = sources.given_vectors(data, self._folder)
            return names, np.asarray(vectors, dtype=np.float32)
        found = sources.open_source(data, self._folder)
        made = embed(found, self.encoder(), skip_bad=data.skip_bad, progress=self._progress)
        return made.ids, made.vectors

    def encoded_text(self, text: str) -> np.ndarray:
        """Return the embedding (1, D) of a text that somebody typed."""
        kind = self._settings.data.kind
        if kind != "texts":
            raise ValueError(
                f"`text` must be for a project of texts, whose encoder takes one, got one of {kind}; name items with "
                "`like`"
            )
        if not text.strip():
            raise ValueError("`text` must say what to look for, got an empty text")
        vector = encode_batch(self.encoder(), [check_unicode("`text`", text)])
        if not vector.any():
            raise ValueError(f"`text` must have words that the encoder knows, got {text!r}; say it in other words")
        return vector

    def kept(self, *, first: bool = False) -> Kept:
        """The items as the project keeps them; `first` only those that it began with."""
        events = [event for event in self._store.events() if event.kind == "items added"]
        count = events[0].value["count"] if first else self._store.num_items
        rows = range(count)
        data = self._settings.data
        if data.kind == "embeddings":
            raise ValueError("bare embeddings have nothing to embed; leave `encoder` out of project.toml")
        return Kept(KINDS[data.kind], self._store.ids(rows), self._store.contents(rows), self._root)

    @property
    def _root(self) -> Path:
        """The folder that the project's files are in; those that were added from elsewhere are as seen from it."""
        return folder_of(source_path(self._settings.data, self._folder))

    def _embedded(self, found: sources.Items, using: Encoder, skip_bad: bool) -> list[str]:
        made = embed(found, using, output=self._folder / sources.NEW, skip_bad=skip_bad, progress=self._progress)
        self.notes += [f"skipped: {reason}" for _, reason in made.skipped]
        self.notes += made.notes
        return made.ids

    def _check_new(self, names: list[str]) -> None:
        """Refuse ids that come twice or are there already, before anything is written."""
        seen: set[str] = set()
        for name in map(sources.normal_id, names):
            if name in seen:
                raise FileFormatError(f"items must have distinct ids, got {name!r} more than once")
            if self._store.num_items and self._store.has(name):
                remedy = "without ids items are numbered from 0, so give new ones a column of other ids"
                raise ValueError(
                    f"new items must have ids of their own, got {name!r}, which is there already; {remedy}"
                )
            seen.add(name)

    def _with_audit(self, made: Iterator[NewItem]) -> Iterator[NewItem]:
        """Items, each with whether it is set aside."""
        while block := list(islice(made, BLOCK)):
            aside = is_audit([item.id for item in block], self._settings.seed, self._settings.audit)
            for item, audit in zip(block, aside.tolist(), strict=True):
                yield NewItem(item.id, item.content, item.digest, item.cost, audit)


def free_folder(folder: Path, is_new: bool) -> None:
    """Remove what a project that could not be made left behind; what was embedded so far is kept for the next try."""
    for name in OWN_FILES:
        (folder / name).unlink(missing_ok=True)
    if is_new:
        with suppress(OSError):
            folder.rmdir()

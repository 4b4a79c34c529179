"""An open project: its store, what is known by now, its embeddings and its model; what `Project` is built on."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from batchbalance.arguments.registry import check_paths
from batchbalance.errors import FileFormatError
from batchbalance.learner.labels import Event, NewEvent
from batchbalance.project import items as sources
from batchbalance.project.answers import named_class
from batchbalance.project.items import Vectors, folder_of, source_path, vectors_of
from batchbalance.project.learning import Learning
from batchbalance.project.making import Maker
from batchbalance.project.model import model_fit
from batchbalance.project.planning import Planner, Rules, strategy_of
from batchbalance.project.settings import Settings, read_settings, replace_classes
from batchbalance.project.state import State
from batchbalance.project.store import ProjectStore
from batchbalance.system.spreadsheets import meanings


class OpenProject:
    """A project in a folder, opened and checked.

    Attributes:
        folder: where it is.
        settings: those of `project.toml`.
        notes: what is worth knowing about how it was opened.
    """

    def __init__(self, folder: Path, *, allow_imports: bool, progress: bool) -> None:
        self.folder = folder
        self.settings: Settings = read_settings(folder)
        if not allow_imports:
            check_paths(self.settings.paths_named(), str(folder / "project.toml"))
        check_parts(self.settings)
        self.notes: tuple[str, ...] = ()
        self._progress, self._lock = progress, threading.RLock()
        self._store = ProjectStore(folder)
        self._state = State()
        try:
            self._begin()
        except BaseException:
            self._store.log.close()
            raise
        settings = self.settings
        rules = Rules(settings.seed, settings.audit, settings.random_arm, settings.annotators_per_item)
        self._rules = rules
        self._planner = Planner(self._store, rules, strategy_of(settings.strategy, settings.classes))
        self._learning = Learning(folder, self._store, settings, show=progress)
        self.notes += self._store.log.notes

    @property
    def root(self) -> Path | None:
        """The folder that files are in; None if items are no files."""
        if self.settings.data.kind != "images":
            return None
        return folder_of(source_path(self.settings.data, self.folder))

    @property
    def roots(self) -> tuple[Path, ...]:
        """All folders that files are in: `root`, and those that items were added from."""
        root = self.root
        if root is None:
            return ()
        added = self._now().sources[1:]
        return tuple(dict.fromkeys([root, *(folder_of((self.folder / path).resolve()) for path in added)]))

    def row_of(self, name: Any) -> int:
        """The row of an id. Whole numbers stand for their text."""
        for meaning in meanings(str(name)):
            row = self._store.row_of(sources.normal_id(meaning))
            if row is not None:
                return row
        raise ValueError(f"ids must be those of items in this project, got {str(name)!r}")

    def _begin(self) -> None:
        """Write what a new project is about; notice what was edited; fetch what an interrupted start left undone."""
        settings = self.settings
        fixed = {"seed": settings.seed, "audit": settings.audit, "kind": settings.data.kind}
        if not self._store.events():  # else nothing need be written: the folder may be read-only
            with self._store.log.writing():
                if not self._store.events():
                    if (self.folder / sources.VECTORS).exists():  # made after the first event
                        raise FileFormatError(
                            f"{self._store.log.path} is damaged: it is empty, the project is not; restore it from a "
                            "copy"
                        )
                    self._store.log.append([NewEvent("begun", value={"classes": list(settings.classes), **fixed})])
        begun = self._store.events()[0].value
        for key, value in fixed.items():
            if begun.get(key) != value:
                raise FileFormatError(
                    f"{self.folder / 'project.toml'}: `{key}` must stay {begun.get(key)!r} for the life of a "
                    f"project, got {value!r}; put it back, or make another project"
                )
        self._notice_classes()
        if not self._store.num_items:
            maker = self._maker()
            maker.add(settings.data)
            self.notes += tuple(maker.notes)

    def _notice_classes(self) -> None:
        """Take in classes that were added to the file; refuse other changes."""
        known = self._now().classes
        wanted = list(self.settings.classes)
        if wanted == known:
            return
        if wanted[: len(known)] == known:
            added = [named_class(name) for name in wanted[len(known) :]]
            with self._store.log.writing():
                self._store.log.append([NewEvent("class added", value=name) for name in added])
            self.notes += (f"classes added by project.toml: {', '.join(wanted[len(known) :])}",)
        elif wanted in _class_lists(self._store.events()):  # a change was interrupted between log and file
            self._rewrite_classes()
        else:
            raise FileFormatError(
                f"{self.folder / 'project.toml'}: `classes` must begin with {', '.join(known)}, those of the labels "
                f"so far, got {', '.join(wanted)}; put them back, and use rename-class or add-class"
            )

    def _rewrite_classes(self) -> None:
        replace_classes(self.folder, self._now().classes)
        self.settings = read_settings(self.folder)

    def _now(self) -> State:
        """The state by now. Hold the lock while reading it."""
        with self._lock:
            self._state.update(self._store.events())
            return self._state

    def _snapshot(self) -> State:
        """The state by now, in a copy of its own."""
        state = State()
        with self._lock:
            state.update(list(self._store.events()))
        return state

    @contextmanager
    def _writing(self) -> Iterator[State]:
        """A transaction, and the state in it."""
        with self._lock, self._store.log.writing():
            yield self._now()

    def _maker(self) -> Maker:
        return Maker(self.folder, self._store, self.settings, progress=self._progress)

    def _embeddings(self) -> Vectors:
        """The embeddings; made again if `project.toml` names another encoder than they were made with."""
        with self._lock:
            recorded, settings = sources.recorded_encoder(self.folder), self.settings
            wanted = settings.encoder or (recorded and recorded["encoder"]), settings.image_size
            if settings.data.kind != "embeddings" and (
                recorded is None or wanted != (recorded["encoder"], recorded["image_size"])
            ):
                maker = self._maker()
                using = maker.encoder()
                if recorded is not None:
                    self.notes += (f"the encoder was {recorded['encoder']} and is {using.name}: embedded again",)
                maker.embed_anew(using)
            return vectors_of(self.folder, self._store.num_items)


def check_parts(settings: Settings) -> None:
    """Refuse settings that name a model, a strategy or an encoder that there is none of."""
    model_fit(settings.model, len(settings.classes))
    strategy_of(settings.strategy, settings.classes)
    if settings.data.kind == "embeddings":
        if settings.encoder is not None:
            raise ValueError("bare embeddings have no encoder; leave `encoder` out")
    elif settings.encoder is not None:
        sources.project_encoder(settings)


def _class_lists(events: Sequence[Event]) -> list[list[str]]:
    """All lists of classes that there were."""
    state, found = State(), []
    for end, event in enumerate(events, start=1):
        if event.kind in ("begun", "class added", "class renamed"):
            state.update(events[:end])
            found.append(list(state.classes))
    return found

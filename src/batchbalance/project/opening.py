"""Creating and opening a project: its settings, checked against the parts they name and against its log."""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from batchbalance.errors import FileFormatError, UnknownNameError
from batchbalance.learner.labels import NewEvent
from batchbalance.project.answers import named_class
from batchbalance.project.embeddings import LOCK, RECORD, VECTORS, project_encoder, seen_from
from batchbalance.project.labelling import check_names
from batchbalance.project.learning import model_fit, named_model
from batchbalance.project.planning import strategy_of
from batchbalance.project.settings import (
    FILE,
    Data,
    ProjectSettings,
    as_settings,
    read_settings,
    write_settings,
)
from batchbalance.project.state import State
from batchbalance.project.store import ProjectStore

OWN_FILES = (FILE, "labels.sqlite", VECTORS, RECORD, LOCK)  # the files of a project


def new_settings(
    folder: Path,
    given: Mapping[str, str | os.PathLike[str] | None],
    classes: Iterable[Any],
    data: Mapping[str, Any],
    settings: Mapping[str, Any],
) -> ProjectSettings:
    """Return the settings of a new project, checked.

    Args:
        folder: the project's folder.
        given: the path of each kind of source; exactly one must be given.
        classes: the labels.
        data: other settings of the source; `ids` may be a path.
        settings: other settings, by their names in `project.toml`; `model` may be a name.
    """
    named = [(kind, path) for kind, path in given.items() if path is not None]
    if len(named) != 1:
        raise ValueError(
            f"one of `images`, `texts`, `table` and `embeddings` must be given, got "
            f"{', '.join(kind for kind, _ in named) or 'none'}"
        )
    kind, path = named[0]
    if not Path(path).exists():
        raise FileNotFoundError(f"no such data: {path} is neither a file nor a folder")
    ids = data["ids"]
    source = {
        **data,
        "kind": kind,
        "path": seen_from(folder, path),
        "ids": None if ids is None else seen_from(folder, ids),
    }
    known = {key: value for key, value in settings.items() if value is not None}
    if isinstance(known.get("model"), str):
        known["model"] = named_model(known["model"])
    found = as_settings({"classes": [named_class(each) for each in classes], "data": source, **known})
    if len(set(found.classes)) < len(found.classes):
        raise ValueError(f"`classes` must be distinct, got {', '.join(found.classes)}")
    check_parts(found)
    if (folder / FILE).exists():
        raise FileExistsError(f"{folder} already holds a project; continue with it, or name another folder")
    if (folder / VECTORS).exists():
        raise FileExistsError(f"{folder / VECTORS} exists, but a project needs a file of that name; move it away")
    return found


def like_ours(
    folder: Path,
    settings: ProjectSettings,
    source: str | os.PathLike[str],
    ids: str | os.PathLike[str] | None,
) -> Data:
    """Return a source of items like those of a project."""
    if not Path(source).exists():
        raise FileNotFoundError(f"no such data: {source} is neither a file nor a folder")
    changed = {
        "path": seen_from(folder, source),
        "ids": None if ids is None else seen_from(folder, ids),
    }
    return settings.data.model_copy(update=changed)


@contextmanager
def new_folder(folder: Path, settings: ProjectSettings) -> Iterator[ExitStack]:
    """Write the settings of a new project. An error removes its files, so that it can be created again.

    The callbacks of the stack are called first. Embeddings computed so far are kept. After an interruption everything
    is kept.
    """
    is_new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    on_failure = ExitStack()
    try:
        write_settings(folder, settings)
        yield on_failure
    except Exception:
        on_failure.close()
        for name in OWN_FILES:
            (folder / name).unlink(missing_ok=True)
        if is_new:
            with suppress(OSError):
                folder.rmdir()
        raise


def check_parts(settings: ProjectSettings) -> None:
    """Refuse settings that name a model, a strategy or an encoder that does not exist."""
    model_fit(settings.model, len(settings.classes))
    strategy_of(settings.strategy, settings.classes)
    if settings.data.kind == "embeddings":
        if settings.encoder is not None:
            raise ValueError("bare embeddings have no encoder; omit `encoder`")
    elif settings.encoder is not None:
        project_encoder(settings)


def check_log(folder: Path, store: ProjectStore, settings: ProjectSettings) -> None:
    """Write the first event of a new project; refuse settings that must not change later."""
    fixed = {"seed": settings.seed, "audit": settings.audit, "kind": settings.data.kind}
    fixed["multi_label"] = settings.multi_label
    if not store.events():  # else do not write: the folder may be read-only
        with store.writing():
            if not store.events():
                if (folder / VECTORS).exists():  # written after the first event
                    raise FileFormatError(
                        f"{store.log.path} is damaged: it is empty but the project is not; restore it from a copy"
                    )
                store.append([NewEvent("begun", value={"classes": list(settings.classes), **fixed})])
    begun = store.events()[0].value
    for key, value in fixed.items():
        if begun.get(key) != value:
            raise FileFormatError(
                f"{folder / FILE}: `{key}` must stay {begun.get(key)!r} for this project, got {value!r}; put "
                "it back, or create another project"
            )


def add_class(folder: Path, store: ProjectStore, name: Any) -> ProjectSettings:
    """Add a class at the end; return the new settings."""
    new = named_class(name)
    with store.writing() as state:
        _check_new(state, new)
        store.append([NewEvent("class added", value=new)])
    return _with_classes_of_log(folder, store)


def rename_class(folder: Path, store: ProjectStore, old: Any, new: Any) -> ProjectSettings:
    """Rename a class; return the new settings."""
    before, after = named_class(old), named_class(new)
    with store.writing() as state:
        if before not in state.classes:
            raise UnknownNameError("class", before, state.classes)
        _check_new(state, after)
        index = state.classes.index(before)
        store.append([NewEvent("class renamed", value={"class": index, "name": after})])
    return _with_classes_of_log(folder, store)


def _check_new(state: State, name: str) -> None:
    if name in state.classes:
        raise ValueError(f"the class {name!r} exists already")
    if state.is_multi:
        check_names([name])


def check_classes(folder: Path, store: ProjectStore, settings: ProjectSettings) -> tuple[ProjectSettings, list[str]]:
    """Add classes that were appended to the file; refuse other changes. Return the settings and notes."""
    with store.reading() as state:
        known = list(state.classes)
    wanted = list(settings.classes)
    if wanted == known:
        return settings, []
    if wanted[: len(known)] == known:
        added = [named_class(name) for name in wanted[len(known) :]]
        with store.writing():
            store.append([NewEvent("class added", value=name) for name in added])
        return settings, [f"classes added by {FILE}: {', '.join(wanted[len(known) :])}"]
    earlier = State()
    for end, event in enumerate(store.events(), start=1):
        if event.kind in ("begun", "class added", "class renamed"):
            earlier.update(store.events()[:end])
            if earlier.classes == wanted:  # a change was interrupted between log and file
                return _with_classes_of_log(folder, store), []
    raise FileFormatError(
        f"{folder / FILE}: `classes` must begin with {', '.join(known)}, the existing classes, got "
        f"{', '.join(wanted)}; put them back, and use rename-class or add-class"
    )


def _with_classes_of_log(folder: Path, store: ProjectStore) -> ProjectSettings:
    """Write the classes of the log to the file, including those that the strategy seeks; return the new settings.

    Comments in the file are lost.
    """
    settings = read_settings(folder)
    with store.reading() as state:
        classes = tuple(state.classes)
    renamed = dict(zip(settings.classes, classes, strict=False))
    strategy = dict(settings.strategy)
    if isinstance(strategy.get("classes"), list | tuple):
        strategy["classes"] = [renamed.get(str(each), each) for each in strategy["classes"]]
    found = settings.model_copy(update={"classes": classes, "strategy": strategy})
    write_settings(folder, found)
    return found

"""The classes of a project, which are in its log and in `project.toml`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from batchbalance.errors import FileFormatError, UnknownNameError
from batchbalance.learner.labels import Event, NewEvent
from batchbalance.project.answers import named_class
from batchbalance.project.settings import FILE, ProjectSettings, read_settings, replace_classes
from batchbalance.project.state import State
from batchbalance.project.store import ProjectStore


def add_class(folder: Path, store: ProjectStore, name: Any) -> ProjectSettings:
    """Add a class at the end; return the new settings."""
    new = named_class(name)
    with store.writing() as state:
        if new in state.classes:
            raise ValueError(f"the class {new!r} exists already")
        store.append([NewEvent("class added", value=new)])
    return _rewrite(folder, store)


def rename_class(folder: Path, store: ProjectStore, old: Any, new: Any) -> ProjectSettings:
    """Give a class another name; return the new settings."""
    before, after = named_class(old), named_class(new)
    with store.writing() as state:
        if before not in state.classes:
            raise UnknownNameError("class", before, state.classes)
        if after in state.classes:
            raise ValueError(f"the class {after!r} exists already")
        index = state.classes.index(before)
        store.append([NewEvent("class renamed", value={"class": index, "name": after})])
    return _rewrite(folder, store)


def check_classes(folder: Path, store: ProjectStore, settings: ProjectSettings) -> tuple[ProjectSettings, str]:
    """Add classes that were appended to the file; refuse other changes. Return the settings, and a note or ""."""
    with store.reading() as state:
        known = list(state.classes)
    wanted = list(settings.classes)
    if wanted == known:
        return settings, ""
    if wanted[: len(known)] == known:
        added = [named_class(name) for name in wanted[len(known) :]]
        with store.writing():
            store.append([NewEvent("class added", value=name) for name in added])
        return settings, f"classes added by {FILE}: {', '.join(wanted[len(known) :])}"
    if wanted in _class_lists(store.events()):  # a change was interrupted between log and file
        return _rewrite(folder, store), ""
    raise FileFormatError(
        f"{folder / FILE}: `classes` must begin with {', '.join(known)}, those of the labels so far, got "
        f"{', '.join(wanted)}; put them back, and use rename-class or add-class"
    )


def _rewrite(folder: Path, store: ProjectStore) -> ProjectSettings:
    """Write the classes of the log to the file; return its settings."""
    with store.reading() as state:
        replace_classes(folder, state.classes)
    return read_settings(folder)


def _class_lists(events: Sequence[Event]) -> list[list[str]]:
    """Return every list of classes that the project ever had."""
    state, found = State(), []
    for end, event in enumerate(events, start=1):
        if event.kind in ("begun", "class added", "class renamed"):
            state.update(events[:end])
            found.append(list(state.classes))
    return found

"""Lookup of parts by name: built-in, from installed packages, or by a path "package.module:Name".

A path imports code. A path given on the command line or in Python is imported. A path in a file is imported only
if the user allows it (``check_paths``). The working directory is searched only for a path, after installed packages
and only during that import. So a `torch.py` in it is never imported by mistake, not even in processes that this
package starts (``safe_path``).
"""

import importlib
import importlib.metadata
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Generic, TypeVar

from batchbalance.errors import UnknownNameError

Part = TypeVar("Part")

INSTALLED = ("batchbalance", "sklearn")  # packages that are never searched for in the working directory
_MODULES: dict[str, None] = {}  # modules that were imported by path


class Registry(Mapping[str, Part], Generic[Part]):
    """Named parts of one kind.

    Args:
        kind: the word for a part in messages, such as "strategy".
        group: the entry point group in which installed packages register their parts.
        own: the built-in parts, or their paths "package.module:Name", which are imported on first use.
        is_part: returns whether an object is such a part.
        wanted: the requirement on a part in messages, such as "a subclass of batchbalance.Strategy".
    """

    def __init__(
        self, kind: str, group: str, own: Mapping[str, Part | str], is_part: Callable[[Any], bool], wanted: str
    ) -> None:
        self.kind, self.group = kind, group
        self._own = dict(own)
        self._is_part, self._wanted = is_part, wanted

    def named(self, name: str) -> Part:
        """Return the part with this name or path.

        Raises:
            UnknownNameError: if the name is unknown; the message suggests the nearest one.
            ValueError: if there is no such part at a path.
        """
        if name in self._own:
            found = self._own[name]
            if isinstance(found, str):
                found = self._own[name] = imported(self.kind, found)
            return found
        if is_path(name):
            return self._checked(name, imported(self.kind, name))
        installed = self._installed()
        if name in installed:
            return self._checked(name, installed[name].load())
        raise UnknownNameError(self.kind, name, self)

    def _installed(self) -> dict[str, importlib.metadata.EntryPoint]:
        return {entry.name: entry for entry in importlib.metadata.entry_points(group=self.group)}

    def _checked(self, name: str, found: Any) -> Part:
        if not self._is_part(found):
            raise ValueError(f"{self.kind} {name!r} must be {self._wanted}, got {found!r}")
        return found  # type: ignore[no-any-return]

    def __getitem__(self, name: str) -> Part:
        try:
            return self.named(name)
        except UnknownNameError as error:
            raise KeyError(name) from error

    def __contains__(self, name: object) -> bool:
        return name in self._own or name in self._installed()

    def __iter__(self) -> Iterator[str]:
        yield from self._own
        yield from (name for name in self._installed() if name not in self._own)

    def __len__(self) -> int:
        return len(list(iter(self)))


def is_path(name: str) -> bool:
    """Return whether a name is a path to an object in a module, "package.module:Name"."""
    return ":" in name


def imported(kind: str, path: str) -> Any:
    """Import the object at a path "package.module:Name"; the working directory is searched last."""
    module_name, _, attribute = path.partition(":")
    if not all(part.isidentifier() for part in module_name.split(".")) or not attribute.isidentifier():
        raise ValueError(f"{kind} {path!r} must look like package.module:Name")
    try:
        module = _imported_module(module_name)
    except ModuleNotFoundError as error:
        raise ValueError(
            f"{kind} {path!r} must be in a module that can be imported, got: {error}; install it, or run from the "
            "folder where it is"
        ) from error
    if not hasattr(module, attribute):
        raise UnknownNameError(f"{kind} of {module_name}", attribute, (name for name in vars(module) if name[0] != "_"))
    return getattr(module, attribute)


def _imported_module(name: str) -> Any:
    if name.partition(".")[0] in INSTALLED:
        return importlib.import_module(name)
    before, here = list(sys.path), str(Path.cwd())
    sys.path.append(here)
    try:
        module = importlib.import_module(name)
    finally:
        if sys.path == [*before, here]:
            sys.path.pop()
        elif here not in before:  # the module changed sys.path itself
            sys.path.remove(here)
    _MODULES[name] = None
    return module


def imported_modules() -> tuple[str, ...]:
    """Return the modules imported by path; a process must import them before it unpickles their objects."""
    return tuple(_MODULES)


def import_modules(names: Iterable[str]) -> None:
    """Import the modules that `imported_modules` returned in the parent process.

    A module that is not found is skipped: the parent may have imported it from another folder for another purpose.
    If an object needs it, unpickling the object raises an error.
    """
    for name in names:
        with suppress(ImportError):
            _imported_module(name)


@contextmanager
def safe_path() -> Iterator[None]:
    """Keep the working directory and the script's folder off the search path of processes started in this block."""
    had = {name: os.environ.get(name) for name in ("PYTHONSAFEPATH", "PYTHONPATH")}
    os.environ["PYTHONSAFEPATH"] = "1"
    if had["PYTHONPATH"] is not None:  # an empty entry stands for the working directory
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, had["PYTHONPATH"].split(os.pathsep)))
    try:
        yield
    finally:
        for name, value in had.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def texts_in(value: Any) -> Iterator[str]:
    """Yield all strings in the parsed contents of a file, at any depth."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from texts_in(each)


def check_paths(names: Mapping[str, str], where: str) -> None:
    """Raise ValueError if a file names a path, which would import code. `names` maps names to kinds of parts."""
    for name, kind in names.items():
        if is_path(name):
            raise ValueError(
                f"{where} names the {kind} {name!r}, which would import code; if you trust the file, allow it "
                "(--allow-imports, or allow_imports=True)"
            )

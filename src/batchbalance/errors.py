"""The exceptions of this package.

Exception
└── BatchBalanceError            base class of the exceptions below
    ├── DrawMismatchError        two sets do not hold the same draws (also a ValueError)
    ├── FileFormatError          a file is damaged or of another format (also a ValueError)
    ├── MissingPartError         a strategy needs an argument that was not given (also a ValueError)
    ├── NothingLeftError         a project has no unlabelled item left (also a ValueError)
    ├── UnknownNameError         no strategy, option or data set of that name (also a ValueError)
    └── MissingExtraError        an optional dependency is not installed (also an ImportError)

Other invalid arguments raise plain ``ValueError`` or ``TypeError``.
"""

import difflib
import errno
from collections.abc import Iterable


class BatchBalanceError(Exception):
    """Base class of all exceptions of this package."""


class DrawMismatchError(BatchBalanceError, ValueError):
    """Two sets of predictions, or predictions and edges, do not hold the same draws or classes."""


class FileFormatError(BatchBalanceError, ValueError):
    """A file is damaged, or its format is not the one that its name or the call implies."""


class MissingPartError(BatchBalanceError, ValueError):
    """A strategy reads a part of the pool that was not given.

    Attributes:
        part: the name of the argument.
    """

    def __init__(self, part: str, remedy: str, strategy: str | None = None) -> None:
        whom = "this strategy" if strategy is None else f"strategy {strategy!r}"
        super().__init__(f"`{part}` must be given for {whom}, got none; {remedy}")
        self.part, self.remedy = part, remedy


class NothingLeftError(BatchBalanceError, ValueError):
    """A project has no unlabelled item left to ask about."""


class UnknownNameError(BatchBalanceError, ValueError):
    """An unknown name; the message suggests the nearest known one."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        known = sorted(known)
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}? " if near else ""
        super().__init__(f"unknown {kind} {name!r}; {hint}known: {', '.join(known) or 'none'}")


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means out of memory; torch raises a plain RuntimeError for that."""
    text = str(error)
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and ("allocate" in text or "out of memory" in text or "too big" in text)
    )


def is_out_of_files(error: BaseException) -> bool:
    """Return whether the process has too many open files, so that the error is not about the file it tried to open."""
    return isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE)


def sentence(error: BaseException) -> str:
    """Return the message of an error in one line."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        what = {FileNotFoundError: "no such file", IsADirectoryError: "a folder where a file must be"}
        return f"{what.get(type(error), error.strerror.lower())}: {error.filename}"
    said = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return f"not enough memory: {said}; use smaller sizes" if is_out_of_memory(error) else said


class MissingExtraError(BatchBalanceError, ImportError):
    """A feature needs a package that only an extra installs."""

    def __init__(self, feature: str, extra: str) -> None:
        super().__init__(f"{feature} needs an extra; install it with: pip install 'batchbalance[{extra}]'")

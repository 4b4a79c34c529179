"""Progress of long work: a line that is replaced on a terminal, lines at intervals elsewhere.

One piece of work (`progress`), or several jobs side by side (`Jobs`).
"""

import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

LINE_SECONDS = 10.0  # minimum time between two plain lines
TERMINAL_SECONDS = 0.1  # minimum time between two changes of a line on a terminal
BAR_CELLS = 20

Listener = Callable[[str, int, int | None], None]  # label, steps done, total steps
_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextmanager
def told_to(listener: Listener) -> Iterator[None]:
    """Send the `progress` of this thread to a listener while the block runs, instead of showing it."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


class Bar:
    """Counter of finished steps. This one shows nothing; subclasses display the same calls."""

    def advance(self, steps: int = 1, note: str = "") -> None:
        """Count `steps` more as done; `note` describes the last one."""


class _Line:
    """A line about work that goes on."""

    def __init__(self, stream: Any) -> None:
        self.stream, self.on_terminal = stream, stream.isatty()
        self.started = self.shown = time.monotonic()

    @property
    def is_due(self) -> bool:
        """Whether the last line was written long enough ago."""
        return time.monotonic() - self.shown >= (TERMINAL_SECONDS if self.on_terminal else LINE_SECONDS)

    def write(self, text: str, share: float, *, is_last: bool = False) -> None:
        """Write a line; on a terminal it starts with a bar, and the next one replaces it unless it `is_last`."""
        self.shown = time.monotonic()
        if self.on_terminal:
            text = f"[{'=' * round(BAR_CELLS * share):{BAR_CELLS}}] {text}"[: shutil.get_terminal_size().columns - 1]
        # The cursor stays at the start of the line, so that other output does not begin in the middle of it.
        self.stream.write(f"\x1b[K{text}\r" if self.on_terminal and not is_last else f"{text}\n")
        self.stream.flush()

    def left(self, share: float) -> str:
        """Return the time so far, and the time that is left."""
        elapsed = time.monotonic() - self.started
        return f", {elapsed:.0f} s" + (f", {elapsed / share * (1 - share):.0f} s left" if 0 < share < 1 else "")


class _LineBar(Bar):
    def __init__(self, label: str, total: int | None, stream: Any) -> None:
        self._label, self._total, self._line = label, total, _Line(stream)
        self._done, self._shown, self._note = 0, 0, ""

    def advance(self, steps: int = 1, note: str = "") -> None:
        self._done, self._note = self._done + steps, note
        if self._line.is_due:
            self.show()

    def show(self, *, is_last: bool = False) -> None:
        """Write one line, unless no step was finished since the last one."""
        if self._done == self._shown and not (is_last and self._done and self._line.on_terminal):
            return
        self._shown, share = self._done, self._done / self._total if self._total else 0.0
        counted = f"{self._label}: {self._done}" + (f" of {self._total}" if self._total else "")
        note = f", {self._note}" if self._note else ""
        self._line.write(counted + self._line.left(share) + note, min(share, 1.0), is_last=is_last)


class _ListenerBar(Bar):
    def __init__(self, label: str, total: int | None, listener: Listener) -> None:
        self._label, self._total, self._listener, self._done = label, total, listener, 0
        listener(label, 0, total)

    def advance(self, steps: int = 1, note: str = "") -> None:  # noqa: ARG002
        self._done += steps
        self._listener(self._label, self._done, self._total)


@contextmanager
def progress(label: str, total: int | None, show: bool, stream: Any = None) -> Iterator[Bar]:
    """Show the progress of some work.

    Args:
        label: describes the work.
        total: the number of steps; None if it is not known.
        show: False shows nothing.
        stream: the text file to write to; standard error if omitted.
    """
    listener = _listener.get()
    if not show:
        yield Bar()
    elif listener is not None:
        yield _ListenerBar(label, total, listener)
    else:
        lines = _LineBar(label, total, stream or sys.stderr)
        try:
            yield lines
        finally:
            lines.show(is_last=True)


class Jobs:
    """Progress of several jobs, each a fraction from 0 to 1: a line at intervals, and whenever a job ends."""

    def __init__(self, labels: Sequence[str], stream: Any = None) -> None:
        self._labels, self._line = labels, _Line(stream or sys.stderr)
        self._shares = [0.0] * len(labels)
        self._ended = 0

    def advance(self, job: int, share: float, note: str) -> None:
        """Set the fraction of job number `job` that is done; `note` describes its current step."""
        self._shares[job] = share
        if self._line.is_due:
            self._write(f"{self._labels[job]}, {note}")

    def end(self, job: int, note: str) -> None:
        """Mark job number `job` as ended; `note` describes the outcome."""
        self._shares[job] = 1.0
        self._ended += 1
        self._write(f"{self._labels[job]}: {note}", is_last=self._ended == len(self._labels))

    def _write(self, text: str, *, is_last: bool = False) -> None:
        share = sum(self._shares) / len(self._shares)
        ended = f"{self._ended} of {len(self._labels)}{self._line.left(share)}"
        self._line.write(f"{text} ({ended})", share, is_last=is_last)

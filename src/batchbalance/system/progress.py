"""Progress of long work: bars on a terminal, plain lines elsewhere.

One piece of work (`progress`), or several jobs side by side (`jobs`).
"""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

LINE_SECONDS = 10.0  # minimum time between two plain lines

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


class _LineBar(Bar):
    def __init__(self, label: str, total: int | None, stream: Any) -> None:
        self._label, self._total, self._stream = label, total, stream
        self._done, self._shown, self._note = 0, 0, ""
        self._started = self._last = time.monotonic()

    def advance(self, steps: int = 1, note: str = "") -> None:
        self._done, self._note = self._done + steps, note
        if time.monotonic() - self._last >= LINE_SECONDS:
            self.show()

    def show(self) -> None:
        """Write one line, unless no step was finished since the last one."""
        if self._done == self._shown:
            return
        self._shown, self._last = self._done, time.monotonic()
        elapsed = self._last - self._started
        parts = [f"{self._label}: {self._done}" + (f" of {self._total}" if self._total else ""), f"{elapsed:.0f} s"]
        if self._total and self._done < self._total:
            parts.append(f"{elapsed / self._done * (self._total - self._done):.0f} s left")
        self._stream.write(", ".join([*parts, self._note] if self._note else parts) + "\n")
        self._stream.flush()


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
    stream = stream or sys.stderr
    listener = _listener.get()
    if not show:
        yield Bar()
    elif listener is not None:
        yield _ListenerBar(label, total, listener)
    elif stream.isatty():
        with _terminal_bar(label, total, stream) as bar:
            yield bar
    else:
        lines = _LineBar(label, total, stream)
        try:
            yield lines
        finally:
            lines.show()


@contextmanager
def _terminal_bar(label: str, total: int | None, stream: Any) -> Iterator[Bar]:
    with _bars("MofNComplete", stream) as shown:
        task = shown.add_task(label, total=total, note="")

        class Terminal(Bar):
            def advance(self, steps: int = 1, note: str = "") -> None:
                shown.update(task, advance=steps, note=note)

        yield Terminal()


class Jobs:
    """Progress of several jobs, each a fraction from 0 to 1: plain lines at intervals and whenever a job ends."""

    def __init__(self, labels: Sequence[str], stream: Any) -> None:
        self._labels, self._stream = labels, stream
        self._shares = [0.0] * len(labels)
        self._ended = 0
        self._started = self._last = time.monotonic()

    def advance(self, job: int, share: float, note: str) -> None:
        """Set the fraction of job number `job` that is done; `note` describes its current step."""
        self._shares[job] = share
        if time.monotonic() - self._last >= LINE_SECONDS:
            self._write(f"{self._labels[job]}, {note}")

    def end(self, job: int, note: str) -> None:
        """Mark job number `job` as ended; `note` describes the outcome."""
        self._shares[job] = 1.0
        self._ended += 1
        self._write(f"{self._labels[job]}: {note}")

    def _write(self, text: str) -> None:
        self._last = time.monotonic()
        elapsed, share = self._last - self._started, sum(self._shares) / len(self._shares)
        left = f", {elapsed / share * (1 - share):.0f} s left" if 0 < share < 1 else ""
        self._stream.write(f"{text} ({self._ended} of {len(self._labels)}, {elapsed:.0f} s{left})\n")
        self._stream.flush()


class _JobBars(Jobs):
    """One bar for all jobs, and one for each running job."""

    def __init__(self, labels: Sequence[str], shown: "Progress") -> None:
        super().__init__(labels, None)
        self._shown = shown
        self._all = shown.add_task("all", total=len(labels), note="")
        self._rows: dict[int, "TaskID"] = {}

    def advance(self, job: int, share: float, note: str) -> None:
        if job not in self._rows:
            self._rows[job] = self._shown.add_task(self._labels[job], total=1.0, note="")
        self._shown.update(self._rows[job], completed=share, note=note)
        self._count(job, share)

    def end(self, job: int, note: str) -> None:  # noqa: ARG002
        if job in self._rows:
            self._shown.remove_task(self._rows.pop(job))
        self._count(job, 1.0)

    def _count(self, job: int, share: float) -> None:
        self._shares[job] = share
        self._shown.update(self._all, completed=sum(self._shares))


@contextmanager
def jobs(labels: Sequence[str], stream: Any = None) -> Iterator[Jobs]:
    """Show the progress of several jobs, on standard error if no stream is given."""
    stream = stream or sys.stderr
    if not stream.isatty():
        yield Jobs(labels, stream)
        return
    with _bars("TaskProgress", stream, transient=True) as shown:
        yield _JobBars(labels, shown)


def _bars(count: str, stream: Any, *, transient: bool = False) -> "Progress":
    """Return rich progress bars; `count` names the column that counts."""
    from rich import progress as rich_progress
    from rich.console import Console

    columns = (
        rich_progress.TextColumn("{task.description}"),
        rich_progress.BarColumn(),
        getattr(rich_progress, f"{count}Column")(),
        rich_progress.TimeRemainingColumn(),
        rich_progress.TextColumn("{task.fields[note]}"),
    )
    return rich_progress.Progress(*columns, console=Console(file=stream), transient=transient)

"""Progress of long work: a bar on a terminal, plain lines elsewhere, nothing unless it is asked for."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

LINE_SECONDS = 10.0  # the least time between two plain lines


class Bar:
    """Counts finished steps. This one shows nothing; the others show the same calls in their own way."""

    def advance(self, steps: int = 1, note: str = "") -> None:
        """Count `steps` more as done; `note` tells something about the last one."""


class _Lines(Bar):
    def __init__(self, label: str, total: int | None, stream: Any) -> None:
        self._label, self._total, self._stream = label, total, stream
        self._done, self._shown, self._note = 0, 0, ""
        self._started = self._last = time.monotonic()

    def advance(self, steps: int = 1, note: str = "") -> None:
        self._done, self._note = self._done + steps, note
        if time.monotonic() - self._last >= LINE_SECONDS:
            self.show()

    def show(self) -> None:
        """Write one line, unless nothing was done since the last one."""
        if self._done == self._shown:
            return
        self._shown, self._last = self._done, time.monotonic()
        elapsed = self._last - self._started
        parts = [f"{self._label}: {self._done}" + (f" of {self._total}" if self._total else ""), f"{elapsed:.0f} s"]
        if self._total and self._done < self._total:
            parts.append(f"{elapsed / self._done * (self._total - self._done):.0f} s left")
        self._stream.write(", ".join([*parts, self._note] if self._note else parts) + "\n")
        self._stream.flush()


@contextmanager
def progress(label: str, total: int | None, show: bool, stream: Any = None) -> Iterator[Bar]:
    """Show how far some work is.

    Args:
        label: what is being done.
        total: the number of steps; None if it is not known.
        show: False shows nothing.
        stream: the text file to write to; standard error if left out.
    """
    stream = stream or sys.stderr
    if not show:
        yield Bar()
    elif stream.isatty():
        with _terminal_bar(label, total, stream) as bar:
            yield bar
    else:
        lines = _Lines(label, total, stream)
        try:
            yield lines
        finally:
            lines.show()


@contextmanager
def _terminal_bar(label: str, total: int | None, stream: Any) -> Iterator[Bar]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, TextColumn("{task.fields[note]}"), console=Console(file=stream)) as shown:
        task = shown.add_task(label, total=total, note="")

        class Terminal(Bar):
            def advance(self, steps: int = 1, note: str = "") -> None:
                shown.update(task, advance=steps, note=note)

        yield Terminal()

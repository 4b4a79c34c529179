"""Time and peak memory of a call.

Times are medians of runs in which the things compared take turns. Peak memory is read in a fresh process, above what
its input takes, so that no earlier line leaves its mark.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from batchbalance.system.memory import peak_memory, reset_peak_memory

SIDE_SECONDS = 20.0  # a side that has taken this long is not run again
CHILD_SECONDS = 3600.0


@dataclass(frozen=True)
class Side:
    """One of the things that a line times.

    Attributes:
        name: what it is.
        run: the call.
        scale: its time is multiplied by this, because only a part of the work is run.
        scaled: what part is run, in words; empty if all of it.
    """

    name: str
    run: Callable[[], object]
    scale: float = 1.0
    scaled: str = ""


@dataclass(frozen=True)
class Times:
    """Seconds of each run of a side, already scaled, and what the first run returned."""

    seconds: tuple[float, ...]
    result: object

    @property
    def median(self) -> float:
        """The middle one."""
        return statistics.median(self.seconds)


def take_turns(sides: Sequence[Side], repeats: int, *, side_seconds: float = SIDE_SECONDS) -> list[Times]:
    """Run every side `repeats` times, in turn, after one round that warms up.

    A side whose runs have taken `side_seconds` in all is not run again. One that takes so long in the first round
    already needs no warming up: that round counts.
    """
    results: list[object] = []
    seconds: list[list[float]] = []
    spent: list[float] = []
    for side in sides:
        taken, result = timed(side.run)
        results.append(result)
        spent.append(taken)
        seconds.append([taken * side.scale] if taken >= side_seconds else [])
    for _ in range(repeats):
        for i, side in enumerate(sides):
            if spent[i] < side_seconds or not seconds[i]:
                taken, _ = timed(side.run)
                spent[i] += taken
                seconds[i].append(taken * side.scale)
    return [Times(tuple(runs), result) for runs, result in zip(seconds, results, strict=True)]


def timed(run: Callable[[], object]) -> tuple[float, object]:
    """(seconds, result) of one call."""
    started = time.perf_counter()
    result = run()
    return time.perf_counter() - started, result


def peak_above(run: Callable[[], object]) -> float:
    """MiB that a call holds at its peak above what the process holds when it starts.

    Only right in a process whose peak so far is not above what it holds now, unless the system can reset the peak
    (Linux can).
    """
    reset_peak_memory()
    before = peak_memory()
    run()
    return max(0, peak_memory() - before) / 2**20


class ChildError(RuntimeError):
    """A child process failed; the message is its last line."""


def call_child(function: str, request: dict[str, Any], python: str = sys.executable) -> dict[str, Any]:
    """Call ``module:function(request)`` in a fresh process and give its answer; both are JSON.

    Args:
        function: a function of this package.
        request: its argument.
        python: the interpreter to run, if the packages of another environment are needed.
    """
    module, _, name = function.partition(":")
    code = (
        "import json, sys, importlib\n"
        "answer = getattr(importlib.import_module(sys.argv[1]), sys.argv[2])(json.loads(sys.argv[3]))\n"
        "open(sys.argv[4], 'w').write(json.dumps(answer))\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"  # not standard output: some packages print to it
        command = [python, "-P", "-c", code, module, name, json.dumps(request), str(answer)]
        paths = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}  # this package is not installed
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=CHILD_SECONDS, env=environment)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ChildError(str(error)) from error
        if done.returncode:
            lines = done.stderr.strip().splitlines()
            raise ChildError(lines[-1] if lines else f"exit code {done.returncode}")
        loaded: dict[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
        return loaded

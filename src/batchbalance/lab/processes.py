"""Trials in parallel processes.

Each process runs one trial after another and sets its threads from the trial's config, so the number of processes never
changes a result. A process ends with its parent, even if the parent was killed. On Linux processes are forked from one
that has already imported everything, so they start at once.
"""

import multiprocessing
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Literal

import torch

from batchbalance.arguments.registry import import_modules, imported_modules, safe_path
from batchbalance.errors import is_out_of_memory, sentence
from batchbalance.lab.config import Comparison, RunConfig
from batchbalance.lab.trial import Goal, LastPrepared, Prepare, Stage, run_trial

USER_ERRORS = (ValueError, TypeError, OSError, ImportError, OverflowError)

# glibc returns a large block to the system as soon as it is freed, so every page of the next one is mapped and
# cleared again, which can take a quarter of a training step. With these variables, read at process start, it keeps
# blocks of up to 32 MiB, and up to 1 GiB in all.
KEPT_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(2**25), "MALLOC_TRIM_THRESHOLD_": str(2**30)}


@dataclass(frozen=True)
class Task:
    """One trial of one run."""

    config: RunConfig
    seed: int
    runs_dir: Path
    goal: Goal
    data_dir: Path | None = None

    @property
    def label(self) -> str:
        """The name of the task in lists."""
        return f"{self.config.label}, trial {self.seed}"


def tasks_of(comparison: Comparison, runs_dir: Path, data_dir: Path | None = None) -> list[Task]:
    """Return all trials of a comparison: all strategies of a seed first, so that early results can be compared."""
    goal, runs = Goal(comparison.budget, comparison.target_error), comparison.runs()
    return [Task(run, seed, runs_dir, goal, data_dir) for seed in range(comparison.trials) for run in runs]


@dataclass(frozen=True)
class News:
    """An event of a task: a step began, or the task ended, failed or gave a warning."""

    task: int
    kind: Literal["step", "done", "failed", "warning"]
    step: Stage | None = None
    text: str = ""

    @property
    def is_last(self) -> bool:
        """Whether the task has ended."""
        return self.kind in ("done", "failed")


def run_tasks(tasks: Sequence[Task], num_jobs: int) -> Iterator[News]:
    """Run all tasks, `num_jobs` at a time, and yield their events. A task that fails does not stop the others."""
    waiting = list(range(len(tasks)))[::-1]
    workers: dict[Connection, _Worker] = {}
    try:
        while waiting or workers:
            while waiting and len(workers) < num_jobs:
                worker = _Worker()
                workers[worker.connection] = worker
                worker.give(waiting.pop(), tasks)
            for connection in wait(list(workers)):
                worker = workers[connection]  # type: ignore[index]
                news = worker.news()
                yield news
                if not news.is_last:
                    continue
                if waiting and not worker.is_dead:
                    worker.give(waiting.pop(), tasks)
                else:
                    worker.stop()
                    del workers[worker.connection]
    finally:
        for worker in workers.values():
            worker.kill()


class _Worker:
    """A process and its current task."""

    def __init__(self) -> None:
        # A fork server, or a new interpreter where forking is not safe.
        context: Any = multiprocessing.get_context("forkserver" if sys.platform == "linux" else "spawn")
        if sys.platform == "linux":
            context.set_forkserver_preload([__name__])
        self.connection, theirs = context.Pipe()
        self.is_dead = False
        self._task = -1
        given = theirs, dict(os.environ), imported_modules()
        self._process = context.Process(target=_work, args=given, daemon=True)
        with keeping_memory(), safe_path():
            self._process.start()
        theirs.close()

    def give(self, index: int, tasks: Sequence[Task]) -> None:
        self._task = index
        self.connection.send((index, tasks[index]))

    def news(self) -> News:
        try:
            return self.connection.recv()  # type: ignore[no-any-return]
        except EOFError:
            self._process.join()
            self.is_dead = True
            text = f"its process ended with code {self._process.exitcode}; possibly out of memory; start it again"
            return News(self._task, "failed", text=text)

    def stop(self) -> None:
        if not self.is_dead:
            self.connection.send(None)
        self._process.join()
        self.connection.close()

    def kill(self) -> None:
        self._process.terminate()
        self._process.join()


@contextmanager
def keeping_memory() -> Iterator[None]:
    """Start processes in this block with `KEPT_MEMORY`, unless the user has set these variables."""
    added = {name: value for name, value in KEPT_MEMORY.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]


def run_task(index: int, task: Task, tell: Callable[[News], None], prepare: Prepare | None = None) -> None:
    """Run one task in this process and report its events; the last one is that it is done or that it failed."""
    try:
        torch.set_num_threads(task.config.threads)
        with warnings.catch_warnings():
            warnings.simplefilter("default", UserWarning)
            warnings.showwarning = lambda message, *_rest, **_more: tell(News(index, "warning", text=str(message)))
            run_trial(
                task.config, task.seed, task.runs_dir, task.goal, data_dir=task.data_dir,
                report=lambda step: tell(News(index, "step", step)), prepare=prepare,
            )  # fmt: skip
        tell(News(index, "done"))
    except Exception as error:
        known = isinstance(error, USER_ERRORS) or is_out_of_memory(error)
        tell(News(index, "failed", text=sentence(error) if known else traceback.format_exc()))


def _work(connection: Any, environment: dict[str, str], modules: Sequence[str]) -> None:
    os.environ.update(environment)  # the server may have started with another environment
    import_modules(modules)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent stops this process
    parent = multiprocessing.parent_process()
    if parent is not None:  # end with the parent
        threading.Thread(target=lambda: (wait([parent.sentinel]), os._exit(1)), daemon=True).start()
    prepare = LastPrepared()
    while (given := connection.recv()) is not None:
        index, task = given
        run_task(index, task, connection.send, prepare)

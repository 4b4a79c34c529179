"""Trials as Ray tasks, run in turn on all CPUs of the cluster.

A task runs the code of a local process and writes the same run directory, which must be on a file system that all
machines share. If its worker dies, the task is restarted and continues after its last complete round.
"""

import os
import queue
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, no_type_check

from batchbalance.arguments.registry import import_modules, imported_modules
from batchbalance.cluster.connection import MAX_LOSSES, connected_ray
from batchbalance.lab.data.sources import FOLDER_VARIABLE
from batchbalance.lab.processes import News, Task, run_task


def run_tasks_on_ray(tasks: Sequence[Task], address: str) -> Iterator[News]:
    """Run ``jobs.run_tasks`` on a cluster: each task uses as many CPUs as its config has threads.

    Args:
        tasks: the tasks. Folders are made absolute, and must be the same on every machine.
        address: as in ``RayExecutor``.

    Raises:
        ConnectionError: if the cluster does not answer.
        ValueError: if no machine of the cluster has enough CPUs for a task.
    """
    if address.startswith("ray://"):
        raise ValueError(f"trials need host:port of the cluster on one of its machines, got {address!r}")
    ray = connected_ray(address)
    check_cpus(ray, tasks)
    placed = [_placed(task) for task in tasks]
    follow = ray.remote(num_returns="streaming", max_retries=0)(told_by)
    losses: Counter[int] = Counter()

    def started(index: int) -> Any:
        # Ray does not unpickle the contents of a list until `ray.get`, so a user's modules can be imported before that.
        given = index, [ray.put(placed[index])], Path.cwd(), imported_modules()
        return follow.options(num_cpus=tasks[index].config.threads).remote(*given)

    streams = {started(index): index for index in range(len(tasks))}
    try:
        while streams:
            (stream,), _ = ray.wait(list(streams), num_returns=1)
            index = streams[stream]
            news = _next_news(ray, stream, index)
            if news is None:
                del streams[stream]
                losses[index] += 1
                news = _loss(index, losses[index])
                if not news.is_last:
                    streams[started(index)] = index
            elif news.is_last:
                del streams[stream]
            yield news
    finally:
        for stream in streams:
            ray.cancel(stream, force=True)


@no_type_check  # Ray accepts only generator functions, and type checkers wrap them
def told_by(index: int, task: list[Any], folder: Path, modules: Sequence[str]) -> Iterator[News]:
    """Run one task on a worker and yield its news."""
    import ray

    if folder.is_dir():
        os.chdir(folder)  # a data set may be named by a relative path
    import_modules(modules)
    (task,) = ray.get(task)
    told: queue.SimpleQueue[News] = queue.SimpleQueue()
    threading.Thread(target=run_task, args=(index, task, told.put), daemon=True).start()
    while not (news := told.get()).is_last:
        yield news
    yield news


def check_cpus(ray: Any, tasks: Sequence[Task]) -> None:
    """Raise ValueError if a task would wait forever."""
    largest = max((int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]), default=0)
    wanted = max((task.config.threads for task in tasks), default=0)
    if wanted > largest:
        raise ValueError(
            f"`threads` must be at most the {largest} CPUs of the cluster's largest machine, got {wanted}; lower it"
        )


def _placed(task: Task) -> Task:
    """Return the task with absolute paths, so that it can run in another process."""
    data_dir = task.data_dir or os.environ.get(FOLDER_VARIABLE)
    return replace(
        task, runs_dir=task.runs_dir.absolute(), data_dir=None if data_dir is None else Path(data_dir).absolute()
    )


def _next_news(ray: Any, stream: Any, index: int) -> News | None:
    """Return the next news of a task, or None if its worker is lost."""
    try:
        news: News = ray.get(next(stream))
    except StopIteration:
        return None
    except ray.exceptions.RayTaskError as error:
        return News(index, "failed", text=str(error))
    except ray.exceptions.RayError:
        return None
    return news


def _loss(index: int, num_losses: int) -> News:
    if num_losses > MAX_LOSSES:
        return News(index, "failed", text=f"its worker was lost {num_losses} times, possibly out of memory")
    return News(index, "warning", text="its worker was lost; it continues after its last complete round")

"""Kills of `labelstudio sync`: what people said there is taken in once, and no task is created twice."""

import os
import signal
import threading
import time
from functools import partial
from http.server import ThreadingHTTPServer
from pathlib import Path
from random import Random
from typing import Any

from batchbalance.cli import app
from batchbalance.project import Project
from batchbalance.project.bridge import link
from batchbalance.project.bridge.client import Server
from torture.campaign import Finding, campaign
from torture.exchanges import Nonsense
from torture.projects import child

NUM_ITEMS, MOST_KILLS = 12, 12
CONFIG = {"label": {"type": "Choices", "to_name": ["text"], "inputs": [{"type": "Text", "value": "$text"}],
                    "labels": ["cat", "dog"]}}  # fmt: skip


class Slow(Nonsense):
    """A Label Studio whose people label all tasks at once, and correct every third one when five more are there."""

    def respond(self) -> None:
        """Answer after a while, so that kills fall into requests too."""
        time.sleep(self.random.uniform(0, 0.02))
        try:
            super().respond()
        except OSError:  # who asked was killed
            self.close_connection = True
        time.sleep(self.random.uniform(0, 0.01))

    do_GET = do_POST = do_PATCH = respond  # noqa: N815

    def annotation(self, number: int) -> dict[str, Any]:
        """The latest answer to a task."""
        label, is_corrected = answer(number, len(self.tasks))
        found = super().annotation(number)
        found["result"][0]["value"] = {"choices": [label]}
        return found | {"updated_at": f"2026-01-0{1 + is_corrected}T00:00:00Z"}


def answer(number: int, num_tasks: int) -> tuple[str, bool]:
    """What a task is labelled once there are so many tasks, and whether that is a correction."""
    is_corrected = number % 3 == 0 and num_tasks >= number + 5
    return ["cat", "dog"][(number // 2 + is_corrected) % 2], is_corrected


@campaign(
    "kill sync", "`labelstudio sync`, killed and started again, takes every answer once and makes no task twice", 2
)
def kill_sync(folder: Path, random: Random) -> Finding:
    """Kill the command by a timer until it has asked everything."""
    (folder / "t.csv").write_text("text\n" + "\n".join(f"some words {i} {i % 5}" for i in range(NUM_ITEMS)) + "\n")
    project = Project.create(
        folder / "p", texts=folder / "t.csv", classes=["cat", "dog"], encoder="tfidf", batch_size=3, audit=0.0
    )
    tasks: list[Any] = []
    given = {"random": random, "project": {"id": 1, "parsed_label_config": CONFIG}, "tasks": tasks}
    with ThreadingHTTPServer(("127.0.0.1", 0), type("Now", (Slow,), given)) as there:
        thread = threading.Thread(target=there.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            link(project, Server(f"http://127.0.0.1:{there.server_port}", "a.b.c"), 1)
            project.close()
            kills = 0
            while True:
                log, seconds = folder / f"{kills}.log", random.uniform(0.02, 2.0) if kills < MOST_KILLS else 120.0
                code, _ = child(partial(synced, folder / "p", log, seconds))
                if code == 0:
                    return compared(folder / "p", tasks, kills)
                if code != -signal.SIGALRM or kills == MOST_KILLS:
                    return Finding("traceback", f"exit code {code} after {kills} kills: {log.read_text()}")
                kills += 1
        finally:
            there.shutdown()
            thread.join()


def synced(folder: Path, log: Path, seconds: float, _: int) -> None:
    """Run the command, which dies after some seconds wherever it is: SIGALRM is not handled."""
    handle = os.open(log, os.O_WRONLY | os.O_CREAT)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    os.environ["LABEL_STUDIO_API_KEY"] = "a.b.c"
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        app(["labelstudio", "sync", str(folder), "--every", "0.02s"])
    except SystemExit as end:
        if end.code:
            raise


def compared(folder: Path, tasks: list[Any], kills: int) -> Finding:
    """Whether there is one task for each item, and each answer is here, and as often as it was given."""
    names = [each["data"]["item_id"] for each in tasks]
    if sorted(names) != sorted(map(str, range(NUM_ITEMS))):
        return Finding("different", f"tasks after {kills} kills: {names}")
    project = Project.open(folder)
    labels, told = project.labels, [event.item for event in project.events() if event.kind == "labelled"]
    rows = {name: project.store.row_of(name) for name in names}
    project.close()
    for number, name in enumerate(names, start=1):
        now, is_corrected = answer(number, len(tasks))
        if labels.get(name) != now:
            return Finding("lost", f"{name} is {labels.get(name)!r} after {kills} kills, {now!r} there")
        if told.count(rows[name]) > 1 + is_corrected:
            return Finding("different", f"{name} was told {told.count(rows[name])} times after {kills} kills")
    return Finding("intact", f"{kills} kills of sync")

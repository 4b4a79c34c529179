"""Servers under fire: `batchbalance label` is killed while people answer, and every answer that it took is kept."""

import http.client
import json
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from random import Random
from urllib.parse import parse_qs, urlsplit

import numpy as np
import psutil

from batchbalance.project import Project
from torture.campaign import Finding, campaign

NUM_ITEMS = 80
START_SECONDS, END_SECONDS = 120.0, 60.0


class Person:
    """Somebody who answers one item after another, as fast as the server lets them.

    Attributes:
        answered: the label of each item that the server acknowledged.
        refusal: what the server said last if it was no acknowledgement.
    """

    def __init__(self, link: str) -> None:
        found = urlsplit(link)
        self._netloc, (self._token,) = found.netloc, parse_qs(found.query)["token"]
        self.answered: dict[str, str] = {}
        self.refusal = self._cookie = ""
        end = time.monotonic() + START_SECONDS
        while True:
            try:
                answer = self._call("GET", f"/?token={self._token}")
                break
            except ConnectionRefusedError:  # the link is printed just before the server listens
                if time.monotonic() > end:
                    raise
                time.sleep(0.05)
        self._cookie = str(answer.getheader("set-cookie")).partition(";")[0]

    def go_on(self, names: list[str]) -> None:
        """Answer some items, until there are no more or nobody is there any more."""
        for number, name in enumerate(names):
            label = "ab"[number % 2]
            body = {"item": name, "label": label, "seconds": 1.0}
            try:
                answer = self._call("POST", f"/api/label?as={self._token.partition('-')[0]}", body)
            except (OSError, http.client.HTTPException):
                return
            if answer.status != 200:
                self.refusal = f"{answer.status} for {name}"
                return
            self.answered[name] = label

    def _call(self, method: str, path: str, body: object = None) -> http.client.HTTPResponse:
        headers = {"Origin": f"http://{self._netloc}", "Cookie": self._cookie, "Content-Type": "application/json"}
        connection = http.client.HTTPConnection(self._netloc, timeout=30)
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            answer.read()
            return answer
        finally:
            connection.close()


def started(project: Path, log: Path) -> tuple[subprocess.Popen[bytes], str]:
    """Start a server; its process, and the link that it printed."""
    command = [sys.executable, "-P", "-m", "batchbalance.cli", "label", str(project), "--no-open", "--port", "0"]
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        found = re.search(r"(http://\S+token=\S+)\s", log.read_text(errors="replace"))
        if found:
            return process, found[1]
        time.sleep(0.05)
    process.kill()
    raise RuntimeError(f"the server did not start: {log.read_text(errors='replace')}")


@campaign("kill label", "every answer that a killed server of `label` acknowledged is kept, and no process stays", 2)
def kill_label(folder: Path, random: Random) -> Finding:
    """Kill a server while somebody answers, twice, with more labels each time."""
    np.save(folder / "e.npy", np.random.default_rng(0).normal(size=(NUM_ITEMS, 3)).astype(np.float32))
    model = {"kind": "committee", "size": 2, "max_depth": 2}
    project = Project.create(folder / "p", embeddings=folder / "e.npy", classes=["a", "b"], model=model, batch_size=8)
    project.ask(NUM_ITEMS // 2)
    project.close()
    told: dict[str, str] = {}
    for number in range(2):
        project = Project.open(folder / "p")
        names = project.open_questions()
        project.close()
        try:
            process, link = started(folder / "p", folder / f"{number}.log")
        except RuntimeError as error:
            return Finding("traceback", str(error))
        try:
            person = Person(link)
        except OSError as error:
            process.kill()
            return Finding("traceback", f"the server does not answer: {error}")
        thread = threading.Thread(target=person.go_on, args=(names,))
        thread.start()
        time.sleep(random.uniform(0.0, 1.5))
        below = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGKILL)
        process.wait()
        thread.join()
        told |= person.answered
        if person.refusal:
            return Finding("traceback", f"the server refused: {person.refusal}")
        project = Project.open(folder / "p")
        lost = [name for name, label in told.items() if project.labels.get(name) != label]
        project.close()
        if lost:
            return Finding("lost", f"{len(lost)} of {len(told)} answers")
        _, alive = psutil.wait_procs(below, END_SECONDS)
        if alive:
            return Finding("different", f"{len(alive)} processes outlive their server")
    return Finding("intact", f"two kills, {len(told)} answers")

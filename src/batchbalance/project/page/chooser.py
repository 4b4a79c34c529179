"""The server's side of the processes that choose and measure: it asks, remembers what comes back, and never waits."""

import json
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from batchbalance.arguments.registry import safe_path
from batchbalance.project.state import Who

DOING = "Choosing what to ask next"
LABELS = {"embedding": "Looking at the items for the first time"}
MAP_FOLDER = "map"  # of the project, for files that a process writes and the server sends
KEPT = 100  # answers in memory
ENDED = "The process that chooses has ended, possibly out of memory."

Request = dict[str, Any]
Reply = dict[str, Any]


@dataclass(frozen=True)
class ChoiceProgress:
    """The progress of choosing the next items.

    Attributes:
        doing: the current step; empty if nothing is in progress.
        done: steps done.
        total: the number of steps; 0 if unknown.
        trouble: why it failed; empty if it did not.
    """

    doing: str = ""
    done: int = 0
    total: int = 0
    trouble: str = ""


class Worker:
    """A process that does one request after another, started when it is first needed.

    Args:
        command: what to start; see ``choosing``.
        lock: held while anything here is looked at.
        take: called with each line that comes, and the request that it answers.
    """

    def __init__(self, command: Sequence[str], lock: threading.RLock, take: Callable[[Request, Reply], None]) -> None:
        self._command, self._lock, self._take = command, lock, take
        self._process: subprocess.Popen[str] | None = None
        self._listener: threading.Thread | None = None
        self._line: deque[Request] = deque()
        self._under_way: Request | None = None
        self._is_closed = False

    @property
    def requests(self) -> list[Request]:
        """The request in progress, and those that wait."""
        return [*([] if self._under_way is None else [self._under_way]), *self._line]

    def add(self, request: Request, *, first: bool = False) -> None:
        """Add a request, before all that wait if it is `first`."""
        self._line.insert(0 if first else len(self._line), request)
        self._go_on()

    def close(self) -> None:
        """End the process; what it has written to the project stays."""
        with self._lock:
            self._is_closed = True
            process, listener = self._process, self._listener
        if process is not None and listener is not None:
            process.kill()
            listener.join()

    def _go_on(self) -> None:
        """Send the next request, if none is in progress."""
        if self._under_way is not None or not self._line or self._is_closed:
            return
        if self._process is None or self._process.poll() is not None:
            self._process = self._started()
        assert self._process.stdin is not None
        self._under_way = self._line.popleft()
        try:
            self._process.stdin.write(json.dumps(self._under_way) + "\n")
            self._process.stdin.flush()
        except (OSError, ValueError):  # it has just ended
            self._ended(self._process)

    def _started(self) -> "subprocess.Popen[str]":
        with safe_path():
            process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8",
                start_new_session=True,  # Ctrl-C is for the server, which ends this process
            )  # fmt: skip
        self._listener = threading.Thread(target=self._listen, args=(process,), daemon=True)
        self._listener.start()
        return process

    def _listen(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                with self._lock:
                    self._answered(json.loads(line))
        process.wait()
        with suppress(OSError):  # what it did not read any more
            process.stdin.close()
        with self._lock:
            self._ended(process)

    def _answered(self, answer: Reply) -> None:
        request = self._under_way or {}
        if "done" in answer:
            self._under_way = None
        self._take(request, answer)
        self._go_on()

    def _ended(self, process: "subprocess.Popen[str]") -> None:
        """Report a process that has ended; the request in progress, if any, has failed."""
        if self._process is process and self._under_way is not None and not self._is_closed:
            self._line.clear()
            self._answered({"done": self._under_way["do"], "trouble": ENDED})


class ProcessChooser:
    """Chooses, measures, searches and lays out the map, each in a process of its own, so that none keeps the others.

    Args:
        folder: of the project.
        allow_imports: import code that `project.toml` names by path.
    """

    def __init__(self, folder: Path, *, allow_imports: bool = False) -> None:
        command = [sys.executable, "-P", "-m", "batchbalance.project.page.choosing", str(folder.resolve())]
        command += ["--allow-imports"] if allow_imports else []
        self._lock = threading.RLock()
        self._chooser = Worker(command, self._lock, self._take)
        measurer, finder, drawer = (Worker(command, self._lock, self._take) for _ in range(3))
        self._workers = {
            "status": measurer, "suspects": measurer, "doubtful": measurer,
            "find": finder, "search": finder, "map": finder, "opinions": finder, "layout": drawer,
        }  # fmt: skip
        self._shown = ChoiceProgress(DOING)
        self._trouble = ""
        self._in_vain: dict[Who, int] = {}  # revisions at which nothing was left to ask
        self._insights: dict[str, Mapping[str, Any] | None] = {}
        self._threshold: Mapping[str, Any] | None = None
        self._replies: dict[str, Reply] = {}  # the latest without an error, with the revision that it is of

    def want(self, who: Who, revision: int) -> None:
        """Ask a person another batch, unless that is in progress, or nothing was left and nothing has changed."""
        with self._lock:
            if not (self._is_asking(who) or self._trouble or self._in_vain.get(who) == revision):
                self._chooser.add({"do": "ask", "who": who, "revision": revision}, first=True)

    def explain(self, names: Sequence[str]) -> None:
        """Explain items that were not explained yet."""
        with self._lock:
            coming = {name for each in self._chooser.requests for name in each.get("ids", ())}
            is_asking = any(each["do"] == "ask" for each in self._chooser.requests)  # which explains all that is open
            new = [name for name in names if name not in self._insights and name not in coming]
            if new and not is_asking and not self._trouble:
                self._chooser.add({"do": "explain", "ids": new})

    def choosing(self, who: Who) -> ChoiceProgress:
        """Return the progress of choosing for a person."""
        with self._lock:
            if self._trouble:
                return ChoiceProgress(trouble=self._trouble)
            return self._shown if self._is_asking(who) else ChoiceProgress()

    def is_explained(self, name: str) -> bool:
        """Return whether an item was explained."""
        with self._lock:
            return name in self._insights

    def insight(self, name: str) -> Mapping[str, Any] | None:
        """Return the explanation of an item; None if there is none."""
        with self._lock:
            return self._insights.get(name)

    def threshold(self) -> Mapping[str, Any] | None:
        """Return from which confidence on guesses are sure enough; None before there is a model."""
        with self._lock:
            return self._threshold

    def latest(self, request: Request, revision: int) -> tuple[Reply | None, bool]:
        """Return the latest reply to a request, and whether it is of this revision; if not, a newer one is computed.

        Args:
            request: what to do, such as ``{"do": "status"}``.
            revision: what the reply depends on; any number that changes with it.
        """
        key = json.dumps(request, sort_keys=True)
        with self._lock:
            found = self._replies.get(key)
            is_current = found is not None and found["revision"] == revision
            worker = self._workers[request["do"]]
            if not is_current and not any(each.get("key") == key for each in worker.requests):
                worker.add(request | {"key": key, "revision": revision}, first=request["do"] in ("find", "search"))
            return found, is_current

    def try_again(self) -> None:
        """Forget earlier errors."""
        with self._lock:
            self._trouble = ""
            self._in_vain.clear()
            self._replies = {key: reply for key, reply in self._replies.items() if "trouble" not in reply}

    def close(self) -> None:
        """End the processes."""
        for each in {self._chooser, *self._workers.values()}:
            each.close()

    def _is_asking(self, who: Who) -> bool:
        return any(each["do"] == "ask" and each["who"] == who for each in self._chooser.requests)

    def _take(self, request: Request, answer: Reply) -> None:
        """Handle a line from one of the processes."""
        if "doing" in answer:
            if request.get("do") == "ask":
                self._shown = ChoiceProgress(LABELS.get(answer["doing"], DOING), answer["steps"], answer["total"])
            return
        if answer["done"] == "ask":
            self._shown, self._trouble = ChoiceProgress(DOING), answer.get("trouble", "")
            if not answer.get("added"):
                self._in_vain[request["who"]] = request["revision"]
        if "key" in request:
            before = self._replies.pop(request["key"], {}) if "trouble" in answer else {}
            self._replies[request["key"]] = before | answer | {"revision": request["revision"]}
            while len(self._replies) > KEPT:
                del self._replies[next(iter(self._replies))]
            return
        self._threshold = answer.get("threshold", self._threshold)
        found = answer.get("insights", {})
        self._insights |= {name: found.get(name) for name in [*answer.get("ids", ()), *request.get("ids", ())]}

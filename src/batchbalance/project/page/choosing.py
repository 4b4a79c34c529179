"""The process that chooses and explains items: ``python -m batchbalance.project.page.choosing FOLDER``.

It reads requests from standard input and writes answers to standard output, each a line of JSON. It ends with its
input, so that it never outlives the server.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO

from batchbalance.errors import NothingLeftError, sentence
from batchbalance.project import Project
from batchbalance.project.insight import Insight
from batchbalance.system.progress import told_to

EVERY_SECONDS = 0.1  # the least time between two lines of progress
NICENESS = 5  # the page comes first


class RequestHandler:
    """Answers requests about a project.

    Args:
        project: open.
        answer: takes each answer.
    """

    def __init__(self, project: Project, answer: Callable[[dict[str, Any]], None]) -> None:
        self._project, self._answer = project, answer
        self._last = 0.0

    def take(self, request: dict[str, Any]) -> None:
        """Do what a request says; the last answer to it has a key `done`."""
        self._last = 0.0
        done: dict[str, Any] = {"done": request["do"]}
        try:
            with told_to(self._tell):
                done |= {"ask": self._ask, "explain": self._explain, "status": self._status}[request["do"]](request)
        except NothingLeftError:
            done["added"] = 0
        except Exception as error:  # the server tells people, and lives on
            done["trouble"] = sentence(error)
        self._answer(done)

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        project, who = self._project, request["who"]
        before = len(project.open_questions(who))
        batch = project.ask(before + project.settings.batch_size, who)
        return {"added": len(batch) - before} | self._explain({"ids": list(batch.ids)})

    def _explain(self, request: dict[str, Any]) -> dict[str, Any]:
        found = self._project.explain(request["ids"]) or []
        return {"ids": request["ids"], "insights": {each.id: as_plain(each) for each in found}}

    def _status(self, _: dict[str, Any]) -> dict[str, Any]:
        return {"status": self._project.status().as_dict()}

    def _tell(self, label: str, done: int, total: int | None) -> None:
        now = time.monotonic()
        if now - self._last >= EVERY_SECONDS:
            self._last = now
            self._answer({"doing": label, "steps": done, "total": total or 0})


def as_plain(insight: Insight) -> dict[str, Any]:
    """Return an insight, ready for JSON."""
    return {
        "guess": insight.guess,
        "votes": [list(vote) for vote in insight.votes],
        "draws": insight.num_draws,
        "groups": [{"class": group.label, "draws": group.num_draws} for group in insight.groups],
        "apart": insight.apart,
        "like": [{"id": name, "label": label} for name, label in insight.like],
    }


@contextmanager
def lines_only() -> Iterator[TextIO]:
    """Reserve standard output for our lines; what anything else prints goes to standard error."""
    ours = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    with ours:
        yield ours


def main(folder: str, allow_imports: bool) -> None:
    """Answer requests until there are no more."""
    with suppress(AttributeError, OSError):  # not on every system
        os.nice(NICENESS)
    with lines_only() as out:

        def answer(content: dict[str, Any]) -> None:
            out.write(json.dumps(content) + "\n")
            out.flush()

        handler = RequestHandler(Project.open(folder, allow_imports=allow_imports, progress=True), answer)
        for line in sys.stdin:
            handler.take(json.loads(line))


if __name__ == "__main__":
    try:
        with suppress(KeyboardInterrupt, BrokenPipeError):
            main(sys.argv[1], "--allow-imports" in sys.argv[2:])
    except (ValueError, OSError) as error:  # such as a project that is gone by now
        sys.exit(sentence(error))

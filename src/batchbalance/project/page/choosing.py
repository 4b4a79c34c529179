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
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from batchbalance.errors import NothingLeftError, sentence
from batchbalance.project import Project
from batchbalance.project.doubtful import doubtful
from batchbalance.project.embeddings import RECORD
from batchbalance.project.insight import Insight
from batchbalance.project.learning import Trained
from batchbalance.project.mapping import Space, as_bytes, model_bytes, neighbour_plane, principal_plane
from batchbalance.project.page.chooser import MAP_FOLDER
from batchbalance.project.state import State
from batchbalance.project.store import digest_of
from batchbalance.system.files import replacing
from batchbalance.system.progress import progress, told_to

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
                done |= getattr(self, f"_{request['do']}")(request)
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
        told = {"ids": request["ids"], "insights": {each.id: as_plain(each) for each in found}}
        if not found:
            return told
        state, vectors, model = self._modelled()
        return told | {"threshold": asdict(self._project.model.accept_threshold(state, vectors, model))}

    def _modelled(self) -> tuple[State, np.ndarray, Trained]:
        """Return the state, the embeddings and the model of now."""
        state, vectors = self._project.store.snapshot(), self._project.embeddings.array()
        return state, vectors, self._project.model.required(state, vectors)

    def _status(self, _: dict[str, Any]) -> dict[str, Any]:
        return {"status": self._project.status().as_dict()}

    def _suspects(self, _: dict[str, Any]) -> dict[str, Any]:
        """Return suspected labels; not those of the audit set, where looking by the model's advice would flatter it."""
        found = [each for each in self._project.suspects() if not each.is_audit]
        return {"suspects": [[each.item.id, each.label, each.suggested, each.wrong] for each in found]}

    def _doubtful(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return suggestions by machines that are most likely wrong."""
        project, state, vectors = self._project, self._project.store.snapshot(), self._project.embeddings.array()
        free = project.questions.free_rows(state, None) & ~project.store.is_audit
        trained = project.model.trained(state, vectors)
        found = doubtful(state, vectors, trained, free, request["count"], project.questions.metric)
        names = project.ids([each.row for each in found])
        return {
            "doubtful": [
                [name, each.source, state.classes[each.label], each.wrong]
                for name, each in zip(names, found, strict=True)
            ]
        }

    def _find(self, request: dict[str, Any]) -> dict[str, Any]:
        found = self._project.find([request["like"]], n=request["count"], annotator=request["who"])
        return {"ids": [each.id for each in found]}

    def _search(self, request: dict[str, Any]) -> dict[str, Any]:
        store = self._project.store
        return {"ids": store.ids(store.matching(request["text"], request["count"]))}

    def _map(self, _: dict[str, Any]) -> dict[str, Any]:
        return self._kept("pca", lambda space: principal_plane(space))

    def _layout(self, _: dict[str, Any]) -> dict[str, Any]:
        return self._kept("tsne", lambda space: neighbour_plane(space, self._project.settings.seed))

    def _kept(self, name: str, make: Callable[[Space], np.ndarray]) -> dict[str, Any]:
        """Compute coordinates of all items, unless that was done before; return the name of their file."""
        vectors, settings = self._project.embeddings.array(), self._project.settings
        record = self._project.folder / RECORD
        made = record.read_bytes() if record.is_file() else b""
        path = self._map_file(f"{name}-{len(vectors)}-{digest_of(made)[:8]}")
        if not path.is_file():
            with progress("laying out the map", None, True):
                plane = make(Space(vectors, metric=self._project.questions.metric, seed=settings.seed))
            self._write(path, as_bytes(plane), f"{name}-*")
        return {"file": path.name}

    def _opinions(self, _: dict[str, Any]) -> dict[str, Any]:
        """Compute what the model says about every item; return the name of the file, None before there is a model."""
        try:
            state, vectors, model = self._modelled()
        except ValueError:
            return {"file": None}
        path = self._map_file(f"model-{state.last_change}")
        if not path.is_file():
            is_hidden = self._project.store.set_aside(state)
            is_hidden[list(state.tests)] = True
            self._write(path, model_bytes(model, vectors, is_hidden), "model-*")
        return {"file": path.name}

    def _map_file(self, name: str) -> Path:
        return self._project.folder / MAP_FOLDER / f"{name}.bin"

    def _write(self, path: Path, content: bytes, older: str) -> None:
        """Write a file of the map, and remove earlier ones."""
        path.parent.mkdir(exist_ok=True)
        with replacing(path) as temporary:
            temporary.write_bytes(content)
        for other in path.parent.glob(older):
            if other != path:
                other.unlink(missing_ok=True)

    def _tell(self, label: str, done: int, total: int | None) -> None:
        now = time.monotonic()
        if now - self._last >= EVERY_SECONDS:
            self._last = now
            self._answer({"doing": label, "steps": done, "total": total or 0})


def as_plain(insight: Insight) -> dict[str, Any]:
    """Return an insight, ready for JSON."""
    return {
        "guess": insight.guess,
        "confidence": insight.confidence,
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

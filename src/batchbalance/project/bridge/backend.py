"""An ML backend for Label Studio: its four routes, behind the guard of the page.

Requests need a token, and even then are not trusted: `/predict` only reads, and `/webhook` only triggers a pull from
the server with our own token.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Any

from batchbalance.errors import MissingExtraError
from batchbalance.project import Project
from batchbalance.project.bridge.client import Server
from batchbalance.project.bridge.labelstudio import ASKER, Pulled, guesses_of, is_anything_left, pull, push
from batchbalance.project.bridge.link import Link
from batchbalance.project.bridge.tasks import ITEM, choice

try:
    from starlette.applications import Starlette
    from starlette.background import BackgroundTask
    from starlette.concurrency import run_in_threadpool
    from starlette.requests import Request
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    from batchbalance.project.page.guard import Credentials, Guard, json_content
except ImportError as error:
    raise MissingExtraError("an ML backend for Label Studio", "label") from error

LAST = 1.0  # the score of tasks that are not asked
MOST_BYTES = 50_000_000  # in a request


class Backend:
    """The operations behind the routes.

    Args:
        project: the project.
        link: the link to the Label Studio project.
        server: the server.
        guesses: show the model's predictions, except for audit items.
        say: called with each message.
    """

    def __init__(
        self, project: Project, link: Link, server: Server, *, guesses: bool, say: Callable[[str], None]
    ) -> None:
        self.project, self.link, self.server = project, link, server
        self.guesses, self.say = guesses, say
        self._busy, self._is_due = threading.Lock(), threading.Event()

    def version(self) -> str:
        """Return a version that changes with every event."""
        return f"batchbalance after {len(self.project.events())} events"

    def predictions(self, tasks: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return one prediction for each task: its position in the batch as the score, and a guess if enabled."""
        known = set(self.project.ids())
        items = [_item(task) for task in tasks]
        asked = {name: rank for rank, name in enumerate(self.project.open_questions(ASKER))}
        guessed = guesses_of(self.project, [name for name in items if name in known]) if self.guesses else {}
        return [
            {
                "model_version": self.version(),
                "score": asked[name] / len(asked) if name in asked else LAST,
                "result": choice(self.link.control, self.link.object, guessed[name]) if name in guessed else [],
            }
            for name in items
        ]

    def catch_up(self) -> None:
        """Pull, and push the next batch if one is done. Webhooks that arrive meanwhile share one run."""
        self._is_due.set()
        while self._is_due.is_set() and self._busy.acquire(blocking=False):
            try:
                self._is_due.clear()
                self._pull_and_push()
            finally:
                self._busy.release()

    def _pull_and_push(self) -> None:
        try:
            pulled: Pulled = pull(self.project, self.link, self.server)
            for note in (pulled.sentence(), *pulled.notes):
                if note:
                    self.say(note)
            if not pulled.left and is_anything_left(self.project):
                self.say(push(self.project, self.link, self.server, guesses=self.guesses).sentence())
        except (ValueError, OSError) as error:
            self.say(str(error))


def backend_app(backend: Backend, token: str, hosts: Sequence[str]) -> Guard:
    """Return the application: `/health`, `/setup`, `/predict` and `/webhook`, for requests that have the token.

    Args:
        backend: the operations behind the routes.
        token: see `Credentials`.
        hosts: the accepted host names and addresses of this server.
    """

    async def health(request: Request) -> JSONResponse:  # noqa: ARG001
        return JSONResponse({"status": "UP", "model_class": "batchbalance"})

    async def setup(request: Request) -> JSONResponse:  # noqa: ARG001
        return JSONResponse({"model_version": backend.version()})

    async def predict(request: Request) -> JSONResponse:
        content = await json_content(request)
        tasks = content.get("tasks") if isinstance(content, dict) else None
        if not isinstance(tasks, list) or not all(isinstance(task, dict) for task in tasks):
            return JSONResponse({"error": "`tasks` must be a list of tasks"}, 400)
        return JSONResponse({"results": await run_in_threadpool(backend.predictions, tasks)})

    async def webhook(request: Request) -> JSONResponse:
        await json_content(request)
        return JSONResponse({"status": "ok"}, 201, background=BackgroundTask(backend.catch_up))

    routes = [
        Route("/health", health, methods=["GET"]),
        Route("/setup", setup, methods=["POST"]),
        Route("/predict", predict, methods=["POST"]),
        Route("/webhook", webhook, methods=["POST"]),
    ]
    return Guard(Starlette(routes=routes), Credentials(token), hosts, MOST_BYTES)


def _item(task: dict[str, Any]) -> str:
    data = task.get("data")
    return str(data.get(ITEM, "")) if isinstance(data, dict) else ""

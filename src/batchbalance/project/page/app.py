"""The addresses of the server: the page, its files, items by id, and questions and answers as JSON."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from batchbalance.errors import sentence
from batchbalance.project.page.exploring import Explorer
from batchbalance.project.page.guard import json_content
from batchbalance.project.page.page import Page
from batchbalance.project.page.reviewing import Review
from batchbalance.project.state import Who
from batchbalance.system import markup
from batchbalance.system.ids import mended

STATIC = Path(__file__).parent / "static"
LOOK = Path(markup.__file__).with_name("look.css")
MOST_SECONDS = 600.0
MOST_NOTE = 2000


def make_app(page: Page) -> Starlette:
    """Return the application. It needs a `Guard` around it, which tells who sent a request."""
    review, explorer = Review(page), Explorer(page)

    def changing(action: Callable[[Who, "Body"], dict[str, Any]]) -> Callable[[Request], Any]:
        async def endpoint(request: Request) -> Response:
            body = Body(await json_content(request))
            return JSONResponse(await run_in_threadpool(action, request.state.who, body))

        return endpoint

    def looking(action: Callable[[Who, Mapping[str, str]], dict[str, Any] | Response]) -> Callable[[Request], Any]:
        async def endpoint(request: Request) -> Response:
            found = await run_in_threadpool(action, request.state.who, request.query_params)
            return found if isinstance(found, Response) else JSONResponse(found)

        return endpoint

    def post(path: str, action: Callable[[Who, "Body"], dict[str, Any]]) -> Route:
        return Route(path, changing(action), methods=["POST"])

    def get(path: str, action: Callable[[Who, Mapping[str, str]], dict[str, Any] | Response]) -> Route:
        return Route(path, looking(action), methods=["GET"])

    routes = [
        Route("/", lambda _: FileResponse(STATIC / "index.html", media_type="text/html"), methods=["GET"]),
        get("/api/facts", lambda who, _: page.facts(who)),
        get("/api/situation", lambda who, _: page.situation(who)),
        get("/api/history", lambda who, query: page.history(who, whole(query.get("skip", "0")))),
        get("/api/why", lambda who, query: page.why(who, query.get("item", ""))),
        get("/api/guess", lambda who, query: page.guess(who, query.get("item", ""))),
        get("/api/grid", lambda who, _: page.grid(who)),
        get("/api/progress", lambda who, _: page.progress(who)),
        get("/api/review", lambda who, _: review.listed(who)),
        get("/api/search", lambda who, query: explorer.search(who, query.get("text", ""), whole(query.get("at", "")))),
        get("/api/like", lambda who, query: explorer.like(who, query.get("item", ""), whole(query.get("at", "")))),
        get("/api/map", lambda who, _: explorer.map(who)),
        get("/api/items", lambda who, query: explorer.items(who, [*map(whole, query.get("rows", "").split(","))])),
        get("/map/labels", lambda _who, _: explorer.labels()),
        get("/map/file", lambda _who, query: explorer.file(query.get("name", ""))),
        get("/image", lambda who, query: page.image(who, query.get("item", ""), query.get("size", "full"))),
        post("/api/label", lambda who, body: page.label(who, {body.item: body.text("label")}, body.seconds)),
        post("/api/confirm", lambda who, body: page.label(who, body.answers, body.seconds)),
        post("/api/found", lambda who, body: explorer.label(who, body.item, body.text("label"), body.seconds)),
        post("/api/queue", lambda who, body: explorer.queue(who, body.rows)),
        post("/api/decide", lambda who, body: review.decide(who, body.item, body.choice)),
        post("/api/skip", lambda who, body: page.skip(who, body.item)),
        post("/api/flag", lambda who, body: page.flag(who, body.item, body.note, body.is_true("skip"))),
        post("/api/undo", lambda who, _: page.undo(who)),
        post("/api/again", lambda who, _: page.try_again(who)),
        post("/api/skipped", lambda who, _: page.ask_skipped(who)),
        Route("/static/look.css", lambda _: FileResponse(LOOK, media_type="text/css"), methods=["GET"]),
        Mount("/static", StaticFiles(directory=STATIC)),
    ]
    return Starlette(routes=routes, exception_handlers={HTTPException: _told, ValueError: _told, OSError: _told})


class Body:
    """The JSON object of a request, checked as it is read. Who sent it is never read from it."""

    def __init__(self, value: Any) -> None:
        if not isinstance(value, dict):
            raise HTTPException(400, "The request must be a JSON object.")
        self._value = value

    def text(self, name: str) -> str:
        """Return a required text."""
        found = self._value.get(name)
        if not isinstance(found, str) or mended(found) != found:
            raise HTTPException(400, f"The request must have a text {name!r} of valid Unicode.")
        return found

    @property
    def item(self) -> str:
        """The id of the item that the request is about."""
        return self.text("item")

    @property
    def note(self) -> str:
        """What was written about it."""
        return self.text("note").strip()[:MOST_NOTE]

    def is_true(self, name: str) -> bool:
        """Return a flag; False if it is omitted."""
        return self._value.get(name) is True

    @property
    def seconds(self) -> float | None:
        """How long it took, up to `MOST_SECONDS`; None if that was not said."""
        found = self._value.get("seconds")
        if found is None:
            return None
        if isinstance(found, bool) or not isinstance(found, int | float) or not 0 <= found <= 1e300:
            raise HTTPException(400, "`seconds` must be a number of at least 0.")
        return float(min(found, MOST_SECONDS))

    @property
    def choice(self) -> str | None:
        """A label, or None to keep what there is."""
        return None if self._value.get("label") is None else self.text("label")

    @property
    def rows(self) -> list[int]:
        """The numbers of items."""
        found = self._value.get("rows")
        if not isinstance(found, list) or any(type(each) is not int or each < 0 for each in found):
            raise HTTPException(400, "The request must have a list of rows.")
        return found

    @property
    def answers(self) -> dict[str, str]:
        """The labels of the request, by id."""
        found = self._value.get("answers")
        if not isinstance(found, list) or not found:
            raise HTTPException(400, "The request must have a list of answers.")
        each = [Body(value) if isinstance(value, dict) else Body({}) for value in found]
        return {one.item: one.text("label") for one in each}


def whole(text: str) -> int:
    """Return a non-negative whole number; 0 if the text is not one."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0


async def _told(_: Request, error: Exception) -> Response:
    """Return an error as one sentence, which the page shows."""
    if isinstance(error, HTTPException):
        return PlainTextResponse(error.detail, error.status_code, error.headers)
    return PlainTextResponse(mended(sentence(error)), 500)

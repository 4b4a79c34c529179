"""The addresses of the server: the page, its files, items by id, and questions and answers as JSON.

The answer to every change is the situation of the person who made it: what is next, and what was last.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from batchbalance.errors import FileFormatError, sentence
from batchbalance.project.page.desk import Chooser, Desk, Past, Shown, Who
from batchbalance.project.page.guard import json_content
from batchbalance.project.page.images import Pictures, version
from batchbalance.project.page.insight import guess_sentence, why
from batchbalance.system.ids import mended

STATIC = Path(__file__).parent / "static"
AHEAD = 4  # items that a page loads before they are shown
RECENT = 10
PER_GRID = 60
PER_HISTORY = 50
IDLE_SECONDS = 600.0
MOST_SECONDS = 600.0
MOST_NOTE = 2000
GRID_NOTE = "Guesses come with the model's next batch. Label one by one until then."
NOT_YOURS = "This item is not yours to answer: it was asked of somebody else, or went back after ten minutes."


class Page:
    """The page of one project.

    Args:
        desk: questions and answers.
        chooser: chooses and explains items.
        people: everybody who labels; None alone for somebody without a name.
        clock: seconds from any point in time.
    """

    def __init__(
        self, desk: Desk, chooser: Chooser, people: Sequence[Who], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.desk, self.chooser, self._people, self._clock = desk, chooser, people, clock
        self._pictures = Pictures(lambda: desk.roots) if desk.roots else None
        self._seen = dict.fromkeys(people, clock())
        self._first: dict[Who, str] = {}  # what a person undid comes first

    # What happens.

    def situation(self, who: Who) -> dict[str, Any]:
        """What a person sees now."""
        self._touch(who)
        desk = self.desk
        questions = desk.questions(who)
        first = self._first.get(who)
        if first in questions:
            questions.remove(first)
            questions.insert(0, first)
        if len(questions) <= max(3, desk.batch_size // 4):
            self.chooser.want(who, desk.revision)
        self.chooser.explain(questions[:AHEAD])
        recent = desk.history(who, 0, RECENT)
        counts = desk.counts()
        choosing = self.chooser.choosing(who)
        return {
            "queue": [self.shown(name) for name in questions[:AHEAD]],
            "recent": [self._past(each) for each in recent],
            "canUndo": bool(recent),
            "today": counts.today,
            "total": counts.total,
            "taken": desk.num_taken(who),
            "skipped": desk.num_skipped(who),
            "choosing": {
                "doing": choosing.doing, "done": choosing.done, "total": choosing.total, "trouble": choosing.trouble,
            },
        }  # fmt: skip

    def label(self, who: Who, answers: Mapping[str, str], seconds: float | None) -> dict[str, Any]:
        """Take in labels."""
        for name, label in answers.items():
            self._check_mine(name, who)
            if label not in self.desk.classes:
                raise HTTPException(400, f"The label must be one of the classes, got {label!r}.")
        self.desk.label(answers, who, seconds)
        return self.situation(who)

    def skip(self, who: Who, name: str) -> dict[str, Any]:
        """Pass an item over."""
        self._check_mine(name, who)
        self.desk.skip(name, who)
        return self.situation(who)

    def flag(self, who: Who, name: str, note: str, skip: bool) -> dict[str, Any]:
        """Mark an item, and maybe pass it over."""
        self._check_mine(name, who)
        self.desk.flag(name, note, who)
        return self.skip(who, name) if skip else self.situation(who)

    def undo(self, who: Who) -> dict[str, Any]:
        """Undo what this person did last."""
        name = self.desk.undo(who)
        if name is None:
            raise HTTPException(409, "There is nothing to undo.")
        self._first[who] = name
        return self.situation(who)

    def ask_skipped(self, who: Who) -> dict[str, Any]:
        """Ask this person again what they skipped."""
        self.desk.ask_skipped(who)
        return self.situation(who)

    def try_again(self, who: Who) -> dict[str, Any]:
        """Choose again after trouble."""
        self.chooser.try_again()
        return self.situation(who)

    # What can be looked at.

    def facts(self, who: Who) -> dict[str, Any]:
        """What stays the same."""
        desk = self.desk
        return {
            "project": desk.name, "classes": list(desk.classes), "instructions": desk.instructions, "annotator": who,
        }  # fmt: skip

    def history(self, who: Who, skip: int) -> dict[str, Any]:
        """Earlier answers of this person."""
        return {"answers": [self._past(each) for each in self.desk.history(who, skip, PER_HISTORY)]}

    def why(self, who: Who, name: str) -> dict[str, Any]:
        """Why an item was asked."""
        self._check_mine(name, who)
        found = why(self.desk.reason(name), self.desk.is_audit(name), self.chooser.insight(name))
        found["isPending"] = self._is_pending(name)
        found["like"] = [
            {"item": self.shown(each["id"]), "label": each["label"]}
            for each in found.get("like", [])
            if self.desk.may_see(each["id"], who)
        ]
        return found

    def guess(self, who: Who, name: str) -> dict[str, Any]:
        """What the model says about an item, unless that item measures the model."""
        self._check_mine(name, who)
        sentence = guess_sentence(self.desk.is_audit(name), self.chooser.insight(name))
        return {"sentence": sentence, "isPending": self._is_pending(name)}

    def grid(self, who: Who) -> dict[str, Any]:
        """Open questions with the model's guesses; never items that measure the model."""
        self._touch(who)
        names = [name for name in self.desk.questions(who) if not self.desk.is_audit(name)][:PER_GRID]
        self.chooser.explain(names)
        guesses = {name: (self.chooser.insight(name) or {}).get("guess") for name in names}
        tiles = [{"item": self.shown(name), "guess": guess} for name, guess in guesses.items() if guess is not None]
        is_unexplained = any(not self.chooser.is_explained(name) for name in names)
        is_pending = not tiles and (is_unexplained or bool(self.chooser.choosing(who).doing))
        return {"tiles": tiles, "note": GRID_NOTE, "isPending": is_pending}

    def progress(self) -> dict[str, Any]:
        """How far everything is."""
        counts, desk = self.desk.counts(), self.desk
        people = [{"name": name or "no name", "count": count} for name, count in counts.people.items()]
        classes = [{"name": name, "count": counts.classes.get(name, 0)} for name in desk.classes]
        status = self.chooser.status(desk.revision)
        return {"today": counts.today, "total": counts.total, "people": people, "classes": classes, "status": status}

    def image(self, who: Who, name: str, size: str) -> Response:
        """An image by the id of its item."""
        try:
            is_allowed = self.desk.may_see(name, who)
        except ValueError:
            is_allowed = False
        if not is_allowed:
            raise HTTPException(403, "This item is not yours to see, or there is none of that name.")
        file = self.desk.item(name).file
        if file is None or self._pictures is None:
            raise HTTPException(404, "This item is no image.")
        try:
            found = self._pictures.small(file) if size == "small" else self._pictures.full(file)
        except (FileFormatError, OSError) as error:
            raise HTTPException(415, str(error)) from error
        return Response(found.content, media_type=found.media_type, headers={"cache-control": "private, max-age=86400"})

    def shown(self, name: str) -> dict[str, Any]:
        """An item, ready for JSON."""
        item: Shown = self.desk.item(name)
        return {
            "id": item.id, "kind": item.kind, "text": item.text, "fields": [list(pair) for pair in item.fields],
            "version": "" if item.file is None else version(item.file),
        }  # fmt: skip

    def _past(self, past: Past) -> dict[str, Any]:
        return {"item": self.shown(past.id), "kind": past.kind, "label": past.label, "note": past.note}

    def _is_pending(self, name: str) -> bool:
        """Whether the model is still to be heard about an item."""
        self.chooser.explain([name])
        return not self.desk.is_audit(name) and not self.chooser.is_explained(name)

    def _check_mine(self, name: str, who: Who) -> None:
        try:
            is_mine = self.desk.may_answer(name, who)
        except ValueError as error:
            raise HTTPException(404, "There is no item of that name.") from error
        if not is_mine:
            raise HTTPException(403, NOT_YOURS)

    def _touch(self, who: Who) -> None:
        """Note that a person is there, and take back what others left for ten minutes."""
        now = self._clock()
        self._seen[who] = now
        for other, last in self._seen.items():
            if other != who and now - last >= IDLE_SECONDS:
                self.desk.give_back(other)
                self._seen[other] = now


def make_app(page: Page) -> Starlette:
    """The application. It needs a `Guard` around it, which says who is there."""

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
        get("/api/progress", lambda _who, _: page.progress()),
        get("/image", lambda who, query: page.image(who, query.get("item", ""), query.get("size", "full"))),
        post("/api/label", lambda who, body: page.label(who, {body.item: body.text("label")}, body.seconds)),
        post("/api/confirm", lambda who, body: page.label(who, body.answers, body.seconds)),
        post("/api/skip", lambda who, body: page.skip(who, body.item)),
        post("/api/flag", lambda who, body: page.flag(who, body.item, body.note, body.is_true("skip"))),
        post("/api/undo", lambda who, _: page.undo(who)),
        post("/api/again", lambda who, _: page.try_again(who)),
        post("/api/skipped", lambda who, _: page.ask_skipped(who)),
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
        """A text that must be there."""
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
        """A switch, off if it is omitted."""
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
    def answers(self) -> dict[str, str]:
        """The labels of the request, by id."""
        found = self._value.get("answers")
        if not isinstance(found, list) or not found:
            raise HTTPException(400, "The request must have a list of answers.")
        each = [Body(value) if isinstance(value, dict) else Body({}) for value in found]
        return {one.item: one.text("label") for one in each}


def whole(text: str) -> int:
    """A whole number from 0 on; 0 if the text is none."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0


async def _told(_: Request, error: Exception) -> Response:
    """Trouble as one sentence, which the page shows."""
    if isinstance(error, HTTPException):
        return PlainTextResponse(error.detail, error.status_code, error.headers)
    return PlainTextResponse(mended(sentence(error)), 500)

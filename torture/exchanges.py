"""What others send: odd requests to the page, and a Label Studio that talks nonsense."""

import asyncio
import json
import threading
import traceback
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import urlencode, urlsplit

from batchbalance.errors import sentence
from batchbalance.project import Project
from batchbalance.project.bridge import Link, link, pull, push
from batchbalance.project.bridge.client import Server
from batchbalance.project.page.app import make_app
from batchbalance.project.page.chooser import ChoiceProgress, ProcessChooser
from batchbalance.project.page.guard import Guard, Sessions
from batchbalance.project.page.page import Page
from torture.campaign import Finding, campaign
from torture.fuzz import mutated
from torture.projects import begin

TOKEN = "mark-secret"
ODD: list[Any] = [
    None, True, -1, 0, 10**400, 1e308, "", "x", "\ud800", "\x00", "=cmd()", "../../etc/passwd", "a" * 5000, [], {},
    [[]], [None], {"a": None}, {"item": "0"}, "1" * 5000, [1] * 100, "0", "a",
]  # fmt: skip
PATHS = [
    "/", "/api/facts", "/api/situation", "/api/history", "/api/why", "/api/guess", "/api/grid", "/api/progress",
    "/image", "/api/label", "/api/confirm", "/api/skip", "/api/flag", "/api/undo", "/api/again", "/api/skipped",
    "/static/main.js", "/static/\x00", "/static/%00", "/static/../app.py", "//", "/api/label/", "/\udcff",
    "/api/../api/facts",
]  # fmt: skip
HEADERS = {
    "host": ["127.0.0.1", "127.0.0.1:1", "[::1]", "[::1", "evil", "", "127.0.0.1:99999999", "a b", "127.0.0.1@x"],
    "origin": ["http://127.0.0.1", "null", "http://[::1", "http://[", "http://\xff", "", "http://127.0.0.1:1"],
    "cookie": [f"c-mark={TOKEN}", "c-mark=", "=;=;", "c-mark=\xff", "", f"x; c-mark={TOKEN}; c-mark=1"],
    "content-type": ["application/json", "text/plain", "", "application/json; charset=\xff"],
    "content-length": ["0", "-1", "9" * 40, "x", "٣"],
    "sec-fetch-site": ["same-origin", "cross-site", "\xff"],
    "if-modified-since": ["x", "Thu, 01 Jan 1970 00:00:00 GMT"],
    "range": ["bytes=0-", "bytes=9-1", "bytes=x", "bytes=0-1,2-3", "bytes=-"],
}


class Idle(ProcessChooser):
    """Chooses nothing, and starts no process."""

    def __init__(self) -> None:
        pass

    def choosing(self, _: Any) -> ChoiceProgress:
        """Tell that nothing is under way."""
        return ChoiceProgress()

    def latest(self, *_: Any) -> tuple[None, bool]:
        """Tell that there is no reply yet."""
        return None, False

    def __getattribute__(self, name: str) -> Any:
        is_own = name in ("choosing", "latest", "__class__")
        return object.__getattribute__(self, name) if is_own else lambda *_, **__: None


def any_body(random: Random, names: list[str]) -> bytes:
    """A body as the page sends it, with something odd in it, or bytes."""
    odd = [*ODD, *names]
    keys = ("item", "label", "seconds", "note", "skip", "answers")
    body: Any = {key: random.choice(odd) for key in keys if random.random() < 0.8}
    if random.random() < 0.6:
        body["item"] = random.choice(names)
    if random.random() < 0.5:
        body["answers"] = [{"item": random.choice(odd), "label": random.choice(["a", "b", *odd])} for _ in range(3)]
    content = json.dumps(body if random.random() < 0.9 else random.choice(ODD)).encode()
    kind = random.random()
    if kind < 0.1:
        return b"[" * random.choice([10, 2000, 200_000])
    return mutated(content, random) if kind < 0.4 else content


def answered(app: Any, random: Random, names: list[str]) -> tuple[int, str]:
    """The status of a random request to an application, and what it was."""
    path = random.choice(PATHS)
    method = random.choice(["GET", "POST", "POST", "HEAD", "PUT", "DELETE", "OPTIONS", "\xff"])
    query = {
        key: str(random.choice([*ODD, *names])) for key in ("item", "skip", "size", "token") if random.random() < 0.4
    }
    query["as"] = "mark" if random.random() < 0.9 else "x"
    raw = urlencode(query, errors="surrogatepass").encode()
    headers = {"host": "127.0.0.1", "cookie": f"c-mark={TOKEN}", "content-type": "application/json"}
    for name, values in HEADERS.items():
        if random.random() < 0.08:
            headers[name] = random.choice(values)
    body = any_body(random, names)
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
        "path": path, "raw_path": path.encode("utf-8", "surrogateescape"), "root_path": "",
        "query_string": raw if random.random() < 0.9 else random.randbytes(20),
        "headers": [(name.encode(), value.encode("latin-1", "replace")) for name, value in headers.items()],
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 1),
    }  # fmt: skip
    sent: list[dict[str, Any]] = []
    parts = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Any:
        return parts.pop() if parts else {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    asyncio.run(app(scope, receive, send))
    return sent[0]["status"], f"{method} {path!r} {raw!r} {headers} {body[:200]!r}"


@campaign("fuzzed page", "whatever is sent to the page is answered, and changes nothing unless it is a valid answer")
def fuzzed_page(folder: Path, random: Random) -> Finding:
    """Send random requests; a status of 500 or an exception is a failure, and so is a log that cannot be exported."""
    project = begin(folder)
    names = list(project.ask(8).ids)
    page = Page(project, Idle(), [None])
    app = Guard(make_app(page), Sessions({TOKEN: None}, "c"), ["127.0.0.1"])
    changed = 0
    for _ in range(40):
        before = len(project.events())
        try:
            status, what = answered(app, random, names)
        except Exception:
            return Finding("traceback", traceback.format_exc())
        if status >= 500:
            return Finding("traceback", f"{status} to {what}")
        if len(project.events()) > before:
            changed += 1
            if status != 200:
                return Finding("different", f"{status} to {what}, and something was written")
    try:
        project.export(folder / "out.csv")
        page.situation(None)
    except Exception:
        return Finding("traceback", f"after all: {traceback.format_exc()}")
    finally:
        project.close()
    return Finding("intact", f"40 requests, {changed} answers")


class Nonsense(BaseHTTPRequestHandler):
    """A Label Studio of two tasks that now and then says something else."""

    random = Random(0)
    share = 0.0  # of answers that are nonsense
    project: Any
    tasks: list[Any]

    def answer(self) -> Any:
        """What a server would say."""
        path = urlsplit(self.path).path
        if path.endswith("/import"):
            self.tasks += [{"id": len(self.tasks) + i + 1, **each} for i, each in enumerate(self.given)]
            return {"task_ids": [each["id"] for each in self.tasks[-len(self.given) :]]}
        if path.startswith("/api/projects"):
            return self.project
        if path == "/api/tasks":
            full = [{"annotations": [self.annotation(each["id"])], "predictions": [], **each} for each in self.tasks]
            return {"tasks": full, "total": len(full)}
        return [{"id": 1, "email": "a@example.com"}] if path == "/api/users/" else {"access": "x", "release": "1"}

    def annotation(self, number: int) -> dict[str, Any]:
        """An answer of somebody."""
        part = {"from_name": "label", "to_name": "text", "type": "choices", "value": {"choices": ["cat"]}}
        moment = "2026-01-01T00:00:00Z"
        return {"id": number, "result": [part], "completed_by": 1, "updated_at": moment, "lead_time": 1.5}

    def respond(self) -> None:
        """Answer, or talk nonsense."""
        content = self.rfile.read(int(self.headers.get("content-length", 0)))
        self.given: Any = json.loads(content) if content else None
        found, status = self.answer(), 200
        body = json.dumps(found).encode()
        if self.random.random() < self.share:
            kind = self.random.randrange(4)
            body = json.dumps(odd_inside(found, self.random)).encode() if kind < 2 else mutated(body, self.random)
            if kind == 3:
                body, status = self.random.choice([b"", b"<html>", b"[" * 9999, body]), self.random.choice(STATUSES)
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = do_PATCH = respond  # noqa: N815

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


STATUSES = [200, 201, 204, 302, 400, 403, 404, 418, 500, 502]


def odd_inside(content: Any, random: Random) -> Any:
    """The same with something odd at a random place."""
    if random.random() < 0.25 or not isinstance(content, dict | list) or not content:
        return random.choice([each for each in ODD if each != 10**400] + [10**40])
    if isinstance(content, list):
        place = random.randrange(len(content))
        return [odd_inside(each, random) if i == place else each for i, each in enumerate(content)]
    key = random.choice(list(content))
    if random.random() < 0.2:
        return {name: value for name, value in content.items() if name != key}
    return {**content, key: odd_inside(content[key], random)}


@campaign("nonsense Label Studio", "push and pull with a server that talks nonsense work, or say so in one sentence")
def nonsense_labelstudio(folder: Path, random: Random) -> Finding:
    """Exchange a batch with a server on this machine whose answers are odd now and then."""
    (folder / "t.csv").write_text("text\n" + "\n".join(f"some words {i}" for i in range(12)) + "\n")
    project = Project.create(
        folder / "p", texts=folder / "t.csv", classes=["cat", "dog"], encoder="tfidf", batch_size=3, audit=0.0
    )
    mine = {"0": "dog", "1": "cat"}
    project.tell(mine, "me")
    config = {"label": {"type": "Choices", "to_name": ["text"], "inputs": [{"type": "Text", "value": "$text"}],
                        "labels": ["cat", "dog"]}}  # fmt: skip
    given = {"random": random, "project": {"id": 1, "parsed_label_config": config}, "tasks": []}
    handler = type("Now", (Nonsense,), given)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as there:
        thread = threading.Thread(target=there.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            return exchanged(project, handler, f"http://127.0.0.1:{there.server_port}", mine)
        finally:
            there.shutdown()
            thread.join()
            project.close()


def exchanged(project: Project, handler: Any, url: str, mine: dict[str, str]) -> Finding:
    """What some pushes and pulls come to."""
    server = Server(url, "a.b.c", patience=0.0, sleep=lambda _: None)
    made: Link = link(project, server)[0]
    handler.share, refused = 0.4, 0
    for act in (push, pull, push, pull, pull):
        try:
            act(project, made, server)
        except (ValueError, OSError) as error:
            refused += 1
            if "\n" in sentence(error) or len(sentence(error)) > 2000:
                return Finding("traceback", f"{act.__name__}: not one sentence: {error}")
        except Exception:
            return Finding("traceback", f"{act.__name__}: {traceback.format_exc()}")
        answers = {name: view.answers.get("me") for name, view in project.views().items() if name in mine}
        if answers != {name: project.classes.index(label) for name, label in mine.items()}:
            return Finding("different", f"{act.__name__}: labels of ours changed: {answers}")
    return Finding("refused" if refused else "intact", f"{refused} of 5 refused")

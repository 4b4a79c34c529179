"""A small project, somebody who chooses at once, and a client that speaks to an application without a network."""

import asyncio
import json
from dataclasses import dataclass, field
from urllib.parse import urlencode

import numpy as np

from batchbalance.learner.labels import NewEvent
from batchbalance.project import Project
from batchbalance.project.embeddings import Embeddings
from batchbalance.project.page.chooser import ChoiceProgress
from batchbalance.project.state import ANSWERS, UNDOABLE, as_value
from batchbalance.project.store import ShownItem

INSIGHT = {
    "guess": "cat", "confidence": 0.6, "votes": [["cat", 0.6], ["dog", 0.4]], "draws": 10, "apart": 0.25,
    "like": [{"id": "done", "label": "cat"}], "groups": [{"class": "cat", "draws": 6}, {"class": "dog", "draws": 4}],
}  # fmt: skip


class PageProject(Project):
    """A project of named items, who was asked which, and what each item shows."""

    @classmethod
    def make(cls, folder, asked, root=None, files=(), audit=(), others=(), classes=("cat", "dog"), **more):
        names = [*dict.fromkeys([*(name for mine in asked.values() for name in mine), *files, *others, "done"])]
        np.save(folder / "e.npy", np.eye(len(names), dtype=np.float32))
        (folder / "e.ids.txt").write_text("".join(f"{name}\n" for name in names))
        made = cls.create(folder / "fake", embeddings=folder / "e.npy", classes=classes, batch_size=4, audit=0.0,
                          instructions="Look twice.", **more)  # fmt: skip
        made.store.is_audit[made.store.rows_of(audit)] = True
        made.items = {name: ShownItem(name, name) for name in names}
        made.items |= {name: ShownItem(name, image=root / name) for name in files}
        made.embeddings.__class__ = type("Embeddings", (Embeddings,), {"roots": () if root is None else (root,)})
        for who, mine in asked.items():
            made.give(who, mine)
        return made

    def shown(self, ids):
        return [self.items[name] for name in map(str, ids) if self.store.row_of(name) is not None]

    def give(self, who, names):
        """Ask a person some items."""
        rows = self.store.rows_of(names)
        reasons = ["audit" if self.store.is_audit[row] else "margin" for row in rows]
        with self.store.writing():
            pairs = zip(rows, reasons, strict=True)
            self.store.append([NewEvent("asked", row, reason, who, batch=0) for row, reason in pairs])

    @property
    def log(self):
        """What people did and did not undo: kind, item, value, person."""
        done = [each for each in self.store.snapshot().history() if each.kind in UNDOABLE]
        names = self.ids([each.item for each in done])
        told = [each.value if each.kind not in ANSWERS else self.labelling.text(as_value(each.value)) for each in done]
        return [(each.kind, name, value, each.who) for name, each, value in zip(names, done, told, strict=True)]


class FakeChooser:
    """Knows the same about every item, and remembers what was wanted."""

    def __init__(self, insight=INSIGHT):
        self.found, self.wanted, self.trouble, self.now = insight, [], "", ChoiceProgress()
        self.least, self.replies = 0.5, {}

    def want(self, who, _revision):
        self.wanted.append(who)

    def explain(self, names):
        pass

    def choosing(self, _who):
        return ChoiceProgress(trouble=self.trouble) if self.trouble else self.now

    def is_explained(self, _name):
        return True

    def insight(self, _name):
        return self.found

    def threshold(self):
        return {"value": self.least, "right": 40, "total": 41, "source": "audit labels"}

    def latest(self, request, revision):
        """What a test put in `replies`, by what is asked for."""
        found = self.replies.get(request["do"])
        return None if found is None else found | {"revision": revision}, found is not None

    def try_again(self):
        self.trouble = ""

    def close(self):
        pass


@dataclass
class Answer:
    status: int
    headers: list
    body: bytes

    @property
    def text(self):
        return self.body.decode()

    @property
    def json(self):
        return json.loads(self.body)

    def all(self, name):
        return [value for key, value in self.headers if key == name]

    def header(self, name):
        (value,) = self.all(name)
        return value


@dataclass
class Client:
    """Sends requests to an application, with the same headers and the same query each time."""

    app: object
    headers: dict = field(default_factory=lambda: {"host": "127.0.0.1:8420"})
    query: dict = field(default_factory=dict)

    def with_headers(self, **more):
        added = {name.replace("_", "-"): value for name, value in more.items()}
        return Client(self.app, self.headers | added, self.query)

    def in_tab_of(self, token, cookie):
        """A tab that was opened with a link, in a browser that keeps cookies."""
        mark, kept = token.partition("-")[0], self.headers.get("cookie")
        cookies = [*([kept] if kept else []), f"{cookie}-{mark}={token}"]
        return Client(self.app, self.headers | {"cookie": "; ".join(cookies)}, {"as": mark})

    def get(self, path, **query):
        return self.send("GET", path, query, b"", {})

    def post(self, path, body):
        return self.send("POST", path, {}, json.dumps(body).encode(), {"content-type": "application/json"})

    def send(self, method, path, query, body, more):
        query = urlencode(self.query | query)
        headers = [(k.encode(), v.encode("latin-1")) for k, v in (more | self.headers).items() if v is not None]
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
            "path": path, "raw_path": path.encode(), "query_string": query.encode(), "root_path": "",
            "headers": headers,
            "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 8420),
        }  # fmt: skip
        parts = body if isinstance(body, list) else [body]
        sent, given = [], [{"type": "http.request", "body": each, "more_body": True} for each in parts]
        given[-1]["more_body"] = False

        async def receive():
            return given.pop(0) if given else await asyncio.Future()

        async def send(message):
            sent.append(message)

        asyncio.run(self.app(scope, receive, send))
        start, *parts = sent
        headers = [(name.decode(), value.decode("latin-1")) for name, value in start["headers"]]
        return Answer(start["status"], headers, b"".join(part.get("body", b"") for part in parts))

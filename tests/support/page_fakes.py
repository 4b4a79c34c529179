"""A project in memory, somebody who chooses at once, and a client that speaks to an application without a network."""

import asyncio
import json
from collections import Counter
from dataclasses import dataclass, field
from urllib.parse import urlencode

from batchbalance.project.page.desk import Choosing, Counts, Past, Shown

INSIGHT = {
    "guess": "cat", "votes": [["cat", 0.6], ["dog", 0.4]], "draws": 10, "apart": 0.25,
    "like": [{"id": "done", "label": "cat"}], "groups": [{"class": "cat", "draws": 6}, {"class": "dog", "draws": 4}],
}  # fmt: skip


class FakeDesk:
    """Items by name, and who was asked which."""

    name, classes, instructions, batch_size = "fake", ["cat", "dog"], "Look twice.", 4

    def __init__(self, asked, root=None, files=(), audit=()):
        self.open = {who: list(names) for who, names in asked.items()}
        self.roots, self.audit = [] if root is None else [root], set(audit)
        self.items = {name: Shown(name, "text", name) for names in asked.values() for name in names}
        self.items["done"] = Shown("done", "text", "done")
        self.items |= {name: Shown(name, "image", file=root / name) for name in files}
        self.log = []  # (kind, item, value, who)

    @property
    def revision(self):
        return len(self.log)

    def item(self, name):
        if name not in self.items:
            raise ValueError(name)
        return self.items[name]

    def questions(self, who):
        return list(self.open[who])

    def num_taken(self, who):
        return sum(len(names) for other, names in self.open.items() if other != who)

    def _skipped(self, who):
        latest = {name: kind for kind, name, _, by in self.log if by == who and kind != "flagged"}
        return [name for name, kind in latest.items() if kind == "skipped" and name not in self.open[who]]

    def num_skipped(self, who):
        return len(self._skipped(who))

    def ask_skipped(self, who):
        self.open[who] += self._skipped(who)

    def may_answer(self, name, who):
        self.item(name)
        return name in self.open[who] or any(each[1] == name and each[3] == who for each in self.log)

    def may_see(self, name, who):
        return self.may_answer(name, who) or name == "done"

    def is_audit(self, name):
        return name in self.audit

    def reason(self, name):
        return "audit" if name in self.audit else "margin"

    def label(self, answers, who, _seconds):
        for name, label in answers.items():
            self._add("labelled", name, label, who)

    def skip(self, name, who):
        self._add("skipped", name, None, who)

    def flag(self, name, note, who):
        self.log.append(("flagged", name, note, who))

    def _add(self, kind, name, value, who):
        self.log.append((kind, name, value, who))
        if name in self.open[who]:
            self.open[who].remove(name)

    def undo(self, who):
        mine = [each for each in self.log if each[3] == who]
        if not mine:
            return None
        self.log.remove(mine[-1])
        self.open[who].append(mine[-1][1])
        return mine[-1][1]

    def history(self, who, skip, count):
        mine = [each for each in reversed(self.log) if each[3] == who][skip : skip + count]
        return [Past(name, kind, value if kind == "labelled" else None) for kind, name, value, _ in mine]

    def counts(self):
        labels = [each for each in self.log if each[0] == "labelled"]
        people, classes = Counter(each[3] for each in labels), Counter(each[2] for each in labels)
        return Counts(len(labels), len(labels), people, classes)

    def give_back(self, who):
        self.open[who].clear()


class FakeChooser:
    """Knows the same about every item, and remembers what was wanted."""

    def __init__(self, insight=INSIGHT):
        self.found, self.wanted, self.trouble, self.now = insight, [], "", Choosing()

    def want(self, who, _revision):
        self.wanted.append(who)

    def explain(self, names):
        pass

    def choosing(self, _who):
        return Choosing(trouble=self.trouble) if self.trouble else self.now

    def is_explained(self, _name):
        return True

    def insight(self, _name):
        return self.found

    def status(self, _revision):
        return None

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

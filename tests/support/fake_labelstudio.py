"""An imitation of Label Studio: what our client uses of it, without sockets.

`test_bridge_labelstudio.py` holds it to the recorded exchanges with a real server.
"""

import json
import re
import xml.etree.ElementTree as ElementTree
from email.parser import BytesParser
from itertools import count
from urllib.parse import parse_qsl, urlsplit

import requests
from requests.adapters import BaseAdapter

from batchbalance.project.bridge.client import Server

REFRESH = "header.person.signature"
URL = "http://127.0.0.1:8080"


class RefusalError(Exception):
    def __init__(self, status, detail):
        super().__init__(detail)
        self.status, self.detail = status, detail


class FakeLabelStudio(BaseAdapter):
    """A server with one user; `first` gives the numbers that the first project, task and so on get.

    Attributes:
        failures: what happens to the next requests that match, (method, part of the path) with "before" or "after":
            the connection breaks before or after the request is carried out; or a status.
        requests: (method, path) of all requests.
    """

    def __init__(self, **first):
        super().__init__()
        kinds = ("project", "task", "annotation", "prediction", "upload", "user")
        self.counters = {kind: count(first.get(kind, 1)) for kind in kinds}
        user = next(self.counters["user"])
        self.users = [{"id": user, "email": "annotator@example.com"}]
        self.answering = user
        self.projects, self.tasks, self.annotations, self.uploads = {}, {}, {}, []
        self.access, self.clock = 0, 0
        self.failures, self.requests = {}, []

    def server(self, **options):
        """A client of it that does not really wait."""
        made = Server(URL, REFRESH, sleep=lambda _: None, **options)
        made._session.mount(URL, self)
        return made

    def close(self):
        pass

    def send(self, request, **_):
        path = urlsplit(request.url).path
        self.requests.append((request.method, path))
        key = next((key for key in self.failures if key[0] == request.method and key[1] in path), None)
        what = self.failures.pop(key) if key else None
        if what == "before":
            raise requests.ConnectionError("refused")
        response = requests.Response()
        response.request, response.url, response.status_code = request, request.url, what or 200
        if isinstance(what, int):
            response._content = b"{}"
            return response
        try:
            response.status_code, content = self.answer(request, path)
        except RefusalError as refusal:
            response.status_code = refusal.status
            content = {"status_code": refusal.status, "detail": refusal.detail}
        if what == "after":
            raise requests.ConnectionError("reset")
        response._content = b"" if content is None else json.dumps(content).encode()
        return response

    def answer(self, request, path):
        params = dict(parse_qsl(urlsplit(request.url).query))
        if path == "/api/token/refresh/":
            if json.loads(request.body)["refresh"] != REFRESH:
                raise RefusalError(401, "Token is invalid")
            self.access += 1
            return 200, {"access": f"access {self.access}"}
        if request.headers.get("Authorization") != f"Bearer access {self.access}" or not self.access:
            raise RefusalError(401, "Authentication credentials were not provided.")
        is_json = "json" in (request.headers.get("Content-Type") or "")
        sent = json.loads(request.body) if request.body and is_json else request
        for method, pattern, act in ROUTES:
            match = re.fullmatch(pattern, path)
            if match and method == request.method:
                return act(self, *map(int, match.groups()), sent=sent, params=params)
        raise RefusalError(404, f"no {request.method} {path}")

    def expire(self):
        """Let the access token be too old."""
        self.access += 1

    def of(self, kind, number):
        if number not in kind:
            raise RefusalError(404, "No match")
        return kind[number]

    def now(self):
        self.clock += 1
        return f"2026-01-01T00:00:{self.clock:06d}Z"

    # What the routes do.

    def version(self, **_):
        return 200, {"release": "imitation"}

    def list_users(self, **_):
        return 200, self.users

    def create_project(self, sent, **_):
        if len(sent["title"]) < 3:
            raise RefusalError(400, "title")
        number = next(self.counters["project"])
        blank = {"label_config": "<View></View>", "model_version": "", "sampling": "Sequential sampling"}
        self.projects[number] = blank | {"maximum_annotations": 1} | sent | {"id": number}
        return 201, self.shown(number)

    def shown(self, number):
        found = self.of(self.projects, number)
        return found | {"parsed_label_config": parsed(found["label_config"])}

    def show_project(self, number, **_):
        return 200, self.shown(number)

    def change_project(self, number, sent, **_):
        self.of(self.projects, number).update(sent)
        return 200, self.shown(number)

    def import_tasks(self, project, sent, **_):
        self.of(self.projects, project)
        if isinstance(sent, requests.PreparedRequest):
            return self.import_files(project, sent)
        made = [next(self.counters["task"]) for _ in sent]
        for number, each in zip(made, sent, strict=True):
            self.tasks[number] = {"id": number, "project": project, "data": each["data"], "predictions": []}
        return 201, {"task_count": len(made), "task_ids": made}

    def import_files(self, project, request):
        head = b"Content-Type: " + request.headers["Content-Type"].encode() + b"\r\n\r\n"
        for part in BytesParser().parsebytes(head + request.body).get_payload():
            name = part.get_filename()
            self.uploads.append(
                {"id": next(self.counters["upload"]), "file": f"upload/{project}/0123abcd-{name}", "project": project}
            )
        return 201, {"task_count": len(self.uploads)}

    def list_uploads(self, project, params, **_):
        assert params == {"all": "true"}
        return 200, [each for each in self.uploads if each["project"] == project]

    def import_predictions(self, _project, sent, **_):
        for each in sent:
            if each["task"] not in self.tasks:
                raise RefusalError(400, f"{each} contains invalid task")
        for each in sent:
            found = {"id": next(self.counters["prediction"]), **each}
            self.tasks[each["task"]]["predictions"].append(found)
        return 201, {"created": len(sent)}

    def list_tasks(self, params, **_):
        project, page, size = int(params["project"]), int(params["page"]), int(params["page_size"])
        names = params["include"].split(",")
        found = [self.with_annotations(each, names) for each in self.tasks.values() if each["project"] == project]
        part = found[(page - 1) * size : page * size]
        if not part and page > 1:
            raise RefusalError(404, "Invalid page.")
        return 200, {"total": len(found), "tasks": part}

    def with_annotations(self, task, names=None):
        """A task, and those parts of its annotations that are asked for."""
        mine = [each for each in self.annotations.values() if each["task"] == task["id"]]
        parts = [{key: each[key] for key in each if names is None or key in names} for each in mine]
        return {**{key: task[key] for key in ("id", "data", "predictions")}, "annotations": parts}

    def next_task(self, project, **_):
        """By ascending score among predictions of the project's version."""
        version = self.of(self.projects, project)["model_version"]
        done = {each["task"] for each in self.annotations.values()}
        open_ = [
            (each["score"], task["id"])
            for task in self.tasks.values()
            for each in task["predictions"]
            if task["project"] == project and task["id"] not in done and each["model_version"] == version
        ]
        if not open_:
            raise RefusalError(404, "There are no tasks")
        served = self.with_annotations(self.tasks[min(open_)[1]])
        return 200, served | {"predictions": [x for x in served["predictions"] if x["model_version"] == version]}

    def delete_task(self, number, **_):
        del self.tasks[number]
        self.annotations = {key: each for key, each in self.annotations.items() if each["task"] != number}
        return 204, None

    def change_task(self, number, sent, **_):
        self.of(self.tasks, number).update(sent)
        return 200, self.with_annotations(self.tasks[number])

    def annotate(self, task, sent, **_):
        self.of(self.tasks, task)
        number = next(self.counters["annotation"])
        made = {"id": number, "task": task, "completed_by": self.answering, "was_cancelled": False, **sent}
        self.annotations[number] = made | {"updated_at": self.now()}
        return 201, self.annotations[number]

    def change_annotation(self, number, sent, **_):
        self.of(self.annotations, number).update(sent | {"updated_at": self.now()})
        return 200, self.annotations[number]


ROUTES = [
    ("GET", r"/api/version", FakeLabelStudio.version),
    ("GET", r"/api/users/", FakeLabelStudio.list_users),
    ("POST", r"/api/projects/", FakeLabelStudio.create_project),
    ("GET", r"/api/projects/(\d+)/", FakeLabelStudio.show_project),
    ("PATCH", r"/api/projects/(\d+)/", FakeLabelStudio.change_project),
    ("POST", r"/api/projects/(\d+)/import", FakeLabelStudio.import_tasks),
    ("POST", r"/api/projects/(\d+)/import/predictions", FakeLabelStudio.import_predictions),
    ("GET", r"/api/projects/(\d+)/file-uploads", FakeLabelStudio.list_uploads),
    ("GET", r"/api/projects/(\d+)/next/", FakeLabelStudio.next_task),
    ("GET", r"/api/tasks", FakeLabelStudio.list_tasks),
    ("DELETE", r"/api/tasks/(\d+)/", FakeLabelStudio.delete_task),
    ("PATCH", r"/api/tasks/(\d+)/", FakeLabelStudio.change_task),
    ("POST", r"/api/tasks/(\d+)/annotations/", FakeLabelStudio.annotate),
    ("PATCH", r"/api/annotations/(\d+)/", FakeLabelStudio.change_annotation),
]  # fmt: skip


def parsed(config):
    """A labelling config as Label Studio parses it."""
    root = ElementTree.fromstring(config)
    shown = {each.get("name"): each for each in root.iter() if (each.get("value") or "").startswith("$")}
    found = {}
    for each in root.iter("Choices"):
        about = shown[each.get("toName")]
        labels = [choice.get("value") for choice in each.iter("Choice")]
        found[each.get("name")] = {
            "type": "Choices",
            "to_name": [each.get("toName")],
            "inputs": [{"type": about.tag, "valueType": None, "value": about.get("value").lstrip("$")}],
            "labels": labels,
            "labels_attrs": {name: {"value": name} for name in labels},
        }
    return found

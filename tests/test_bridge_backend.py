"""The four routes of an ML backend for Label Studio."""

import anyio
import pytest

from batchbalance.bridge import link, push
from batchbalance.bridge.backend import Backend, backend_app
from fake_labelstudio import FakeLabelStudio
from labelstudio_rounds import BATCH, Annotator, make_project, truth

RESULT = [{"from_name": "label", "to_name": "text", "type": "choices"}]


@pytest.fixture
def fake():
    return FakeLabelStudio()


@pytest.fixture
def said():
    return []


@pytest.fixture
def backend(tmp_path, fake, said):
    project = make_project(tmp_path)
    server = fake.server()
    found, _ = link(project, server)
    return Backend(project, found, server, guesses=True, say=said.append)


def requested(backend, method, path, body=b"", content_type=b"application/json"):
    """Status and body of one request, without a socket."""
    import json

    sent = []
    body = body if isinstance(body, bytes) else json.dumps(body).encode()

    async def receive():
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message):
        sent.append(message)

    scope = {
        "type": "http", "method": method, "path": path, "raw_path": path.encode(), "query_string": b"",
        "headers": [(b"content-type", content_type)], "http_version": "1.1", "scheme": "http",
        "server": ("127.0.0.1", 9090), "client": ("127.0.0.1", 5), "root_path": "",
    }  # fmt: skip
    anyio.run(backend_app(backend), scope, receive, send)
    return sent[0]["status"], b"".join(each.get("body", b"") for each in sent[1:])


def answer(backend, method, path, body=b""):
    import json

    status, content = requested(backend, method, path, body)
    return status, json.loads(content)


def test_health_and_setup(backend):
    assert answer(backend, "GET", "/health") == (200, {"status": "UP", "model_class": "batchbalance"})
    status, before = answer(backend, "POST", "/setup", {"project": "1.2", "schema": "<View/>"})
    assert status == 200
    backend.project.tell({backend.project.ids()[0]: "dog"})
    assert answer(backend, "POST", "/setup", {})[1]["model_version"] != before["model_version"]
    assert requested(backend, "GET", "/setup")[0] == 405
    assert requested(backend, "GET", "/")[0] == 404


@pytest.mark.slow
def test_predictions_have_the_order_and_guesses_but_not_on_audit_items(backend, fake):
    project = backend.project
    project.tell({name: truth(name) for name in project.ids() if not project.is_audit([name])[0]} | {})
    project.undo(n=20)
    pushed = push(project, backend.link, backend.server)
    tasks = [{"id": i, "data": {"item_id": name}} for i, name in enumerate(reversed(pushed.ids))]
    tasks += [{"id": 98, "data": {"item_id": "nobody"}}, {"id": 99, "data": None}]
    status, found = answer(backend, "POST", "/predict", {"tasks": tasks, "label_config": "<View/>"})
    results = found["results"]
    assert (status, len(results)) == (200, len(tasks))
    ranked = sorted(zip(results[:BATCH], reversed(pushed.ids), strict=True), key=lambda each: each[0]["score"])
    assert tuple(name for _, name in ranked) == pushed.ids
    is_audit = project.is_audit(pushed.ids)
    assert set(is_audit) == {True, False}
    assert [each["result"] == [] for each, _ in ranked] == is_audit
    assert all({"from_name", "to_name", "type", "value"} == set(part) for each in results for part in each["result"])
    assert [(each["score"], each["result"]) for each in results[BATCH:]] == [(1.0, [])] * 2
    backend.guesses = False
    _, found = answer(backend, "POST", "/predict", {"tasks": tasks})
    assert all(each["result"] == [] for each in found["results"])


@pytest.mark.parametrize("body", [b"", b"{", {"tasks": 3}, {"tasks": [3]}, [1]])
def test_what_is_no_request_is_refused(backend, body):
    assert answer(backend, "POST", "/predict", body) == (400, {"error": "`tasks` must be a list of tasks"})


@pytest.mark.slow
def test_a_webhook_pulls_and_pushes_the_next_batch(backend, fake, said):
    first = push(backend.project, backend.link, backend.server)
    someone = Annotator(backend.server, backend.link.project)
    while (task := someone.next_task()) is not None:
        someone.answer(task, truth(task["data"]["item_id"]))
    # What it says is not believed; what the server has is pulled.
    lie = {"action": "ANNOTATION_CREATED", "annotation": {"result": [], "was_cancelled": True}, "task": {"id": 1}}
    assert requested(backend, "POST", "/webhook", lie)[0] == 201
    assert len(backend.project.labels) == BATCH == len(first.ids)
    assert len(fake.tasks) == 2 * BATCH
    assert said == ["8 labelled, 0 corrected, 0 skipped; 0 open", "8 items are asked there, 8 of them new"]
    fake.failures[("GET", "/api/tasks")] = 400
    requested(backend, "POST", "/webhook", b"")
    assert said[-1].endswith("refused (400): no reason given")

"""The four routes of an ML backend for Label Studio."""

import json

import pytest

from batchbalance.project.bridge import link, push
from batchbalance.project.bridge.backend import Backend, backend_app
from fake_labelstudio import FakeLabelStudio
from labelstudio_rounds import BATCH, Annotator, make_project, truth
from page_fakes import Client

TOKEN = "mark-secret"

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


def requested(backend, method, path, body=b"", **headers):
    """Status and body of one request, without a socket."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    client = Client(backend_app(backend, TOKEN, ["127.0.0.1"])).with_headers(authorization=f"Bearer {TOKEN}")
    found = client.with_headers(**{"content_type": "application/json"} | headers).send(method, path, {}, content, {})
    return found.status, found.body


def answer(backend, method, path, body=b""):
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


@pytest.mark.parametrize("path", ["/health", "/setup", "/predict", "/webhook"])
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"authorization": None}, 401),
        ({"authorization": "Bearer other"}, 401),
        ({"host": "evil.example"}, 403),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "http://[::1"}, 400),
        ({"sec_fetch_site": "cross-site"}, 403),
        ({"content_type": "text/plain"}, 403),
        ({"content_length": "600000000"}, 413),
    ],
)
def test_what_the_guard_refuses_does_no_work(backend, monkeypatch, path, headers, status):
    monkeypatch.setattr(Backend, "catch_up", lambda _: pytest.fail("work was done"))
    monkeypatch.setattr(Backend, "predictions", lambda *_: pytest.fail("work was done"))
    method = "GET" if path == "/health" else "POST"
    only_for_changes = {"sec_fetch_site", "content_type", "content_length"} & set(headers)
    expected = 200 if method == "GET" and only_for_changes else status
    assert requested(backend, method, path, {"tasks": []}, **headers)[0] == expected


@pytest.mark.parametrize("body", [b"", b"{", b"[" * 100_000])
def test_what_is_no_json_is_refused(backend, body):
    assert requested(backend, "POST", "/predict", body)[0] == requested(backend, "POST", "/webhook", body)[0] == 400


@pytest.mark.parametrize("body", [{"tasks": 3}, {"tasks": [3]}, [1]])
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
    requested(backend, "POST", "/webhook", {})
    assert said[-1].endswith("refused (400): no reason given")

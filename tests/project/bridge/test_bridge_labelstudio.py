"""Label Studio: push and pull against an imitation, which is held to recorded exchanges with a real server."""

import json
import re

import pytest
import requests

from batchbalance import FileFormatError
from batchbalance.project import Project
from batchbalance.project.bridge import Link, link, pull, push, sync
from batchbalance.project.bridge.client import InterruptedRequestError, NotThereError, Server
from batchbalance.project.bridge.labelstudio import ASKER
from fake_labelstudio import URL, FakeLabelStudio
from labelstudio_rounds import BATCH, Annotator, first_round, make_pictures, make_project, second_round, truth
from recorded_labelstudio import RECORDED, read_part

CONFIG = '<View><Text name="t" value="$body"/><Choices name="c" toName="t">{}</Choices></View>'


@pytest.fixture
def fake():
    return FakeLabelStudio()


@pytest.fixture
def project(tmp_path):
    made = make_project(tmp_path)
    yield made
    made.close()


@pytest.fixture
def linked(project, fake):
    """A project, its link and its server, with a batch pushed."""
    server = fake.server()
    made, _ = link(project, server)
    return project, made, server


def annotated(fake, project, found, server, label=truth, who=None):
    """Answer everything that is served."""
    if who is not None:
        fake.answering = who
    someone = Annotator(server, found.project)
    while (task := someone.next_task()) is not None:
        someone.answer(task, label(task["data"]["item_id"]))
    return someone.served


@pytest.mark.slow
def test_two_rounds_with_a_restart(project, fake):
    server = fake.server()

    def restart():
        fake.failures[("GET", "/api/projects")] = "before"
        fake.expire()

    found = first_round(project, server, restart, lambda _: None)
    second_round(project, found, server, lambda _: None)
    assert fake.failures == {}


def test_the_imitation_answers_as_the_real_server_did():
    exchanges = json.loads(RECORDED.read_text(encoding="utf-8"))
    assert len(exchanges) > 50
    fake = FakeLabelStudio(**first_numbers(exchanges))
    server = fake.server()
    for each in exchanges:
        if each["path"] == "/api/version":
            continue
        try:
            answer = server._once(each["method"], each["path"], params=each["params"], json=each["sent"])
            status = {"POST": 201, "DELETE": 204}.get(each["method"], 200)
        except NotThereError:
            status, answer = 404, {"status_code": 404}
        assert status == each["status"], each
        assert comparable(answer, each["answer"]) == comparable(each["answer"], each["answer"]), each


def first_numbers(exchanges):
    """The numbers that the first project and so on had there."""
    found = {}

    def note(kind, number):
        found[kind] = min(found.get(kind, number), number)

    for each in exchanges:
        if each["path"] == "/api/projects/":
            note("project", each["answer"]["id"])
        for task in each["answer"].get("task_ids", []) if isinstance(each["answer"], dict) else []:
            note("task", task)
        for task in (each["answer"] or {}).get("tasks", []) if isinstance(each["answer"], dict) else []:
            for kind in ("annotation", "prediction"):
                for one in task[f"{kind}s"]:
                    note(kind, one["id"])
        if each["path"] == "/api/users/":
            note("user", each["answer"][0]["id"])
    return found


def comparable(answer, like):
    """What our client reads, in the same order of keys; only what the real answer has."""
    if isinstance(answer, list):
        return [comparable(each, other) for each, other in zip(answer, like, strict=True)]
    if not isinstance(answer, dict) or not isinstance(like, dict):
        return answer
    known = read_part(answer)
    return {key: comparable(known.get(key), like[key]) for key in sorted(like)}


def test_pushing_twice_creates_nothing_twice(linked, fake):
    project, found, server = linked
    first = push(project, found, server)
    again = push(project, found, server)
    assert (first.created, again.created) == (BATCH, 0)
    assert (first.ids, first.version) == (again.ids, again.version)
    assert len(fake.tasks) == BATCH
    assert all(len(task["predictions"]) == 1 for task in fake.tasks.values())
    assert fake.projects[found.project]["sampling"] == "Uncertainty sampling"


@pytest.mark.parametrize("when", ["before", "after", 503])
@pytest.mark.parametrize("path", ["/import", "/import/predictions"])
def test_a_server_that_goes_away_while_tasks_are_created(linked, fake, when, path):
    project, found, server = linked
    fake.failures[("POST", f"/api/projects/{found.project}{path}")] = when
    pushed = push(project, found, server)
    assert fake.failures == {}
    assert sorted(task["data"]["item_id"] for task in fake.tasks.values()) == sorted(pushed.ids)
    assert all(len(task["predictions"]) == 1 for task in fake.tasks.values())
    assert tuple(annotated(fake, project, found, server)) == pushed.ids


def test_all_items_on_request(linked, fake):
    project, found, server = linked
    pushed = push(project, found, server, every=True)
    assert len(fake.tasks) == len(project) == pushed.created
    assert tuple(annotated(fake, project, found, server)) == pushed.ids
    pulled = pull(project, found, server)
    assert (pulled.told.labelled, pulled.left) == (BATCH, 0)


def test_more_items_than_a_page_and_than_a_request(linked, fake, monkeypatch):
    monkeypatch.setattr("batchbalance.project.bridge.client.PAGE", 7)
    monkeypatch.setattr("batchbalance.project.bridge.labelstudio.BLOCK", 11)
    project, found, server = linked
    assert push(project, found, server, every=True).created == len(project)
    assert push(project, found, server, every=True).created == 0
    assert len(fake.tasks) == len(project)


def test_what_was_pulled_and_corrected_here_stays_corrected(linked, fake):
    project, found, server = linked
    pushed = push(project, found, server)
    annotated(fake, project, found, server)
    pull(project, found, server)
    name = pushed.ids[0]
    wrong = "dog" if truth(name) == "cat" else "cat"
    project.tell({name: wrong}, "annotator@example.com")
    assert pull(project, found, server).told.corrected == 0
    assert project.labels[name] == wrong


def test_a_class_that_is_unknown_here_is_pulled_once_it_is_known(linked, fake):
    project, found, server = linked
    pushed = push(project, found, server)
    annotated(fake, project, found, server, lambda name: "bird" if name == pushed.ids[0] else truth(name))
    pulled = pull(project, found, server)
    said = "1 answer is 'bird', which is not a class here; add it with batchbalance add-class, and pull again"
    assert (pulled.notes, pulled.told.labelled, pulled.left) == ((said,), BATCH - 1, 1)
    project.add_class("bird")
    with pytest.raises(ValueError, match="must have every class, got none for bird"):
        push(project, found, server)
    pulled = pull(project, found, server)
    assert (pulled.notes, pulled.told.labelled, pulled.left) == ((), 1, 0)
    assert project.labels[pushed.ids[0]] == "bird"


def test_two_people_who_disagree(linked, fake):
    project, found, server = linked
    fake.users.append({"id": 9, "email": "bo@example.com"})
    pushed = push(project, found, server)
    annotated(fake, project, found, server)
    task = next(each for each in fake.tasks.values() if each["data"]["item_id"] == pushed.ids[0])
    fake.answering = 9
    other = "dog" if truth(pushed.ids[0]) == "cat" else "cat"
    Annotator(server, found.project).answer(task, other)
    pulled = pull(project, found, server)
    said = "1 item has answers that disagree, and is not trained on until one more person answers"
    assert (pulled.notes, pulled.left, pulled.told.labelled) == ((said,), 0, BATCH + 1)
    assert set(project.view(pushed.ids[0]).answers) == {"annotator@example.com", "bo@example.com"}
    assert pushed.ids[0] not in project.labels
    assert (task["overlap"], task["is_labeled"]) == (3, False)  # so that it is served to one more person
    assert pushed.ids[0] not in push(project, found, server).ids  # after the next batch, which it does not hold up
    fake.answering = 1
    Annotator(server, found.project).answer(task, other)  # a change of mind, as another annotation
    assert pull(project, found, server).notes == ()
    assert project.labels[pushed.ids[0]] == other


def test_several_answers_to_each_item(tmp_path, fake):
    project = make_project(tmp_path, annotators_per_item=2)
    server = fake.server()
    found, _ = link(project, server)
    push(project, found, server)
    assert fake.projects[found.project]["maximum_annotations"] == 2
    annotated(fake, project, found, server)
    assert pull(project, found, server).left == BATCH
    fake.users.append({"id": 9, "email": "bo@example.com"})
    fake.answering = 9
    for task in list(fake.tasks.values()):
        Annotator(server, found.project).answer(task, truth(task["data"]["item_id"]))
    assert pull(project, found, server).left == 0
    assert project.agreements()[0].kappa == 1.0


def test_more_than_one_choice_and_strange_tasks_are_left_there(linked, fake):
    project, found, server = linked
    push(project, found, server)
    first = Annotator(server, found.project).next_task()
    both = Annotator(server, found.project)
    both.choice = lambda _: {
        "from_name": "label", "to_name": "text", "type": "choices", "value": {"choices": ["cat", "dog"]},
    }  # fmt: skip
    both.answer(first, "both")
    strange = server.post(f"/api/projects/{found.project}/import", [{"data": {"text": "mine"}}])["task_ids"][0]
    server.post(f"/api/tasks/{strange}/annotations/", {"result": [both.choice("")]})
    other = server.post(f"/api/projects/{found.project}/import", [{"data": {"item_id": "nobody"}}])["task_ids"][0]
    server.post(f"/api/tasks/{other}/annotations/", {"result": [both.choice("")]})
    pulled = pull(project, found, server)
    assert pulled.told.labelled == 0
    assert pulled.notes == (
        "1 answer has more than one choice: left there; let people choose one",
        "1 answer is about items that are not in this project: left there",
    )


def test_an_existing_config_is_checked(project, fake):
    server = fake.server()

    def made(config):
        return server.post("/api/projects/", {"title": "mine", "label_config": config})["id"]

    choices = "".join(f'<Choice value="{name}"/>' for name in ("cat", "dog", "bird"))
    found, notes = link(project, server, made(CONFIG.format(choices)))
    assert (found.control, found.object, found.key) == ("c", "t", "body")
    assert notes == ("choices there that are not classes here: bird; add them with batchbalance add-class",)
    push(project, found, server)
    assert {tuple(task["data"]) for task in fake.tasks.values()} == {("item_id", "body")}
    with pytest.raises(ValueError, match="must have every class, got none for dog"):
        link(project, server, made(CONFIG.format('<Choice value="cat"/>')))
    picture = (
        '<View><Image name="i" value="$image"/><Choices name="c" toName="i"><Choice value="cat"/></Choices></View>'
    )
    with pytest.raises(ValueError, match=r"must have Choices about Text \$text"):
        link(project, server, made(picture))
    with pytest.raises(ValueError, match="has no project 77"):
        link(project, server, 77)
    empty = made("<View></View>")
    assert link(project, server, empty)[0].project == empty
    assert "cat" in fake.projects[empty]["label_config"]
    assert Link.of(project).project == empty


@pytest.mark.slow
def test_classes_with_letters_of_xml(tmp_path, fake):
    project = Project.create(tmp_path / "ab", embeddings=npy(tmp_path), classes=['<"&">', "b"], audit=0.0)
    with pytest.raises(ValueError, match="bare embeddings have nothing"):
        link(project, fake.server())
    (tmp_path / "t.txt").write_text("one\ntwo\nthree\n", "utf-8")
    project = Project.create(tmp_path / "a", texts=tmp_path / "t.txt", classes=['<"&">', "b"], encoder="tfidf")
    found, _ = link(project, fake.server())
    assert fake.shown(found.project)["parsed_label_config"]["label"]["labels"] == ['<"&">', "b"]
    assert fake.projects[found.project]["title"] == "a project"


def npy(folder):
    import numpy as np

    np.save(folder / "e.npy", np.eye(4))
    return folder / "e.npy"


@pytest.mark.slow
def test_images_are_uploaded_once(tmp_path, fake):
    project = make_pictures(tmp_path)
    server = fake.server()
    found, _ = link(project, server)
    fake.failures[("POST", f"/api/projects/{found.project}/import")] = "after"  # files there, tasks not
    assert push(project, found, server, 3).created == 3
    push(project, found, server, 4)
    assert len(fake.uploads) == 4
    places = {task["data"]["image"] for task in fake.tasks.values()}
    assert places == {f"/data/{each['file']}" for each in fake.uploads}


def test_a_token_is_refreshed_and_a_wrong_one_refused(fake):
    server = fake.server()
    server.get("/api/users/")
    fake.expire()
    assert server.get("/api/users/") == fake.users
    assert fake.requests.count(("POST", "/api/token/refresh/")) == 2
    wrong = Server(URL, "other.token.here")
    wrong._session.mount(URL, fake)
    legacy = Server(URL, "0123456789abcdef")
    legacy._session.mount(URL, fake)
    for each in (wrong, legacy):
        with pytest.raises(PermissionError, match="refuses the token"):
            each.get("/api/users/")
    assert "other" not in repr(wrong)


def test_patience_ends(fake):
    waited = []
    server = Server(URL, "a.b.c", patience=30, sleep=waited.append)

    class Dead(requests.adapters.BaseAdapter):
        def send(self, *_, **__):
            raise requests.ConnectionError

        def close(self):
            pass

    server._session.mount(URL, Dead())
    with pytest.raises(
        ConnectionError, match=r"no answer from .* in 30 s; start it and run this again; nothing is lost"
    ):
        server.get("/api/version")
    assert waited == [1, 2, 4, 8, 10, 5]
    with pytest.raises(InterruptedRequestError):
        server.post("/api/projects/", {})
    assert sum(waited) == 30


class Unhelpful(FakeLabelStudio):
    """A server that does one thing wrong for ever. A test that waits for it to do better ends at 500 requests."""

    def __init__(self, fault):
        super().__init__()
        self.fault = fault

    def answer(self, request, path):
        assert len(self.requests) < 500, "this goes on without end"
        if self.fault in ("keeps no file", "creates no task") and path.endswith("/import"):
            return 201, {"task_ids": []}
        if self.fault in path and request.method == "POST":
            raise requests.ConnectionError("reset")
        if self.fault == "one page" and path == "/api/tasks":
            request.url = re.sub(r"page=\d+", "page=1", request.url)
            status, content = super().answer(request, path)
            return status, {**content, "total": 10**6}
        return super().answer(request, path)


def test_a_server_that_keeps_no_upload_ends_a_push(tmp_path):
    project = make_pictures(tmp_path)
    server = Unhelpful("keeps no file").server()
    found, _ = link(project, server)
    with pytest.raises(ValueError, match="must keep files that are uploaded, got none of 3 there"):
        push(project, found, server, 3)


def test_a_server_that_gives_one_page_for_ever_ends_a_pull(project):
    fake = Unhelpful("nothing yet")
    server = fake.server()
    found, _ = link(project, server)
    push(project, found, server)
    fake.fault = "one page"
    with pytest.raises(ValueError, match="/api/tasks must answer as Label Studio does"):
        pull(project, found, server)
    assert fake.requests[-2:] == [("GET", "/api/tasks")] * 2


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ("/import", InterruptedRequestError),
        ("/import/predictions", InterruptedRequestError),
        ("creates no task", ValueError),
    ],
)
def test_a_server_that_goes_away_at_every_request_ends_a_push(project, fault, error):
    server = Unhelpful(fault).server()
    found, _ = link(project, server)
    with pytest.raises(error, match=r"stopped answering; run the command again|must create a task for each item"):
        push(project, found, server)


@pytest.mark.parametrize("url", ["127.0.0.1:8080", "ftp://here", "http://", "http://me:secret@here"])
def test_addresses(url):
    with pytest.raises(ValueError, match="`url` must be an address"):
        Server(url, "a.b.c")


@pytest.mark.parametrize(
    ("status", "content", "said"),
    [
        (302, b"", "redirects elsewhere"),
        (200, b"<html>", "must answer as Label Studio does"),
        (
            400,
            b'{"detail": "no", "validation_errors": {"title": ["too", "short"]}}',
            r"refused \(400\): title: too short",
        ),
        (403, b'{"detail": "not\\nyours"}', r"refused \(403\): not yours"),
        (500, b"[]", r"refused \(500\): no reason given"),
    ],
)
def test_what_a_server_says_is_one_sentence(status, content, said):
    class Saying(requests.adapters.BaseAdapter):
        def send(self, request, **_):
            response = requests.Response()
            response.request, response.status_code, response._content = request, status, content
            return response

        def close(self):
            pass

    server = Server(URL, "legacy")
    server._session.mount(URL, Saying())
    with pytest.raises(ValueError, match=said) as caught:
        server.get("/api/version")
    assert "\n" not in str(caught.value)


def test_a_project_that_is_not_linked(project):
    with pytest.raises(FileNotFoundError, match="is not linked yet; link it with: batchbalance labelstudio link"):
        Link.of(project)
    (project.folder / "labelstudio.json").write_text('{"url": 3}')
    with pytest.raises(ValueError, match="it does not match its checksum; link the project again"):
        Link.of(project)


@pytest.mark.slow
def test_sync_pushes_whenever_a_batch_is_done(linked, fake):
    project, found, server = linked
    said, waits = [], []

    def sleep(seconds):
        """People label half of what is there while nobody looks; once the server is away."""
        waits.append(seconds)
        someone = Annotator(fake.server(), found.project)
        for _ in range(BATCH // 2):
            task = someone.next_task()
            if task is not None:
                someone.answer(task, truth(task["data"]["item_id"]))
        if len(waits) == 2:
            fake.failures[("GET", "/api/tasks")] = "before"

    sync(project, found, server, every=7.0, rounds=2, say=said.append, sleep=sleep)
    assert waits == [7.0] * 4
    assert len(project.labels) == 2 * BATCH
    assert [text for text in said if text.startswith("batch")] == ["batch 1 is done", "batch 2 is done"]
    assert project.open_questions(ASKER) == []


@pytest.mark.slow
def test_sync_ends_when_nothing_is_left_and_outlasts_a_server_that_is_away(tmp_path, fake):
    project = make_project(tmp_path, batch_size=40)
    server = fake.server(patience=0)
    found, _ = link(project, server)
    said = []

    def sleep(seconds):
        annotated(fake, project, found, fake.server())
        if not any(text.startswith("no answer") for text in said):
            fake.failures[("GET", "/api/tasks")] = "before"

    sync(project, found, server, say=said.append, sleep=sleep)
    assert said[-1] == "nothing is left to ask"
    assert len(project.labels) == len(project)
    assert any(text.startswith(f"no answer from {URL}") for text in said)


def test_sync_does_not_take_damage_for_the_end(linked, monkeypatch):
    project, found, server = linked

    def damaged(*_):
        raise FileFormatError("labels.sqlite is damaged")

    monkeypatch.setattr(project, "ask", damaged)
    said = []
    with pytest.raises(FileFormatError, match="is damaged"):
        sync(project, found, server, say=said.append, sleep=lambda _: None)
    assert said == []

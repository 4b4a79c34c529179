"""The review list: why items are in it, and what a decision changes."""

import pytest

from batchbalance.project.page.app import make_app
from batchbalance.project.page.guard import Guard, Sessions
from batchbalance.project.page.page import Page
from page_fakes import Client, FakeChooser, PageProject


@pytest.fixture
def project(tmp_path):
    made = PageProject.make(tmp_path, {"Ann": ["a", "b", "c", "d"], "Bob": ["x"]}, audit=["d"])
    made.tell({"a": "cat", "b": "cat", "c": "dog"}, "Ann")
    made.tell({"b": "dog"}, "Bob")
    made.flag("x", "blurred", "Bob")
    return made


@pytest.fixture
def chooser():
    made = FakeChooser()
    made.replies["suspects"] = {"suspects": [["a", "cat", "dog", 0.9]]}
    return made


@pytest.fixture
def ann(project, chooser):
    page = Page(project, chooser, ["Ann", "Bob"])
    return Client(Guard(make_app(page), Sessions({"t": "Ann"}, "c"), ["127.0.0.1"])).in_tab_of("t", "c")


def listed(client):
    return {entry["item"]["id"]: entry for entry in client.get("/api/review").json["entries"]}


def test_suspects_come_first_then_disagreements_and_flags(ann):
    found = listed(ann)
    assert {name: entry["reasons"] for name, entry in found.items()} == {
        "a": ["suspect"], "b": ["disagreement"], "x": ["flag"],
    }  # fmt: skip
    assert (found["a"]["label"], found["a"]["suggested"], found["a"]["wrong"]) == ("cat", "dog", 0.9)
    assert found["b"]["answers"] == [{"who": "Ann", "label": "cat"}, {"who": "Bob", "label": "dog"}]
    assert found["b"]["label"] is None
    assert found["x"]["notes"] == [{"who": "Bob", "text": "blurred"}]


def test_a_decision_settles_an_item_and_can_be_undone(ann, project):
    assert ann.post("/api/decide", {"item": "b", "label": "dog"}).status == 200
    assert ann.post("/api/decide", {"item": "a", "label": None}).status == 200
    assert ann.post("/api/decide", {"item": "x", "label": None}).status == 200
    assert listed(ann) == {}
    assert project.labels == {"a": "cat", "b": "dog", "c": "dog"}
    assert project.view("b").answers == {"Ann": 0, "Bob": 1}  # nobody's own answer changed
    for name in ("x", "a", "b"):
        answer = ann.post("/api/undo", {}).json
        assert answer["told"] == "Undone: a review."
        assert name in listed(ann)
    assert "b" not in project.labels


def test_a_later_answer_counts_again(ann, project):
    ann.post("/api/decide", {"item": "a", "label": "dog"})
    assert project.labels["a"] == "dog"
    project.tell({"a": "cat"}, "Bob")
    assert project.labels["a"] == "cat"


def test_a_flagged_item_without_an_answer_gets_one_by_whom_decided(ann, project):
    ann.post("/api/decide", {"item": "x", "label": "dog"})
    assert project.view("x").answers == {"Ann": 1}
    assert "x" not in listed(ann)


def test_what_cannot_be_reviewed(ann, project):
    assert ann.post("/api/decide", {"item": "zzz", "label": "dog"}).status == 404
    assert ann.post("/api/decide", {"item": "a", "label": "cow"}).status == 400
    assert ann.post("/api/decide", {"item": "done", "label": "dog"}).status == 403  # nobody said anything about it
    assert "done" not in project.labels


def test_it_says_that_suspects_are_computed(ann, chooser):
    chooser.replies.clear()
    found = ann.get("/api/review").json
    assert found["isPending"]
    assert {entry["item"]["id"] for entry in found["entries"]} == {"b", "x"}


def test_suggestions_of_machines_come_last_and_become_answers_once_accepted(ann, project, chooser, tmp_path):
    (tmp_path / "gpt.csv").write_text("id,label\na,dog\nc,cat\nd,cat\nx,cat\ndone,dog\n")
    assert "suggestion" not in {reason for entry in listed(ann).values() for reason in entry["reasons"]}
    project.suggest(tmp_path / "gpt.csv", "gpt")
    assert ann.get("/api/review").json["isPending"]
    # "c" has an answer by now, and "x" is asked of Bob: the list may be older than they are
    chooser.replies["doubtful"] = {
        "doubtful": [["done", "gpt", "dog", 0.8], ["c", "gpt", "cat", 0.7], ["x", "gpt", "cat", 0.6]]
    }
    entries = ann.get("/api/review").json["entries"]
    assert [entry["item"]["id"] for entry in entries] == ["a", "b", "x", "done"]
    assert (entries[-1]["by"], entries[-1]["suggested"], entries[-1]["wrong"], entries[-1]["label"]) == (
        "gpt",
        "dog",
        0.8,
        None,
    )
    assert "done" not in project.labels
    assert ann.post("/api/found", {"item": "done", "label": "cat"}).status == 200
    assert project.labels["done"] == "cat"
    assert project.view("done").reasons == ["found"]
    assert "done" not in listed(ann)

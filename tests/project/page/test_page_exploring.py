"""Search, neighbours, the map, and what may be done with what they show."""

import numpy as np
import pytest

from batchbalance.project.page.app import make_app
from batchbalance.project.page.choosing import RequestHandler
from batchbalance.project.page.exploring import MOST_QUEUED
from batchbalance.project.page.guard import Guard, Sessions
from batchbalance.project.page.page import Page
from made_projects import answered, make
from page_fakes import Client, FakeChooser, PageProject


def client_of(page, who):
    return Client(Guard(make_app(page), Sessions({"t": who}, "c"), ["127.0.0.1"])).in_tab_of("t", "c")


@pytest.fixture
def project(tmp_path):
    made = PageProject.make(tmp_path, {"Ann": ["a"], "Bob": ["x"]}, audit=["secret"], others=["new", "secret"])
    made.tell({"a": "cat"}, "Ann")
    return made


@pytest.fixture
def chooser():
    made = FakeChooser()
    made.replies = {"search": {"ids": ["a", "x", "new", "secret"]}, "find": {"ids": ["new"]}}
    return made


@pytest.fixture
def ann(project, chooser):
    return client_of(Page(project, chooser, ["Ann", "Bob"]), "Ann")


def test_what_others_are_asked_and_what_measures_the_model_is_not_found(ann):
    found = ann.get("/api/search", text="whatever", at=1).json["entries"]
    told = {entry["item"]["id"]: (entry["label"], entry["canLabel"], entry["canQueue"]) for entry in found}
    assert told == {"a": ("cat", True, False), "new": (None, True, True)}
    assert [entry["item"]["id"] for entry in ann.get("/api/like", item="a", at=1).json["entries"]] == ["new"]
    assert ann.get("/api/like", item="x", at=1).status == 403
    assert ann.get("/api/like", item="zzz", at=1).status == 404


def test_what_is_found_can_be_labelled_and_says_how_it_was_chosen(ann, project):
    assert ann.post("/api/found", {"item": "new", "label": "dog", "seconds": 1}).status == 200
    assert project.labels == {"a": "cat", "new": "dog"}
    assert project.view("new").reasons == ["found"]
    for name in ("x", "secret"):
        assert ann.post("/api/found", {"item": name, "label": "dog"}).status == 403
    assert project.labels == {"a": "cat", "new": "dog"}


def test_a_region_is_queued_without_what_cannot_be_asked(ann, project):
    found = ann.post("/api/queue", {"rows": [*range(len(project)), 10_000]}).json
    assert (found["queued"], found["of"]) == (2, len(project))
    assert sorted(project.open_questions("Ann")) == ["done", "new"]
    assert not any(project.is_audit(project.open_questions("Ann")))
    assert ann.post("/api/queue", {"rows": list(range(len(project)))}).json["queued"] == 0
    for rows in (None, [-1], ["1"], [True], 3):
        assert ann.post("/api/queue", {"rows": rows}).status == 400


def test_of_a_large_region_as_many_as_fit_are_queued(tmp_path):
    project = make(tmp_path, num=400, audit=0.1)
    client = client_of(Page(project, FakeChooser(), [None]), None)
    found = client.post("/api/queue", {"rows": list(range(400))}).json
    assert (found["queued"], found["of"]) == (MOST_QUEUED, 400)
    assert not any(project.is_audit(project.open_questions()))


def test_rows_of_the_map_are_items_or_say_why_not(ann, project):
    rows = project.store.rows_of(["a", "x", "new", "secret"])
    found = ann.get("/api/items", rows=",".join(map(str, rows))).json["entries"]
    assert [entry["row"] for entry in found] == rows
    assert [entry["item"] and entry["item"]["id"] for entry in found] == ["a", None, "new", None]
    labels = np.frombuffer(ann.get("/map/labels").body, dtype="<u2")
    assert [labels[row] for row in rows] == [1, 0, 0, 0]
    for name in ("../project.toml", "", "labels.sqlite"):
        assert ann.get("/map/file", name=name).status == 404


@pytest.mark.slow
def test_the_processes_find_search_and_lay_out_the_map(tmp_path):
    project = make(tmp_path, num=120, audit=0.2)
    said = []
    handler = RequestHandler(project, said.append)

    def reply(**request):
        handler.take(request)
        assert "trouble" not in said[-1], said[-1]
        return said[-1]

    assert reply(do="opinions")["file"] is None  # no model yet
    answered(project, 40, 120)
    assert reply(do="find", like="3", count=5, who=None)["ids"] == [x.id for x in project.find("3", n=5)]
    assert reply(do="search", text="11", count=3)["ids"] == ["11", "110", "111"]
    assert not any(project.is_audit([each[0] for each in reply(do="suspects")["suspects"]]))
    names = [reply(do=each)["file"] for each in ("map", "layout", "opinions")]
    assert [reply(do=each)["file"] for each in ("map", "layout", "opinions")] == names
    sizes = [(project.folder / "map" / name).stat().st_size for name in names]
    assert sizes == [4 * 120, 4 * 120, 3 * 120]
    content = (project.folder / "map" / names[2]).read_bytes()
    guesses, doubts = np.frombuffer(content[:240], dtype="<u2"), np.frombuffer(content[240:], dtype=np.uint8)
    predicted = project.guess(project.ids())
    for row, guess in enumerate(predicted):
        if project.store.is_audit[row]:
            assert (guesses[row], doubts[row]) == (0, 255)
        else:
            assert project.classes[guesses[row] - 1] == guess.label
            assert doubts[row] == round(254 * (1 - max(guess.probabilities.values())))

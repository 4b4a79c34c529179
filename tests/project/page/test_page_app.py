import os

import pytest
from PIL import Image

from batchbalance.project.page import images
from batchbalance.project.page.app import make_app
from batchbalance.project.page.guard import Guard, Sessions
from batchbalance.project.page.page import IDLE_SECONDS, Page
from page_fakes import INSIGHT, Client, FakeChooser, PageProject


def client_of(page, who):
    return Client(Guard(make_app(page), Sessions({"t": who}, "c"), ["127.0.0.1"])).in_tab_of("t", "c")


@pytest.fixture
def project(tmp_path):
    return PageProject.make(tmp_path, {"first": ["a", "b", "c", "d", "e", "f"], "second": ["x", "y"]}, audit=["b"])


@pytest.fixture
def page(project):
    return Page(project, FakeChooser(), ["first", "second"])


@pytest.fixture
def first(page):
    return client_of(page, "first")


def queue(answer):
    return [item["id"] for item in answer.json["queue"]]


def test_half_a_character_is_refused(first, project):
    answer = first.post("/api/flag", {"item": "a", "note": "so\ud83d so", "skip": False})
    assert (answer.status, answer.text) == (400, "The request must have a text 'note' of valid Unicode.")
    assert first.post("/api/label", {"item": "\ud83d", "label": "dog"}).status == 400
    assert project.log == []


def test_an_answer_is_kept_before_the_next_item_comes(first, project):
    answer = first.post("/api/label", {"item": "a", "label": "dog", "seconds": 1.5})
    assert project.log == [("labelled", "a", "dog", "first")]
    assert queue(answer) == ["b", "c", "d", "e"]
    assert answer.json["recent"][0] | {"item": None} == {"item": None, "kind": "labelled", "label": "dog", "note": ""}
    assert (answer.json["today"], answer.json["total"], answer.json["canUndo"]) == (1, 1, True)


def test_skip_flag_and_undo(first, project):
    assert queue(first.post("/api/skip", {"item": "a"}))[0] == "b"
    assert queue(first.post("/api/flag", {"item": "b", "note": " blurred "}))[0] == "b"
    assert queue(first.post("/api/flag", {"item": "b", "note": "", "skip": True}))[0] == "c"
    assert [each[:3] for each in project.log] == [
        ("skipped", "a", None), ("flagged", "b", "blurred"), ("flagged", "b", ""), ("skipped", "b", None),
    ]  # fmt: skip
    assert queue(first.post("/api/undo", {}))[0] == "b"  # what was undone comes first, wherever the project has it
    for _ in range(3):
        answer = first.post("/api/undo", {})
    assert project.log == []
    assert queue(answer)[0] == "a"
    assert answer.json["canUndo"] is False
    assert first.post("/api/undo", {}).status == 409


def test_what_was_skipped_is_asked_again_on_request(first, project):
    assert first.get("/api/situation").json["skipped"] == 0
    for name in ("a", "c"):
        first.post("/api/skip", {"item": name})
    found = first.get("/api/situation").json
    assert found["skipped"] == 2
    assert "a" not in [each["id"] for each in found["queue"]]
    assert first.post("/api/skipped", {}).json["skipped"] == 0
    assert project.open_questions("first")[-2:] == ["a", "c"]


def test_an_answer_can_be_changed_later(first, project):
    first.post("/api/label", {"item": "a", "label": "dog"})
    first.post("/api/label", {"item": "a", "label": "cat"})
    assert [each[2] for each in project.log] == ["dog", "cat"]


@pytest.mark.parametrize("name", ["x", "done"])
def test_items_of_others_cannot_be_answered_or_explained(first, project, name):
    for path in ("label", "skip", "flag"):
        assert first.post(f"/api/{path}", {"item": name, "label": "cat", "note": ""}).status == 403
    assert (
        first.post("/api/confirm", {"answers": [{"item": "a", "label": "cat"}, {"item": name, "label": "cat"}]}).status
        == 403
    )
    assert first.get("/api/why", item=name).status == 403
    assert first.get("/api/guess", item=name).status == 403
    assert project.log == []


def test_what_is_not_there_and_what_makes_no_sense(first, project):
    assert first.post("/api/label", {"item": "zzz", "label": "cat"}).status == 404
    assert first.get("/api/why", item="../../etc/passwd").status == 404
    assert (
        first.post("/api/label", {"item": "a", "label": "cow"}).text
        == "The label must be one of the classes, got 'cow'."
    )
    for body in ({}, {"item": 3, "label": "cat"}, {"item": "a"}, [], "a", None, {"item": ["a"], "label": "cat"}):
        assert first.post("/api/label", body).status == 400
    for answers in (None, [], [3], [{"item": "a"}], {"a": "cat"}):
        assert first.post("/api/confirm", {"answers": answers}).status == 400
    broken = first.send("POST", "/api/label", {}, b"{", {"content-type": "application/json"})
    assert broken.status == 400
    assert first.get("/api/label").status == 405
    assert first.post("/api/situation", {}).status == 405
    assert first.get("/static/../app.py").status == 404
    assert first.get("/static/%2e%2e/app.py").status == 404
    assert project.log == []


@pytest.mark.parametrize(("given", "kept"), [(2.5, 2.5), (1e9, 600.0), (10**300, 600.0), (0, 0.0), (None, None)])
def test_how_long_it_took_is_taken_up_to_ten_minutes(first, project, monkeypatch, given, kept):
    seen = []
    monkeypatch.setattr(project, "tell", lambda _answers, _who, seconds: seen.append(seconds))
    first.post("/api/label", {"item": "a", "label": "cat", "seconds": given})
    assert seen == [kept]


@pytest.mark.parametrize("given", [10**400, -1, "3", True, [], {}, float("nan"), float("inf"), -float("inf"), 1e308])
def test_a_time_that_is_none_is_refused(first, project, given):
    answer = first.post("/api/label", {"item": "a", "label": "cat", "seconds": given})
    assert (answer.status, answer.text) == (400, "`seconds` must be a number of at least 0.")
    assert project.log == []


@pytest.mark.parametrize(
    "body", [b"[" * 100_000, b'{"a":' * 100_000, b"1" * 5000, b"\xff\xfe{", b"", b"{}{}", b'"\\ud800"']
)
def test_json_that_is_none_or_too_deep_is_refused(first, project, body):
    for path in ("/api/label", "/api/undo", "/api/confirm"):
        assert first.send("POST", path, {}, body, {"content-type": "application/json"}).status == 400
    assert project.log == []


def test_half_a_character_is_refused_where_it_enters(first, project):
    for body in (b'{"item": "a", "note": "\\ud800"}', b'{"item": "\\udfff", "note": ""}'):
        assert first.send("POST", "/api/flag", {}, body, {"content-type": "application/json"}).status == 400
    whole = b'{"item": "a", "note": "\\ud83d\\ude00"}'
    assert first.send("POST", "/api/flag", {}, whole, {"content-type": "application/json"}).status == 200
    assert [each[2] for each in project.log] == ["\N{GRINNING FACE}"]


def test_the_grid_has_guesses_and_no_item_that_measures_the_model(first, project):
    tiles = first.get("/api/grid").json["tiles"]
    assert [tile["item"]["id"] for tile in tiles] == ["a", "c", "d", "e", "f"]
    assert {tile["guess"] for tile in tiles} == {"cat"}
    answers = [{"item": "a", "label": "cat"}, {"item": "c", "label": "dog"}]
    assert first.post("/api/confirm", {"answers": answers}).status == 200
    assert project.log == [("labelled", "a", "cat", "first"), ("labelled", "c", "dog", "first")]


def test_an_item_that_measures_the_model_comes_without_anything_that_the_model_thinks(first):
    why, guess = first.get("/api/why", item="b").json, first.get("/api/guess", item="b").json
    assert set(why) == {"sentence", "isPending", "like"}
    assert why["like"] == []
    assert "cat" not in guess["sentence"]
    assert "measure" in why["sentence"]


def test_why_and_guess(first, project):
    project.tell({"done": "cat"}, "second")
    why = first.get("/api/why", item="a").json
    assert "6 of its 10 draws say “cat” and 4 say “dog”" in why["sentence"]
    assert (why["votes"], why["groups"], why["apart"]) == (INSIGHT["votes"], INSIGHT["groups"], 0.25)
    assert [(each["item"]["id"], each["label"]) for each in why["like"]] == [("done", "cat")]
    assert (
        first.get("/api/guess", item="a").json["sentence"]
        == "The model would say “cat”; 60 % of its draws vote for that."
    )


def test_why_without_a_model_and_with_a_model_that_is_sure(project):
    without = client_of(Page(project, FakeChooser(None), ["first"]), "first")
    assert without.get("/api/why", item="a").json["sentence"].startswith("There is no model yet.")
    assert without.get("/api/guess", item="a").json["sentence"].startswith("There is no guess yet")
    assert without.get("/api/grid").json["tiles"] == []
    sure = INSIGHT | {"groups": [], "apart": None, "votes": [["cat", 1.0]]}
    told = client_of(Page(project, FakeChooser(sure), ["first"]), "first").get("/api/why", item="a").json["sentence"]
    assert told.startswith("All 10 draws of the model say “cat”.")
    nearly = INSIGHT | {"groups": [{"class": "dog", "draws": 9}, {"class": "cat", "draws": 1}]}
    told = client_of(Page(project, FakeChooser(nearly), ["first"]), "first").get("/api/why", item="a").json["sentence"]
    assert told.startswith("9 of the 10 draws of the model say “dog”.")


def test_more_is_wanted_while_the_last_items_are_labelled(page, first):
    first.get("/api/situation")
    first.post("/api/skip", {"item": "a"})
    first.post("/api/skip", {"item": "b"})
    assert page.chooser.wanted == []
    first.post("/api/skip", {"item": "c"})  # three are left
    assert page.chooser.wanted == ["first"]


def test_trouble_is_told_and_can_be_tried_again(page, first):
    page.chooser.trouble = "no memory"
    assert first.get("/api/situation").json["choosing"]["trouble"] == "no memory"
    assert first.post("/api/again", {}).json["choosing"]["trouble"] == ""


def test_what_cannot_be_written_is_told_in_a_sentence(first, project, monkeypatch):
    def full(*_):
        raise OSError("cannot write to labels.sqlite: the disk is full")

    monkeypatch.setattr(project, "tell", full)
    answer = first.post("/api/label", {"item": "a", "label": "cat"})
    assert (answer.status, answer.text) == (500, "cannot write to labels.sqlite: the disk is full")


def test_items_go_back_after_ten_minutes_without_an_answer(project):
    now = [0.0]
    page = Page(project, FakeChooser(), ["first", "second"], clock=lambda: now[0])
    first, second = client_of(page, "first"), client_of(page, "second")
    second.get("/api/situation")
    now[0] = IDLE_SECONDS - 1
    first.get("/api/situation")
    assert project.open_questions("second") == ["x", "y"]
    now[0] = IDLE_SECONDS
    first.get("/api/situation")
    assert project.open_questions("second") == []
    assert len(project.open_questions("first")) == 6
    assert second.post("/api/label", {"item": "x", "label": "cat"}).status == 403


def test_one_person_alone_keeps_items_for_ever(project):
    now = [0.0]
    alone = client_of(Page(project, FakeChooser(), ["first"], clock=lambda: now[0]), "first")
    now[0] = 100 * IDLE_SECONDS
    assert len(queue(alone.get("/api/situation"))) == 4


def test_history_goes_back_as_far_as_one_likes(first):
    for name in "abcdef":
        first.post("/api/label", {"item": name, "label": "cat"})
    ids = [answer["item"]["id"] for answer in first.get("/api/history", skip=2).json["answers"]]
    assert ids == ["d", "c", "b", "a"]
    assert len(first.get("/api/history", skip="x").json["answers"]) == 6


def test_progress_counts_labels_people_and_classes(first):
    first.post("/api/label", {"item": "a", "label": "dog"})
    found = first.get("/api/progress").json
    assert (found["today"], found["total"], found["people"]) == (
        1, 1, [{"name": "first", "count": 1, "today": 1, "isMe": True}]
    )  # fmt: skip
    assert found["classes"] == [{"name": "cat", "count": 0}, {"name": "dog", "count": 1}]


@pytest.fixture
def pictures(tmp_path):
    """A client, and the folder that its images are in."""
    root = tmp_path / "photos"
    root.mkdir()
    Image.new("RGB", (60, 40), "red").save(root / "a.png")
    Image.new("RGB", (600, 400), "red").save(root / "b.jpg")
    Image.new("L", (30, 20)).save(root / "c.tif")
    (root / "d.png").write_text("<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>")
    (root / "e.png").write_bytes(b"GIF89a broken")
    Image.new("RGB", (5, 5)).save(tmp_path / "secret.png")
    names = ["a.png", "b.jpg", "c.tif", "d.png", "e.png", "gone.png", "../secret.png"]
    if os.name == "posix":
        (root / "link.png").symlink_to(tmp_path / "secret.png")
        names.append("link.png")
    project = PageProject.make(tmp_path, {"first": names, "second": ["a.png"]}, root=root, files=names)
    return client_of(Page(project, FakeChooser(), ["first"]), "first"), root


def test_images_are_sent_by_id_as_what_they_are(pictures):
    client, root = pictures
    answer = client.get("/image", item="a.png")
    assert (answer.status, answer.header("content-type"), answer.body) == (
        200,
        "image/png",
        (root / "a.png").read_bytes(),
    )
    assert answer.header("x-content-type-options") == "nosniff"
    assert client.get("/image", item="b.jpg").header("content-type") == "image/jpeg"
    tif = client.get("/image", item="c.tif")
    assert (tif.header("content-type"), tif.body[:4]) == ("image/png", b"\x89PNG")


def test_small_images_are_small_and_made_once(pictures, monkeypatch):
    client, _ = pictures
    small = client.get("/image", item="b.jpg", size="small")
    assert small.header("content-type") == "image/jpeg"
    monkeypatch.setattr(images, "read_image", None)
    assert client.get("/image", item="b.jpg", size="small").body == small.body


@pytest.mark.parametrize("size", ["full", "small"])
def test_only_raster_images_inside_the_folder_are_sent(pictures, size):
    client, _ = pictures
    told = {
        name: client.get("/image", item=name, size=size) for name in ("d.png", "e.png", "gone.png", "../secret.png")
    }
    assert {answer.status for answer in told.values()} == {415}
    assert told["gone.png"].text == "This file no longer exists."
    assert told["../secret.png"].text == "This file is outside the folder of the images."
    if os.name == "posix":
        assert client.get("/image", item="link.png", size=size).status == 415
    for name in ("../photos/a.png", "/etc/passwd", "", "A.PNG"):
        assert client.get("/image", item=name, size=size).status == 403


def test_images_with_too_many_pixels_are_not_sent(pictures, monkeypatch):
    client, _ = pictures
    monkeypatch.setattr(images, "MOST_PIXELS", 60 * 40 - 1)
    assert client.get("/image", item="a.png").text == "This image is too large to show: 60 × 40 pixels."
    monkeypatch.setattr(images, "MOST_PIXELS", 60 * 40)
    assert client.get("/image", item="a.png").status == 200


def test_a_text_is_no_image(first):
    assert first.get("/image", item="a").status == 404
    assert first.get("/image", item="x").status == 403  # somebody else's

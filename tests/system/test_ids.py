"""Texts that no file can hold are refused where they enter, and mended where they were stored."""

import json
import os

import numpy as np
import pytest

from batchbalance import FileFormatError, Learner
from batchbalance.encoders import open_items
from batchbalance.learner import labels
from batchbalance.posteriors import posterior_options
from batchbalance.project import Project
from batchbalance.project.answers import record_answers
from batchbalance.project.bridge import write_export
from batchbalance.project.page.app import Body
from batchbalance.system.ids import check_unicode, line_of, mended, read_ids
from made_projects import make

HALF = "so\ud83d so"
REFUSED = "half a character .a lone surrogate. in .*; replace that character"


def test_halves_are_found_and_replaced():
    assert check_unicode("x", "😀 é") == "😀 é"
    assert mended(f"😀{HALF}\udc00") == "😀so\ufffd so\ufffd"
    with pytest.raises(FileFormatError, match=r"x must be valid Unicode, got .* in 'aaa.udc00'; replace"):
        check_unicode("x", "aaa\udc00")


@pytest.mark.parametrize(
    "enter",
    [
        lambda p: p.flag("0", HALF),
        lambda p: p.comment("0", HALF),
        lambda p: p.tell({HALF: "ant"}),
        lambda p: p.skip(HALF),
        lambda p: record_answers(p.store, [], note={"where": [HALF]}),
        lambda p: p.tell({"0": "ant"}, HALF),
        lambda p: p.tell({"0": HALF}),
        lambda p: p.add_class(HALF),
        lambda p: p.rename_class("ant", HALF),
    ],
)
def test_projects_refuse_halves(tmp_path, enter):
    project = make(tmp_path)
    before = len(project.events())
    with pytest.raises(ValueError, match=r"half a character|must be a name|must be printable text|unknown label"):
        enter(project)
    assert len(project.events()) == before
    assert project.export(tmp_path / "out.csv", predictions=False) == 0


@pytest.mark.parametrize("settings", [{"instructions": HALF}, {"classes": ["a", HALF]}])
def test_settings_refuse_halves(tmp_path, settings):
    with pytest.raises(ValueError, match=r"half a character|printable text"):
        make(tmp_path, **settings)
    assert not (tmp_path / "p").exists()


@pytest.mark.parametrize(
    "row", [{"id": HALF, "v": "1"}, {"id": "q", "v": HALF}, {"id": "q", HALF: "1"}, {"id": "q", "v": [{"a": HALF}]}]
)
def test_rows_refuse_halves(tmp_path, row):
    rows = [*({"id": str(i), "v": str(i)} for i in range(5)), row]
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(FileFormatError, match=REFUSED):
        Project.create(tmp_path / "p", table=tmp_path / "t.jsonl", classes=["a", "b"])
    with pytest.raises(FileFormatError, match=REFUSED):
        [item.read() for item in open_items([row])]


def test_names_of_files_and_ids_refuse_halves(tmp_path):
    try:
        (tmp_path / os.fsdecode(b"a\xff.txt")).write_text("text")
    except OSError:
        pytest.skip("this file system takes no such name")
    with pytest.raises(FileFormatError, match=f"name of a file in {tmp_path} .*{REFUSED}"):
        open_items(tmp_path)
    (tmp_path / "v.ids.txt").write_text(f"a\n{line_of(HALF)}\n")
    with pytest.raises(FileFormatError, match=f"an id in .*{REFUSED}"):
        read_ids(tmp_path / "v.ids.txt")


def test_learners_refuse_halves(tmp_path):
    x = np.random.default_rng(0).normal(size=(12, 3)).astype(np.float32)
    options = posterior_options("committee", size=2)
    with pytest.raises(ValueError, match="half a character"):
        Learner(x, ["a", HALF], options)
    with pytest.raises(ValueError, match="half a character"):
        Learner(x, ["a", "b"], options, ids=[*"abcdefghijk", HALF])
    with pytest.raises(ValueError, match="half a character"):
        Learner(x, ["a", "b"], options, directory=tmp_path / "l").tell([HALF], ["a"])


def test_stored_halves_are_mended_and_said_once(tmp_path, monkeypatch):
    project = make(tmp_path)
    with monkeypatch.context() as patched:  # as it was stored before it was refused
        patched.setattr(labels.log, "check_unicode", lambda _, text: text)
        project.flag("0", HALF)
        project.comment("1", HALF)
    project.close()
    project = Project.open(tmp_path / "p")
    assert [note for note in project.notes if "half a character" in note] == [
        "a note has half a character (a lone surrogate); it is shown and exported as \ufffd"
    ]
    assert project.check() == []
    assert project.export(tmp_path / "out.csv", every=True) == 2
    assert "so\ufffd so" in (tmp_path / "out.csv").read_text(encoding="utf-8")
    assert write_export(project, tmp_path / "out.jsonl", "jsonl") == 2
    assert "so\ufffd so" in (tmp_path / "out.jsonl").read_text(encoding="utf-8")
    assert next(project.store.snapshot().undoable(None, anyone=True)).value == "so\ufffd so"


def test_requests_refuse_halves():
    from starlette.exceptions import HTTPException

    with pytest.raises(HTTPException, match="valid Unicode"):
        _ = Body({"note": HALF}).note
    with pytest.raises(HTTPException, match="valid Unicode"):
        _ = Body({"answers": [{"item": "0", "label": HALF}]}).answers

"""`batchbalance labelstudio`, and `export` and `tell` with the files of other tools."""

import json
import os
import socket
import stat

import pytest
import requests
from typer.testing import CliRunner

from batchbalance.cli import app
from batchbalance.cli.labelstudio import token
from batchbalance.project.bridge import sync
from fake_labelstudio import REFRESH, URL, FakeLabelStudio
from labelstudio_rounds import BATCH, Annotator, make_project, truth


@pytest.fixture
def fake(monkeypatch):
    """Every request goes to an imitation of Label Studio, where all is labelled while `sync` waits."""
    found = FakeLabelStudio()
    monkeypatch.setattr(requests.Session, "get_adapter", lambda *_, **__: found)
    monkeypatch.setitem(sync.__kwdefaults__, "sleep", lambda _: labelled(found))
    monkeypatch.setenv("LABEL_STUDIO_API_KEY", REFRESH)
    return found


@pytest.fixture
def folder(tmp_path):
    make_project(tmp_path).close()
    return tmp_path / "pets"


def run(*words):
    result = CliRunner().invoke(app, list(map(str, words)))
    return result.exit_code, result.output


def labelled(fake):
    someone = Annotator(fake.server(), 1)
    while (task := someone.next_task()) is not None:
        someone.answer(task, truth(task["data"]["item_id"]))


@pytest.mark.slow
def test_link_push_pull_and_sync(folder, fake):
    code, said = run("labelstudio", "link", folder, "--url", URL)
    assert (code, f"is linked to {URL}/projects/1/" in said) == (0, True)
    code, said = run("labelstudio", "push", folder)
    assert (code, f"{BATCH} items are to be labelled" in said, f"{BATCH} tasks are new" in said) == (0, True, True)
    labelled(fake)
    code, said = run("labelstudio", "pull", folder)
    assert (code, f"{BATCH} labelled, 0 corrected, 0 skipped" in said) == (0, True)
    code, said = run("labelstudio", "push", folder, "-n", 3, "--guesses")
    assert (code, "3 items are to be labelled" in said) == (0, True)
    code, said = run("labelstudio", "sync", folder, "--every", "1min", "--rounds", 1)
    assert code == 0
    assert "every 60 s" in said
    assert "batch 1 is done" in said


def test_the_token_is_in_no_file(folder, fake):
    assert run("labelstudio", "link", folder, "--url", URL)[0] == 0
    assert run("labelstudio", "push", folder)[0] == 0
    for path in folder.rglob("*"):
        if path.is_file():
            assert REFRESH.encode() not in path.read_bytes(), path
            assert b"access 1" not in path.read_bytes(), path


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["push"], "is not linked yet; link it with: batchbalance labelstudio link"),
        (["link", "--url", "here"], "--url must be an address such as"),
        (["link", "--url", URL, "--project", 9], "has no project 9"),
        (["sync", "--every", "soon"], "--every must be a time such as 30s, 5min or 1h, got 'soon'"),
        (["sync", "--every", "0s"], "--every must be a time"),
        (["serve"], "is not linked yet"),
    ],
)
def test_mistakes_are_one_sentence(folder, fake, words, said):
    command, *rest = words
    code, output = run("labelstudio", command, folder, *rest)
    assert code == 2
    assert said in output
    assert "Traceback" not in output


def test_without_a_token(folder, fake, monkeypatch):
    monkeypatch.delenv("LABEL_STUDIO_API_KEY")
    code, said = run("labelstudio", "link", folder, "--url", URL)
    assert (code, "a token must be given in the environment variable LABEL_STUDIO_API_KEY" in said) == (2, True)
    assert fake.requests == []
    monkeypatch.setenv("LABEL_STUDIO_API_KEY", "wrong.wrong.wrong")
    code, said = run("labelstudio", "link", folder, "--url", URL)
    assert (code, "refuses the token" in said, "wrong.wrong" in said) == (2, True, False)


def test_a_link_is_no_secret(folder, fake):
    run("labelstudio", "link", folder, "--url", URL)
    path = folder / "labelstudio.json"
    assert set(json.loads(path.read_text())) == {"url", "project", "control", "object", "key", "checksum"}
    assert os.name == "nt" or stat.S_IMODE(path.stat().st_mode) & 0o400


@pytest.mark.slow
def test_export_and_tell_files_of_other_tools(folder, tmp_path):
    assert run("ask", folder, "-n", 3)[0] == 0
    code, said = run("export", folder, "--format", "label-studio", "--open", "--output", tmp_path / "t.json")
    assert (code, "3 items written" in said) == (0, True)
    tasks = json.loads((tmp_path / "t.json").read_text(encoding="utf-8"))
    for task in tasks[:2]:
        name = task["data"]["item_id"]
        choice = {"from_name": "label", "to_name": "text", "type": "choices", "value": {"choices": [truth(name)]}}
        task["annotations"] = [{"result": [choice], "completed_by": 1}]
    tasks[2]["annotations"] = [{"result": [], "was_cancelled": True, "completed_by": 1}]
    (tmp_path / "t.json").write_text(json.dumps(tasks), encoding="utf-8")
    code, said = run("tell", folder, tmp_path / "t.json")
    assert (code, "2 labelled, 0 corrected, 0 known already, 2 skipped" in said) == (0, True)
    assert "0 open questions" in said
    code, said = run("export", folder, "--format", "xml", "--output", tmp_path / "t.xml")
    assert (code, "unknown format 'xml'" in said) == (2, True)
    code, said = run("export", folder, "--open", "--output", tmp_path / "t.csv")
    assert (code, "--open and --image-url must not be given for format csv" in said) == (2, True)


def test_a_token_can_be_typed_without_being_shown(monkeypatch):
    monkeypatch.delenv("LABEL_STUDIO_API_KEY", raising=False)
    monkeypatch.setattr("sys.stdin", type("Terminal", (), {"isatty": lambda _: True})())
    asked = []

    def prompt(text, **options):
        asked.append((text, options))
        return "typed"

    monkeypatch.setattr("typer.prompt", prompt)
    assert token() == "typed"
    assert asked == [("Personal access token of Label Studio", {"hide_input": True})]


def test_a_port_that_is_taken_and_an_interrupt(folder, fake, monkeypatch):
    assert run("labelstudio", "link", folder, "--url", URL)[0] == 0
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, said = run("labelstudio", "serve", folder, "--port", port)
    assert (code, f"cannot listen on 127.0.0.1, port {port}" in said) == (2, True)

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(fake, "send", interrupted)
    for command in ("push", "pull", "sync"):
        code, said = run("labelstudio", command, folder)
        assert (code, "what is done is kept; the same command continues from there" in said) == (130, True)

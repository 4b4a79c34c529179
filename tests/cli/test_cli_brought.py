"""Labels, classes and ids that `init` finds beside the items, and what `ask` and `export` give to other programs."""

import csv
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from batchbalance.cli import app
from batchbalance.project import Project

ROWS = [(f"m{i}", f"card {i}" if i % 2 else f"money {i}", ["pay", "card"][i % 2] if i < 12 else "") for i in range(40)]
INIT = ["init", "p", "--texts", "mails.csv", "--column", "body", "--encoder", "tfidf"]


def run(*arguments, code=0):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == code, result.output
    return result


@pytest.fixture(autouse=True)
def mails(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with (tmp_path / "mails.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("number", "body", "intent"), *ROWS])


def test_a_column_gives_labels_and_classes():
    result = run(*INIT, "--labels-from", "intent", "--sample", "random")
    assert "classes card, pay" in result.stdout
    assert "12 labelled, 0 corrected" in result.stdout
    assert "ids: row numbers from 0; suitable columns for --id: number" in result.stdout
    assert "next: batchbalance label p" in result.stdout
    project = Project.open("p")
    assert project.labels == {str(i): label for i, (_, _, label) in enumerate(ROWS[:12])}
    measured = sum(project.store.is_audit[:12])
    assert f"{measured} of these labels measure the model" in result.stderr or not measured


def test_ids_of_a_column_and_a_file_of_labels():
    with Path("labels.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("id", "label"), ("m3", "card"), ("m4", "pay")])
    result = run(*INIT, "--id", "number", "--labels-from", "labels.csv", "--classes-from", "intent")
    assert "ids: column 'number'" in result.stdout
    assert Project.open("p").labels == {"m3": "card", "m4": "pay"}


def test_classes_of_a_file():
    with Path("classes.txt").open("w", encoding="utf-8") as file:
        file.write("pay\ncard\nneither\n")
    run(*INIT, "--classes-file", "classes.txt")
    assert Project.open("p").classes == ["pay", "card", "neither"]


def test_the_column_of_labels_is_not_a_feature(tmp_path):
    result = run("init", "t", "--table", "mails.csv", "--labels-from", "intent", "--drop", "number", "--drop", "body",
                 code=2)  # fmt: skip
    assert "must have columns besides the id" in result.stderr
    result = run("init", "t", "--table", "mails.csv", "--labels-from", "intent", "--id", "number")
    assert "columns taken: body" in result.output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "--classes must be given"),
        (["--labels-from", "intention"], "must have a column 'intention', got columns number, body, intent"),
        (["--classes", "a,b", "--classes-file", "c.txt"], "--classes and --classes-file must not be given together"),
        (["--classes-file", "none.txt"], "no such file of classes: none.txt"),
        (["--classes", "a,b", "--labels-from", "intent"], "'pay'"),
    ],
)
def test_mistakes_say_what_to_do(words, message):
    assert message in run(*INIT, *words, code=2).stderr


def test_several_classes_in_one_cell_are_refused(tmp_path):
    rows = [(0, "a b", "bug"), (1, "b c", "ui"), (2, "c d", "bug;ui")]
    with (tmp_path / "mails.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("number", "body", "intent"), *rows])
    assert "got 'bug;ui', which looks like several" in run(*INIT, "--labels-from", "intent", code=2).stderr


def test_ask_prints_json_and_tell_the_next_step(tmp_path):
    run(*INIT, "--classes", "card,pay")
    asked = json.loads(run("ask", "p", "-n", 4, "--json").stdout)
    assert [each["id"] for each in asked] == Project.open("p").open_questions()
    assert all(each["text"] == ROWS[int(each["id"])][1] for each in asked)
    assert not (tmp_path / "p" / "batch.csv").exists()
    with Path("answers.csv").open("w", newline="", encoding="utf-8") as file:
        answers = [(each["id"], "card" if "card" in each["text"] else "pay") for each in asked]
        csv.writer(file).writerows([("id", "label"), *answers])
    assert "next: batchbalance status p" in run("tell", "p", "answers.csv").stdout

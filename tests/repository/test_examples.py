import csv
import importlib.util
import re
import shlex
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def load(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_appendix_example_prints_eight_against_three(capsys):
    load("appendix_example").main()
    printed = capsys.readouterr().out
    assert "BALD 8 " in printed
    assert "EC²  3 " in printed


@pytest.mark.slow
def test_three_batches_of_digits_are_drawn(tmp_path):
    picture = load("batch_picture")
    first = next(chosen for title, chosen in picture.batches().items() if title.startswith("first batch"))
    assert len(set(first)) == 20
    assert "first batch: before any label, it covers the pool (10 of 10 digits)" in picture.batches()
    picture.draw(str(tmp_path / "batch.png"))
    assert 10_000 < (tmp_path / "batch.png").stat().st_size < 200_000


def test_a_project_is_played_with_published_labels(tmp_path, monkeypatch):
    from batchbalance import Project

    monkeypatch.chdir(tmp_path)
    queries = [("card gone", "card"), ("lost card", "card"), ("send money", "transfer"), ("money sent", "transfer")] * 5
    lines = [f"{text} {number},{label}" for number, (text, label) in enumerate(queries)]
    Path("train.csv").write_text("\n".join(["text,category", *lines]), encoding="utf-8")
    labelling = load("labelling")
    labelling.texts("train.csv", "queries.csv", "truth.csv")
    project = Project.create("bank", texts="queries.csv", classes=["card", "transfer"], encoder="tfidf")
    batch = project.ask(6)
    rows = [f"{name},,x" for name in batch.ids]
    Path("batch.csv").write_text("\n".join(["id,label,text", *rows]), encoding="utf-8")
    labelling.answer("batch.csv", "truth.csv")
    project.tell("batch.csv")
    assert project.labels == {name: queries[int(name)][1] for name in batch.ids}


def rows_of(path):
    with path.open(encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_the_demo_shows_true_commands_and_true_figures(tmp_path, capsys):
    folder = tmp_path / "demo"
    load("demo").main(folder, trials=2, rounds=2, batch_size=15, items=200, test_items=60)
    printed = capsys.readouterr().out
    commands = [shlex.split(line)[2] for line in printed.splitlines() if line.startswith("$ batchbalance ")]
    assert commands == ["init", *["ask", "tell"] * 2, "status", "export", "report", "init", "label"]

    truth = {row["id"]: row["label"] for row in rows_of(folder / "truth.csv")}
    predicted = rows_of(folder / "labels.csv")
    labelled = {row["id"]: row["label"] for row in predicted if row["label"]}
    test = {row["id"] for row in rows_of(folder / "test-0.csv")}
    assert len(predicted) == 200
    assert len(labelled.keys() - test) == 30
    assert all(truth[name] == label for name, label in labelled.items())

    right = [row["prediction"] == truth[row["id"]] for row in predicted if row["id"] in test]
    last = float(re.search(r"trial 0  auto .* (0\.\d+)$", printed, re.M)[1])
    assert last == round(sum(right) / 60, 3) > 0.4
    assert len(re.findall(r"^  trial [01]  (?:auto|random) ", printed, re.M)) == 4
    assert "No strategy is statistically" in (folder / "report" / "report.md").read_text(encoding="utf-8")
    for page in re.findall(r"^  (\S+\.html)", printed, re.M):
        assert "</html>" in (folder / page).read_text(encoding="utf-8")


def test_the_demo_overwrites_nothing(tmp_path):
    with pytest.raises(FileExistsError):
        load("demo").main(tmp_path)

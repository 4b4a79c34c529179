import importlib.util
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def load(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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

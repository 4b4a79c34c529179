"""`batchbalance select --labels`: a head fitted on the labels so far chooses the batch."""

import csv
import json

import numpy as np
import pytest
from typer.testing import CliRunner

from batchbalance import select
from batchbalance.cli import app
from batchbalance.cli import labels as labels_module
from batchbalance.posteriors import BayesianHead
from batchbalance.system.spreadsheets import csv_text

NUM = 90
ODD_IDS = {0: "=1+2", 1: "-3", 2: "@sum", 3: "a;b", 4: "a,b", 5: ' two "words" '}


@pytest.fixture
def folder(tmp_path):
    """Embeddings of three classes with their ids; every third point has a label."""
    rng = np.random.default_rng(0)
    kinds = np.arange(NUM) % 3
    points = (rng.normal(size=(3, 12))[kinds] * 0.7 + rng.normal(size=(NUM, 12)) + 4).astype(np.float32)
    np.save(tmp_path / "e.npy", points)
    names = [ODD_IDS.get(i, f"image-{i}.png") for i in range(NUM)]
    lines = ['" two \\"words\\" "' if name.startswith(" ") else name for name in names]
    (tmp_path / "e.ids.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    texts = np.array(["cat", "dog", "über"])[kinds]
    write(tmp_path / "labels.csv", [(names[i], texts[i]) for i in range(45)])
    return tmp_path


def write(path, rows, delimiter=",", encoding="utf-8", header=("id", "label")):
    with path.open("w", encoding=encoding, newline="") as file:
        csv.writer(file, delimiter=delimiter).writerows([header, *rows])


def read(path):
    with path.open(encoding="utf-8", newline="") as file:
        return [(row["id"], row["label"]) for row in csv.DictReader(file)]


def run(folder, *arguments, labels="labels.csv"):
    given = ["select", "--embeddings", folder / "e.npy", "--labels", folder / labels, "-b", 5, *arguments]
    result = CliRunner().invoke(app, list(map(str, given)))
    return result.exit_code, result.stdout, result.stderr


def batch(path):
    with path.open(encoding="utf-8", newline="") as file:
        return [int(row["index"]) for row in csv.DictReader(file)]


@pytest.mark.slow
def test_a_batch_that_select_wrote_can_be_filled_in_and_read(folder):
    """Ids that begin like formulas, or would behind a semicolon, are escaped on the way out and found on the way in."""
    names = ["=1+2", "a;=b", "-3", "'quoted"]
    columns = {"id": names, "label": ["cat", "=dog", "cat", "=dog"]}
    text = csv_text(list(columns), zip(*columns.values(), strict=True))
    (folder / "filled.csv").write_text(text, encoding="utf-8", newline="")
    assert "a;'=b,'=dog" in text
    found = labels_module.read_labels(folder / "filled.csv", names, 4)
    assert found.of_rows == {0: "cat", 1: "=dog", 2: "cat", 3: "=dog"}


def test_a_head_is_fitted_and_chooses(folder):
    code, out, err = run(folder, "--output", folder / "batch.csv")
    assert (code, err) == (0, "")
    points, known = np.load(folder / "e.npy"), [label for _, label in read(folder / "labels.csv")]
    head = BayesianHead().fit(points[:45], known, unlabelled=points)
    expected = select(head.predict(points), 5, embeddings=points, labelled=range(45))
    assert batch(folder / "batch.csv") == expected.indices.tolist()
    assert min(expected.indices.tolist()) >= 45
    accuracy = f"{1 - head.tuned.error:.3f} on 45 of them"
    assert f"head         45 labels of 3 classes; cross-validated accuracy {accuracy}" in out
    assert "u-herding chose 5 of 90 points" in out


@pytest.mark.slow
def test_spreadsheets_change_nothing(folder, monkeypatch):
    """Semicolons, a byte order mark, other columns, blank answers, odd ids, repeated answers, and a pool too large."""
    run(folder, "--output", folder / "batch.csv")
    rows = read(folder / "labels.csv")
    assert {name for name, _ in rows} >= set(ODD_IDS.values())
    odd = [*rows, *rows[:3], ("image-60.png", " "), ("image-61.png", "")]
    write(folder / "semicolons.csv", odd, ";", "utf-8-sig")
    write(folder / "tabs.tsv", [(label, name) for name, label in rows], "\t", header=("label", "id"))
    for labels in ("semicolons.csv", "tabs.tsv"):
        code, _, err = run(folder, "--output", folder / "again.csv", labels=labels)
        assert (code, err) == (0, "")
        assert batch(folder / "again.csv") == batch(folder / "batch.csv")
    monkeypatch.setattr(labels_module, "STORED_SHARE", 0.0)
    run(folder, "--output", folder / "again.csv")
    assert batch(folder / "again.csv") == batch(folder / "batch.csv")


def test_points_without_ids_go_by_number(folder):
    (folder / "e.ids.txt").unlink()
    write(folder / "numbers.csv", [(i, "ab"[i % 2]) for i in range(8)])
    code, out, err = run(folder, labels="numbers.csv")
    assert (code, err) == (0, "")
    assert "8 labels of 2 classes; cross-validated accuracy" in out
    code, _, err = run(folder)
    assert (code, "got '=1+2'; without --ids, ids are the numbers 0 to 89" in err) == (2, True)


@pytest.mark.parametrize("rows", [[], [("image-7.png", "")]])
def test_without_labels_it_is_a_cold_start(folder, rows):
    write(folder / "none.csv", rows)
    code, out, err = run(folder, "--output", folder / "batch.csv", labels="none.csv")
    assert (code, err) == (0, "")
    assert "head         none: no labels yet" in out
    assert batch(folder / "batch.csv") == select(embeddings=np.load(folder / "e.npy"), batch_size=5).indices.tolist()


def test_one_class_says_nothing_yet(folder):
    write(folder / "one.csv", [("image-7.png", "cat"), ("image-8.png", "cat")])
    code, out, err = run(folder, labels="one.csv")
    assert (code, err) == (0, "")
    assert "head         none: all 2 labels are 'cat'" in out
    assert "max-herding chose 5 of 90" in out
    code, out, err = run(folder, "--strategy", "bald", labels="one.csv")
    assert (code, err) == (0, "")
    assert "there is no model yet for 'bald', so auto chose 'max-herding'" in out
    write(folder / "one.csv", [(f"image-{number}.png", "cat") for number in range(20, 30)])
    code, out, err = run(folder, labels="one.csv")
    assert (code, "explore chose 5 of 90" in out, "all labels so far are of one class" in err) == (0, True, True)


@pytest.mark.slow
def test_seek_sees_what_the_head_predicts(folder):
    code, out, err = run(folder, "--strategy", "seek")
    assert (code, "seek chose 5 of 90 points" in out) == (0, True), err
    assert "seeking the rarest class by the predictions" in err


@pytest.mark.parametrize("strategy", ["batch-balance", "bald", "coreset", "random", "cover-balance"])
def test_every_kind_of_strategy(folder, strategy):
    code, out, err = run(folder, "--strategy", strategy)
    assert (code, err) == (0, "")
    assert f"{strategy} chose 5 of 90 points" in out
    if strategy == "batch-balance":
        points = np.load(folder / "e.npy")
        head = BayesianHead().fit(points[:45], [label for _, label in read(folder / "labels.csv")], unlabelled=points)
        assert f"threshold    {0.25 * head.tuned.error:.4g} (" in out


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            [("image-7.png", "cat"), ("nobody", "dog")],
            "must name points of the pool, got 'nobody'; for example, --ids has '=1+2'",
        ),
        (
            [("image-7.png", "cat"), ("image-7.png", "dog")],
            "must have one label for each id, got 'cat' and 'dog' for 'image-7.png'; keep one",
        ),
        ([("image-7.png", "cat", "more")], "line 2 must have 2 cells, got 3"),
        ([("image-7.png", "cat"), ("image-8.png", "NaN")], "an empty cell for 'image-8.png', got 'NaN', which many"),
    ],
)
def test_mistakes_in_the_file(folder, rows, message):
    write(folder / "wrong.csv", rows)
    code, out, err = run(folder, "--output", folder / "batch.csv", labels="wrong.csv")
    assert (code, out) == (2, "")
    assert message in err
    assert not (folder / "batch.csv").exists()


@pytest.mark.parametrize("cell", [["cat"], {"a": 1}])
def test_a_label_that_is_neither_text_nor_number_is_refused(folder, cell):
    (folder / "odd.jsonl").write_text(json.dumps({"id": "image-7.png", "label": cell}))
    code, _, err = run(folder, labels="odd.jsonl")
    assert (code, f"must have a text or a number as `label` in each row, got {cell!r}" in err) == (2, True)


@pytest.mark.parametrize("array", [np.array(1.0), np.zeros(3), np.zeros((2, 3), dtype=complex)])
def test_embeddings_of_another_shape_or_type_are_refused(folder, array):
    np.save(folder / "e.npy", array)
    code, _, err = run(folder)
    assert (code, f"must hold embeddings (N, D), got {array.dtype} of shape {array.shape}" in err) == (2, True)


def test_other_mistakes(folder):
    write(folder / "names.csv", [], header=("name", "label"))
    code, _, err = run(folder, labels="names.csv")
    assert (code, "must have the columns id and label, got name, label" in err) == (2, True)
    assert run(folder, labels="missing.csv")[0] == 2
    code, _, err = run(folder, "--labelled", folder / "e.ids.txt")
    assert (code, "got --labelled too; omit one of them" in err) == (2, True)
    np.save(folder / "p.npy", np.full((NUM, 2, 2), 0.5))
    alone = ["select", str(folder / "p.npy"), "--labels", str(folder / "labels.csv"), "-b", "2"]
    result = CliRunner().invoke(app, alone)
    assert result.exit_code == 2
    np.save(folder / "e.npy", np.full((NUM, 3), np.nan))
    code, _, err = run(folder)
    assert (code, "finite" in err) == (2, True)


def test_a_head_that_learnt_nothing_says_so(folder):
    """Labels that have nothing to do with the points."""
    known = read(folder / "labels.csv")
    names = np.random.default_rng(0).permutation(["yes", "no"] * len(known))
    write(folder / "labels.csv", [(point, name) for (point, _), name in zip(known, names, strict=False)])
    code, out, err = run(folder)
    assert (code, err) == (0, "")
    assert "warning      the model predicts held-out labels worse than class frequencies alone" in out

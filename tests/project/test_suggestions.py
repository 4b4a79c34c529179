"""Machine labels: files, the log, and how good they are by the audit set."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from batchbalance.cli import app
from batchbalance.errors import FileFormatError
from batchbalance.project import Project
from batchbalance.project.anytime import any_look
from batchbalance.project.audit import calibration
from batchbalance.project.suggestions import NONE, packed, read_suggestions, sources_of, unpacked
from made_projects import CLASSES, answered, make, points


def written(path, text):
    path.write_text(text, encoding="utf-8")
    return path


def read(path, text, classes=CLASSES, num=6):
    return read_suggestions(written(path, text), list(classes), [str(i) for i in range(num)])


def source_file(path, num=80, share=0.8, seed=1, confidence=True):
    """Suggestions of which a share is right; they are the surer the righter."""
    random, y = np.random.default_rng(seed), points(num)[1]
    is_right = random.random(num) < share
    said = np.where(is_right, y, (y + 1) % 3)
    sure = np.where(is_right, random.uniform(0.5, 1, num), random.uniform(0.3, 0.9, num)).round(3)
    rows = [f"{i},{CLASSES[said[i]]}" + (f",{sure[i]}" if confidence else "") for i in range(num)]
    written(path, "\n".join(["id,label" + (",confidence" if confidence else ""), *rows]) + "\n")
    return said, sure


def test_a_file_of_labels_confidences_or_probabilities_is_read(tmp_path):
    labels, sure, notes = read(tmp_path / "a.csv", "ID;Label\n0;ant\n5; cow \n1;\n")
    assert (labels.tolist(), sure, notes) == ([0, NONE, NONE, NONE, NONE, 2], None, ["4 of 6 items have no suggestion"])
    labels, sure, _ = read(tmp_path / "b.csv", "id,prediction,probability\n1,bee,0.25\n")
    assert (labels[1], sure.tolist()) == (1, [0, 0.25, 0, 0, 0, 0])
    labels, sure, _ = read(tmp_path / "c.csv", "id,cow,ant,bee\n2,0.7,0.2,0.1\n")
    assert (labels[2], sure[2]) == (2, 0.7)
    labels, sure, _ = read(tmp_path / "d.jsonl", '{"id": 3, "label": "ant", "confidence": 1}\n')
    assert (labels[3], sure[3]) == (0, 1.0)


def test_what_a_file_has_too_much_or_not_is_said(tmp_path):
    text = "id,label\n0,ant\n0,ant\n9,ant\nx,bee\n1,Bee\n2,dunno\n3,dunno\n"
    labels, _, notes = read(tmp_path / "a.csv", text)
    assert labels.tolist() == [0, *[NONE] * 5]
    assert notes == [
        "2 of 7 ids are not of items in this project: '9', 'x'; ignored",
        "3 labels are not classes of this project: 'dunno' (2), 'Bee' (1); ignored",
        "1 rows repeat an id with the same label",
        "5 of 6 items have no suggestion",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name,label\n0,ant\n", "must have a column 'id', got columns name, label"),
        ("id,ant,bee\n0,1,0\n", "or a column for each class, got no column for 'cow'"),
        ("id,label\n0,ant\n0,bee\n", "row 2: '0' must have one label, got two that differ"),
        ("id,label\n8,ant\n", "must suggest labels for items of this project, got none; 1 of 1 ids are not"),
        ("id,label,confidence\n0,ant,87\n", "a confidence must be a number from 0 to 1, got '87'"),
        ("id,label,confidence\n0,ant,\n", "a confidence must be a number from 0 to 1, got ''"),
        ("id,ant,bee,cow\n0,2,1,1\n", "a confidence must be a number from 0 to 1, got '2'"),
        ("id,ant,bee,cow\n0,0.9,0.9,0.1\n", "must add up to 1, got 1.9"),
        ("id,label\n0,ant;bee\n", "must suggest one class, got 'ant;bee'; several labels"),
    ],
)
def test_mistakes_are_refused_with_a_sentence(tmp_path, text, message):
    with pytest.raises(FileFormatError, match=message.replace("'", "'").replace("(", r"\(")):
        read(tmp_path / "a.csv", text)


def test_arrays_are_packed_exactly():
    for array in (np.array([3, -1, 76]), np.array([0.5, 0.25, 1.0]), np.zeros(0, dtype=np.int64)):
        assert np.array_equal(unpacked(packed(array)), array)


def test_suggestions_stay_in_the_log_and_are_nobodys_labels(tmp_path):
    project = make(tmp_path)
    said, sure = source_file(tmp_path / "gpt.csv")
    assert project.suggest(tmp_path / "gpt.csv", "gpt").is_new
    assert not project.suggest(tmp_path / "gpt.csv", "gpt").is_new
    assert project.labels == {}
    project.close()
    project = Project.open(tmp_path / "p")
    found = sources_of(project.store.snapshot(), 80)["gpt"]
    assert (found.labels.tolist(), found.confidence.round(3).tolist(), found.version) == (
        said.tolist(),
        sure.tolist(),
        1,
    )
    source_file(tmp_path / "gpt.csv", seed=2, confidence=False)
    project.suggest(tmp_path / "gpt.csv", "gpt")
    found = sources_of(project.store.snapshot(), 80)["gpt"]
    assert (found.version, found.confidence) == (2, None)
    np.save(tmp_path / "more.npy", points(5)[0])
    written(tmp_path / "more.ids.txt", "a\nb\nc\nd\ne\n")
    project.add_items(tmp_path / "more.npy")
    assert sources_of(project.store.snapshot(), 85)["gpt"].labels[80:].tolist() == [NONE] * 5
    for name in ("model", "people", "copy", " "):
        with pytest.raises(ValueError, match="must"):
            project.suggest(tmp_path / "gpt.csv", name)


def test_the_audit_measures_every_source(tmp_path):
    project = make(tmp_path, audit=0.5)
    said, sure = source_file(tmp_path / "gpt.csv")
    other, _ = source_file(tmp_path / "rules.csv", share=0.6, seed=5, confidence=False)
    project.suggest(tmp_path / "gpt.csv", "gpt")
    project.suggest(tmp_path / "rules.csv", "rules")
    before = project.status().facts.sources
    assert before[0].accuracy is None
    assert "not known before people label audit items" in before[0].sentence()
    for _ in range(3):
        answered(project, 20)
    facts = project.status().facts
    rows, labels = project.model.audit_labels(project.store.snapshot())
    gpt, rules = facts.sources
    pairs = [(int(said[row]), int(label)) for row, label in zip(rows, labels, strict=True)]
    right = sum(a == b for a, b in pairs)
    assert (gpt.right, gpt.total, gpt.accuracy.interval) == (right, len(rows), any_look(right, len(rows)))
    for number, each in enumerate(gpt.classes):
        both = sum(a == b == number for a, b in pairs)
        for figure, total in (
            (each.precision, sum(a == number for a, _ in pairs)),
            (each.recall, sum(b == number for _, b in pairs)),
        ):
            assert figure.value == pytest.approx(both / total)
            assert figure.interval == any_look(both, total)
    for each in gpt.above:
        kept = [a == b for (a, b), row in zip(pairs, rows, strict=True) if sure[row] >= each.confidence - 1e-6]
        assert each.accuracy.value == pytest.approx(sum(kept) / len(kept))
        assert each.num_items == int((sure >= each.confidence - 1e-6).sum())
    assert [each.num_items for each in gpt.above] == sorted((each.num_items for each in gpt.above), reverse=True)
    stored = sources_of(project.store.snapshot(), 80)["gpt"].confidence
    assert gpt.calibration == calibration(stored[rows], np.array([a == b for a, b in pairs]))
    fixed = project.model.fixed_rows(project.store.snapshot())
    assert gpt.agreement["rules"] == pytest.approx(sum(said[row] == other[row] for row in fixed) / len(fixed))
    model = [facts.classes.index(each.label) for each in project.guess(project.ids(fixed.tolist()))]
    assert rules.agreement["model"] == pytest.approx(
        sum(other[row] == a for row, a in zip(fixed, model, strict=True)) / len(fixed)
    )
    assert (rules.above, rules.calibration) == ((), None)
    table = dict(project.status().rows())
    assert "at any look" in table["source gpt"]
    assert "agrees with model on" in table["source rules"]
    assert json.loads(json.dumps(project.status().as_dict()))["sources"][0]["name"] == "gpt"


def invoke(*arguments):
    return CliRunner().invoke(app, [str(each) for each in arguments])


def test_the_commands_add_suggestions_and_say_what_is_missing(tmp_path):
    np.save(tmp_path / "e.npy", points()[0])
    source_file(tmp_path / "gpt.csv")
    folder = tmp_path / "p"
    made = invoke(
        "init",
        folder,
        "--embeddings",
        tmp_path / "e.npy",
        "--classes",
        ",".join(CLASSES),
        "--suggestions",
        tmp_path / "gpt.csv",
    )
    assert "80 suggestions by gpt" in made.output
    written(tmp_path / "few.csv", "id,label\n3,ant\n")
    told = invoke("suggest", folder, tmp_path / "few.csv", "--by", "rules")
    assert "1 suggestions by rules" in told.output
    assert "79 of 80 items have no suggestion" in told.output
    assert "as before" in invoke("suggest", folder, tmp_path / "few.csv", "--by", "rules").output
    refused = invoke("suggest", folder, tmp_path / "none.csv", "--by", "rules")
    assert refused.exit_code != 0
    assert "no such file" in refused.output
    shown = invoke("status", folder)
    assert "source gpt" in shown.output

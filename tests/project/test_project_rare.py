"""Rare classes in a project: what is sought, before and after a first example, and items that somebody finds."""

import csv

import numpy as np
import pytest

from batchbalance.errors import FileFormatError, UnknownNameError
from batchbalance.project import Project
from batchbalance.project.insight import nearest
from made_projects import CLASSES, answered, make, points, truth, write_texts


def reasons(project, ids):
    return [project.view(each).reasons[-1] for each in ids]


def texts(folder, **settings):
    write_texts(folder / "t.csv")
    settings = {"classes": ["good", "bad"], "encoder": "tfidf", **settings}
    return Project.create(folder / "p", texts=folder / "t.csv", column="body", **settings)


@pytest.mark.parametrize("seek", ["bee", ["bee"]])
def test_seek_begins_as_the_default_and_then_looks_for_the_class(tmp_path, seek):
    project = make(tmp_path, seek=seek, audit=0.1)
    assert project.settings.strategy == {"name": "seek", "classes": ["bee"]}
    first = project.ask(10)
    assert set(reasons(project, first.ids)) <= {"max-herding", "audit"}
    assert any("'bee' has no label yet" in note and "batchbalance find" in note for note in first.notes)
    plain = make(tmp_path / "plain", audit=0.1)
    assert plain.ask(10).ids == first.ids
    project.tell(truth(first.ids))
    batch = project.ask(20)
    asked = reasons(project, batch.ids)
    assert asked.count("audit") == 2
    assert (asked.count("seek"), asked.count("u-herding")) == (9, 9)
    assert not any("no label yet" in note for note in batch.notes)
    kinds = np.array([truth([each])[each] == "bee" for each in batch.ids])
    is_sought = np.array(asked) == "seek"
    assert kinds[is_sought].mean() > kinds[~is_sought].mean()
    again = make(tmp_path / "again", seek=seek, audit=0.1)
    answered(again, 10)
    assert again.ask(20).ids == batch.ids


def test_a_class_without_a_label_is_not_sought(tmp_path):
    project = make(tmp_path, seek=["bee", "cow"], audit=0)
    told = {str(i): CLASSES[c] for i, c in enumerate(points()[1]) if CLASSES[c] != "cow"}
    project.tell(dict(list(told.items())[:12]))
    batch = project.ask(6)
    assert any("'cow' has no label yet and is not sought" in note for note in batch.notes)
    assert reasons(project, batch.ids).count("seek") == 3


def test_labels_of_one_class_are_followed_by_exploring(tmp_path):
    for name, settings in (("default", {}), ("seek", {"seek": "bee"}), ("margin", {"strategy": "margin"})):
        project = make(tmp_path / name, audit=0, **settings)
        first = project.ask(10)
        project.tell(dict.fromkeys(first.ids[:9], "ant"))
        assert set(reasons(project, project.ask(6).ids[1:])) == {"max-herding"}, name
        project.tell(dict.fromkeys(project.open_questions(), "ant"))
        batch = project.ask(6)
        assert set(reasons(project, batch.ids)) == {"explore"}, name
        (note,) = [note for note in batch.notes if "all labels so far are of one class" in note]
        assert ("`batchbalance find`" in note) == (name == "seek")
        assert "chosen by the default" not in note
    kept = make(tmp_path / "kept", audit=0, strategy="max-herding")
    kept.tell(dict.fromkeys(kept.ask(12).ids, "ant"))
    assert set(reasons(kept, kept.ask(6).ids)) == {"max-herding"}


def test_seek_is_checked_and_follows_a_new_name(tmp_path):
    with pytest.raises(UnknownNameError, match="class to seek 'be'; did you mean 'bee'"):
        make(tmp_path / "a", seek="be")
    with pytest.raises(ValueError, match="`seek` must not be given together with `strategy`"):
        make(tmp_path / "b", seek="bee", strategy="margin")
    with pytest.raises(ValueError, match="`seek_share` must be given together with `seek`"):
        make(tmp_path / "c", seek_share=0.5)
    with pytest.raises(ValueError, match="`seek` must name at least one class"):
        make(tmp_path / "d", seek=[])
    with pytest.raises(ValueError, match="must not look for all classes"):
        make(tmp_path / "d", seek=list(CLASSES))
    with pytest.raises(ValueError, match="option `share` of 'seek'"):
        make(tmp_path / "e", seek="bee", seek_share=2)
    with pytest.raises(ValueError, match="strategy 'seek' must name the classes"):
        make(tmp_path / "f", strategy="seek")
    project = make(tmp_path / "g", seek="bee", seek_share=0.25, audit=0)
    answered(project, 12)
    project.rename_class("bee", "wasp")
    assert project.settings.strategy == {"name": "seek", "classes": ["wasp"], "share": 0.25}
    assert reasons(project, project.ask(8).ids).count("seek") == 2
    project.close()
    opened = Project.open(project.folder)
    opened.add_class("dog")
    path = opened.folder / "project.toml"
    path.write_text(
        path.read_text(encoding="utf-8").replace('classes = ["wasp"]', 'classes = ["wsp"]'), encoding="utf-8"
    )
    with pytest.raises((FileFormatError, UnknownNameError), match="did you mean 'wasp'"):
        Project.open(project.folder)


@pytest.mark.parametrize("is_table", [False, True])
def test_the_nearest_rows_by_a_plain_loop(is_table):
    rng = np.random.default_rng(0)
    vectors, queries, rows = rng.normal(size=(30, 4)) + 2, rng.normal(size=(2, 4)) + 2, np.arange(3, 30)
    centre = vectors.mean(axis=0)

    def placed(row):
        shifted = row - centre
        return row if is_table else shifted / np.sqrt((shifted**2).sum())

    apart = {i: min(np.sqrt(((placed(vectors[i]) - placed(q)) ** 2).sum()) for q in queries) for i in rows.tolist()}
    expected = sorted(apart, key=apart.__getitem__)[:5]
    found = nearest(vectors, queries, rows, 5, metric="raw" if is_table else "unit")
    assert [row for row, _ in found] == expected
    assert [far for _, far in found] == pytest.approx([apart[row] for row in expected], abs=1e-10)
    assert nearest(vectors, queries, rows[:0], 5, metric="raw" if is_table else "unit") == []


def test_found_items_are_asked_first_marked_and_trained_on(tmp_path):
    project = make(tmp_path, audit=0.2, random_arm=0.2)
    aside = {str(i) for i in range(80) if project.is_audit([i])[0]}
    found = project.find(3, n=60)
    names = [each.id for each in found]
    assert not aside & set(names)
    assert "3" not in names
    assert [each.distance for each in found] == sorted(each.distance for each in found)
    assert project.queue(names[:4]) == names[:4]
    assert project.queue(names[:5]) == names[4:5]  # the others are questions already
    assert not set(names[:5]) & {each.id for each in project.find(["3"], n=60)}
    batch = project.ask(10)
    assert list(batch.ids[:5]) == names[:5]
    assert reasons(project, batch.ids).count("audit") == 2  # a fifth of all questions, those found included
    project.tell(truth(batch.ids))
    assert set(names[:5]) <= set(project.labels)
    exported = {each.id: each for each in project.exported()}
    assert exported[names[0]].view.reasons == ["found"]
    asked = [event for event in project.events() if event.kind == "asked" and event.value == "found"]
    assert len(asked) == 5
    with pytest.raises(ValueError, match="must not be in the audit or test set"):
        project.queue(sorted(aside)[:1])
    project.export(tmp_path / "out.csv")
    with (tmp_path / "out.csv").open(encoding="utf-8-sig", newline="") as file:
        assert {row["asked_for"] for row in csv.DictReader(file)} >= {"found", "audit"}


def test_found_items_are_not_of_the_strategy(tmp_path):
    """The comparison with the random arm is of what the strategy chose."""
    project = make(tmp_path, audit=0.3, random_arm=0.3)
    project.queue([each.id for each in project.find(3, n=15)])
    for _ in range(3):
        answered(project, 15)
    assert project.status().facts.counts.labelled > 15


def test_texts_are_found_by_a_text(tmp_path):
    project = texts(tmp_path, audit=0)
    found = project.find(text="nice and fine", n=5)
    assert all("good" in project.contents([each.id])[0] for each in found)
    for wrong, message in (
        ("  ", "must describe what to look for"),
        ("qqqq zzzz", "must have words that the encoder knows"),
    ):
        with pytest.raises(ValueError, match=message):
            project.find(text=wrong)
    with pytest.raises(ValueError, match="`like` or `text` must be given, got neither"):
        project.find()
    with pytest.raises(ValueError, match="ids must be those of items"):
        project.find("nobody")
    with pytest.raises(ValueError, match="`n` must be a whole number"):
        project.find("t0", n=0)
    near = project.find("t0", text="nice and fine", n=30)
    assert len(near) == 29
    with pytest.raises(ValueError, match=r"`text` must be used with a project of texts, got a project of embeddings"):
        make(tmp_path / "bare").find(text="nice")

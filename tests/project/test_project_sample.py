"""What the accuracy is about: after items were added, and with labels that people bring."""

import re

import numpy as np
import pytest

from batchbalance.errors import UnknownNameError
from batchbalance.project import Project
from made_projects import CLASSES, FOREST, answered, make, points, truth


def grown(tmp_path, **settings):
    """A project of 200 easy items with many audit labels, and 200 foreign items that are all of another class."""
    project = make(tmp_path, 200, audit=0.4, target_accuracy=0.5, **settings)
    for _ in range(5):
        answered(project, 20, 200)
    easy = project.status()
    rng = np.random.default_rng(9)
    np.save(tmp_path / "more.npy", rng.normal(size=(200, 4)).astype(np.float32))
    (tmp_path / "more.ids.txt").write_text("".join(f"new {i}\n" for i in range(200)))
    project.add_items(tmp_path / "more.npy")
    return project, easy


def goes_on(project, n):
    batch = project.ask(n)
    project.tell({x: "cow" if x.startswith("new") else truth([x], 200)[x] for x in batch})


def test_after_items_were_added_the_accuracy_is_about_the_first_ones_and_no_rule_says_stop(tmp_path):
    project, easy = grown(tmp_path)
    assert easy.accuracy.about == ""
    assert dict(each for each in easy.rows() if each[0].startswith("target")).keys() == {"target: stop"}
    status = project.status()
    assert status.accuracy.total == easy.accuracy.total == 40
    assert "of the first 200 items only, not of the 200 added since" in str(status)
    assert "of the first 200 items only" in status.as_dict()["accuracy"]["about"]
    assert any("is not known since 200 were added: `ask` asks their audit items first" in x for x in status.unknown)
    verdicts = {each.rule: each.verdict for each in status.advice}
    assert {verdicts[rule] for rule in ("agreement", "label change", "target", "forecast")} == {"cannot tell"}
    goes_on(project, 20)
    asked = project.views()
    assert sum(name.startswith("new") and "audit" in view.reasons for name, view in asked.items()) == 8  # all of them


def test_once_ten_audit_labels_are_a_sample_of_all_items_the_accuracy_speaks_of_all(tmp_path):
    project, easy = grown(tmp_path)
    for _ in range(8):
        if project.status().facts.num_first == 400:
            break
        goes_on(project, 20)
    status = project.status()
    assert status.accuracy.about == ""
    rows = project.model.audit_sample(project.store.snapshot()).rows
    order = project.model.audit_order(project.store.snapshot()).tolist()
    assert len(rows) == status.accuracy.total >= 10
    assert set(rows.tolist()) == set(order[: len(rows)])  # the first in the order of all, old and new
    assert status.looks
    assert status.looks[0].number > easy.looks[-1].number  # levels that were spent stay spent
    for _ in range(12):
        goes_on(project, 20)
    caught_up = project.status()
    assert caught_up.facts.num_missing == 0
    assert caught_up.accuracy.total == caught_up.facts.counts.audit_labelled > 100
    assert {each.verdict for each in caught_up.advice if each.rule in ("agreement", "label change")} == {"go on"}


def test_a_test_set_from_before_items_were_added_gives_no_advice_either(tmp_path):
    project = make(tmp_path, 200, audit=0.0, target_accuracy=0.3)
    sheet = tmp_path / "test.csv"
    sheet.write_text("id,label\n" + "".join(f"{i},{each}\n" for i, each in truth(map(str, range(100)), 200).items()))
    project.set_test(sheet)
    for _ in range(2):
        answered(project, 20, 200)
    assert [each.verdict for each in project.status().advice if each.rule == "target"] == ["stop"]
    np.save(tmp_path / "more.npy", points(30, seed=5)[0])
    (tmp_path / "more.ids.txt").write_text("".join(f"new {i}\n" for i in range(30)))
    project.add_items(tmp_path / "more.npy")
    status = project.status()
    advice = next(each for each in status.advice if each.rule == "target")
    assert (advice.verdict, "the test set is from before" in advice.sentence) == ("cannot tell", True)
    assert "first 200 items" in status.accuracy.about


def brought(tmp_path, num=150, **options):
    """A project with labels that were brought, of items drawn at random."""
    project = make(tmp_path, 400, audit=0.2)
    rows = np.random.default_rng(3).permutation(400)[:num]
    names = [str(row) for row in rows]
    told = project.tell(truth(names, 400), **options)
    return project, names, told


def test_labels_that_are_brought_say_how_many_fell_into_the_audit_set(tmp_path):
    project, names, told = brought(tmp_path)
    aside = sum(project.is_audit(names))
    assert (told.labelled, told.set_aside, told.measured) == (150, aside, 0)
    assert aside > 10
    assert told.sentence().startswith(f"{aside} of these labels are of audit items")
    assert project.status().accuracy is None
    assert not make(tmp_path / "other").tell(truth(["1"])).set_aside
    own = Project.open(tmp_path / "p").ask(40)
    assert project.tell(truth(own, 400)).sentence() == ""


def test_a_random_sample_measures_at_once(tmp_path):
    project, names, told = brought(tmp_path, sample="random")
    aside = {name for name, is_aside in zip(names, project.is_audit(names), strict=True) if is_aside}
    assert (told.set_aside, told.measured) == (0, len(aside))
    status = project.status()
    assert (status.accuracy.total, status.accuracy.about) == (len(aside), "")
    assert status.facts.counts.labelled == 150 - len(aside)
    answered(project, 40, 400)  # audit items go on to be asked in their share
    assert project.status().accuracy.total >= len(aside) + 8


def test_it_can_be_said_afterwards(tmp_path):
    project, names, told = brought(tmp_path)
    again = project.tell(truth(names, 400), sample="random")
    assert (again.unchanged, again.measured) == (150, told.set_aside)
    assert project.status().accuracy.total == told.set_aside
    project.tell(truth(names, 400), sample="chosen")
    with pytest.raises(ValueError, match="must stay 'chosen'"):
        project.tell(truth(names, 400), sample="random")


def test_chosen_labels_only_train_and_the_accuracy_is_about_the_others(tmp_path):
    project, names, told = brought(tmp_path, sample="chosen")
    assert (told.set_aside, told.measured) == (0, 0)
    status = project.status()
    assert status.facts.counts.labelled == 150
    assert status.accuracy is None
    assert not any(project.is_audit(names))
    for _ in range(2):
        answered(project, 50, 400)
    status = project.status()
    assert status.accuracy.total == 20
    assert not set(map(str, project.model.audit_labels(project.store.snapshot())[0])) & set(names)
    assert "of all items but the 150 whose labels were added as chosen" in str(status)
    project.undo(n=1)
    assert project.status().facts.counts.chosen == 150


def test_other_samples_are_refused(tmp_path):
    project = make(tmp_path, 60, audit=0.2)
    batch = project.ask(10)
    for sample in ("random", "chosen"):
        with pytest.raises(ValueError, match="`sample` must not be given for items that the project asked"):
            project.tell(truth(batch, 60), sample=sample)
    with pytest.raises(UnknownNameError, match=r"rnadom.*random"):
        project.tell({"3": "ant"}, sample="rnadom")
    assert not project.labels


def test_a_random_sample_of_the_items_before_some_were_added_is_not_one_of_all(tmp_path):
    project, _, told = brought(tmp_path, sample="random")
    np.save(tmp_path / "more.npy", points(100, seed=5)[0])
    (tmp_path / "more.ids.txt").write_text("".join(f"new {i}\n" for i in range(100)))
    project.add_items(tmp_path / "more.npy")
    status = project.status()
    assert (status.accuracy.total, status.facts.num_first) == (told.measured, 400)
    sample = [name for i, name in enumerate(project.ids()) if i % 4 == 0]  # as good as random
    y = points(400)[1]
    project.tell({x: CLASSES[y[int(x)]] if x.isdigit() else "ant" for x in sample}, sample="random")
    status = project.status()
    assert (status.accuracy.about, status.facts.num_first) == ("", 500)
    assert status.accuracy.total >= sum(project.is_audit(sample))


def test_models_of_another_process_are_measured_alike(tmp_path):
    project, _, told = brought(tmp_path, sample="random")
    found = str(project.status())
    assert str(Project.open(tmp_path / "p").status()) == found
    assert re.search(rf"of {told.measured} audit labels", found)
    assert project.settings.model == FOREST

"""Projects: ask and tell over days, people and changes of mind."""

import json
import math
import threading

import numpy as np
import pytest
from PIL import Image
from sklearn.metrics import cohen_kappa_score

from batchbalance import FileFormatError, UnknownNameError
from batchbalance.project import Project
from batchbalance.project.audit import is_audit
from batchbalance.project.label_errors import cohen_kappa
from batchbalance.project.store import NewItem
from made_projects import CLASSES, FOREST, answered, make, points, truth, write_texts


def test_from_the_first_question_to_the_last(tmp_path):
    project = make(tmp_path)
    asked = []
    while len(asked) < 80:
        asked += answered(Project.open(tmp_path / "p"), 25)
    assert sorted(asked, key=int) == [str(row) for row in range(80)]
    assert project.labels == truth(asked)
    with pytest.raises(ValueError, match="nothing is left to ask"):
        project.ask(1)


def test_the_first_batch_covers_the_data_and_asks_no_model(tmp_path):
    for strategy in ("auto", "batch-balance", "entropy"):
        project = make(tmp_path / strategy, strategy=strategy, audit=0.0)
        first = project.ask(6)
        assert first.selection.strategy.name == "max-herding"
        project.tell({first.ids[0]: "ant"})
        # One class alone makes no model either.
        assert project.ask(8).selection.strategy.name == "max-herding"
        project.tell(truth(first.ids))
        later = project.ask(12).selection.strategy.name
        assert later == ("u-herding" if strategy == "auto" else strategy)
    assert make(tmp_path / "coreset", strategy="coreset").ask(3).selection.strategy.name == "coreset"


def test_open_questions_come_first_and_belong_to_a_person(tmp_path):
    project = make(tmp_path)
    mine = project.ask(5, "Ann").ids
    theirs = project.ask(5, "Bob").ids
    assert not set(mine) & set(theirs)
    assert project.ask(3, "Ann").ids == mine[:3]
    assert Project.open(tmp_path / "p").ask(7, "Ann").ids[:5] == mine
    project.tell(truth([mine[1]]), "Ann")
    assert project.open_questions("Ann")[:4] == [mine[0], *mine[2:]]
    assert project.open_questions() == []
    project.tell(truth([mine[0]]))  # somebody else knew
    assert project.open_questions("Ann")[0] == mine[2]
    project.give_back([mine[2]], "Ann")
    assert mine[2] not in project.open_questions("Ann")


def test_audit_items_are_asked_in_their_share_and_never_chosen_nor_trained_on(tmp_path):
    project = make(tmp_path, 200, audit=0.25)
    names = [str(row) for row in range(200)]
    aside = dict(zip(names, is_audit(names, 0, 0.25).tolist(), strict=True))
    assert dict(zip(names, project.is_audit(names), strict=True)) == aside
    asked = []
    for size in (3, 5, 7, 1, 14):
        asked += answered(project, size, 200)
        assert sum(aside[name] for name in asked) == math.floor(0.25 * len(asked))
    state = project.store.snapshot()
    rows, labels = project.model.training_labels(state)
    assert set(rows.tolist()) == {int(name) for name in asked if not aside[name]}
    assert all(CLASSES[label] == truth([str(row)], 200)[str(row)] for row, label in zip(rows, labels, strict=True))
    chosen = {row for row, view in state.items.items() if view.reasons[0] not in ("audit", "random")}
    assert not any(aside[str(row)] for row in chosen)


def test_without_an_audit_set_nothing_is_set_aside(tmp_path):
    project = make(tmp_path, audit=0.0)
    assert not any(project.is_audit(project.ids()))
    answered(project, 20)
    assert project.status().accuracy is None


def test_audit_items_with_labels_have_their_turn_all_the_same(tmp_path):
    """Else those that nobody had labelled before would be the sample."""
    project = make(tmp_path, 200, audit=0.5)
    names = project.ids()
    told = [name for name, aside in zip(names, project.is_audit(names), strict=True) if aside][::2]
    project.tell(truth(told, 200))
    asked = answered(project, 40, 200)
    assert not set(asked) & set(told)
    drawn = project.store.snapshot().asked_for("audit")
    known = [str(row) for row in drawn if str(row) in told]
    assert known
    # The sample is the beginning of the order that was fixed beforehand.
    assert set(drawn) == set(project.model.audit_order(project.store.snapshot()).tolist()[: len(drawn)])


def test_the_random_arm_is_uniform_over_the_pool_and_trains_too(tmp_path):
    project = make(tmp_path, 200, audit=0.0, random_arm=0.25)
    asked = []
    for size in (8, 8, 12):
        asked += answered(project, size, 200)
    drawn = project.store.snapshot().asked_for("random")
    assert len(drawn) >= math.floor(0.25 * len(asked))
    assert set(drawn) == set(project.questions._arm_order()[: len(drawn)])
    assert set(drawn) <= set(project.model.training_labels(project.store.snapshot())[0].tolist())


def test_skipped_items_come_back_only_on_request(tmp_path):
    project = make(tmp_path, 20)
    first = project.ask(4).ids
    project.skip(first[:2])
    assert project.open_questions() == list(first[2:])
    rest = [name for name in project.ids() if name not in first[:2]]
    asked = [*project.ask(18).ids]
    assert sorted(asked, key=int) == rest
    project.tell(truth(asked, 20))
    with pytest.raises(ValueError, match=r"nothing is left to ask.*--again"):
        project.ask(1)
    again = Project.open(tmp_path / "p").ask(3, again=True)
    assert again.ids == first[:2]
    assert again.notes == ("3 items were requested and 2 are left",)
    project.skip(again.ids)
    with pytest.raises(ValueError, match="nothing is left"):
        project.ask(1)


def test_what_one_person_skips_is_asked_of_another_audit_items_too(tmp_path):
    project = make(tmp_path, 40, audit=0.25, random_arm=0.2)
    everything = project.ids()
    project.skip(project.ask(40, "Ann").ids, "Ann")
    assert sorted(project.ask(40, "Bob").ids, key=int) == everything
    aside = [name for name, is_aside in zip(everything, project.is_audit(everything), strict=True) if is_aside]
    project.tell(truth(everything, 40), "Bob")
    assert len(aside) == project.status().facts.counts.audit_labelled > 0
    assert project.status().facts.counts.audit_skipped == 0


def test_undo_goes_back_one_by_one_across_restarts(tmp_path):
    project = make(tmp_path)
    a, b, c, *_ = project.ask(5).ids
    project.tell({a: "ant"})
    project.tell({a: "bee"})
    project.skip(b)
    project.flag(c, "blurred")
    project.comment(c, "look again")
    steps = [("commented", c, "look again"), ("flagged", c, "blurred"), ("skipped", b, None)]
    steps += [("corrected", a, "bee"), ("labelled", a, "ant")]
    for kind, name, value in steps:
        (undone,) = Project.open(tmp_path / "p").undo()
        assert (undone.kind, undone.id, undone.value) == (kind, name, value)
        assert project.labels.get(a) == {"corrected": "ant", "labelled": None}.get(kind, "bee")
    assert project.open_questions() == [a, b, c, *project.open_questions()[3:]]
    with pytest.raises(ValueError, match=r"there is nothing to undo$"):
        project.undo()
    project.tell({a: "cow"}, "Ann")
    project.tell({b: "cow"}, "Bob")
    assert [each.id for each in project.undo("Ann")] == [a]
    project.tell({a: "cow"}, "Ann")
    assert [each.id for each in project.undo(n=2, anyone=True)] == [a, b]


def test_answers_change_what_they_must_and_no_more(tmp_path):
    project = make(tmp_path)
    told = project.tell({"3": "ant", 4: "bee", np.int64(5): "cow"}, seconds={"3": 2.5})
    assert (told.labelled, told.corrected, told.unchanged) == (3, 0, 0)
    assert project.labels == {"3": "ant", "4": "bee", "5": "cow"}
    assert project.view("3").seconds == 2.5
    before = len(project.events())
    assert project.tell({"3": "ant"}).unchanged == 1
    assert len(project.events()) == before
    assert project.tell({"3": "bee", "4": "bee"}).corrected == 1
    assert project.labels["3"] == "bee"


def test_whole_numbers_and_text_both_match(tmp_path):
    project = make(tmp_path, classes=[0, 1, 2])
    project.tell({0: 1, "1": "2"})
    assert project.labels == {"0": "1", "1": "2"}


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda p: p.ask(0), ValueError, "`n` must be a whole number of at least 1"),
        (lambda p: p.ask(2, ""), ValueError, "`annotator` must be a name"),
        (lambda p: p.ask(2, "a\nb"), ValueError, "`annotator` must be a name"),
        (lambda p: p.tell({"0": "ant", "999": "ant"}), ValueError, "items in this project, got '999'"),
        (lambda p: p.tell({"0": "ant", "1": "atn"}), UnknownNameError, "'atn'; did you mean 'ant'"),
        (lambda p: p.tell({"0": 0.5}), ValueError, "whole numbers or text, got 0.5"),
        (lambda p: p.tell({"0": "ant"}, seconds=-1), ValueError, "`seconds` must be"),
        (lambda p: p.tell([("0", "ant")]), TypeError, "`answers` must be a dict"),
        (lambda p: p.skip("999"), ValueError, "got '999'"),
        (lambda p: p.comment("0", " "), ValueError, "`text` must not be empty"),
        (lambda p: p.add_class("ant"), ValueError, "the class 'ant' exists already"),
        (lambda p: p.rename_class("ant", "bee"), ValueError, "the class 'bee' exists already"),
        (lambda p: p.rename_class("cat", "dog"), UnknownNameError, "unknown class 'cat'"),
        (lambda p: p.export(p.folder / "x.csv", predictions=True), ValueError, "there is no model yet"),
        (lambda p: p.predict("/nowhere"), FileNotFoundError, "no such data"),
    ],
)  # fmt: skip
def test_wrong_calls_change_nothing(small, call, error, message):
    before = len(small.events())
    with pytest.raises(error, match=message):
        call(small)
    assert len(small.events()) == before


def test_a_wrong_memory_budget_is_refused_where_nothing_has_to_be_chosen(tmp_path):
    project = make(tmp_path)
    project.ask(2)
    with pytest.raises(ValueError, match="`memory_budget` must be a positive number of bytes"):
        project.ask(2, memory_budget="x")


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return make(tmp_path_factory.mktemp("small"))


def test_classes_are_added_and_renamed_and_labels_stay(tmp_path):
    project = make(tmp_path)
    project.tell({"0": "ant", "1": "bee"})
    project.add_class("dog")
    project.rename_class("ant", "emmet")
    project.tell({"2": "dog"})
    again = Project.open(tmp_path / "p")
    assert again.classes == ["emmet", "bee", "cow", "dog"]
    assert list(again.settings.classes) == again.classes
    assert again.labels == {"0": "emmet", "1": "bee", "2": "dog"}
    answered_ids = again.ask(5).ids
    again.tell(dict.fromkeys(answered_ids, "cow"))
    assert set(again.guess(["3"])[0].votes) == set(again.classes)


def test_edits_of_the_file_are_noticed(tmp_path):
    make(tmp_path).tell({"0": "ant"})
    path = tmp_path / "p" / "project.toml"
    text = path.read_text()

    def edited(old, new):
        assert old in text
        path.write_text(text.replace(old, new))
        return Project.open(tmp_path / "p")

    with pytest.raises(FileFormatError, match=r"`classes` must begin with ant, bee, cow.*rename-class"):
        edited('["ant", "bee", "cow"]', '["bee", "ant", "cow"]')
    with pytest.raises(FileFormatError, match=r"`audit` must stay 0\.1"):
        edited("audit = 0.1", "audit = 0.2")
    with pytest.raises(FileFormatError, match="`seed` must stay 0"):
        edited("seed = 0", "seed = 1")
    with pytest.raises(FileFormatError, match=r"project\.toml: .* 'batchsize'; did you mean 'batch_size'"):
        edited("batch_size", "batchsize")
    with pytest.raises(ValueError, match="bare embeddings have no encoder"):
        edited("batch_size", 'encoder = "tfidf"\nbatch_size').ask(2)
    with pytest.raises(ValueError, match="which would import code"):
        edited('kind = "committee"', 'kind = "os:getcwd"')
    assert edited("batch_size = 20", "batch_size = 7").ask().ids.__len__() == 7
    added = edited('["ant", "bee", "cow"]', '["ant", "bee", "cow", "dog"]')
    assert added.notes == ["classes added by project.toml: dog"]
    assert added.classes[-1] == "dog"
    path.write_text(text)  # as if a change of classes had been interrupted between log and file
    assert list(Project.open(tmp_path / "p").settings.classes) == ["ant", "bee", "cow", "dog"]


def test_items_are_added_later(tmp_path):
    project = make(tmp_path, 40)
    asked = answered(project, 10, 40)
    np.save(tmp_path / "more.npy", points(60)[0][40:])
    (tmp_path / "more.ids.txt").write_text("\n".join(f"n{i}" for i in range(20)))
    assert project.add_items(tmp_path / "more.npy") == 20
    assert len(project) == 60
    assert project.labels == truth(asked, 40)
    again = Project.open(tmp_path / "p")
    np.testing.assert_array_equal(again.embeddings.array(), np.vstack([points(40)[0], points(60)[0][40:]]))
    everything = again.ask(50).ids
    assert len(everything) == 50
    assert {f"n{i}" for i in range(20)} <= set(everything)
    with pytest.raises(ValueError, match="got 'n0', which exists already"):
        again.add_items(tmp_path / "more.npy")
    np.save(tmp_path / "wide.npy", np.zeros((3, 9), dtype=np.float32))
    (tmp_path / "wide.ids.txt").write_text("x\ny\nz")
    with pytest.raises(FileFormatError, match="must have 4 numbers each, got 9"):
        again.add_items(tmp_path / "wide.npy")
    assert len(Project.open(tmp_path / "p")) == 60


def test_images_are_added_from_another_folder(tmp_path):
    for folder, names in (("photos", "ab"), ("more", "cd")):
        (tmp_path / folder / "sub").mkdir(parents=True)
        for name in names:
            shade = np.full((8, 8, 3), 20 * ord(name) % 256, dtype=np.uint8)
            Image.fromarray(shade).save(tmp_path / folder / "sub" / f"{name}.png")
    project = Project.create(tmp_path / "p", images=tmp_path / "photos", classes="xy", encoder="made_projects:shades")
    assert project.add_items(tmp_path / "more") == 2
    again = Project.open(tmp_path / "p", allow_imports=True)
    assert again.ids() == ["sub/a.png", "sub/b.png", "sub/c.png", "sub/d.png"]
    files = [each.image for each in again.shown(again.ids())]
    assert [file.resolve() for file in files[2:]] == [tmp_path / "more" / "sub" / f"{name}.png" for name in "cd"]
    assert all(file.is_file() for file in files)
    assert again.embeddings.roots == (tmp_path / "photos", tmp_path / "more")
    (tmp_path / "p" / "embeddings.npy").unlink()  # to be embedded anew
    assert len(again.ask(4)) == 4


def test_items_that_another_process_added_meanwhile(tmp_path):
    first, second = make(tmp_path, 10), Project.open(tmp_path / "p")
    assert first.store.add_items([NewItem("x", None, "d")], "more") == 1
    with pytest.raises(BlockingIOError, match="another process has added items"):
        second.store.add_items([NewItem("y", None, "d")], "more")
    assert Project.open(tmp_path / "p").ids() == [*map(str, range(10)), "x"]


def test_several_people_answer_an_item_and_ties_are_asked_again(tmp_path):
    project = make(tmp_path, annotators_per_item=2, audit=0.0)
    first = project.ask(4, "Ann").ids
    assert project.ask(4, "Bob").ids == first  # the same items, before new ones
    project.tell(dict.fromkeys(first, "ant"), "Ann")
    assert project.labels == dict.fromkeys(first, "ant")
    assert project.open_questions("Ann") == []
    project.tell({first[0]: "ant", first[1]: "bee"}, "Bob")
    assert project.view(first[1]).is_disputed
    assert first[1] not in project.labels
    assert int(first[1]) not in project.model.training_labels(project.store.snapshot())[0]
    states = {each.id: each.view.outcome for each in project.exported()}
    assert (states[first[0]], states[first[1]]) == ("labelled", "disputed")
    # Bob spoke last, so that Ann, or anybody else, is asked again.
    assert first[1] not in project.ask(3, "Bob").ids
    assert first[1] in project.ask(1, "Ann").ids
    assert first[1] not in project.ask(1, "Cleo").ids
    project.tell({first[1]: "bee"}, "Ann")
    assert project.labels[first[1]] == "bee"
    project.tell({first[1]: "cow"}, "Cleo")
    assert project.labels[first[1]] == "bee"


def test_kappa_is_that_of_scikit_learn(tmp_path):
    rng = np.random.default_rng(0)
    for _ in range(20):
        a, b = rng.integers(3, size=(2, 15))
        assert cohen_kappa(a.tolist(), b.tolist()) == pytest.approx(cohen_kappa_score(a, b), abs=1e-12)
    assert math.isnan(cohen_kappa([], []))
    assert math.isnan(cohen_kappa([1, 1], [1, 1]))
    project = make(tmp_path)
    ours, theirs = rng.integers(3, size=(2, 30))
    project.tell({i: CLASSES[each] for i, each in enumerate(ours)}, "Ann")
    project.tell({i: CLASSES[each] for i, each in enumerate(theirs[:25])}, "Bob")
    (found,) = project.agreements()
    assert (found.first, found.second, found.num_items) == ("Ann", "Bob", 25)
    assert found.kappa == pytest.approx(cohen_kappa_score(ours[:25], theirs[:25]), abs=1e-12)
    # Asked again about what they disagreed on, Bob agrees with Ann. That says nothing about how well people agree.
    project.tell({i: CLASSES[each] for i, each in enumerate(ours[:25])}, "Bob")
    assert project.agreements() == [found]


def test_audit_items_that_people_dispute_are_counted_beside_skipped_ones(tmp_path):
    project = make(tmp_path, 100, audit=0.5, annotators_per_item=2)
    names = list(project.ask(30, "Ann"))
    project.ask(30, "Bob")
    aside = [name for name, is_aside in zip(names, project.is_audit(names), strict=True) if is_aside]
    project.tell(dict.fromkeys(names, "ant"), "Ann")
    project.tell(dict.fromkeys(aside[:4], "bee"), "Bob")
    counts = project.status().facts.counts
    assert (counts.audit_disputed, counts.audit_skipped) == (4, 0)
    assert "0 skipped, 4 disputed; if these are the hard ones, the accuracy is overestimated" in str(project.status())


def test_two_people_ask_at_once_and_never_get_the_same(tmp_path):
    make(tmp_path, 60)
    found = {}

    def work(who):
        project = Project.open(tmp_path / "p")
        for _ in range(3):
            names = project.ask(5, who).ids
            found.setdefault(who, []).extend(names)
            project.tell(truth(names, 60), who)

    threads = [threading.Thread(target=work, args=(who,)) for who in ("Ann", "Bob")]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(found["Ann"]) == len(found["Bob"]) == 15
    assert not set(found["Ann"]) & set(found["Bob"])
    assert Project.open(tmp_path / "p").labels == truth([*found["Ann"], *found["Bob"]], 60)


def test_what_others_took_meanwhile_is_replaced(tmp_path, monkeypatch):
    """Another person asks between choosing and writing."""
    project, other = make(tmp_path, 60), Project.open(tmp_path / "p")
    planned = project.questions._plan
    taken = []

    def slow(*arguments):
        plan = planned(*arguments)
        if not taken:
            taken.extend(other.ask(5, "Bob").ids)
        return plan

    monkeypatch.setattr(project.questions, "_plan", slow)
    mine = project.ask(5, "Ann").ids
    assert len(mine) == 5
    assert not set(mine) & set(taken)


def test_a_test_set_is_never_asked_nor_trained_on(tmp_path):
    rows = [str(row) for row in range(0, 80, 4)]
    (tmp_path / "test.csv").write_text("id,label\n" + "".join(f"{k},{v}\n" for k, v in truth(rows).items()))
    project = make(tmp_path, test=tmp_path / "test.csv")
    asked = []
    for _ in range(3):
        asked += answered(project, 20)
    assert not set(asked) & set(rows)
    project.tell({rows[0]: "ant"})
    assert int(rows[0]) not in project.model.training_labels(project.store.snapshot())[0]
    accuracy = project.status().accuracy
    assert (accuracy.total, accuracy.source) == (20, "test")
    guesses = project.guess(rows)
    assert accuracy.correct == sum(each.label == truth(rows)[each.id] for each in guesses)


def test_guesses_are_the_models(tmp_path):
    project = make(tmp_path)
    assert project.guess(["0"]) is None
    answered(project, 30)
    found = project.guess(["1", "2"])
    assert [each.id for each in found] == ["1", "2"]
    for each in found:
        assert sum(each.probabilities.values()) == pytest.approx(1, abs=1e-5)
        assert sum(each.votes.values()) == pytest.approx(1, abs=1e-9)
        assert each.label == max(each.probabilities, key=each.probabilities.get)
    names = project.ids()
    right = sum(each.label == truth(names)[each.id] for each in project.guess(names))
    assert right > 50


def test_a_model_is_trained_once_for_the_same_labels_in_all_processes(tmp_path, monkeypatch):
    from batchbalance.posteriors.training import fitting as training
    from batchbalance.project.learning import ProjectModel

    monkeypatch.setattr(training, "STEPS", 20)
    calls = []
    real = ProjectModel.train
    monkeypatch.setattr(ProjectModel, "train", lambda *given: calls.append(1) or real(*given))
    project = make(tmp_path)
    answered(project, 20)
    project.ask(5)
    project.guess(["1"])
    Project.open(tmp_path / "p").guess(["1"])
    assert len(calls) == 1
    project.tell(truth(project.open_questions()))
    project.guess(["1"])
    assert len(calls) == 2
    assert len(list((tmp_path / "p" / "model").iterdir())) == 1
    net = make(tmp_path / "net", model={"network": "tabular-mlp", "num_draws": 2})
    answered(net, 12)
    net.guess(["1"])
    Project.open(net.folder).guess(["1"])
    assert len(calls) == 3
    calls.pop()
    for file in (tmp_path / "p" / "model").rglob("*.safetensors"):
        file.write_bytes(b"damaged")
    again = Project.open(tmp_path / "p")
    with pytest.warns(UserWarning, match="the model is trained again: cannot read the posterior in"):
        again.guess(["1"])
    assert len(calls) == 3
    Project.open(tmp_path / "p").guess(["1"])
    assert len(calls) == 3  # it was saved again


def test_a_model_that_cannot_be_saved_is_told_once(tmp_path, monkeypatch):
    from batchbalance.posteriors import Committee

    def full(*_):
        raise OSError(28, "No space left on device", "weights")

    monkeypatch.setattr(Committee, "save", full)
    project = make(tmp_path)
    answered(project, 20)
    with pytest.warns(UserWarning, match="the model cannot be stored, so every command trains it again: no space left"):
        project.guess(["1"])
    answered(project, 5)
    project.guess(["1"])  # no second warning: warnings are errors here


def test_predictions_of_new_data_and_exports(tmp_path):
    project = make(tmp_path)
    asked = answered(project, 30)
    project.flag(asked[0], "odd")
    project.comment(asked[0], "why?")
    project.skip("79")
    np.save(tmp_path / "new.npy", points(80)[0][:5])
    found = project.predict(tmp_path / "new.npy")
    assert [(each.id, each.label) for each in found] == [(x.id, x.label) for x in project.guess(range(5))]
    assert project.export(tmp_path / "labels.csv") == len(project.labels) == len(asked)
    assert project.export(tmp_path / "labels.csv", every=True) == len({*asked, "79"})
    lines = (tmp_path / "labels.csv").read_text().splitlines()
    assert lines[0] == "id,label,state,annotators,flags,comments,asked_for"
    assert f"{asked[0]},{truth(asked)[asked[0]]},labelled,,odd,why?,{project.view(asked[0]).reasons[0]}" in lines
    assert project.export(tmp_path / "all.csv", predictions=True) == 80
    rows = [line.split(",") for line in (tmp_path / "all.csv").read_text().splitlines()[1:]]
    guesses = project.guess([row[0] for row in rows])
    assert [row[7] for row in rows] == [each.label for each in guesses]
    assert [float(row[8]) for row in rows] == pytest.approx(
        [each.probabilities[each.label] for each in guesses], abs=5e-5
    )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "one of `images`, `texts`, `table` and `embeddings` must be given, got none"),
        ({"images": ".", "texts": "."}, "got images, texts"),
        ({"embeddings": "nowhere.npy"}, "no such data: nowhere.npy"),
        ({"embeddings": "e.npy", "classes": ["one"]}, r"`classes` must have at least 2 entries, got \['one'\]"),
        ({"embeddings": "e.npy", "classes": ["a", "a"]}, "`classes` must be distinct"),
        ({"embeddings": "e.npy", "classes": ["a", " "]}, "a class must be printable text"),
        ({"embeddings": "e.npy", "audit": 1.5}, "`audit` must be less than or equal to 1"),
        ({"embeddings": "e.npy", "adit": 0.1}, "'adit'; did you mean 'audit'"),
        ({"embeddings": "bad.npy"}, "must be finite float32 numbers, got others in row 1"),
        ({"embeddings": "flat.npy"}, r"must hold embeddings \(N, D\)"),
        ({"embeddings": "e.npy", "ids": "short.txt"}, "must have one id for each of 80 rows"),
    ],
)
def test_projects_that_cannot_be(tmp_path, monkeypatch, given, message):
    monkeypatch.chdir(tmp_path)
    np.save("e.npy", points()[0])
    np.save("bad.npy", np.array([[1.0], [np.nan]]))
    np.save("flat.npy", np.zeros(4))
    (tmp_path / "short.txt").write_text("a\nb")
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        Project.create("p", **{"classes": CLASSES, **given})


def test_a_project_that_could_not_be_made_leaves_nothing(tmp_path):
    write_texts(tmp_path / "t.csv", 10)
    given = {"texts": tmp_path / "t.csv", "column": "body", "classes": ["a", "b"], "encoder": "tfidf"}
    with pytest.raises(FileFormatError, match="must have a column 'nope'"):
        Project.create(tmp_path / "new", **{**given, "column": "nope"})
    assert not (tmp_path / "new").exists() or not [*(tmp_path / "new").glob("labels*"), *tmp_path.glob("new/*.toml")]
    (tmp_path / "test.csv").write_text("id,label\nzz,a\n")
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "mine.txt").write_text("mine")
    with pytest.raises(ValueError, match="must be those of items in this project, got 'zz'"):
        Project.create(tmp_path / "old", **given, test=tmp_path / "test.csv")
    assert [path.name for path in (tmp_path / "old").iterdir()] == ["mine.txt"]
    assert len(Project.create(tmp_path / "old", **given)) == 10


def test_a_folder_holds_one_project(tmp_path):
    make(tmp_path)
    with pytest.raises(FileExistsError, match=r"already holds a project"):
        make(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"no project in .*; create one with: batchbalance init"):
        Project.open(tmp_path)


def test_embeddings_of_somebody_else_are_never_overwritten(tmp_path):
    np.save(tmp_path / "embeddings.npy", points()[0])
    with pytest.raises(FileExistsError, match="a project needs a file of that name"):
        Project.create(tmp_path, embeddings=tmp_path / "embeddings.npy", classes=CLASSES)
    assert [each.name for each in tmp_path.iterdir()] == ["embeddings.npy"]


def test_settings_survive_the_file(tmp_path):
    odd = 'say "hi"\nΩ \\ 😀 \x7f'
    project = make(
        tmp_path, instructions=odd, model={**FOREST, "size": 3}, strategy={"name": "power-balance", "beta": 2.0}
    )
    found = Project.open(tmp_path / "p").settings
    assert found == project.settings
    assert found.instructions == odd
    assert project.ask(3)


def test_damage_of_items_is_noticed(tmp_path):
    import sqlite3

    make(tmp_path).close()
    for statement in (
        "UPDATE items SET id = 'x' WHERE row = 3",
        "UPDATE items SET digest = 'x' WHERE row = 5",
        "UPDATE items SET is_audit = 1 - is_audit WHERE row = 5",
        "DELETE FROM items WHERE row = 79",
    ):
        content = (tmp_path / "p" / "labels.sqlite").read_bytes()
        connection = sqlite3.connect(tmp_path / "p" / "labels.sqlite")
        connection.execute(statement)
        connection.commit()
        connection.close()
        with pytest.raises(FileFormatError, match="its items do not match their hash"):
            Project.open(tmp_path / "p")
        (tmp_path / "p" / "labels.sqlite").write_bytes(content)
    (tmp_path / "p" / "embeddings.npy").write_bytes(b"")
    with pytest.raises(FileFormatError, match=r"embeddings\.npy"):
        Project.open(tmp_path / "p").ask(1)


def test_damage_of_what_items_hold_is_noticed(tmp_path):
    """Every text that people see is the one that was embedded."""
    write_texts(tmp_path / "t.csv", 30)
    project = Project.create(
        tmp_path / "p", texts=tmp_path / "t.csv", column="body", classes=["good", "bad"], encoder="tfidf"
    )
    (text,) = project.contents(["t4"])
    project.close()
    path = tmp_path / "p" / "labels.sqlite"
    content = bytearray(path.read_bytes())
    at = content.index(b"t4" + text.encode()) + 3
    content[at] ^= 1
    path.write_bytes(content)
    damaged = Project.open(tmp_path / "p")
    assert damaged.contents(["t5"])
    with pytest.raises(FileFormatError, match=r"labels\.sqlite is damaged: the content of 't4'"):
        damaged.contents(["t4"])


def test_reprs_are_short_and_readable(tmp_path):
    project = make(tmp_path)
    batch = project.ask(5)
    assert repr(project) == f"Project({str(tmp_path / 'p')!r}: 80 embeddings, 0 labels)"
    assert repr(batch).startswith("Batch(5 embeddings: '")
    assert "<strong>p</strong>" in project._repr_html_()
    assert batch.ids[0] in batch._repr_html_()
    answered(project, 20)
    assert json.dumps(project.status().as_dict())

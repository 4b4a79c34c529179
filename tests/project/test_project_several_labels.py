"""Projects whose items may have several labels, from `init` to `export`."""

import csv

import numpy as np
import pytest
from sklearn.metrics import cohen_kappa_score, f1_score

from batchbalance import FileFormatError
from batchbalance.project import Project
from batchbalance.project.class_quality import class_quality, pooled_share
from batchbalance.project.label_errors import cross_validated, cross_validated_error, doubted
from batchbalance.project.labelling import Labelling
from batchbalance.project.pages import status_page

NAMES = ("art", "biology", "chess", "dance")
NUM = 160


def points(seed=0):
    """Embeddings, and 0 and 1 for each label; the last one is rare."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(NUM, 6)).astype(np.float32)
    hidden = x @ rng.normal(size=(6, 4)) + 0.3 * rng.normal(size=(NUM, 4))
    limits = [np.quantile(column, share) for column, share in zip(hidden.T, (0.6, 0.7, 0.8, 0.97), strict=True)]
    return x, (hidden > limits).astype(int)


def truth(name):
    return [label for label, has in zip(NAMES, points()[1][int(name)], strict=True) if has]


def make(folder, **settings):
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / "e.npy", points()[0])
    return Project.create(folder / "p", classes=NAMES, multi_label=True, embeddings=folder / "e.npy", **settings)


def answered(project, n, annotator=None):
    batch = project.ask(n, annotator)
    project.tell({name: truth(name) for name in batch}, annotator)
    return list(batch)


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """Eighty labels, a fifth of them of audit items."""
    made = make(tmp_path_factory.mktemp("several"), audit=0.25, target_f1=0.99)
    for _ in range(4):
        answered(made, 20)
    return made


def test_answers_are_kept_as_sorted_class_numbers(tmp_path):
    project = make(tmp_path)
    told = project.tell({"0": ["chess", "art"], "1": [], "2": "art;dance", "3": "none"})
    assert told.labelled == 4
    assert [each.value for each in project.events() if each.kind == "labelled"] == [[0, 2], [], [0, 3], []]
    assert project.labels == {"0": ["art", "chess"], "1": [], "2": ["art", "dance"], "3": []}
    assert project.tell({"0": "chess;art", "1": "[]"}).unchanged == 2
    assert project.tell({"0": ["art"]}).corrected == 1
    assert project.correct("0", ["dance"]).corrected == 1
    (undone,) = project.undo()
    assert (undone.id, undone.value) == ("0", "dance")
    assert project.labels["0"] == ["art"]
    project.rename_class("art", "arts")
    project.add_class("fencing")
    assert Project.open(tmp_path / "p").labels["0"] == ["arts"]
    with pytest.raises(ValueError, match="must not contain ';'"):
        project.add_class("a;b")
    with pytest.raises(ValueError, match="be 'none'"):
        project.rename_class("arts", "None")
    with pytest.raises(ValueError, match="must not be empty; write none"):
        project.tell({"5": ""})


def test_none_of_these_is_an_answer_and_an_empty_cell_is_not(tmp_path):
    project = make(tmp_path)
    (tmp_path / "a.csv").write_text("id,label\n0,art;chess\n1,none\n2,\n3,[]\n")
    assert project.tell(tmp_path / "a.csv").labelled == 3
    (tmp_path / "w.csv").write_text("id,art,biology,chess,dance\n4,0,1,1,0\n5,0,0,0,0\n6,,,,\n")
    assert project.tell(tmp_path / "w.csv").labelled == 2
    wanted = {"0": ["art", "chess"], "1": [], "3": [], "4": ["biology", "chess"], "5": []}
    assert project.labels == wanted
    assert project.view("1").outcome == "labelled"
    assert project.view("2").outcome == "unlabelled"


def test_a_project_of_one_class_refuses_several_and_stays_one(tmp_path):
    np.save(tmp_path / "e.npy", points()[0])
    single = Project.create(tmp_path / "s", classes=NAMES, embeddings=tmp_path / "e.npy")
    for label in (["art", "chess"], "art;chess"):
        with pytest.raises(ValueError, match=r"one class for each item; .* `init --multi-label`"):
            single.tell({"0": label})
    path = tmp_path / "s" / "project.toml"
    path.write_text(path.read_text().replace("multi_label = false", "multi_label = true"))
    with pytest.raises(FileFormatError, match="`multi_label` must stay False"):
        Project.open(tmp_path / "s")


def test_people_agree_and_disagree_label_by_label(tmp_path):
    project = make(tmp_path, annotators_per_item=3)
    for who, labels in (("ann", ["art", "chess"]), ("bob", ["art"]), ("eve", ["art", "chess", "dance"])):
        project.tell({"0": labels}, who)
    assert project.labels == {"0": ["art", "chess"]}
    project.tell({"1": ["art"]}, "ann")
    project.tell({"1": []}, "bob")
    assert project.view("1").is_disputed
    ours, theirs = points()[1][:40], points()[1][:40].copy()
    theirs[::5, 1] ^= 1
    for who, rows in (("ann", ours), ("bob", theirs)):
        project.tell({str(i + 60): [NAMES[j] for j in np.flatnonzero(rows[i])] for i in range(40)}, who)
    found = {each.label: each for each in project.agreements() if (each.first, each.second) == ("ann", "bob")}
    assert list(found) == list(NAMES)
    first = np.vstack([[[1, 0, 1, 0], [1, 0, 0, 0]], ours])
    second = np.vstack([[[1, 0, 0, 0], [0, 0, 0, 0]], theirs])
    for column, name in enumerate(NAMES):
        kappa = cohen_kappa_score(first[:, column], second[:, column])
        assert found[name].kappa == pytest.approx(kappa, nan_ok=True)
        assert found[name].share == (first[:, column] == second[:, column]).mean()


def test_status_measures_each_label(project):
    status = project.status()
    told = dict(status.rows())
    rows, labels = project.model.audit_labels(project.store.snapshot())
    guesses = project.guess(project.ids(rows.tolist()))
    said = np.array([[name in each.label for name in NAMES] for each in guesses]).astype(int)
    assert labels.tolist() == points()[1][rows].tolist()
    assert told["exact match"].startswith(f"{(said == labels).all(axis=1).mean():.3f} [")
    assert status.quality.micro_f1.value == pytest.approx(f1_score(labels, said, average="micro", zero_division=0))
    for column, each in enumerate(status.quality.classes):
        both, either = (said & labels)[:, column].sum(), (said | labels)[:, column].sum()
        assert each.labels == sum(NAMES[column] in label for label in project.labels.values())
        assert (each.f1 is None) == (either == 0)
        if either:
            assert each.f1.value == pytest.approx(2 * both / (both + either))
    assert {"micro F1", "macro F1", "class art", "target: go on"} <= set(told)
    assert "<table" in status_page(status)
    assert all(0 <= each.confidence <= 1 and set(each.votes) == set(NAMES) for each in guesses)


def test_the_target_is_of_micro_f1_at_the_looks(project):
    status = project.status()
    last = status.looks[-1]
    advice = next(each for each in status.advice if each.rule == "target")
    assert advice.verdict == "go on"
    assert "micro F1 at least" in advice.sentence
    found = next(each for each in status.facts.rounds if each.num_labels == last.num_labels)
    assert (last.correct, last.total) == (sum(found.both), sum(found.either))
    assert len(found.both) == found.audit_total
    level = 0.05 / (last.number * (last.number + 1))
    low = pooled_share(np.array(found.both), np.array(found.either), level).interval.low
    assert last.interval.low == pytest.approx(2 * low / (1 + low))


def test_what_is_chosen_explained_and_exported(project, tmp_path):
    found = project.explain(project.ids()[:5])
    assert all(each.guess == guess.text for each, guess in zip(found, project.guess(project.ids()[:5]), strict=True))
    assert project.export(tmp_path / "o.csv", predictions=True) == NUM
    with (tmp_path / "o.csv").open(newline="") as file:
        rows = {row["id"]: row for row in csv.DictReader(file)}
    for name, labels in project.labels.items():
        assert rows[name]["label"] == (";".join(labels) or "none")
        assert [rows[name][each] for each in NAMES] == [str(int(each in labels)) for each in NAMES]
    left = next(row for name, row in rows.items() if name not in project.labels)
    assert [left[each] for each in ("label", *NAMES)] == [""] * 5
    assert float(left["probability"]) > 0
    other = make(tmp_path)
    assert other.tell(tmp_path / "o.csv").labelled == len(project.labels)
    assert other.labels == project.labels


def test_rare_labels_are_sought(tmp_path):
    project = make(tmp_path, seek="dance", audit=0.0)
    assert any("'dance' has no label yet" in note for note in project.ask(4).notes)
    found = [str(row) for row in np.flatnonzero(points()[1][:, 3])][:2]
    project.tell({name: truth(name) for name in (*found, *map(str, range(30)))})
    batch = project.ask(10)
    assert batch.selection.strategy.name == "seek"


def test_without_a_second_kind_of_answer_there_is_no_model(tmp_path):
    project = make(tmp_path)
    project.tell({str(i): [] for i in range(8)})
    assert not project.train()
    assert project.guess(["0"]) is None
    assert len(project.ask(3)) == 3


def test_a_label_that_was_forgotten_is_suspected():
    rng = np.random.default_rng(0)
    probs = rng.choice([0.001, 0.2, 0.5, 0.8, 0.999], size=(400, 4))
    given = (rng.random((400, 4)) < probs).astype(int)
    labels = Labelling(NAMES, is_multi=True).values(given)
    forgotten = [row for row in range(400) if probs[row, 1] == 0.999 and given[row, 1]][:6]
    for row in forgotten:
        labels[row] = tuple(each for each in labels[row] if each != 1)
    found = doubted(probs, Labelling(NAMES, is_multi=True), labels, np.ones((400, 4), dtype=bool))
    assert {each.row for each in found} >= set(forgotten)
    for each in found:
        assert each.label == labels[each.row]
        assert each.row not in forgotten or 1 in each.suggested
        assert each.wrong > 0.5
        assert each.probability == pytest.approx(0.001)


def test_cross_validation_judges_what_both_sides_of_a_fold_have():
    rng = np.random.default_rng(1)
    labels = (rng.random((25, 3)) < [0.5, 0.0, 0.04]).astype(int)
    labels[:, 2] = 0
    labels[7, 2] = 1
    seen = []

    def train_and_predict(train, test):
        seen.append((set(train.tolist()), test.tolist()))
        return np.tile([0.9, 0.1, 0.2], (len(test), 1))

    probs, judged = cross_validated(labels, train_and_predict)
    wrong = []
    for train, test in seen:
        for row in test:
            for column in range(3):
                occurs = any(labels[other, column] == labels[row, column] for other in train)
                assert judged[row, column] == occurs
                assert probs[row, column] == ([0.9, 0.1, 0.2][column] if occurs else 0)
                wrong += [([1, 0, 0][column] != labels[row, column])] if occurs else []
    assert not judged[7, 2]
    assert cross_validated_error(probs, labels, judged) == pytest.approx(np.mean(wrong))


def test_the_pooled_share_counts_as_many_items_as_its_variance_says():
    """Items whose labels are all right or all wrong count once each; independent labels count each for itself."""
    alike = pooled_share(np.array([4, 0] * 20), np.array([4] * 40))
    apart = pooled_share(np.array([2] * 40), np.array([4] * 40))
    assert alike.value == apart.value == 0.5
    once = pooled_share(np.array([1, 0] * 20), np.array([1] * 40)).interval
    assert (alike.interval.low, alike.interval.high) == pytest.approx((once.low, once.high), abs=0.01)
    assert apart.interval.high - apart.interval.low < 0.6 * (once.high - once.low)
    perfect = pooled_share(np.array([3] * 10), np.array([3] * 10))
    assert perfect.interval.low == pytest.approx(0.025 ** (1 / 10))
    assert pooled_share(np.zeros(3), np.zeros(3)) is None


@pytest.mark.slow
def test_the_interval_of_micro_f1_holds():
    """Errors of an item come together."""
    rng = np.random.default_rng(0)

    def drawn(num):
        truth = rng.random((num, 8)) < 0.25
        flipped = rng.random((num, 8)) < rng.beta(0.3, 1.2, (num, 1)) * np.where(truth, 1, 0.25)
        return truth.astype(int), (truth ^ flipped).astype(int)

    truth, said = drawn(200_000)
    exact = f1_score(truth, said, average="micro")
    missed = 0
    for _ in range(400):
        truth, said = drawn(40)
        found = class_quality([f"c{i}" for i in range(8)], [0] * 8, truth, truth, said).micro_f1
        missed += exact not in found.interval
    assert missed <= 400 * 0.05 + 3 * np.sqrt(400 * 0.05 * 0.95)

"""What `status` says, as a table, for programs and as pages."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from batchbalance.project.arm import ArmComparison
from batchbalance.project.audit import calibration, clopper_pearson
from batchbalance.project.facts import Counts, Facts, SuspectLabel
from batchbalance.project.label_errors import Duplicates
from batchbalance.project.pages import (
    HEIGHT,
    WIDTH,
    batch_fragment,
    batch_page,
    curve_chart,
    project_fragment,
    status_fragment,
    status_page,
    ticks,
)
from batchbalance.project.status import status_of
from batchbalance.project.stopping import Accuracy, Round
from batchbalance.project.store import ShownItem

NASTY = "<script>alert(1)</script>&\"'"


@pytest.fixture(scope="module")
def facts():
    """Ten models that get better; 30 of 60 audit items have a label."""
    rng = np.random.default_rng(0)
    truth, levels = rng.integers(0, 3, 60), rng.random(60)
    rounds = []
    for step in range(1, 11):
        predicted = np.where(levels < 1 - step**-0.7, truth, (truth + 1) % 3)
        audited = 3 * step
        right = int((predicted[:audited] == truth[:audited]).sum())
        rounds.append(Round(27 * step, 1.8e9 + 600 * step, predicted, right, audited))
    audit_labels = np.where(np.arange(60) < 30, truth, -1)
    return Facts(
        "pets",
        ("cat", "dog", "neither"),
        Counts(600, 305, 270, 5, 2, 1, 3, 60, 31, 30, 1),
        rounds=tuple(rounds),
        audit_labels=audit_labels,
        confidence=rng.uniform(0.5, 1, 60),
        class_counts=(120, 100, 80),
        cross_validated_error=0.2,
        target=0.7,
        budget=400,
        suspects=(SuspectLabel(ShownItem("s1", text="a cat"), "dog", "cat", 0.03, 0.8),),
        duplicates=Duplicates(4, 3, ((1, 2),), 1),
        annotators={"ann and bob": 0.8},
    )


def table(status):
    return dict(status.rows())


def test_accuracy_is_of_the_newest_model_on_all_audit_labels(facts):
    status = status_of(facts)
    right = int((facts.rounds[-1].predicted[:30] == facts.audit_labels[:30]).sum())
    low, high = clopper_pearson(right, 30).low, clopper_pearson(right, 30).high
    assert (status.accuracy.correct, status.accuracy.total) == (right, 30)
    expected = f"{right / 30:.3f} [{low:.3f}, {high:.3f}] (95 %, for one look; {right} of 30 audit labels)"
    assert table(status)["accuracy"] == expected
    assert len(status.curve) == 10
    first = int((facts.rounds[0].predicted[:30] == facts.audit_labels[:30]).sum())
    assert (status.curve[0].correct, status.curve[0].total) == (first, 30)  # on today's labels, not on the 3 of then


def test_looks_are_at_what_was_known_at_the_time(facts):
    status = status_of(facts)
    assert [look.total for look in status.looks] == [12, 15, 24]
    assert [look.correct for look in status.looks] == [facts.rounds[i].audit_correct for i in (3, 4, 7)]


def test_calibration_is_of_items_with_a_label(facts):
    status = status_of(facts)
    assert status.calibration.confidence == pytest.approx(facts.confidence[:30].mean())
    assert status.calibration.accuracy == pytest.approx(status.accuracy.value)
    is_right = facts.rounds[-1].predicted[:30] == facts.audit_labels[:30]
    assert status.calibration == calibration(facts.confidence[:30], is_right)
    assert status.calibration.error != calibration(facts.confidence[:30][::-1], is_right).error


def test_models_from_before_items_came_are_not_on_the_curve(facts):
    early = replace(facts.rounds[0], predicted=np.where(np.arange(60) < 20, facts.rounds[0].predicted, -1))
    status = status_of(replace(facts, rounds=(early, *facts.rounds[1:])))
    assert [each.total for each in status.curve] == [30] * 9


def test_without_an_audit_set_it_says_what_it_cannot_know(facts):
    status = status_of(replace(facts, audit_share=0.0, audit_labels=np.full(60, -1)))
    assert status.accuracy is None
    assert status.calibration is None
    assert status.forecast is None
    assert table(status)["accuracy"] == "not known"
    assert any("--audit 0" in each and "accuracy cannot be known" in each for each in status.unknown)
    assert {each.rule: each.verdict for each in status.advice}["agreement"] != "cannot tell"
    assert "--audit 0" in status_page(status)


def test_a_test_set_takes_the_place_of_the_audit(facts):
    rounds = tuple(replace(each, test_correct=40 + step, test_total=100) for step, each in enumerate(facts.rounds))
    status = status_of(replace(facts, audit_share=0.0, audit_labels=np.full(60, -1), rounds=rounds))
    assert (status.accuracy.correct, status.accuracy.total, status.accuracy.source) == (49, 100, "test")
    assert not any("--audit 0" in each for each in status.unknown)
    early = status_of(replace(facts, audit_share=0.0, rounds=(replace(rounds[0], num_labels=6),)))
    assert table(early)["target: cannot tell"] == "The target is 0.70; the first look comes with 10 training labels."
    assert [look.num_labels for look in status.looks] == [27, 54, 81, 135, 189, 270]  # past 22, 50, 75, 113, 170, 256


def test_better_than_random_cannot_be_known_without_the_arm(facts):
    assert any("--random-arm 0.2" in each for each in status_of(facts).unknown)
    too_early = status_of(replace(facts, random_arm=0.2))
    assert any("cannot be known yet" in each for each in too_early.unknown)
    never = status_of(replace(facts, random_arm=0.2, audit_share=0.0))
    assert any("cannot be known without an audit set" in each for each in never.unknown)
    found = ArmComparison(25, 30, 10, 5, 39, 12)
    with_arm = status_of(replace(facts, random_arm=0.2, arm=found))
    assert with_arm.unknown == ()
    assert table(with_arm)["random arm"] == found.sentence()


def test_the_table_tells_the_rest(facts):
    told = table(status_of(facts))
    curve = ", ".join(f"{each.value:.3f} with {each.num_labels}" for each in status_of(facts).curve[-6:])
    assert told["curve"] == f"{curve} labels"
    assert told["labels"] == "270 to train on, 30 of 60 audit items"
    assert told["not labelled"] == "2 skipped, 1 flagged, 3 disputed"
    assert told["audit without label"].startswith("1 skipped, 0 disputed; ")
    assert told["audit items copied"].startswith("1 equal")
    assert told["exact copies"] == "4, 1 groups with labels that differ"
    assert told["class dog"].startswith("100 labels; share of the pool 0.")
    assert told["majority class"].startswith("always 'neither' would reach 0.")
    assert re.fullmatch(r"0\.\d{3} \[0\.\d{3}, 0\.\d{3}\]", told["macro F1"])
    assert told["likely label error"] == "s1: 'dog' has probability 0.03; 'cat'?"
    unlikely = replace(facts, suspects=(replace(facts.suspects[0], probability=0.001),))
    assert "has probability below 0.01;" in table(status_of(unlikely))["likely label error"]
    assert "dog: below 1 %. Rather cat?" in status_page(status_of(unlikely))
    assert told["annotators"] == "ann and bob: κ = 0.80 by first answers"
    assert told["budget: go on"] == "305 of 400 labels are used."
    assert table(status_of(replace(facts, budget=300)))["budget: stop"] == "305 of 300 labels are used."


def test_many_classes_are_summed_up(facts):
    names = tuple(f"c{i}" for i in range(30))
    counts = (0, 0, *range(5, 33))
    told = table(status_of(replace(facts, classes=names, class_counts=counts)))
    summed = "2 without a label; fewest: c2 5, c3 6, c4 7; most: c29 32; status.html shows them all"
    assert told["classes"] == summed
    assert told["macro F1"].endswith("over 3 of 30 classes; no label to measure by yet of 'c3', 'c4', 'c5', …")
    assert sum(name.startswith("class ") for name in told) == 3


def test_classes_stand_beside_the_accuracy_for_people_and_programs(facts):
    status = status_of(facts)
    found = json.loads(json.dumps(status.as_dict(), allow_nan=False))["quality"]
    assert [each["name"] for each in found["classes"]] == ["cat", "dog", "neither"]
    assert set(found["classes"][0]) == {"name", "labels", "share", "precision", "recall", "f1"}
    page = status_page(status)
    assert "Always &#x27;neither&#x27;" in page or "always &#x27;neither&#x27;" in page
    assert "macro F1" in page
    for text in ("share of the pool", "precision", "recall"):
        assert text in page
    assert page.count(str(status.quality.classes[1].recall)) == 1
    before = status_of(replace(facts, rounds=(), confidence=np.zeros(60)))
    assert (before.quality.macro_f1, before.quality.classes[0].f1) == (None, None)
    assert before.quality.classes[0].share is not None


def test_a_test_set_measures_the_classes_too(facts):
    rounds = (replace(facts.rounds[-1], test_correct=3, test_total=4),)
    arrays = {"test_labels": np.array([0, 0, 0, 2]), "test_predicted": np.array([0, 0, 1, 2])}
    quality = status_of(replace(facts, rounds=rounds, **arrays)).quality
    assert quality.classes[0].recall.value == pytest.approx(2 / 3)
    assert quality.classes[1].precision.value == 0
    assert quality.majority == "cat"
    assert quality.classes[1].share == status_of(facts).quality.classes[1].share


def test_an_empty_project_has_a_status():
    status = status_of(Facts("new", ("a", "b"), Counts(items=10)))
    assert status.accuracy is None
    assert {each.verdict for each in status.advice} == {"cannot tell"}
    assert "not known yet" in status_page(status)
    assert json.loads(json.dumps(status.as_dict()))["accuracy"] is None


def test_json_holds_what_the_table_says(facts):
    found = json.loads(json.dumps(status_of(facts).as_dict(), allow_nan=False))
    assert found["name"] == "pets"
    assert found["accuracy"]["valid"] == "for one look"
    assert found["accuracy"]["interval"]["low"] == status_of(facts).accuracy.interval.low
    assert found["counts"]["audit_skipped"] == 1
    assert [each["rule"] for each in found["advice"]] == ["agreement", "label change", "target", "budget", "forecast"]
    assert len(found["curve"]) == 10
    assert found["suspects"][0]["item"]["id"] == "s1"


def test_two_people_of_one_opinion_have_no_kappa(facts):
    status = status_of(replace(facts, annotators={"ann and bob": float("nan")}))
    assert table(status)["annotators"] == "ann and bob: κ is undefined, because both gave the same answer throughout"
    assert json.loads(json.dumps(status.as_dict(), allow_nan=False))["annotators"] == {"ann and bob": None}


def test_reprs_are_short(facts):
    status = status_of(facts)
    assert re.fullmatch(r"Status\('pets', 270 labels, accuracy 0\.\d{3} \[.*\)\)", repr(status))
    assert len(repr(status)) < 150
    assert str(status).splitlines()[0].split(None, 1) == ["project", "pets, 600 items, 3 classes"]


class Tags(HTMLParser):
    """Checks that tags nest, and notes tags, texts and addresses."""

    def __init__(self):
        super().__init__()
        self.open, self.tags, self.text, self.addresses = [], set(), [], []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.addresses += [value for name, value in attrs if name in ("src", "href", "srcset")]
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_startendtag(self, tag, _attrs):
        self.tags.add(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def parsed(page):
    parser = Tags()
    parser.feed(page)
    parser.close()
    assert parser.open == []
    return parser


def test_nothing_typed_becomes_markup(facts, tmp_path):
    nasty = ShownItem(NASTY, NASTY, tmp_path / "none.png", ((NASTY, NASTY),))
    facts = replace(
        facts,
        name=NASTY,
        classes=(NASTY, "dog", "neither"),
        suspects=(SuspectLabel(nasty, NASTY, NASTY, 0.1, 0.6),),
        annotators={NASTY: 0.5},
        notes=(NASTY,),
    )
    status = status_of(facts)
    source = SimpleNamespace(kind="images", path=NASTY)
    settings = SimpleNamespace(data=source, classes=[NASTY], model={"kind": NASTY}, strategy={"name": NASTY})
    shown = [
        status_page(status),
        status_fragment(status),
        status._repr_html_(),
        batch_page(NASTY, [nasty], [NASTY], NASTY),
        batch_fragment([nasty]),
        project_fragment(NASTY, settings, 3, [], []),
    ]
    for page in shown:
        found = parsed(page)
        assert "script" not in found.tags
        assert NASTY in "".join(found.text)


def test_the_page_needs_nothing_else(facts):
    page = status_page(status_of(facts))
    found = parsed(page)
    assert page.startswith("<!doctype html>")
    assert found.addresses == []
    assert "url(" not in page
    assert 'name="viewport"' in page
    assert "prefers-color-scheme: dark" in page
    text = "".join(found.text)
    for heading in ("Accuracy", "Reasons", "Each class", "Likely label errors"):
        assert heading in text
    assert "for one look" in text
    assert page.count("<svg") == 1
    assert page.count("<circle") == 10


def test_thumbnails_are_inside(tmp_path):
    Image.new("RGB", (600, 300), "red").save(tmp_path / "red.png")
    (tmp_path / "bad.png").write_bytes(b"no image")
    page = batch_page(
        "pets", [ShownItem("1", image=tmp_path / "red.png"), ShownItem("2", image=tmp_path / "bad.png")], ["cat"]
    )
    (address,) = parsed(page).addresses
    assert address.startswith("data:image/jpeg;base64,")
    assert len(address) < 4000
    assert "bad.png cannot be shown" in page


def test_long_texts_are_cut():
    assert "".join(parsed(batch_fragment([ShownItem("1", "x" * 1000)])).text).count("x") == 600


def test_ticks_are_round_and_few():
    assert ticks(0, 100) == [0, 20, 40, 60, 80, 100]
    assert ticks(40, 100) == [40, 60, 80, 100]
    assert ticks(27, 270) == [50, 100, 150, 200, 250]
    assert ticks(0, 0.3) == [0, 0.1, 0.2, 0.3]
    rng = np.random.default_rng(0)
    for _ in range(200):
        low = rng.normal() * 10 ** rng.uniform(-3, 4)
        high = low + 10 ** rng.uniform(-3, 5)
        found = ticks(low, high)
        assert 1 < len(found) <= 6
        gaps = [b - a for a, b in pairwise(found)]
        assert min(gaps) == pytest.approx(max(gaps), rel=1e-6)


def numbers(chart):
    points = re.search(r'polyline points="([^"]*)"', chart)[1].split()
    return [tuple(map(float, each.split(","))) for each in points]


def test_charts_stay_inside_and_one_point_is_no_mistake():
    curve = [Accuracy(9 * n, 3 * n, 10, clopper_pearson(3 * n, 10), "audit") for n in (1, 2, 3)]
    for chart in (curve_chart(curve[:1]), curve_chart(curve)):
        assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in numbers(chart))
        parsed(chart)
    rising = numbers(curve_chart(curve))
    assert all(a[0] < b[0] and a[1] > b[1] for a, b in pairwise(rising))


def test_a_model_that_learnt_nothing_is_named_in_every_form(facts):
    found = status_of(replace(facts, model_warning="the model predicts nothing"))
    assert ("warning", "the model predicts nothing") in found.rows()
    assert found.as_dict()["model_warning"] == "the model predicts nothing"
    assert "the model predicts nothing" in found._repr_html_()

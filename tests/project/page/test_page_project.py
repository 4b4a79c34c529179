"""The page and a real project."""

import json

import numpy as np
import pytest
from PIL import Image
from starlette.exceptions import HTTPException

from batchbalance.arguments.seeds import derived_seed
from batchbalance.errors import NothingLeftError
from batchbalance.project import Project
from batchbalance.project.insight import NUM_LIKE, SAMPLE
from batchbalance.project.page.choosing import RequestHandler
from batchbalance.project.page.insight import why
from batchbalance.project.page.page import Page
from batchbalance.system.progress import progress, told_to
from made_projects import CLASSES, answered, make, points, truth, write_texts
from page_fakes import FakeChooser


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A project with 20 labels; not to be changed."""
    project = make(tmp_path_factory.mktemp("trained"), batch_size=5, audit=0.2)
    answered(project, 20)
    return project


def vote_of(draw):
    """The class that a draw finds most probable, the first of equals."""
    best = 0
    for c in range(len(draw)):
        if draw[c] > draw[best]:
            best = c
    return best


def majority(votes):
    return vote_of([sum(vote == c for vote in votes) for c in range(len(CLASSES))])


@pytest.mark.slow
def test_insights_by_plain_loops(trained):
    vectors = points()[0]
    names = [str(row) for row in range(80) if str(row) not in trained.labels][:24]
    model = trained.model.trained(trained.store.snapshot(), vectors)
    import torch

    probs = model.posterior.predict(torch.from_numpy(vectors)).probs().numpy()
    votes = [[vote_of(draw) for draw in probs[row]] for row in range(80)]
    rng = np.random.default_rng(derived_seed(trained.settings.seed, "insight"))
    sample = sorted(rng.choice(80, min(SAMPLE, 80), replace=False).tolist())
    centre = vectors[sample].astype(np.float64).mean(axis=0)
    found = trained.explain(names)
    assert [each.id for each in found] == names
    split = 0
    for each in found:
        mine = votes[int(each.id)]
        counts = {name: sum(vote == c for vote in mine) for c, name in enumerate(CLASSES)}
        assert dict(each.votes) == pytest.approx({name: n / len(mine) for name, n in counts.items() if n})
        assert [share for _, share in each.votes] == sorted((share for _, share in each.votes), reverse=True)
        assert each.num_draws == len(mine)
        reported = trained.guess([each.id])[0]
        assert (each.guess, each.confidence) == (reported.label, pytest.approx(max(reported.probabilities.values())))
        if len(each.votes) == 1:
            assert (each.groups, each.apart) == ((), None)
        else:
            split += 1
            assert [group.num_draws for group in each.groups] == sorted(counts.values(), reverse=True)[:2]
            sides = [[j for j, vote in enumerate(mine) if CLASSES[vote] == group.label] for group in each.groups]
            differ = sum(
                majority([votes[row][j] for j in sides[0]]) != majority([votes[row][j] for j in sides[1]])
                for row in sample
            )
            assert each.apart == pytest.approx(differ / len(sample))
        own = vectors[int(each.id)] - centre
        likeness = {}
        for row, label in zip(model.rows, model.labels, strict=True):
            other = vectors[row] - centre
            likeness[str(row), CLASSES[label]] = own @ other / np.sqrt((own @ own) * (other @ other))
        nearest = sorted(likeness, key=lambda key: -likeness[key])[:NUM_LIKE]
        assert list(each.like) == nearest
    assert split > 2


def test_there_is_nothing_to_explain_before_there_is_a_model(tmp_path):
    project = make(tmp_path)
    assert project.explain(project.ask(3).ids) is None


def test_a_labelled_item_is_not_like_itself(trained):
    (name, *_) = [
        name for name, is_audit in zip(trained.labels, trained.is_audit(trained.labels), strict=True) if not is_audit
    ]
    (found,) = trained.explain([name])
    assert name not in dict(found.like)


def test_given_back_questions_are_asked_of_others_first(tmp_path):
    project = make(tmp_path, batch_size=5, audit=0.4)
    asked = list(project.ask(5, "first"))
    assert any(project.is_audit(asked))
    project.give_back(asked, "first")
    assert project.open_questions("first") == []
    assert set(project.ask(5, "second").ids) == set(asked)
    assert not set(project.ask(5, "first").ids) & set(asked)
    assert set(asked) <= set(project.ids([row for row in range(80) if project.view(row).reasons]))


def test_nothing_left_has_a_name_of_its_own(tmp_path):
    project = make(tmp_path, num=3, audit=0.0)
    answered(project, 3, 3)
    with pytest.raises(NothingLeftError, match="nothing is left to ask"):
        project.ask(1)


def test_the_page_hands_out_and_takes_in(tmp_path):
    project = make(tmp_path, batch_size=4, audit=0.25)
    page = Page(project, FakeChooser(), ["first", "second"])
    project.ask(4, "first")
    project.ask(4, "second")
    a, b, c, d = project.open_questions("first")
    theirs = project.open_questions("second")
    assert not {a, b, c, d} & set(theirs)
    assert page.situation("first")["taken"] == 4
    project.ask(3)  # by somebody who works with a CSV file
    assert page.situation("first")["taken"] == 7
    with pytest.raises(HTTPException, match="You cannot answer this item"):
        page.label("first", {theirs[0]: "bee"}, None)
    with pytest.raises(HTTPException, match="You cannot see this item"):
        page.image("first", theirs[0], "full")
    before = len(project.events())
    page.label("first", {a: "bee"}, 2.0)
    page.label("first", {a: "cow"}, 1.0)
    page.skip("first", b)
    page.flag("first", c, "blurred", False)
    assert len(project.events()) == before + 4
    assert project.open_questions("first") == [c, d]
    past = page.history("first", 0)["answers"]
    assert [(each["item"]["id"], each["kind"], each["label"], each["note"]) for each in past] == [
        (c, "flagged", None, "blurred"), (b, "skipped", None, ""), (a, "labelled", "cow", ""),
    ]  # fmt: skip
    assert [each["item"]["id"] for each in page.history("first", 1)["answers"]] == [b, a]
    with pytest.raises(HTTPException, match="This item is not an image"):  # it has a label, and can be seen
        page.image("second", a, "full")
    with pytest.raises(HTTPException, match="You cannot answer this item"):
        page.skip("second", a)
    found = page.progress("second")
    assert (found["today"], found["total"]) == (1, 1)
    assert found["people"] == [{"name": "first", "count": 1, "today": 1, "isMe": False}]
    assert found["classes"][2] == {"name": "cow", "count": 1}
    assert page.situation("first")["skipped"] == 1
    page.ask_skipped("first")
    page.ask_skipped("second")  # who skipped nothing, and is asked nothing new
    assert project.open_questions("first") == [c, d, b]
    assert project.open_questions("second") == theirs
    for _ in range(4):
        page.undo("first")
    undone = [each for each in project.events() if each.kind == "undone"]
    assert project.ids([each.item for each in undone]) == [c, b, a, a]
    for who in ("first", "second"):
        with pytest.raises(HTTPException, match="There is nothing to undo"):
            page.undo(who)
    assert project.open_questions("first") == [a, c, d, b]


def test_images_that_were_added_from_another_folder_are_sent(tmp_path):
    for folder in ("photos", "more", "elsewhere"):
        (tmp_path / folder).mkdir()
        Image.new("RGB", (8, 8), "red").save(tmp_path / folder / f"{folder}.png")
    project = Project.create(
        tmp_path / "p", images=tmp_path / "photos", classes="xy", encoder="made_projects:shades", audit=0.0
    )
    page = Page(project, FakeChooser(), [None])
    project.add_items(tmp_path / "more")
    project.ask(2)
    for name in ("photos.png", "more.png"):
        assert page.image(None, name, "full").media_type == "image/png"
    (tmp_path / "more" / "more.png").unlink()
    (tmp_path / "more" / "more.png").symlink_to(tmp_path / "elsewhere" / "elsewhere.png")
    with pytest.raises(HTTPException, match="outside the folder"):
        page.image(None, "more.png", "full")


def test_a_random_strategy_is_not_called_a_test_of_the_strategy(tmp_path):
    project = make(tmp_path, batch_size=10, audit=0.0, strategy="random")
    reason = Page(project, FakeChooser(), [None]).reason(next(iter(project.ask(10))))
    assert why(reason, False, None) == {"sentence": "It was chosen at random."}


def test_reasons_are_those_of_the_choice(tmp_path):
    project = make(tmp_path, batch_size=10, audit=0.3, random_arm=0.5)
    page = Page(project, FakeChooser(), [None])
    names = list(project.ask(10))
    reasons = {name: page.reason(name) for name in names}
    assert {"audit", "random"} < set(reasons.values())
    assert all((reason == "audit") == project.is_audit([name])[0] for name, reason in reasons.items())
    project.give_back(names)
    project.ask(10)
    assert {name: page.reason(name) for name in names} == reasons


def test_texts_and_rows_as_people_see_them(tmp_path):
    write_texts(tmp_path / "t.csv", 12)
    texts = Project.create(tmp_path / "p", texts=tmp_path / "t.csv", column="body", classes=["x", "y"], encoder="tfidf",
                           instructions="Read it.")  # fmt: skip
    page = Page(texts, FakeChooser(), [None])
    item = page.shown("t1")
    assert (item["kind"], item["text"], item["version"]) == ("text", "good fine nice number 1", "")
    facts = page.facts(None)
    assert (facts["project"], facts["instructions"], facts["classes"]) == ("p", "Read it.", ["x", "y"])
    rows = Project.create(tmp_path / "q", table=tmp_path / "t.csv", classes=["x", "y"])
    row = Page(rows, FakeChooser(), [None]).shown("t1")
    assert (row["kind"], row["fields"]) == ("row", [["body", "good fine nice number 1"], ["price", "2"]])
    with pytest.raises(ValueError, match="ids must be those of items"):
        page.shown("../t1")


@pytest.mark.slow
def test_the_process_asks_explains_and_measures(tmp_path):
    project = make(tmp_path, batch_size=5)
    said = []
    handler = RequestHandler(project, said.append)
    handler.take({"do": "ask", "who": None, "revision": 1})
    assert said[-1] == {"done": "ask", "added": 5, "ids": project.open_questions(), "insights": {}}
    project.tell(truth(project.open_questions()[:4]))
    handler.take({"do": "ask", "who": None, "revision": 2})
    assert said[-1]["added"] == 5
    assert set(said[-1]["insights"]) == set(project.open_questions())
    handler.take({"do": "status", "revision": 3})
    assert said[-1]["status"]["counts"]["labelled"] + said[-1]["status"]["counts"]["audit_labelled"] == 4
    handler.take({"do": "explain", "ids": ["nothing"]})
    assert "got 'nothing'" in said[-1]["trouble"]
    assert json.loads(json.dumps(said)) == said
    project.tell(truth([str(row) for row in range(80)]))
    handler.take({"do": "ask", "who": None, "revision": 4})
    assert said[-1] == {"done": "ask", "added": 0}


def test_progress_is_told_to_whoever_listens():
    heard = []
    with told_to(lambda *told: heard.append(told)):
        with progress("work", 3, True) as bar:
            bar.advance()
            bar.advance(2)
        with progress("quiet", 3, False) as bar:
            bar.advance()
    with progress("later", 3, False) as bar:
        bar.advance()
    assert heard == [("work", 0, 3), ("work", 1, 3), ("work", 3, 3)]


def test_words_are_searched_in_texts_and_ids(tmp_path):
    write_texts(tmp_path / "t.csv", 12)
    texts = Project.create(tmp_path / "p", texts=tmp_path / "t.csv", column="body", classes=["x", "y"], encoder="tfidf")
    every = dict(zip(texts.ids(), texts.contents(texts.ids()), strict=True))
    for words in ("good 1", "GOOD", "t1", "100%", "_", "nothing of it"):
        wanted = [
            name for name, text in every.items()
            if all(word.lower() in f"{name}\n{text}".lower() for word in words.split())
        ]  # fmt: skip
        assert texts.ids(texts.store.matching(words, 50)) == wanted
    assert len(texts.store.matching("good", 2)) == 2
    assert texts.store.matching("  ", 5) == []


def test_labels_from_a_file_are_undone_one_by_one_on_the_page(tmp_path):
    project = make(tmp_path, batch_size=4, audit=0.0)
    page = Page(project, FakeChooser(), [None])
    names = list(project.ask(4).ids)
    project.tell(dict.fromkeys(names[:2], "ant"))
    page.label(None, dict.fromkeys(names[2:], "bee"), 1.5)
    page.undo(None)
    assert project.labels == dict.fromkeys(names[:2], "ant")
    page.undo(None)
    assert project.labels == {names[0]: "ant"}

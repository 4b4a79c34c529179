"""Several labels for an item, to Label Studio and other tools, and back."""

import csv
import json

import pytest

from batchbalance import FileFormatError, UnknownNameError
from batchbalance.project import Project
from batchbalance.project.bridge import link, pull, push, tell_file, write_export
from batchbalance.project.bridge.labelstudio import ASKER
from batchbalance.project.learning import Guess
from fake_labelstudio import FakeLabelStudio
from labelstudio_rounds import Annotator

CLASSES = ["cat", "dog", "loud & new"]
TOLD = {"0": ["cat"], "1": ["cat", "dog"], "2": [], "3": ["dog", "loud & new"]}


def make(folder, **more):
    folder.mkdir(exist_ok=True)
    with (folder / "t.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(
            [["id", "text"], *([str(i), f"{'dogs' if i % 2 else 'cats'} purr {i}"] for i in range(40))]
        )
    return Project.create(folder / "p", texts=folder / "t.csv", classes=CLASSES, encoder="tfidf", batch_size=6,
                          audit=0.0, multi_label=True, **more)  # fmt: skip


@pytest.fixture
def project(tmp_path):
    made = make(tmp_path)
    yield made
    made.close()


@pytest.fixture
def fake():
    return FakeLabelStudio()


def answers(count):
    """What people choose there, in turn; None to skip, [] to submit without a choice."""
    every = [["dog", "cat"], ["none"], [], None, ["loud & new"], ["cat"]]
    return every[:count]


def test_label_studio_and_back(project, fake):
    server = fake.server()
    found, notes = link(project, server)
    config = fake.projects[found.project]["label_config"]
    assert 'choice="multiple"' in config
    assert '<Choice value="none"/>' in config
    assert notes == ()
    ids = push(project, found, server).ids
    someone, expected = Annotator(server, found.project), {}
    for choices in answers(6):
        task = someone.next_task()
        name, result = task["data"]["item_id"], []
        if choices:
            result = [
                {"from_name": found.control, "to_name": found.object, "type": "choices", "value": {"choices": choices}}
            ]
        server.post(f"/api/tasks/{task['id']}/annotations/", {"result": result, "was_cancelled": choices is None})
        if choices is not None:
            expected[name] = [each for each in CLASSES if each in choices]
    pulled = pull(project, found, server)
    assert (pulled.told.labelled, pulled.told.skipped, pulled.left) == (5, 1, 0)
    assert project.labels == expected
    assert set(expected) < set(ids)
    assert sum(label == [] for label in project.labels.values()) == 2  # "none", and nothing chosen
    assert pull(project, found, server).sentence() == ""


def test_guesses_are_shown_as_choices(project, fake, monkeypatch):
    said = {"0": ["cat", "dog"], "1": []}
    monkeypatch.setattr(
        project, "guess", lambda ids: [Guess(name, said.get(name, ["dog"]), {}, {}, 0.5) for name in ids]
    )
    server = fake.server()
    found, _ = link(project, server)
    ids = push(project, found, server, guesses=True).ids
    shown = {each["data"]["item_id"]: each["predictions"][0]["result"] for each in fake.tasks.values()}
    for name in ids:
        (part,) = shown[name]
        assert part["value"]["choices"] == (said.get(name, ["dog"]) or ["none"])


def test_choices_that_cannot_be(project, fake):
    server = fake.server()
    found, _ = link(project, server)
    push(project, found, server)
    someone = Annotator(server, found.project)
    for choices in (["none", "cat"], ["bird"]):
        result = [
            {"from_name": found.control, "to_name": found.object, "type": "choices", "value": {"choices": choices}}
        ]
        server.post(f"/api/tasks/{someone.next_task()['id']}/annotations/", {"result": result, "was_cancelled": False})
    notes = " ".join(pull(project, found, server).notes)
    assert "1 answer has 'none' among other choices: left there" in notes
    assert "1 answer is 'bird', which is not a class here" in notes
    assert project.labels == {}
    fake.projects[found.project]["label_config"] = fake.projects[found.project]["label_config"].replace(
        "multiple", "single"
    )
    with pytest.raises(ValueError, match='must have choice="multiple", because an item may have several labels'):
        link(project, server, found.project)


@pytest.mark.parametrize(("form", "name"), [("label-studio", "a.json"), ("jsonl", "a.jsonl"), ("csv", "a.csv")])
def test_files_and_back(tmp_path, project, form, name):
    project.ask(2, "Ann")
    project.tell(TOLD, "Ann")
    write_export(project, tmp_path / name, form)
    other = make(tmp_path / "other")
    tell_file(other, tmp_path / name)
    assert other.labels == project.labels == TOLD
    if form != "csv":
        assert [list(other.view(each).answers) for each in TOLD] == [["Ann"]] * 4
        assert other.view("2").answers == {"Ann": ()}


def test_lines_of_doccano_and_prodigy(tmp_path, project):
    lines = [
        {"id": "0", "label": ["dog", "cat"]},
        {"item_id": "1", "accept": ["dog"], "answer": "accept"},
        {"item_id": "2", "accept": [], "answer": "accept"},
        {"item_id": "3", "accept": ["cat"], "answer": "reject"},
        {"item_id": "4", "label": "cat;loud & new"},
    ]
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    told = tell_file(project, path)
    assert project.labels == {"0": ["cat", "dog"], "1": ["dog"], "2": [], "4": ["cat", "loud & new"]}
    assert told.skipped == 1
    path.write_text(json.dumps({"id": "5", "label": ["cat", "bird"]}), encoding="utf-8")
    with pytest.raises(UnknownNameError, match="bird"):
        tell_file(project, path)
    path.write_text(json.dumps({"item_id": "5", "label": "cat", "annotation_id": 4}), encoding="utf-8")
    with pytest.raises(FileFormatError, match="must be of Label Studio's format JSON, got JSON_MIN"):
        tell_file(project, path)
    assert ASKER not in {event.who for event in project.events()}

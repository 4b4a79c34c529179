"""Files for other labelling tools: out, in, and what is wrong with them."""

import base64
import json

import pytest

from batchbalance import FileFormatError, UnknownNameError
from batchbalance.project.bridge import FORMATS, tell_file, write_export
from batchbalance.project.bridge.tasks import ITEM
from labelstudio_rounds import make_project, truth
from made_projects import make

SUFFIXES = {"csv": "csv", "jsonl": "jsonl", "label-studio": "json"}


@pytest.fixture
def project(tmp_path):
    """Ann and Bob answered four items, skipped one, disagree on one, which is open again with three others."""
    made = make_project(tmp_path)
    asked = made.ask(4, "Ann").ids
    made.tell({name: truth(name) for name in asked[:2]}, "Ann", seconds=1.5)
    made.tell({asked[0]: truth(asked[0])}, "Bob")
    made.tell({asked[2]: "cat"}, "Ann")
    made.tell({asked[2]: "dog"}, "Bob")
    made.skip(asked[3], "Ann")
    rest = [name for name in made.ids() if name not in asked][:2]
    made.tell({name: truth(name) for name in rest}, "Ann")
    made.comment(asked[1], "=odd, \n line", "Bob")
    made.ask(4, "Ann")
    yield made
    made.close()


def another(tmp_path):
    (tmp_path / "other").mkdir()
    return make_project(tmp_path / "other")


@pytest.mark.parametrize("form", FORMATS)
def test_what_is_written_in_any_format_is_read_back(tmp_path, project, form):
    path = tmp_path / f"export.{SUFFIXES[form]}"
    count = write_export(project, path, form)
    assert count == (4 if form == "csv" else 9)  # CSV files have labelled items only
    other = another(tmp_path)
    told = tell_file(other, path)
    assert other.labels == project.labels
    assert len(project.labels) == 4
    if form != "csv":  # which has the label and not who gave it
        theirs, ours = other.views(), project.views()
        assert {name: view.answers for name, view in theirs.items() if view.answers} == {
            name: view.answers for name, view in ours.items() if view.answers
        }
        assert told.labelled == 7
    # Into the project itself it brings nothing new.
    labels = project.labels
    again = tell_file(project, path, "Ann" if form == "csv" else None)
    assert (again.labelled, again.corrected, again.unchanged) == (0, 0, 4 if form == "csv" else 7)
    assert project.labels == labels


def test_open_questions_are_written_in_their_order(tmp_path, project):
    wanted = project.open_questions("Ann")
    assert len(wanted) == 4
    tasks = exported(project, tmp_path, "label-studio", only_open=True)
    assert [task["data"][ITEM] for task in tasks] == wanted
    assert [task["predictions"][0]["score"] for task in tasks] == [0.0, 0.25, 0.5, 0.75]
    assert [len(task["annotations"]) for task in tasks] == [
        2 if view.is_disputed else 0 for view in map(project.view, wanted)
    ]
    assert all(task["predictions"][0]["result"] == [] for task in tasks)
    everything = exported(project, tmp_path, "label-studio")
    assert [task["data"][ITEM] for task in everything[:4]] == wanted
    lines = (tmp_path / "x").with_suffix(".jsonl")
    assert write_export(project, lines, "jsonl", only_open=True) == 4
    found = [json.loads(line) for line in lines.read_text(encoding="utf-8").splitlines()]
    assert [each[ITEM] for each in found] == wanted
    assert sorted(each["state"] for each in found) == ["disputed", "open", "open", "open"]
    assert not any("label" in each for each in found)
    assert found[0]["text"] == project.contents([wanted[0]])[0]


def exported(project, tmp_path, form, **options):
    path = tmp_path / "made.json"
    write_export(project, path, form, **options)
    return json.loads(path.read_text(encoding="utf-8"))


def test_guesses_are_written_on_request_and_never_shown_on_audit_items(tmp_path, project):
    audit = dict(zip(project.ids(), project.is_audit(project.ids()), strict=True))
    assert set(audit.values()) == {True, False}
    tasks = exported(project, tmp_path, "label-studio", predictions=True)
    assert len(tasks) == len(project)
    for task in tasks:
        guesses = [each["result"] for each in task.get("predictions", []) if each["result"]]
        assert bool(guesses) == (not audit[task["data"][ITEM]])


@pytest.mark.slow
def test_images_are_in_the_file_or_at_an_address(tmp_path):
    from PIL import Image

    from batchbalance.project import Project

    folder = tmp_path / "photos"
    (folder / "a b").mkdir(parents=True)
    for i in range(3):
        Image.new("RGB", (8, 8), (80 * i, 0, 0)).save(folder / "a b" / f"{i}.png")
    made = Project.create(tmp_path / "p", images=folder, classes=["x", "y"], audit=0.0, image_size=32)
    made.ask(3)
    (first, *_) = exported(made, tmp_path, "label-studio")
    head, _, content = first["data"]["image"].partition(",")
    assert head == "data:image/png;base64"
    assert base64.b64decode(content) == (folder / first["data"][ITEM]).read_bytes()
    (first, *_) = exported(made, tmp_path, "label-studio", image_url="https://here/pics/")
    assert first["data"]["image"] == "https://here/pics/" + first["data"][ITEM].replace(" ", "%20")
    lines = tmp_path / "made.jsonl"
    write_export(made, lines, "jsonl")
    line = json.loads(lines.read_text(encoding="utf-8").splitlines()[0])
    assert line["image"] == (folder / line[ITEM]).as_posix()


@pytest.mark.slow
def test_tables_are_shown_as_lines_and_bare_embeddings_not_at_all(tmp_path):
    from batchbalance.project import Project

    (tmp_path / "t.csv").write_text("id,size,colour\n" + "".join(f"r{i},{i},red\n" for i in range(6)), "utf-8")
    table = Project.create(tmp_path / "t", table=tmp_path / "t.csv", classes=["x", "y"], audit=0.0)
    table.ask(1)
    (task,) = exported(table, tmp_path, "label-studio")
    row = int(task["data"][ITEM][1:])
    assert task["data"]["text"] == f"size: {row}\ncolour: red"
    bare = make(tmp_path)
    bare.ask(2)
    assert write_export(bare, tmp_path / "bare.jsonl", "jsonl") == 2
    with pytest.raises(ValueError, match="bare embeddings have nothing to show"):
        write_export(bare, tmp_path / "bare.json", "label-studio")


def label_studio(item, *choices, who=1, moment="2026-01-01", **more):
    result = [{"from_name": "label", "to_name": "text", "type": "choices", "value": {"choices": list(choices)}}]
    made = {"id": 7, "completed_by": who, "result": result if choices else [], "updated_at": moment, **more}
    return {"id": 3, "data": {ITEM: item}, "annotations": [made]}


def told(tmp_path, content, name="given.json", **options):
    path = tmp_path / name
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    project = make_project(tmp_path)
    return tell_file(project, path, **options), project


def test_label_studio_s_own_export(tmp_path):
    tasks = [
        label_studio("dog, 0 é", "dog", lead_time=3.5),
        label_studio("cat, 1 é", was_cancelled=True),
        label_studio("cat, 2 é", "dog", moment="2026-01-02", who={"id": 4, "email": "bo@example.com"}),
        label_studio("cat, 2 é", "cat", moment="2026-01-03", who={"id": 4, "email": "bo@example.com"}),
        {"id": 9, "data": {ITEM: "dog, 3 é"}, "annotations": []},
    ]
    found, project = told(tmp_path, tasks)
    assert (found.labelled, found.skipped) == (2, 1)
    assert project.labels == {"dog, 0 é": "dog", "cat, 2 é": "cat"}
    events = {event.kind: (event.who, event.seconds) for event in project.events()}
    assert events["skipped"] == ("user 1", None)
    assert project.view("dog, 0 é").seconds == 3.5
    assert list(project.view("cat, 2 é").answers) == ["bo@example.com"]


def test_the_choices_that_count_can_be_named(tmp_path):
    task = label_studio("dog, 0 é", "dog")
    task["annotations"][0]["result"].append(
        {"from_name": "mood", "to_name": "text", "type": "choices", "value": {"choices": ["happy"]}}
    )
    with pytest.raises(FileFormatError, match="must have one set of choices, got label, mood; name it with --label"):
        told(tmp_path, [task])
    (tmp_path / "again").mkdir()
    _, project = told(tmp_path / "again", [task], label_column="label")
    assert project.labels == {"dog, 0 é": "dog"}


def test_lines_of_doccano_and_prodigy(tmp_path):
    lines = [
        {"id": 71, ITEM: "dog, 0 é", "text": "…", "label": ["dog"], "answers": []},
        {"id": 72, ITEM: "cat, 1 é", "text": "…", "label": []},
        {ITEM: "cat, 2 é", "accept": ["cat"], "answer": "accept", "_annotator_id": "pets-ann"},
        {ITEM: "dog, 3 é", "accept": [], "answer": "ignore", "_annotator_id": "pets-ann"},
        {"id": "cat, 4 é", "label": "cat"},
    ]
    found, project = told(tmp_path, "\n".join(map(json.dumps, lines)), "lines.jsonl")
    assert (found.labelled, found.skipped) == (3, 1)
    assert project.labels == {"dog, 0 é": "dog", "cat, 2 é": "cat", "cat, 4 é": "cat"}
    assert list(project.view("dog, 3 é").skipped) == ["pets-ann"]


def test_a_name_given_stands_for_all(tmp_path):
    _, project = told(tmp_path, [label_studio("dog, 0 é", "dog"), label_studio("cat, 1 é")], annotator="Cy")
    assert list(project.view("dog, 0 é").answers) == ["Cy"]
    assert list(project.view("cat, 1 é").skipped) == ["Cy"]


@pytest.mark.parametrize(
    ("content", "name", "error", "said"),
    [
        ("{", "g.json", FileFormatError, "must be JSON"),
        ("", "g.jsonl", FileFormatError, "must hold answers in JSON, got an empty file"),
        (" \n", "g.json", FileFormatError, "must hold answers in JSON, got an empty file"),
        ({"a": 1}, "g.json", FileFormatError, "must hold a list of tasks, got dict"),
        ('{"id": 1}\n{', "g.jsonl", FileFormatError, "line 2 must be JSON"),
        ("[1]", "g.jsonl", FileFormatError, "line 1 must be an object with 'item_id' or 'id'"),
        ([{"data": {}, "annotations": [{"result": []}]}], "g.json", FileFormatError, "item's id under 'item_id'"),
        ([{"data": 3, "annotations": [3]}], "g.json", FileFormatError, "must hold tasks of Label Studio"),
        (
            [{"data": {ITEM: "dog, 0 é"}, "annotations": [{"id": 3}]}],
            "g.json",
            FileFormatError,
            "tasks of Label Studio",
        ),
        ([label_studio("dog, 0 é", "bird")], "g.json", UnknownNameError, "unknown label at .*task 3: 'bird'"),
        ([label_studio("dog, 0 é", "cat", "dog")], "g.json", ValueError, "must be one class, got cat, dog"),
        ([label_studio("nobody", "cat")], "g.json", ValueError, "ids must be those of items"),
    ],
)
def test_what_is_wrong_with_a_file_is_one_sentence_and_nothing_is_taken_in(tmp_path, content, name, error, said):
    with pytest.raises(error, match=said) as caught:
        told(tmp_path, content, name)
    assert "\n" not in str(caught.value)


def test_a_wrong_answer_among_right_ones_takes_in_none(tmp_path):
    project = make_project(tmp_path)
    path = tmp_path / "g.json"
    path.write_text(json.dumps([label_studio("dog, 0 é", "dog"), label_studio("cat, 1 é", "bird")]), "utf-8")
    with pytest.raises(UnknownNameError):
        tell_file(project, path)
    assert project.labels == {}


def test_mistakes_in_arguments(tmp_path, project):
    with pytest.raises(UnknownNameError, match="unknown format 'label_studio'; did you mean 'label-studio'"):
        write_export(project, tmp_path / "x", "label_studio")
    with pytest.raises(ValueError, match="must not be given for format csv"):
        write_export(project, tmp_path / "x", "csv", only_open=True)
    with pytest.raises(ValueError, match="`id_column` is for CSV files"):
        tell_file(project, tmp_path / "x.json", id_column="name")
    with pytest.raises(FileNotFoundError, match="no such file"):
        tell_file(project, tmp_path / "x.json")

"""The commands of a project, as a newcomer types them."""

import csv
import errno
import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from batchbalance.cli import app
from batchbalance.posteriors.training import fitting as training
from batchbalance.project import Project
from made_projects import CLASSES, FOREST, answered, make, points, truth, write_texts

INIT = ["init", "p", "--texts", "t.csv", "--column", "body", "--classes", "a,b"]


def run(*arguments, code=0):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return result


def told(*arguments):
    """The one sentence on standard error of a user's mistake."""
    lines = [line for line in run(*arguments, code=2).stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1
    return lines[0]


def rows_of(path):
    with path.open(newline="", encoding="utf-8-sig") as file:
        return list(csv.DictReader(file))


def fill(path, labels, delimiter=","):
    """Fill in the label column as a spreadsheet would."""
    rows = rows_of(path)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0].keys(), delimiter=delimiter)
        writer.writeheader()
        for row in rows:
            writer.writerow({**row, "label": labels(row)})


@pytest.fixture
def texts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_texts(tmp_path / "mails.csv", 60)
    run("init", "mails", "--texts", "mails.csv", "--column", "body", "--classes", "good,bad", "--encoder", "tfidf")
    return tmp_path / "mails"


def mood(row):
    return "good" if row["text"].startswith("good") else "bad"


def test_texts_from_init_to_export(texts):
    shown = run("ask", "mails", "-n", "10").stdout
    rows = rows_of(texts / "batch.csv")
    assert list(rows[0]) == ["id", "label", "text"]
    assert len(rows) == 10
    assert all(row["id"] in shown and row["label"] == "" for row in rows)
    page = (texts / "batch.html").read_text(encoding="utf-8")
    assert all(row["text"] in page for row in rows)
    fill(texts / "batch.csv", mood, ";")
    assert "were not imported; import it first" in told("ask", "mails", "-n", "10")
    assert "10 labelled, 0 corrected, 0 known already" in run("tell", "mails", texts / "batch.csv").stdout
    assert "0 labelled, 0 corrected, 10 known already" in run("tell", "mails", texts / "batch.csv").stdout
    run("ask", "mails", "-n", "20")
    fill(texts / "batch.csv", lambda row: mood(row) if row["text"].startswith("good") else "")
    run("tell", "mails", texts / "batch.csv")
    left = Project.open(texts).open_questions()
    assert left
    run("ask", "mails", "-n", len(left))  # all that was filled in is told, so that the file may be written again
    assert [row["id"] for row in rows_of(texts / "batch.csv")] == left
    fill(texts / "batch.csv", mood)
    run("tell", "mails", texts / "batch.csv")
    shown = run("status", "mails").stdout
    assert "accuracy" in shown
    assert "for one look" in (texts / "status.html").read_text(encoding="utf-8")
    found = json.loads(run("status", "mails", "--json").stdout)
    assert found["counts"]["items"] == 60
    run("export", "mails", "--output", "labels.csv")
    exported = rows_of(texts.parent / "labels.csv")
    assert {row["id"]: row["label"] for row in exported} == Project.open(texts).labels
    given = {row["id"]: row["text"] for row in rows_of(texts / "batch.csv")}
    assert all(row["text"] == given[row["id"]] for row in exported if row["id"] in given)
    run("export", "mails", "--output", "all.csv", "--predictions")
    assert len(rows_of(texts.parent / "all.csv")) == 60
    write_texts(texts.parent / "new.csv", 5, [f"new{i}" for i in range(5)])
    assert "new4" in run("predict", "mails", "new.csv").stdout
    run("predict", "mails", "new.csv", "--output", "said.csv")
    said = rows_of(texts.parent / "said.csv")
    assert [row["prediction"] for row in said] == ["bad", "good", "bad", "good", "bad"]
    assert "match their hashes" in run("status", "mails", "--check").stdout


def test_what_happens_beside_labels(texts):
    run("ask", "mails", "-n", "4")
    a, b, c, d = Project.open(texts).open_questions()
    run("skip", "mails", a, b)
    assert "nothing" not in run("ask", "mails", "-n", "2").stdout
    assert Project.open(texts).open_questions()[:2] == [c, d]
    run("ask", "mails", "-n", "4", "--again")
    assert {a, b} <= set(Project.open(texts).open_questions())
    run("flag", "mails", c, "--note", "strange")
    run("comment", "mails", d, "--text", "fine")
    assert f"undone: '{d}' was commented 'fine'" in run("undo", "mails").stdout
    assert "flagged" in run("undo", "mails", "-n", "1").stdout
    run("add-class", "mails", "neither")
    assert "good, bad, other" in run("rename-class", "mails", "neither", "other").stdout
    write_texts(texts.parent / "more.csv", 3, ["x", "y", "z"])
    assert "3 items added, 63 in all" in run("add-items", "mails", "more.csv").stdout
    run("ask", "mails", "-n", "3", "--as", "Ann B/ob")
    sheet = texts / "batch-Ann_B_ob.csv"
    fill(sheet, mood)
    run("tell", "mails", sheet, "--as", "Ann B/ob")
    first = rows_of(sheet)[0]
    other = "bad" if first["label"] == "good" else "good"
    name = first["id"]
    assert f"'{name}' is '{other}'" in run("correct", "mails", name, other, "--as", "Ann B/ob").stdout
    assert Project.open(texts).labels[name] == other
    assert "as it was" in run("correct", "mails", name, other, "--as", "Ann B/ob").stdout
    assert f"'{name}' must have an answer to correct, got one of Ann B/ob; name one with --as" in told(
        "correct", "mails", name, "good"
    )
    run("undo", "mails", "--as", "Ann B/ob")
    assert len(Project.open(texts).labels) == 3
    assert {each.kind for each in Project.open(texts).store.snapshot().undoable(None)} == {"skipped"}
    assert len(list(Project.open(texts).store.snapshot().undoable("Ann B/ob"))) == 3


def test_images_in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos" / "sub").mkdir(parents=True)
    rng = np.random.default_rng(0)
    for i in range(12):
        shade = np.full((16, 16, 3), 40 if i % 2 else 200, dtype=np.uint8) + rng.integers(
            20, size=(16, 16, 3), dtype=np.uint8
        )
        Image.fromarray(shade).save(tmp_path / "photos" / ("sub" if i % 3 else ".") / f"é{i}.png")
    (tmp_path / "shades.py").write_text(
        "import numpy as np\n"
        "def encode(batch):\n    return np.stack([np.asarray(x.resize((2, 2))).reshape(-1) / 255 for x in batch])\n"
        "encode.kind = 'images'\n"
    )
    (tmp_path / "photos" / "broken.png").write_bytes(b"no image")
    arguments = ["init", "cats", "--images", "photos/", "--classes", "dark,light", "--encoder", "shades:encode"]
    assert "photos/broken.png is damaged" in told(*arguments)
    assert "skipped: image" in run(*arguments, "--skip-bad").stderr  # a mistake leaves the folder free
    assert "which would import code" in told("ask", "cats")
    run("ask", "cats", "-n", "6", "--allow-imports")
    rows = rows_of(tmp_path / "cats" / "batch.csv")
    assert list(rows[0]) == ["id", "label", "file"]
    assert all((tmp_path / row["file"]).is_file() for row in rows)
    assert (tmp_path / "cats" / "batch.html").read_text(encoding="utf-8").count("data:image/jpeg") == 6
    fill(tmp_path / "cats" / "batch.csv", lambda row: "dark" if int(row["id"].strip("subé/.png")) % 2 else "light")
    run("tell", "cats", "cats/batch.csv", "--allow-imports")
    run("status", "cats", "--allow-imports")
    project = Project.open("cats", allow_imports=True)
    assert "sub/é1.png" in project.ids()
    guesses = project.guess(project.ids())
    assert all(each.label == ("dark" if int(each.id.strip("subé/.png")) % 2 else "light") for each in guesses)


def test_a_damaged_image_is_one_plain_sentence(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "x.png").write_bytes(b"no image")
    said = told("init", "p", "--images", "photos", "--classes", "a,b", "--encoder", "made_projects:shades")
    assert said.endswith(
        "x.png is damaged or of another format; repair or remove it, or omit such items with --skip-bad"
    )


def test_a_table_and_another_encoder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    x, y = points(60)
    with (tmp_path / "data.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "a", "b", "c", "d", "label", "colour"])
        writer.writerows([f"r{i}", *row.tolist(), CLASSES[y[i]], "red" if i % 2 else ""] for i, row in enumerate(x))
    run("init", "rows", "--table", "data.csv", "--drop", "label", "--classes", ",".join(CLASSES))
    run("ask", "rows", "-n", "20")
    rows = rows_of(tmp_path / "rows" / "batch.csv")
    assert list(rows[0]) == ["id", "label", "a", "b", "c", "d", "colour"]
    run("tell", "rows", "data.csv")  # labels that exist already
    assert len(Project.open("rows").labels) == 60
    before = np.load(tmp_path / "rows" / "embeddings.npy")
    (tmp_path / "half.py").write_text(
        "import numpy as np\n"
        "def encode(batch):\n    return np.array([[float(row['a']), float(row['b'])] for row in batch])\n"
    )
    path = tmp_path / "rows" / "project.toml"
    path.write_text(path.read_text().replace("classes", 'encoder = "half:encode"\nclasses', 1))
    shown = run("status", "rows", "--allow-imports")
    assert "the encoder was table and is half:encode: embedded again" in " ".join(shown.output.split())
    after = np.load(tmp_path / "rows" / "embeddings.npy")
    assert (before.shape[1], after.shape) == (6, (60, 2))
    np.testing.assert_allclose(after, x[:, :2], rtol=1e-6)
    assert "embedded again" not in run("status", "rows", "--allow-imports").output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["init", "p", "--images", "nowhere", "--classes", "a,b"], "no such data: nowhere"),
        (["init", "p", "--classes", "a,b"], "and --embeddings must be given, got none"),
        (["init", "p", "--images", ".", "--texts", "t.csv", "--classes", "a,b"], "got images, texts"),
        (["init", "p", "--texts", "t.csv", "--classes", "a"], "--classes must have at least 2 entries"),
        (["init", "p", "--embeddings", "e.npy", "--classes", "a,b", "--drop", "x"],
         "--drop is for texts and table, got it with embeddings; omit it"),
        (["init", "p", "--embeddings", "e.npy", "--classes", "a,b", "--column", "x"], "--column is for texts"),
        (["init", "p", "--texts", "t.csv", "--classes", "a,b", "--ids", "t.csv"], "--ids is for embeddings"),
        (["init", "p", "--texts", "t.csv", "--classes", "a,b", "--column", "bdy"], "must have a column 'bdy'"),
        (["init", "p", "--texts", "t.csv", "--classes", "a,b"], "must have a column 'text'"),
        ([*INIT, "--audit", "2"], "--audit must be"),
        ([*INIT, "--encoder", "x"], "unknown encoder"),
        ([*INIT, "--model", "x"], "unknown model 'x'"),
        ([*INIT, "--strategy", "x"], "unknown strategy"),
        ([*INIT, "--test", "x"], "no such file: x"),
        (["init", "done", "--texts", "t.csv", "--column", "body", "--classes", "a,b"], "done already holds a project"),
        (["ask", "nowhere"], "no project in nowhere"),
        (["ask", "done", "-n", "0"], "error: -n must be a whole number of at least 1, got 0"),
        (["ask", "done", "--as", ""], "must be a name"),
        (["tell", "done", "nowhere.csv"], "no such file: nowhere.csv"),
        (["tell", "done", "t.csv"], "must have a column 'label'"),
        (["tell", "done", "wrong.csv"], r"wrong.csv line 2: ids must be those of items in this project, got 'zz'"),
        (["tell", "done", "other.csv"], r"unknown label at other.csv line 2: 'goood'; did you mean 'good'"),
        (["tell", "done", "twice.csv"], "twice.csv line 3: 't0' must have one label, got two that differ"),
        (["tell", "done", "empty.csv"], "empty.csv must have labels filled in, got none"),
        (["skip", "done", "zz"], "got 'zz'"),
        (["undo", "done"], "there is nothing to undo"),
        (["undo", "done", "--as", "Ann"], "there is nothing to undo by Ann"),
        (["correct", "done", "t0", "good"], "'t0' must have an answer to correct, got none; add one first"),
        (["correct", "done", "t0", "good; bad"], "label 'good; bad' must be one class, because .*`init --multi-label`"),
        (["correct", "done", "t0", "goood"], "unknown label 'goood'; did you mean 'good'"),
        (["correct", "done", "zz", "good"], "got 'zz'"),
        (["export", "done", "--output", "no/where.csv"], "cannot write"),
        (["export", "done"], "one of --output and --suspects must be given, got neither"),
        (["export", "done", "--suspects", "done/labels.sqlite"], "must not be one of the project's own files"),
        (["export", "done", "--output", "done/labels.sqlite"], "--output must not be one of the project's own files"),
        (["predict", "done", "t.csv", "--output", "done/../done/project.toml"], "--output must not be one of"),
        (["export", "done", "--output", "x.csv", "--predictions"], "there is no model yet"),
        (["predict", "done", "t.csv"], "there is no model yet"),
        (["add-items", "done", "t.csv"], "got 't0', which exists already"),
    ],
)  # fmt: skip
def test_mistakes_are_one_sentence(mistakes, arguments, message):
    import re

    assert re.search(message, told(*arguments))
    assert not (mistakes / "p" / "labels.sqlite").exists() or len(Project.open(mistakes / "done").events()) == 2


@pytest.fixture
def mistakes(tmp_path, monkeypatch, made_once):
    import shutil

    shutil.copytree(made_once, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def made_once(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    write_texts(folder / "t.csv", 10)
    given = {"texts": folder / "t.csv", "column": "body", "encoder": "tfidf"}
    Project.create(folder / "done", classes=["good", "bad"], **given).close()
    (folder / "wrong.csv").write_text("id,label\nzz,good\n")
    (folder / "other.csv").write_text("id,label\nt0,goood\n")
    (folder / "twice.csv").write_text("id,label\nt0,good\nt0,bad\n")
    (folder / "empty.csv").write_text("id,label\nt0,\n")
    np.save(folder / "e.npy", np.eye(4))
    return folder


def test_a_damaged_project_is_one_sentence(tmp_path):
    make(tmp_path).close()
    path = tmp_path / "p" / "labels.sqlite"
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    assert "is damaged" in told("status", tmp_path / "p", "--check")
    for beside in tmp_path.glob("p/labels.sqlite-*"):
        beside.unlink()
    path.write_bytes(b"")
    assert "must be a log of labels of version 1, got another" in told("status", tmp_path / "p")
    path.unlink()
    assert "it is empty but the project is not" in told("status", tmp_path / "p")
    path.write_bytes(b"no database")
    assert "is damaged" in told("ask", tmp_path / "p")
    (tmp_path / "p" / "project.toml").write_text("classes = [")
    assert "project.toml" in told("ask", tmp_path / "p")


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 no archive", b"garbage"])
def test_what_can_be_made_again_may_be_damaged(tmp_path, content):
    project = make(tmp_path)
    project.tell(truth(map(str, range(40))))
    before = project.status().as_dict()
    project.close()
    next((tmp_path / "p" / "model").glob("*.npz")).write_bytes(content)
    project = Project.open(tmp_path / "p")
    assert project.status().as_dict() == before
    project.close()


def test_an_index_that_leads_astray_is_found_by_check(tmp_path):
    make(tmp_path).close()
    connection = sqlite3.connect(tmp_path / "p" / "labels.sqlite")
    connection.execute("PRAGMA writable_schema = ON")
    (root,) = connection.execute(
        "SELECT rootpage FROM sqlite_master WHERE name LIKE 'sqlite_autoindex_items%'"
    ).fetchone()
    connection.close()
    path = tmp_path / "p" / "labels.sqlite"
    content = bytearray(path.read_bytes())
    size = int.from_bytes(content[16:18], "big")
    page = content[(root - 1) * size : root * size]
    at = page.index(b"42")  # an id; the number of its row follows
    page[at + 2] ^= 1
    content[(root - 1) * size : root * size] = page
    path.write_bytes(content)
    assert "is damaged" in told("status", tmp_path / "p", "--check")
    assert "is damaged: its index has another row for '42'" in told("skip", tmp_path / "p", "42")


def test_a_filled_sheet_is_never_overwritten(tmp_path):
    project = make(tmp_path)
    sheet = tmp_path / "p" / "batch.csv"
    run("ask", tmp_path / "p", "-n", "3")
    fill(sheet, lambda _: "nonsense")
    assert "3 labels that were not imported" in told("ask", tmp_path / "p")
    sheet.write_bytes(b"\xff\xfe\x00")
    before = sheet.read_bytes()
    assert "cannot be read as answers" in told("ask", tmp_path / "p")
    assert sheet.read_bytes() == before
    sheet.unlink()
    run("ask", tmp_path / "p", "-n", "3")
    project.tell(truth(project.open_questions()))
    fill(sheet, lambda row: truth([row["id"]])[row["id"]])
    run("ask", tmp_path / "p", "-n", "3")
    assert answered(project, 3)


def test_interrupted_init_goes_on(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_texts(tmp_path / "t.csv", 10)
    from batchbalance.project.store import ProjectStore

    real = ProjectStore.add_items

    def stopped(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(ProjectStore, "add_items", stopped)
    arguments = ["--texts", "t.csv", "--column", "body", "--classes", "good,bad", "--encoder", "tfidf"]
    shown = run("init", "p", *arguments, code=130)
    assert "'batchbalance ask p' continues from there" in shown.stderr
    monkeypatch.setattr(ProjectStore, "add_items", real)
    run("ask", "p", "-n", "3")
    assert len(Project.open("p")) == 10


@pytest.fixture
def read_only(monkeypatch):
    """Make a folder one of a read-only file system, as far as we use it; root may write to any other."""

    def begin(folder):
        def refusing(real, is_writing):
            def call(path, *rest, **more):
                if is_writing(*rest) and Path(path).is_relative_to(folder):
                    raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
                return real(path, *rest, **more)

            return call

        connect = sqlite3.connect
        monkeypatch.setattr(sqlite3, "connect", lambda at, **more: connect(f"file:{at}?mode=ro", uri=True, **more))
        monkeypatch.setattr(os, "access", lambda _, mode: not mode & os.W_OK)
        monkeypatch.setattr(os, "mkdir", refusing(os.mkdir, lambda *_: True))
        monkeypatch.setattr(os, "open", refusing(os.open, lambda flags, *_: flags & (os.O_WRONLY | os.O_RDWR)))

    return begin


def test_a_project_on_a_read_only_file_system_can_be_read(tmp_path, read_only, monkeypatch):
    project = make(tmp_path)
    answered(project, 30)
    project.close()
    monkeypatch.chdir(tmp_path)
    np.save("new.npy", points(80)[0][:5])
    before = {path: path.read_bytes() for path in Path("p").rglob("*") if path.is_file()}
    read_only(tmp_path / "p")
    shown = run("status", tmp_path / "p").output
    assert "is read-only: nothing can be" in " ".join(shown.split())
    assert "without charts: cannot write" in " ".join(shown.split())
    assert "30 items written" in run("export", tmp_path / "p", "--output", "labels.csv").output
    shown = run("predict", tmp_path / "p", "new.npy", "--output", "said.csv").output
    assert "5 predictions written" in shown
    assert "the model cannot be stored, so every command trains it again: read-only file system" in shown
    assert "cannot write to" in told("tell", tmp_path / "p", "labels.csv")
    assert "copy it to such a folder" in told("undo", tmp_path / "p")
    assert {path: path.read_bytes() for path in Path("p").rglob("*") if path.is_file()} == before


def test_a_mistake_in_the_options_of_a_model_is_one_sentence(tmp_path):
    make(tmp_path, model=FOREST).close()
    path = tmp_path / "p" / "project.toml"
    path.write_text(path.read_text().replace("max_depth", "max_dexth"))
    assert "unknown setting of [posterior] 'max_dexth'; did you mean 'max_depth'?" in told("status", tmp_path / "p")


@pytest.mark.slow
def test_models_by_name(tmp_path, monkeypatch):
    monkeypatch.setattr(training, "STEPS", 50)
    models = {
        "forest": FOREST,
        "net": {"network": "tabular-mlp", "num_draws": 4},
        "named": "tabular-mlp",
        "estimator": "sklearn.naive_bayes:GaussianNB",
        "bagged": {"estimator": "sklearn.linear_model:LogisticRegression", "size": 3, "options": {"C": 0.5}},
        "ensemble": {"kind": "deep-ensemble", "network": "tabular-mlp", "size": 2},
    }
    for name, model in models.items():
        project = make(tmp_path / name, model=model)
        answered(project, 12)
        assert len(project.ask(3)) == 3
        again = Project.open(tmp_path / name / "p")
        assert [each.label for each in again.guess(range(5))] == [each.label for each in project.guess(range(5))]


@pytest.mark.slow
def test_help_starts_without_torch():
    code = (
        "import sys; from batchbalance.cli import app; assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run([sys.executable, "-c", code], env=env).returncode == 0

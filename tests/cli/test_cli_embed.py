"""`batchbalance embed`, and how `select` finds the ids."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from batchbalance.cli import app
from batchbalance.encoders import embed, encoder
from conftest import random_probs

RUN = "from batchbalance.cli import main; main()"


def interruptible():
    """For `preexec_fn`: what a background job of a shell starts ignores interrupts otherwise."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def run(*arguments):
    result = CliRunner().invoke(app, ["embed", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def photos(tmp_path):
    rng = np.random.default_rng(0)
    for i in range(5):
        path = tmp_path / "photos" / ("cats" if i % 2 else "dogs") / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (40 + i, 50, 3), dtype=np.uint8)).save(path)
    return tmp_path / "photos"


@pytest.fixture
def queries(tmp_path):
    path = tmp_path / "queries.csv"
    lines = ["text,category", *(f'"where, is card {i}",cards' for i in range(30))]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_images(photos, tmp_path):
    code, out, err = run(photos, "--output", tmp_path / "e.npy", "--image-size", 64, "--batch-size", 2)
    assert (code, out.splitlines()[0].split(" in ")[0]) == (0, "5 images × 1,280 by efficientnet-lite0")
    assert f"their ids are in {tmp_path / 'e.ids.txt'}" in out
    assert "embedding: 5 of 5" in err
    assert (tmp_path / "e.ids.txt").read_text() == "cats/1.png\ncats/3.png\ndogs/0.png\ndogs/2.png\ndogs/4.png\n"
    expected = embed(photos, encoder("efficientnet-lite0", image_size=64), batch_size=2).vectors
    np.testing.assert_array_equal(np.load(tmp_path / "e.npy"), expected)


def test_texts_and_a_second_start(queries, tmp_path):
    code, out, _ = run(queries, "--output", tmp_path / "e.npy")
    assert (code, out.splitlines()[0].split(" in ")[0]) == (0, "30 texts × 256 by wordllama")
    code, out, _ = run(queries, "--output", tmp_path / "e.npy")
    assert (code, out) == (0, f"{tmp_path / 'e.npy'} is up to date: 30 texts × 256 by wordllama\n")


def test_columns_and_ids(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("key,query,n\nx,hello,1\ny,goodbye,2\n", encoding="utf-8")
    options = ("--ids-output", tmp_path / "names.txt", "--id", "key")
    assert run(path, "--output", tmp_path / "e.npy", "--column", "query", *options)[0] == 0
    assert np.load(tmp_path / "e.npy").shape == (2, 256)
    assert (tmp_path / "names.txt").read_text() == "x\ny\n"
    code, out, err = run(path, "--output", tmp_path / "t.npy", "--id", "key", "--drop", "query")
    assert code == 0
    assert "2 rows × 1 by table" in out
    assert "note: columns taken: n" in err
    np.testing.assert_allclose(np.load(tmp_path / "t.npy"), [[-1], [1]])


def test_bad_files_are_named_and_skipped(photos, tmp_path):
    (photos / "cats" / "1.png").write_bytes(b"broken")
    (photos / "readme.md").write_text("about", encoding="utf-8")
    code, _, err = run(photos, "--output", tmp_path / "e.npy", "--image-size", 64)
    assert code == 2
    last = err.splitlines()[-1]
    assert last.startswith(f"error: image {photos / 'cats' / '1.png'} is damaged or of another format; ")
    assert last.endswith("; repair or remove it, or omit such items with --skip-bad")
    code, out, err = run(photos, "--output", tmp_path / "e.npy", "--image-size", 64, "--skip-bad")
    assert (code, out.split(" × ")[0]) == (0, "4 images")
    assert f"skipped: image {photos / 'cats' / '1.png'} is damaged" in err
    assert "note: other files ignored: 1 × .md" in err


def test_many_bad_ones_are_told_in_short(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "good"}\n' + '{"text": ""}\n' * 25, encoding="utf-8")
    code, _, err = run(tmp_path / "a.jsonl", "--output", tmp_path / "e.npy", "--skip-bad")
    assert code == 0
    assert err.count("skipped: row") == 20
    assert "skipped: 5 more; e.embed.json beside e.npy names all" in err
    assert len(json.loads((tmp_path / "e.embed.json").read_text())["skipped"]) == 25


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--encoder", "wordlama"], "error: unknown encoder 'wordlama'; did you mean 'wordllama'?"),
        (["--encoder", "efficientnet-lite0"], "must be a folder of images or an image, got a file of rows"),
        (["--device", "cpu"], "error: --device is not used by encoder 'wordllama'; omit it"),
        (["--column", "query"], "must have a column 'query', got columns text, category"),
        (["--batch-size", "0"], "error: --batch-size must be a whole number of at least 1, got 0"),
        (
            ["--encoder", "nowhere:f"],
            "error: encoder 'nowhere:f' must be in a module that can be imported",
        ),
    ],
)
def test_mistakes_are_one_sentence(queries, tmp_path, options, message):
    code, out, err = run(queries, "--output", tmp_path / "e.npy", *options)
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.splitlines()) == 1


def test_outputs_that_cannot_be_are_refused(queries, tmp_path):
    code, _, err = run(queries, "--output", tmp_path / "e.csv")
    assert (code, err) == (2, f"error: --output must end in .npy, got '{tmp_path / 'e.csv'}'\n")
    code, _, err = run(tmp_path / "nothing", "--output", tmp_path / "e.npy")
    assert (code, err) == (2, f"error: no such data: {tmp_path / 'nothing'} is neither a file nor a folder\n")


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs a folder in which nobody can write")
def test_a_folder_that_cannot_be_written_to_is_not_called_busy(queries):
    code, _, err = run(queries, "--output", "/proc/e.npy")
    assert (code, err) == (
        2,
        "error: cannot write /proc/e.npy.journal: /proc must be a folder that can be written to\n",
    )


def test_a_changed_input_is_a_warning(queries, tmp_path):
    (tmp_path / "own_fails.py").write_text(
        "seen = []\n"
        "def stops(batch):\n"
        "    seen.append(1)\n"
        "    if len(seen) == 3: raise RuntimeError('stopped')\n"
        "    return [[len(text)] for text in batch]\n",
        encoding="utf-8",
    )
    arguments = [queries, "--output", tmp_path / "e.npy", "--encoder", "own_fails:stops", "--batch-size", "8"]
    start = [sys.executable, "-c", RUN, "embed", *map(str, arguments)]
    first = subprocess.run(start, cwd=tmp_path, capture_output=True, text=True)
    assert first.returncode == 2
    assert first.stderr.endswith("must take a batch, got RuntimeError: stopped\n")
    queries.write_text(queries.read_text().replace("card 0", "card null"), encoding="utf-8")
    second = subprocess.run(start, cwd=tmp_path, capture_output=True, text=True)
    warning = f"warning: the unfinished embeddings for {tmp_path / 'e.npy'} are made again from the start"
    assert f"{warning}: {queries} has changed" in second.stderr
    assert "Traceback" not in first.stderr + second.stderr


def test_an_interrupt_says_that_the_work_is_kept(queries, tmp_path):
    (tmp_path / "own_slow.py").write_text(
        "import time\ndef slow(batch):\n    time.sleep(0.3)\n    return [[len(text)] for text in batch]\n",
        encoding="utf-8",
    )
    arguments = [queries, "--output", tmp_path / "e.npy", "--encoder", "own_slow:slow", "--batch-size", "1"]
    command = [sys.executable, "-c", RUN, "embed", *map(str, arguments)]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, preexec_fn=interruptible)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (tmp_path / "e.npy.part").exists():
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.splitlines()[-1] == "stopped: complete batches are kept; the same command continues from there"


def test_select_finds_the_ids_beside_the_embeddings(tmp_path):
    names = [f"{i}\nodd" if i == 3 else f"photo {i}" for i in range(40)]
    rows = [{"id": name, "n": i} for i, name in enumerate(names)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    assert run(tmp_path / "rows.jsonl", "--output", tmp_path / "e.npy")[0] == 0
    np.save(tmp_path / "p.npy", random_probs(40, 6, 3, seed=1))
    (tmp_path / "not.txt").write_text("photo 0\n" + json.dumps(names[3]) + "\n", encoding="utf-8")
    command = ["select", tmp_path / "p.npy", "-b", 38, "--strategy", "coreset", "--exclude", tmp_path / "not.txt"]
    command += ["--embeddings", tmp_path / "e.npy", "--output", tmp_path / "b.csv"]
    result = CliRunner().invoke(app, [str(word) for word in command])
    assert result.exit_code == 0, result.stderr
    with (tmp_path / "b.csv").open(newline="", encoding="utf-8") as file:
        chosen = {row["id"]: int(row["index"]) for row in csv.DictReader(file)}
    assert chosen == {name: i for i, name in enumerate(names) if i not in (0, 3)}
    (tmp_path / "e.ids.txt").write_text("only one\n", encoding="utf-8")
    result = CliRunner().invoke(app, [str(word) for word in command])
    assert result.exit_code == 2
    assert f"{tmp_path / 'e.ids.txt'} must match the hash in e.embed.json, got other contents" in result.stderr
    (tmp_path / "e.embed.json").unlink()
    result = CliRunner().invoke(app, [str(word) for word in command])
    assert f"{tmp_path / 'e.ids.txt'} must have one id for each of 40 points, got 1" in result.stderr

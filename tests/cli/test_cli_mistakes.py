"""Mistakes of users on the command line: exit code 2 and one sentence, once, and never a traceback."""

import json
import os
import subprocess
import sys
import zipfile

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from batchbalance.cli import app
from batchbalance.posteriors import MCDropout
from batchbalance.posteriors.training.networks import tabular_mlp
from batchbalance.system.journal import read_journal
from conftest import random_probs
from made_runs import journal_of, write_runs

FILE = """
batch_size = 5
budget = 20
trials = 3
strategies = ["random"]
[data]
name = "digits"
[split]
initial_per_class = 1
pool = 60
[model]
name = "tabular-mlp"
hidden = [4]
[posterior]
num_draws = 4
[training]
max_epochs = 1
"""


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(FILE, encoding="utf-8")
    return path


def told(*arguments):
    """What a command says on standard error; it must exit with 2 and without a traceback."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 2, result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert "Traceback" not in result.output
    return result.stderr


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("device=cuda:7", "`device` must be one that torch can use here, got 'cuda:7'"),
        ("model.width=1e308", "`width` must be at most 100"),
        ("trials=1000000000000000000", "`trials` must be less than or equal to 10000"),
        ("posterior.num_draws=1000000000000", "`posterior.num_draws` must be less than or equal to 100000"),
        ("threads=1000000", "`threads` must be less than or equal to 1024"),
        ("strategies=[]", "`strategies` must have at least 1 entry, got []"),
        ("model.hidden=" + "[" * 20_000, "'model.hidden' must be a TOML value, got deep nesting"),
    ],
)
def test_settings_that_cannot_be_run_are_told_once(path, change, message):
    said = told("run", path, "--runs-dir", path.parent / "runs", "--set", change)
    assert said.count("error: ") == 1
    assert message in said
    assert len(said.splitlines()) == 1
    assert not (path.parent / "runs").exists()


def test_what_fails_every_trial_alike_is_told_once(path):
    said = told("run", path, "--runs-dir", path.parent / "runs", "--set", "model.hidden=[1000000, 1000000]")
    assert said.count("error: random, trial") == 1
    assert "not enough memory: " in said
    assert "error: 2 more trials failed in the same way: not enough memory" in said


def test_a_run_of_which_nothing_is_complete_recommends_no_report(path):
    result = CliRunner().invoke(app, ["run", str(path), "--runs-dir", str(path.parent / "runs"), "--trials", "1",
                                      "--set", "split.validation=1000000"])  # fmt: skip
    assert result.exit_code == 2
    assert "batchbalance report" not in result.output
    assert "no trial is complete; fix the errors above" in result.stdout


def test_records_that_are_deleted_meanwhile_are_not_complete(path, monkeypatch):
    from batchbalance.cli import run as module

    runs = path.parent / "runs"
    follow = module.follow

    def followed(tasks, news):
        failed = follow(tasks, news)
        next(runs.glob("*/trial-1.jsonl")).unlink()
        return failed

    monkeypatch.setattr(module, "follow", followed)
    result = CliRunner().invoke(app, ["run", str(path), "--runs-dir", str(runs)])
    assert result.exit_code == 2
    assert "2 of 3 trials are complete" in result.stdout
    assert "random, trial 1: its records in" in result.stderr
    assert "the same command runs the 1 failed ones again" in result.stdout


def test_files_nested_too_deeply(path):
    path.write_text(FILE + "x = " + "[" * 20_000 + "]" * 20_000, encoding="utf-8")
    assert "got deep nesting" in told("run", path, "--dry-run")
    folder = write_runs(path.parent / "runs", seeds=range(1), labels=["random"])
    trial = folder / "random" / "trial-0.jsonl"
    trial.write_text("[" * 20_000 + "]" * 20_000 + "\n" + trial.read_text())
    assert "line 1 of" in told("report", folder)
    (folder / "random" / "config.json").write_text("[" * 20_000 + "]" * 20_000)
    assert "config.json must be JSON" in told("report", folder)


@pytest.mark.parametrize("key", ["num_labelled", "metrics", "indices", "validation_error", "seconds"])
def test_a_renamed_key_of_a_record_is_named(tmp_path, key):
    folder = write_runs(tmp_path / "runs", seeds=range(2), labels=["random", "bald"])
    trial = folder / "bald" / "trial-1.jsonl"
    lines = [json.dumps(record) for record in read_journal(trial)]
    lines[3] = lines[3].replace(f'"{key}"', f'"{key}s"')
    trial.write_bytes(journal_of(map(json.loads, lines)))
    said = told("report", folder, "--output", tmp_path / "report")
    assert f"round 3 in {trial.resolve()} must hold `{key}`" in said.replace("\n", " ")


@pytest.mark.parametrize(
    ("key", "value"),
    [("metrics", 3), ("num_labelled", "20"), ("indices", {}), ("seconds", [1]), ("peak_memory", "much"),
     ("metrics", {"accuracy": "high"}), ("seconds", {"train": "long"})],
)  # fmt: skip
def test_a_record_of_other_types_is_refused(tmp_path, key, value):
    folder = write_runs(tmp_path / "runs", seeds=range(2), labels=["random", "bald"])
    trial = folder / "bald" / "trial-1.jsonl"
    records = read_journal(trial)
    records[3][key] = value
    trial.write_bytes(journal_of(records))
    assert "round 3 in " in told("report", folder, "--output", tmp_path / "report")


@pytest.fixture
def pool(tmp_path):
    np.save(tmp_path / "p.npy", random_probs(20, 4, 3, seed=1))
    return tmp_path / "p.npy"


@pytest.mark.parametrize(
    "content",
    [b"", b"PK\x03\x04 no zip file", b"\x93NUMPY\x01\x00\x46\x00{'descr': '<f8', (((" + b" " * 60, b"\x93NUMPY\x01\x00",
     b"\x93NUMPY\x09\x00\x46\x00", b"\x93NUMPY\x01\x00\x46\x00{'descr': 'O', 'fortran_order': False, 'shape': (2,)}\n",
     b"garbage"],
)  # fmt: skip
@pytest.mark.parametrize("option", ["--embeddings", "--labelled-embeddings", "--reference", "pool"])
def test_damaged_files(tmp_path, pool, content, option):
    damaged = tmp_path / "damaged.npy"
    damaged.write_bytes(content)
    if option == "pool":
        said = told("select", damaged, "--batch-size", 2)
    elif option == "--reference":
        said = told("select", pool, "--batch-size", 2, option, damaged)
    else:
        np.save(tmp_path / "e.npy", np.ones((20, 2)))
        more = [] if option == "--embeddings" else ["--embeddings", tmp_path / "e.npy"]
        said = told("select", pool, "--batch-size", 2, "--strategy", "coreset", option, damaged, *more)
    assert "damaged.npy" in said


def test_files_that_the_system_refuses(tmp_path, pool):
    assert "error: no such file: nowhere.txt" in told("select", pool, "--batch-size", 2, "--ids", "nowhere.txt")
    said = told("select", pool, "--batch-size", 2, "--exclude", tmp_path)
    assert f"error: a folder where a file must be: {tmp_path}" in said


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["cp1252", "ascii"])
def test_characters_without_a_code_are_written_as_escapes(pool, encoding):
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    command = "from batchbalance.cli import main; main()"
    result = subprocess.run(
        [sys.executable, "-c", command, "select", pool, "--batch-size", "2"], env=environment, capture_output=True
    )
    assert result.returncode == 0, result.stderr
    assert b"the mean of 1 \\u2212 (largest mean probability)" in result.stdout


def test_a_folder_is_not_a_file(tmp_path, pool):
    assert f"{tmp_path} is a folder" in told("select", tmp_path, "--batch-size", 2)
    assert "is a folder" in told("select", pool, "--batch-size", 2, "--reference", tmp_path)
    (tmp_path / "x.npz").mkdir()
    assert "is a folder" in told("select", tmp_path / "x.npz", "--batch-size", 2)


def test_only_the_members_that_are_asked_for_are_read(tmp_path):
    probs = random_probs(20, 4, 3, seed=1)
    with zipfile.ZipFile(tmp_path / "p.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        with archive.open("probs.npy", "w") as member:
            np.lib.format.write_array(member, probs)
        with archive.open("unrelated.npy", "w") as member:
            member.write(b"this is no array at all")
    assert CliRunner().invoke(app, ["select", str(tmp_path / "p.npz"), "--batch-size", "2"]).exit_code == 0


def test_a_member_larger_than_memory_is_refused_by_its_header(tmp_path):
    header = {"descr": "<f8", "fortran_order": False, "shape": (10**9, 10**6, 2)}
    with zipfile.ZipFile(tmp_path / "p.npz", "w") as archive, archive.open("probs.npy", "w") as member:
        np.lib.format.write_array_header_1_0(member, header)
        member.write(b"\x00" * 1000)
    said = told("select", tmp_path / "p.npz", "--batch-size", 2)
    assert "`probs` must fit in memory" in said


def test_messages_name_the_options_of_the_command(tmp_path, pool):
    logits = 5 * torch.randn(20, 4, 3, generator=torch.Generator().manual_seed(0))
    np.save(tmp_path / "logits.npy", logits.numpy())
    said = told("select", tmp_path / "logits.npy", "--batch-size", 2)
    assert "these look like logits: use --values logits" in said
    assert "from_" not in said
    np.savez(tmp_path / "other.npz", numbers=logits.numpy())
    assert "set --values to what it holds" in told("select", tmp_path / "other.npz", "--batch-size", 2)
    assert "--validation-error must be a number" in told("select", pool, "-b", 2, "--validation-error", 3)
    assert "--batch-size must be" in told("select", pool, "--batch-size", 0)
    assert "--memory-budget must be" in told("select", pool, "-b", 2, "--memory-budget", "much")
    assert "--values is 'logits'" in told("select", save_named(tmp_path), "-b", 2, "--values", "logits")


def save_named(folder):
    np.savez(folder / "named.npz", probs=random_probs(20, 4, 3, seed=1))
    return folder / "named.npz"


def test_predictions_that_were_streamed_into_a_file_need_no_option(tmp_path):
    posterior = MCDropout(tabular_mlp(3, (4,)), 6)
    posterior.predict(torch.randn(30, 4, generator=torch.Generator().manual_seed(0)), path=tmp_path / "pool.npy")
    result = CliRunner().invoke(app, ["select", str(tmp_path / "pool.npy"), "--batch-size", "3"])
    assert result.exit_code == 0, result.output
    said = told("select", tmp_path / "pool.npy", "--batch-size", 3, "--values", "probs")
    assert "holds log-probs, but --values is 'probs'; omit --values" in said

import csv
import gc
import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from typer.testing import CliRunner

from batchbalance import Predictions, select
from batchbalance.cli import app
from conftest import random_probs

PROBS = random_probs(60, 8, 3, seed=1).astype(np.float32)


@pytest.fixture
def files(tmp_path):
    np.save(tmp_path / "p.npy", PROBS)
    np.save(tmp_path / "r.npy", random_probs(30, 8, 3, seed=2))
    (tmp_path / "ids.txt").write_text("\n".join(f"image-{i}.png" for i in range(60)) + "\n", encoding="utf-8")
    return tmp_path


def run(files, *arguments):
    result = CliRunner().invoke(app, ["select", str(files / "p.npy"), *map(str, arguments)])
    return result.exit_code, result.stdout, result.stderr


def test_select_prints_what_the_library_finds(files):
    expected = select(Predictions.from_probs(PROBS), 5)
    code, out, err = run(files, "--batch-size", 5)
    assert (code, err) == (0, "")
    rows = [line.split()[1] for line in out.splitlines()[1:6]]
    assert rows == [str(i) for i in expected.indices.tolist()]
    for word in ("coverage", "random", "null", "certificate", "edges", "threshold", "batch-balance chose 5 of 60"):
        assert word in out
    assert f"{expected.certificate:.3%}" in out
    assert "settled" not in out


@pytest.mark.parametrize(
    ("continuation", "rest"),
    [
        ("power", "is sampled by the points' own Δ"),
        ("random", "is random"),
        ("tail", "follows the last surviving pairs"),
    ],
)
def test_a_batch_with_nothing_left_to_gain_says_once_how_it_was_filled_up(files, continuation, rest):
    sure = PROBS.astype(np.float64) ** 30
    np.save(files / "p.npy", sure / sure.sum(axis=-1, keepdims=True))
    code, out, err = run(files, "-b", 50, "--strategy", "greedy-balance", "--option", f"continuation={continuation}")
    assert (code, err) == (0, "")
    (line,) = [line for line in out.splitlines() if line.startswith("continued")]
    assert line.endswith(f"on nothing was left to gain: the rest {rest} ({continuation})")


def test_rounds_of_clustering_are_told(files):
    expected = select(Predictions.from_probs(PROBS), 20, strategy="cluster-balance").choice.clustering_rounds
    code, out, err = run(files, "-b", 20, "--strategy", "cluster-balance")
    assert (code, err) == (0, "")
    (line,) = [line for line in out.splitlines() if line.startswith("clustering")]
    assert line.split()[1] == str(expected)
    assert "clustering  " not in run(files, "-b", 20, "--strategy", "greedy-balance")[1]


def test_all_options_reach_the_library(files):
    (files / "skip.txt").write_text("image-3.png\nimage-4.png\n")
    code, _, err = run(
        files, "-b", 4, "--strategy", "power-balance", "--option", "beta=3", "--reference", files / "r.npy",
        "--validation-error", 0.3, "--ratio", 0.5, "--pairs", 6, "--ids", files / "ids.txt",
        "--exclude", files / "skip.txt", "--seed", 9, "--output", files / "o.json",
    )  # fmt: skip
    assert (code, err) == (0, "")
    written = json.loads((files / "o.json").read_text())
    reference = Predictions.from_probs(random_probs(30, 8, 3, seed=2))
    expected = select(
        Predictions.from_probs(PROBS), 4, strategy="power-balance", reference=reference, validation_error=0.3,
        ratio=0.5, pairs=6, exclude=[3, 4], seed=9,
    )  # fmt: skip
    assert written["strategy"] == {"name": "power-balance", "offset": False, "beta": 3.0}
    assert written["num_pairs"] == 6
    assert written["threshold"] == pytest.approx(expected.edges.threshold)
    assert written["ids"] == [f"image-{i}.png" for i in written["indices"]]


def test_csv_has_a_row_for_each_point(files):
    code, _, _ = run(files, "-b", 25, "--output", files / "o.csv", "--ids", files / "ids.txt")
    assert code == 0
    rows = list(csv.DictReader((files / "o.csv").read_text().splitlines()))
    assert [int(row["rank"]) for row in rows] == list(range(1, 26))
    assert rows[3]["id"] == f"image-{rows[3]['index']}.png"
    assert float(rows[-1]["coverage"]) == pytest.approx(sum(float(row["gain"]) for row in rows), abs=1e-9)


def test_values_and_axes(files):
    np.save(files / "p.npy", np.log(PROBS.transpose(1, 2, 0)) + 1)
    code, out, _ = run(files, "-b", 2, "--values", "logits", "--axes", "scn")
    assert (code, "chose 2 of 60" in out) == (0, True)


def test_several_files_are_one_pool(files):
    np.save(files / "p.npy", PROBS[:20])
    np.save(files / "q.npy", PROBS[20:])
    names = (files / "ids.txt").read_text().splitlines()
    (files / "a.txt").write_text("\n".join(names[:20]))
    (files / "b.txt").write_text("\n".join(names[20:]))
    ids = ["--ids", files / "a.txt", "--ids", files / "b.txt"]
    code, _, _ = run(files, files / "q.npy", "-b", 5, *ids, "--output", files / "o.json")
    assert code == 0
    expected = select(Predictions.from_probs(PROBS), 5).indices.tolist()
    assert json.loads((files / "o.json").read_text())["ids"] == [names[i] for i in expected]
    (files / "b.txt").write_text("\n".join([*names[20:59], names[3]]))
    assert "'image-3.png' more than once" in run(files, files / "q.npy", "-b", 5, *ids)[2]
    assert "the same file" in run(files, files / "p.npy", "-b", 5)[2]


BAD = [
    (["-b", 0], "at least 1, got 0"),
    (["-b", 3, "--memory-budget", "1KiB"], "must hold one chunk"),
    (["-b", 3, "--memory-budget", "lots"], "a string such as '2GiB', got 'lots'"),
    (["-b", 3, "--ray", "nowhere"], "must look like host:port"),
    (["-b", 3, "--ray", "--strategy", "bald"], "--ray is not used by strategy 'bald'; omit it"),
    (["-b", 61], "at most 60, the points that are left, got 61"),
    (["-b", 3, "--strategy", "bach-balance"], "did you mean 'batch-balance'"),
    (["-b", 3, "--option", "beta"], "must look like beta=2"),
    (["-b", 3, "--strategy", "batch-balance", "--option", "bta=2"], "did you mean 'beta'"),
    (["-b", 3, "--strategy", "batch-balance", "--option", "beta=two"], "got 'two'"),
    (["-b", 3, "--option", "beta=2"], "--option is for a strategy that --strategy names, got 'beta' with auto"),
    (["-b", 3, "--strategy", "max-herding"], "--embeddings must be given for strategy 'max-herding'"),
    (["-b", 3, "--threshold", 1.2], "from 0 to 1"),
    (["-b", 3, "--threshold", 0.1, "--validation-error", 0.1], "together"),
    (["-b", 3, "--ratio", -1], "from 0 to 1"),
    (["-b", 3, "--pairs", "some"], "disjoint, all or a number"),
    (["-b", 3, "--values", "logit"], "did you mean 'logits'"),
    (["-b", 3, "--values", "log-probs"], "look like probs"),
    (["-b", 3, "--axes", "nc"], "2 axes"),
    (["-b", 3, "--reference", "absent.npy"], "no such file: absent.npy"),
    (["-b", 3, "--ids", "absent.txt"], "absent.txt"),
    (["-b", 3, "--output", "/no/such/folder/o.csv"], "cannot write"),
    (["-b", 3, "--output", "o.xlsx"], "must end in .csv or .json"),
    (["-b", 3, "--device", "warp"], "--device must be"),
    (["-b", 3, "--device", "meta"], "--device must be"),
    (["-b", 3, "--strategy", "power-balance", "--option", "beta=inf"], "finite number"),
    (["-b", 60, "--strategy", "cluster-balance", "--option", "subset=inf"], "finite number"),
    (["-b", 3, "--strategy", "batch-balance", "--option", "subset=3"], "must not be given at batch size 3"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD)
def test_mistakes_exit_with_2_and_write_nothing(files, arguments, message):
    target = files / "o.csv"
    extra = [] if "--output" in arguments else ["--output", target]
    code, out, err = run(files, *arguments, *extra)
    assert (code, out) == (2, "")
    assert message in err
    assert "Traceback" not in err
    assert not target.exists()


@pytest.mark.parametrize(
    ("arguments", "address"),
    [
        (["-b", 3, "--ray"], "any"),
        (["--ray", "-b", 3], "any"),
        (["--ray", "--seed", 1, "-b", 3], "any"),
        (["--ray", "head:6379", "-b", 3], "head:6379"),
        (["--ray=auto", "-b", 3], "auto"),
    ],
)
def test_ray_may_stand_without_an_address(files, monkeypatch, arguments, address):
    asked = []
    monkeypatch.setattr("batchbalance.cluster.RayExecutor", asked.append)
    assert run(files, *arguments)[0] == 0
    assert asked == [address]


@pytest.mark.parametrize(
    ("content", "option", "message"),
    [
        ("a\nb\n", "--ids", "each of 60 points, got 2"),
        ("x\n" * 60, "--ids", "'x' more than once"),
        ("3\n3\n", "--exclude", "'3' more than once"),
        ("60\n", "--exclude", "from 0 to 59"),
        ("three\n", "--exclude", "got 'three'"),
    ],
)
def test_bad_id_files(files, content, option, message):
    (files / "bad.txt").write_text(content)
    code, _, err = run(files, "-b", 3, option, files / "bad.txt")
    assert code == 2
    assert message in err


def test_an_unknown_excluded_name_and_a_binary_file(files):
    (files / "skip.txt").write_text("image-99.png\n")
    assert "got 'image-99.png'" in run(files, "-b", 3, "--ids", files / "ids.txt", "--exclude", files / "skip.txt")[2]
    (files / "skip.txt").write_bytes(b"\xff\xfe\x00")
    assert "UTF-8" in run(files, "-b", 3, "--exclude", files / "skip.txt")[2]


def test_a_byte_order_mark_and_a_name_given_twice(files):
    (files / "skip.txt").write_bytes(b"\xef\xbb\xbf1\n2\n")
    assert run(files, "-b", 3, "--exclude", files / "skip.txt")[0] == 0
    (files / "skip.txt").write_text("image-3.png\nimage-3.png\n")
    assert "'image-3.png' more" in run(files, "-b", 3, "--ids", files / "ids.txt", "--exclude", files / "skip.txt")[2]


def test_two_draws_have_no_standard_error_but_a_json_file(files):
    np.save(files / "p.npy", PROBS[:, :2])
    code, out, _ = run(files, "-b", 3, "--output", files / "o.json")
    assert (code, "nan" in out) == (0, False)
    written = json.loads((files / "o.json").read_text())
    assert written["gain_errors"] is None
    assert json.loads(run(files, "-b", 3, "--json")[1]) == written


def test_memory_that_cannot_be_had_is_one_line(files):
    code, _, err = run(files, "-b", 6, "--strategy", "sampled-balance", "--option", "num_samples=100000000000000")
    assert code == 2
    assert "not enough memory" in err


def test_bad_files_exit_with_2(files):
    for content, message in [(b"", "is empty"), (b"\x93NUMPY", "damaged"), (b"junk junk junk", "never loaded|damaged")]:
        (files / "p.npy").write_bytes(content)
        code, _, err = run(files, "-b", 3)
        assert code == 2
        assert any(part in err for part in message.split("|"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root can write everywhere")
def test_an_unwritable_folder(files):
    files.chmod(0o500)
    code, _, err = run(files, "-b", 3, "--output", files / "o.csv")
    files.chmod(0o700)
    assert code == 2
    assert "cannot write" in err


def test_warnings_are_shown(files):
    _, _, err = run(files, "-b", 3, "--threshold", 1)
    assert "warning: none of 4 pairs" in err
    np.save(files / "p.npy", PROBS)
    _, _, err = run(files, "-b", 3, "--values", "logits")
    assert "warning: logits lie in [0, 1]" in err


def test_strategies_lists_every_strategy():
    result = CliRunner().invoke(app, ["strategies"])
    assert result.exit_code == 0
    for word in ("batch-balance: ", "random: ", "beta=8.0", "num_samples=10000", "uses"):
        assert word in result.stdout


def test_the_installed_command_runs(parent):
    ended, out, _ = parent.run("from batchbalance.cli import main; main()", "--version")
    assert (ended, out.startswith("batchbalance 0.")) == (0, True)


def test_embeddings_reach_the_strategies_that_need_them(files):
    points = np.random.default_rng(0).normal(size=(60, 4))
    np.save(files / "e.npy", points)
    np.save(files / "l.npy", points[:3])
    given = ("--embeddings", files / "e.npy", "--labelled-embeddings", files / "l.npy")
    code, out, err = run(files, "-b", 3, "--strategy", "coreset", *given)
    assert (code, err) == (0, "warning: `predictions` was ignored: strategy 'coreset' does not use it\n")
    expected = select(
        Predictions.from_probs(PROBS), 3, strategy="coreset", embeddings=points, labelled_embeddings=points[:3]
    )
    assert [line.split()[1] for line in out.splitlines()[1:4]] == [str(i) for i in expected.indices.tolist()]
    (files / "damaged.npy").write_bytes(b"no array")
    for name, message in (("ids.txt", "must be a .npy file"), ("damaged.npy", "is damaged"), ("none.npy", "none.npy")):
        code, _, err = run(files, "-b", 3, "--strategy", "badge", "--embeddings", files / name)
        assert code == 2
        assert message in err
    code, _, err = run(files, "-b", 3, "--strategy", "badge")
    assert (code, "--embeddings must be given" in err) == (2, True)


def test_own_weights_and_targets_are_read_from_files(files):
    rng = np.random.default_rng(0)
    points, targets, weights = rng.normal(size=(60, 4)), rng.normal(size=(20, 4)) + 1, rng.random(20)
    for name, array in (("e", points), ("q", targets), ("u", weights), ("v", weights[:9])):
        np.save(files / f"{name}.npy", array)
    given = ("-b", 3, "--embeddings", files / "e.npy", "--targets", files / "q.npy")
    code, out, err = only_embeddings(files, *given, "--weights", files / "u.npy", "--output", files / "b.json")
    assert (code, err) == (0, "")
    expected = select(embeddings=points, batch_size=3, targets=targets, weights=weights)
    assert json.loads((files / "b.json").read_text())["indices"] == expected.indices.tolist()
    assert "auto chose 'max-herding': there are embeddings and weights" in out
    code, _, err = only_embeddings(files, *given, "--weights", files / "v.npy")
    assert (code, "--weights must be one number for each of 20 targets, got shape (9,)" in err) == (2, True)


def only_embeddings(files, *arguments):
    result = CliRunner().invoke(app, ["select", *map(str, arguments)])
    return result.exit_code, result.stdout, result.stderr


def test_embeddings_alone_are_enough(files):
    points = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
    np.save(files / "e.npy", points)
    (files / "known.txt").write_text("3\n4\n")
    given = ("--embeddings", files / "e.npy", "-b", 5, "--labelled", files / "known.txt")
    code, out, err = only_embeddings(files, *given, "--output", files / "o.json")
    assert (code, err) == (0, "")
    expected = select(embeddings=points, batch_size=5, labelled=[3, 4])
    assert [line.split()[1] for line in out.splitlines()[1:6]] == [str(i) for i in expected.indices.tolist()]
    assert "max-herding chose 5 of 60" in out
    assert "auto chose 'max-herding': there are embeddings and no predictions" in out
    assert f"covered      {float(expected.cover.coverage[-1]):8.3%}" in out
    assert f"{expected.cover.certificate:.3%}  of what the best batch adds to that, by 60 points" not in out
    assert f"{expected.cover.certificate:.3%}  of what the best batch adds to that, by 58 points" in out
    written = json.loads((files / "o.json").read_text())
    assert written["strategy"]["name"] == "max-herding"
    assert written["cover"]["coverage"] == pytest.approx(expected.cover.coverage.tolist())
    assert written["note"] == expected.note
    for strategy in ("coreset", "random", "typiclust", "prob-cover"):
        assert only_embeddings(files, *given, "--strategy", strategy)[0] == 0
    code, _, err = only_embeddings(files, *given, "--strategy", "bald")
    assert (code, "`predictions` must be given for strategy 'bald'" in err) == (2, True)
    code, _, err = only_embeddings(files, "-b", 5)
    assert (code, "predictions or --embeddings must be given" in err) == (2, True)


def test_a_sample_of_targets_is_told(files):
    np.save(files / "e.npy", np.random.default_rng(0).normal(size=(60, 4)))
    option = ("--strategy", "max-herding", "--option", "max_targets=20")
    _, out, _ = only_embeddings(files, "--embeddings", files / "e.npy", "-b", 3, *option)
    assert "of what the best batch adds to that, by a sample of 20 of 60 points" in out


def test_auto_names_what_it_has_no_use_for(files):
    np.save(files / "e.npy", np.random.default_rng(0).normal(size=(60, 4)))
    code, out, err = run(files, "-b", 3, "--embeddings", files / "e.npy", "--threshold", 0.1)
    assert (code, "u-herding chose 3 of 60" in out) == (0, True)
    assert err == "warning: `threshold` was ignored: strategy 'u-herding' does not use it\n"


@pytest.mark.slow
def test_an_interrupt_leaves_nothing_behind_and_the_old_output_as_it_was(tmp_path, parent):
    np.save(tmp_path / "pool.npy", np.tile(random_probs(5_000, 20, 10, seed=0).astype(np.float32), (12, 1, 1)))
    (tmp_path / "batch.csv").write_text("older")
    command = ["select", "pool.npy", "-b", "500", "--threshold", "0.05", "--memory-budget", "200MiB"]
    command += ["--output", "batch.csv"]
    command += ["--strategy", "greedy-balance", "--option", "continuation=tail"]  # a pass for each of the 500 picks
    with parent.start("from batchbalance.cli import main; main()", *command, cwd=tmp_path) as running:
        assert "points" in running.stderr.readline()  # the work has begun
        running.send_signal(signal.SIGINT)
        told = running.stderr.read()
        running.wait()
    assert running.returncode == 130
    assert "Traceback" not in told
    assert "nothing was written" in told
    assert (tmp_path / "batch.csv").read_text() == "older"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["batch.csv", "pool.npy"]


HELP_WITHOUT_TORCH = """
import sys

class Refuse:
    def find_spec(self, name, *_):
        if name.split(".")[0] in {"torch", "numpy", "scipy", "sklearn", "matplotlib", "ray"}:
            raise AssertionError(f"{name} is imported")

sys.meta_path.insert(0, Refuse())
from typer.testing import CliRunner
from batchbalance.cli import app

names = [command.name for command in app.registered_commands]
assert {"select", "strategies", "run", "report", "experiments"} <= set(names), names
for arguments in ["--help"], ["--version"], *([name, "--help"] for name in names):
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, (arguments, result.output)
    assert "Usage" in result.stdout or result.stdout.startswith("batchbalance 0."), result.stdout
found = [name for name in sys.modules if name.startswith(("batchbalance.lab", "batchbalance.cluster"))]
assert not found, found
print(len(names), "commands")
"""


def test_help_and_version_import_nothing_heavy():
    done = subprocess.run([sys.executable, "-c", HELP_WITHOUT_TORCH], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout.split()[0]) >= 6


def test_select_imports_neither_the_lab_nor_what_it_does_not_need(files):
    code = (
        "import sys\n"
        "from batchbalance.cli import main\n"
        "try:\n    main()\n"
        "except SystemExit as stop:\n    assert not stop.code\n"
        "print(*sorted(sys.modules))\n"
    )
    command = [sys.executable, "-c", code, "select", str(files / "p.npy"), "-b", "3"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    loaded = done.stdout.splitlines()[-1].split()
    assert "batchbalance.selection" in loaded
    unwanted = ("lab", "cluster", "learner", "posteriors", "networks", "training")
    heavy = ("scipy", "sklearn", "matplotlib", "ray", "joblib", "requests", "torch._dynamo", "torch._inductor", "sympy")
    wanted_not = (*(f"batchbalance.{room}" for room in unwanted), *heavy)
    assert [name for name in loaded if name.startswith(tuple(f"{each}." for each in wanted_not))] == []
    assert not set(wanted_not) & set(loaded)


COMMANDS = [
    ["select", "p.npy", "-b", "3"],
    ["strategies"],
    ["experiments"],
    ["run", "no-such-experiment"],
    ["report", "no-such-folder"],
    ["compare", "no-such-file.csv"],
    ["demo", "p.npy", "--no-page"],
    ["embed", "no-such-folder", "--output", "e.npy"],
    ["init", "p", "--texts", "no-such-file", "--classes", "a,b"],
    *([name, "no-such-project"] for name in ("ask", "label", "status", "undo")),
    *([name, "no-such-project", "a"] for name in ("tell", "predict", "skip", "flag", "add-items", "add-class")),
    ["comment", "no-such-project", "a", "--text", "b"],
    *([name, "no-such-project", "a", "b"] for name in ("correct", "rename-class")),
    ["find", "no-such-project", "--like", "a"],
    ["export", "no-such-project", "--output", "labels.csv"],
    ["suggest", "no-such-project", "a", "--by", "gpt"],
]


@pytest.mark.parametrize("arguments", COMMANDS, ids=lambda arguments: arguments[0])
def test_every_command_collects_garbage_after_its_imports(files, monkeypatch, arguments):
    monkeypatch.chdir(files)
    gc.disable()  # as `main` does
    try:
        CliRunner().invoke(app, arguments, catch_exceptions=False)
        assert gc.isenabled()
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()
        gc.enable()
    CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert gc.get_freeze_count() == 0  # a command that is called from Python leaves the collector alone
    assert {name for name, *_ in COMMANDS} == {command.name for command in app.registered_commands}

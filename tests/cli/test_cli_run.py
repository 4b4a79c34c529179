import io
import os
import re
import signal
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from batchbalance.cli import app
from batchbalance.cli.run import follow
from batchbalance.lab.config import read_comparison
from batchbalance.lab.processes import News, Task, run_task
from batchbalance.lab.records import read_runs
from batchbalance.lab.trial import Goal, Stage
from batchbalance.system.sealed import write_sealed
from made_runs import journal_of
from small_runs import run_of

ROOT = Path(__file__).parents[2]
FILE = """
batch_size = 5
budget = 15
strategies = ["random", {name = "power-balance", beta = 2}]
[data]
name = "digits"
[split]
initial_per_class = 1
validation = 20
reference = 30
pool = 100
[posterior]
kind = "committee"
size = 6
"""


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(FILE)
    return path


def run(path, *arguments):
    runs_dir = path.parent / "runs"
    result = CliRunner().invoke(app, ["run", str(path), "--runs-dir", str(runs_dir), *map(str, arguments)])
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def in_this_process(monkeypatch):
    """Trials are run without processes of their own; those have tests of their own."""

    def run_tasks(tasks, num_jobs):
        for index, task in enumerate(tasks):
            told = []
            run_task(index, task, told.append)
            yield from told

    monkeypatch.setattr("batchbalance.lab.processes.run_tasks", run_tasks)


@pytest.mark.slow
@pytest.mark.usefixtures("in_this_process")
def test_run_then_extend_with_a_strategy_that_fails(path):
    code, out, err = run(path, "--dry-run", "--trials", 2)
    assert (code, err) == (0, "")
    assert out.count("0 rounds in") == 4
    assert not (path.parent / "runs").exists()
    code, out, err = run(path)
    assert code == 0
    assert "2 of 2 trials are complete" in out
    assert "power-balance(beta=2), trial 0: done" in err
    first = read_runs([path.parent / "runs"])
    assert [(each.label, list(each.trials)) for each in first] == [("power-balance(beta=2)", [0]), ("random", [0])]
    more = "strategies=[{name='batch-balance', beta=2}, 'random', {name='power-balance', beta=2}]"
    code, out, err = run(path, "--trials", 2, "--budget", 20, "--set", more)
    assert code == 2
    assert "4 of 6 trials are complete" in out
    assert "1 more trials failed in the same way" in err
    assert "Traceback" not in err
    later = {each.label: each.trials for each in read_runs([path.parent / "runs"])}
    for each in first:
        assert [len(records) for records in later[each.label].values()] == [3, 3]
        assert later[each.label][0][0] == each.trials[0][0]
    assert "3 rounds in" not in run(path, "--dry-run", "--set", "posterior.size=7")[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "posterior.sise=2"], "did you mean 'size'"),
        (["--set", "data.name=mnits"], "did you mean 'mnist'"),
        (["--jobs", "0"], "jobs"),
        (["--jobs", "2", "--ray", "local"], "--jobs must not be given with --ray"),
        (["--ray", "nowhere"], "must look like host:port"),
    ],
)
def test_wrong_input(path, arguments, message):
    code, out, err = run(path, *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert not (path.parent / "runs").exists()


def test_ray_may_stand_without_an_address(path, monkeypatch):
    asked = []
    instead = "batchbalance.cluster.trials.run_tasks_on_ray"
    monkeypatch.setattr(instead, lambda _, where: asked.append(where) or iter([]))
    monkeypatch.setattr("batchbalance.cli.run.lost_records", lambda *_: [])  # nothing ran, so there are none
    for arguments in (["--ray"], ["--ray", "--trials", 2], ["--ray", "local"]):
        assert run(path, *arguments)[0] == 0
    assert asked == ["any", "any", "local"]


def test_a_missing_file(tmp_path):
    code, _, err = run(tmp_path / "none.toml")
    assert code == 2
    assert "none.toml must be a TOML file" in err


@pytest.mark.slow
def test_stopping_by_hand_keeps_the_records(path, parent):
    runs_dir = str(path.parent / "runs")
    much = ["--budget", "110", "--trials", "40"]  # far from its end when the first record is there
    command = ["run", path, "--runs-dir", runs_dir, *much]
    with parent.start("from batchbalance.cli import main; main()", *command) as process:
        while not list(path.parent.glob("runs/random-*/trial-0.jsonl")):
            assert process.poll() is None
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        err = process.stderr.read()
        assert process.wait() == 130
    assert "complete rounds are kept" in err
    assert "Traceback" not in err


TASKS = [Task(run_of("random"), seed, Path("runs"), Goal(budget=20)) for seed in (0, 1)]
NEWS = [
    News(0, "step", Stage(0, "train", 0.0)),
    News(1, "step", Stage(3, "select", 0.5)),
    News(0, "done"),
    News(1, "failed", text="no"),
]


@pytest.mark.parametrize("is_terminal", [False, True])
def test_trial_round_phase_and_time_left_are_shown(is_terminal, monkeypatch):
    written = io.StringIO()
    written.isatty = lambda: is_terminal
    monkeypatch.setattr("sys.stderr", written)
    monkeypatch.setattr("batchbalance.system.progress.LINE_SECONDS", 0.0)
    assert follow(TASKS, iter(NEWS)) == [1]
    text = written.getvalue()
    assert "random, trial 1" in text
    assert ("round 3: selecting" in text) or is_terminal  # a line on a terminal changes only so often
    assert "s left" in text
    assert ("[=" in text) == is_terminal


def test_the_example_is_a_valid_config():
    runs = read_comparison(ROOT / "examples" / "digits.toml").runs()
    assert [each.label for each in runs] == ["random", "batch-bald", "batch-balance", "power-balance", "auto"]


def test_the_guide_is_true(tmp_path, monkeypatch, capsys):
    text = (ROOT / "docs" / "runs.md").read_text(encoding="utf-8")
    (config,) = re.findall(r"```toml\n(.*?)```", text, re.S)
    (tmp_path / "guide.toml").write_text(config, encoding="utf-8")
    assert len(read_comparison(tmp_path / "guide.toml").runs()) == 6
    monkeypatch.chdir(tmp_path)
    reading, *asking = re.findall(r"```python\n(.*?)```", text.partition("\n## Reports\n")[0], re.S)
    folder = tmp_path / "runs" / "random-1"
    folder.mkdir(parents=True)
    write_sealed(folder / "config.json", {"strategy": {"name": "random"}})
    record = {"round": 0, "trial": 0, "num_labelled": 10, "metrics": {"accuracy": 0.5}}
    (folder / "trial-0.jsonl").write_bytes(journal_of([record]))
    names = {}
    for snippet in (reading, *asking):
        exec(compile(snippet, "docs/runs.md", "exec"), names)
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "random 0 10 0.5"
    assert len(names["questions"]) == 6
    assert printed[1] == str(names["questions"][:3])
    assert printed[2].startswith(str(names["questions"][:3])[:-1])

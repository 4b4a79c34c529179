import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import torch

from batchbalance.lab.data import load
from batchbalance.lab.data.sources import FOLDER_VARIABLE
from batchbalance.lab.processes import KEPT_MEMORY, Task, keeping_memory, run_tasks
from batchbalance.lab.records import open_trial, read_runs
from batchbalance.lab.trial import Goal, LastPrepared, prepared, run_trial
from published_files import arff, bean_rows, write
from small_runs import run_of, timeless

GOAL = Goal(budget=20)


@pytest.mark.slow
def test_jobs_change_no_number_and_failures_stay_alone(tmp_path):
    configs = [run_of("random"), run_of("power-balance"), run_of("random", split={"validation": 10**6})]
    tasks = [Task(config, seed, tmp_path / "parallel", GOAL) for seed in (0, 1) for config in configs]
    with open_trial(tmp_path / "parallel" / configs[0].folder_name, configs[0].canonical, 1):
        news = list(run_tasks(tasks, 2))
    ended = {each.task: each for each in news if each.kind in ("done", "failed")}
    assert [ended[index].kind for index in range(6)] == ["done", "done", "failed", "failed", "done", "failed"]
    assert "in use by another process" in ended[3].text
    assert "must leave a pool" in ended[2].text
    assert {each.step.phase for each in news if each.step} == {"load", "train", "evaluate", "predict", "select"}
    runs = {run.label: run for run in read_runs([tmp_path / "parallel" / c.folder_name for c in configs[:2]])}
    for label, config, seeds in (("random", configs[0], [0]), ("power-balance", configs[1], [0, 1])):
        for seed in seeds:
            alone = run_trial(config, seed, tmp_path / "alone", GOAL)
            assert timeless(runs[label].trials[seed]) == timeless(alone)


def test_a_worker_loads_what_trials_share_once(tmp_path, monkeypatch):
    loaded = []

    def noted(name, **options):
        loaded.append(options["seed"])
        return load(name, **options)

    monkeypatch.setattr("batchbalance.lab.data.load", noted)
    larger = run_of("random", split={"initial_per_class": 2, "validation": 20, "reference": 40, "pool": 100})
    trials = [(run_of("random"), 0), (run_of("bald"), 0), (run_of("bald"), 1), (larger, 1), (larger, 1)]
    prepare = LastPrepared()
    given = [prepare(config, seed, tmp_path) for config, seed in trials]
    assert loaded == [0, 1, 1]
    for (config, seed), (data, splits) in zip(trials, given, strict=True):
        same, alone = prepared(config, seed, tmp_path)
        assert torch.equal(data.train_x, same.train_x)
        for part in ("initial", "validation", "reference", "pool"):
            assert torch.equal(getattr(splits, part), getattr(alone, part))


@pytest.mark.slow
def test_workers_see_the_variables_of_now(tmp_path, monkeypatch):
    """Also if what starts them was started before a variable was set."""
    monkeypatch.delenv(FOLDER_VARIABLE, raising=False)
    assert list(run_tasks([Task(run_of("random"), 0, tmp_path, Goal(budget=10))], 1))[-1].kind == "done"
    write(tmp_path / "data" / "dry-bean" / "Dry_Bean_Dataset.arff", arff(bean_rows(280)).encode())
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "data"))
    beans = run_of("random", data={"name": "dry-bean", "partial": True})
    last = list(run_tasks([Task(beans, 0, tmp_path, Goal(budget=10))], 1))[-1]
    assert last.kind == "done", last.text


def test_workers_keep_freed_memory_unless_the_user_says_otherwise(monkeypatch):
    tell = "import os; print(*(os.environ[name] for name in os.environ if name.startswith('MALLOC_')))"
    first, second = KEPT_MEMORY
    monkeypatch.setenv(first, "4096")
    monkeypatch.delenv(second, raising=False)
    with keeping_memory():
        told = subprocess.run([sys.executable, "-c", tell], capture_output=True, text=True, check=True).stdout
    assert set(told.split()) == {"4096", KEPT_MEMORY[second]}
    assert (os.environ[first], second in os.environ) == ("4096", False)


@pytest.mark.slow
def test_a_worker_that_dies_is_reported_and_replaced(tmp_path):
    config = run_of("random")
    tasks = [Task(config, seed, tmp_path, GOAL) for seed in (0, 1)]
    kinds = {}
    for news in run_tasks(tasks, 1):
        if news.kind == "step" and news.task == 0 and news.step.round == 0 and "killed" not in kinds:
            (kinds["killed"],) = children()
            kinds["killed"].kill()
        if news.kind in ("done", "failed"):
            kinds[news.task] = news
    assert kinds[0].kind == "failed"
    assert "ended with code -9" in kinds[0].text
    assert kinds[1].kind == "done"


def children(parent=None):
    """Worker processes of a process: what is started by the server that it started, or by itself."""
    started = psutil.Process(parent).children(recursive=True)
    servers = [each.pid for each in started if "forkserver" in " ".join(each.cmdline())]
    return [each for each in started if each.ppid() in servers or "spawn_main" in " ".join(each.cmdline())]


@pytest.mark.slow
def test_workers_end_with_a_killed_parent(tmp_path, parent):
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from pathlib import Path; from small_runs import run_of\n"
        "from batchbalance.lab.processes import Task, run_tasks; from batchbalance.lab.trial import Goal\n"
        "if __name__ == '__main__':\n"
        "    for news in run_tasks([Task(run_of('random'), 0, Path(sys.argv[2]), Goal(budget=100))], 1):\n"
        "        print(news.kind, flush=True)\n"
    )
    with parent.start(code, Path(__file__).parents[1] / "support", tmp_path) as process:
        assert process.stdout.readline() == "step\n"
        workers = children(process.pid)
        assert len(workers) == 1
        process.kill()
    assert psutil.wait_procs(workers, timeout=10)[1] == []
    config = run_of("random")
    resumed = run_trial(config, 0, tmp_path, GOAL)
    assert timeless(resumed)[:3] == timeless(run_trial(config, 0, tmp_path / "alone", GOAL))[:3]

import os
import signal
from pathlib import Path

import pytest

from batchbalance.cluster.trials import run_tasks_on_ray
from batchbalance.lab.processes import Task
from batchbalance.lab.records import open_trial, read_runs
from batchbalance.lab.trial import Goal, run_trial
from small_runs import FOREST, run_of, timeless

ray = pytest.importorskip("ray", reason="the extra 'ray' is not installed")
pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("default"), pytest.mark.usefixtures("ray_cluster")]

GOAL = Goal(budget=20)


def test_the_cluster_changes_no_number_and_failures_stay_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    configs = [run_of("random"), run_of("power-balance"), run_of("random", split={"validation": 10**6})]
    tasks = [Task(config, seed, Path("parallel"), GOAL) for seed in (0, 1) for config in configs]
    with open_trial(tmp_path / "parallel" / configs[0].folder_name, configs[0].canonical, 1):
        news = list(run_tasks_on_ray(tasks, "local"))
    ended = {each.task: each for each in news if each.is_last}
    assert [ended[index].kind for index in range(6)] == ["done", "done", "failed", "failed", "done", "failed"]
    assert "in use by another process" in ended[3].text
    assert "must leave a pool" in ended[2].text
    assert {each.step.phase for each in news if each.step} == {"load", "train", "evaluate", "predict", "select"}
    runs = {run.label: run for run in read_runs([tmp_path / "parallel" / c.folder_name for c in configs[:2]])}
    for label, config, seeds in (("random", configs[0], [0]), ("power-balance", configs[1], [0, 1])):
        for seed in seeds:
            alone = run_trial(config, seed, tmp_path / "alone", GOAL)
            assert timeless(runs[label].trials[seed]) == timeless(alone)


def test_a_task_whose_worker_is_killed_goes_on_from_its_journal(tmp_path):
    goal = Goal(budget=110)  # far from its end when its worker is killed
    config = run_of("random", **FOREST)
    killed, rounds = [], []
    news = []
    for each in run_tasks_on_ray([Task(config, 0, tmp_path / "killed", goal)], "local"):
        news.append(each)
        if each.step is not None and each.step.round == 1 and not killed:
            journal = tmp_path / "killed" / config.folder_name / "trial-0.jsonl"
            killed += holders(journal)
            rounds.append(len(journal.read_text().splitlines()))
            for pid in killed:
                os.kill(pid, signal.SIGKILL)
    assert len(killed) == 1
    assert rounds[0] >= 1
    assert [each.kind for each in news if each.kind != "step"] == ["warning", "done"]
    assert "its worker was lost" in next(each.text for each in news if each.kind == "warning")
    (run,) = read_runs([tmp_path / "killed"])
    assert timeless(run.trials[0]) == timeless(run_trial(config, 0, tmp_path / "alone", goal))


def holders(path):
    """Processes that have a file open (Linux)."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdecimal() and int(process.name) != os.getpid():
            try:
                if any(handle.resolve() == path.resolve() for handle in (process / "fd").iterdir()):
                    found.append(int(process.name))
            except OSError:
                continue
    return found


def test_a_task_that_never_fits_is_refused(tmp_path):
    tasks = [Task(run_of("random", threads=64), 0, tmp_path, GOAL)]
    with pytest.raises(ValueError, match="`threads` must be at most the 2 CPUs"):
        list(run_tasks_on_ray(tasks, "local"))
    with pytest.raises(ValueError, match="on one of its machines, got 'ray://host:10001'"):
        list(run_tasks_on_ray(tasks, "ray://host:10001"))
    assert not list(tmp_path.iterdir())

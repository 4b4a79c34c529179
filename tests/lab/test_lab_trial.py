import json
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import batchbalance
from batchbalance import Predictions, select
from batchbalance.lab.data import default_sizes, load, split
from batchbalance.lab.records import read_runs, trial_path
from batchbalance.lab.trial import Goal, facts, run_trial
from batchbalance.system.journal import Journal
from conftest import random_probs
from small_runs import FOREST, run_of, timeless

GOAL = Goal(budget=25)
FIELDS = [
    *["round", "trial", "num_labelled", "num_validation", "metrics", "validation_error", "training"],
    *["indices", "labels_per_class"],
    "strategy",
    *["threshold", "num_edges", "num_pairs", "random_coverage", "certificate", "continued_from"],
    "clustering_rounds",
    *["coverage", "null_coverage", "warnings"],
    *["versions", "seconds", "peak_memory"],
]


@pytest.fixture(scope="module")
def config():
    return run_of("batch-balance")


@pytest.fixture(scope="module")
def uninterrupted(config, tmp_path_factory):
    torch.set_num_threads(1)
    return run_trial(config, 3, tmp_path_factory.mktemp("runs"), GOAL)


def test_a_record_says_from_which_pick_on_a_batch_was_filled_up():
    sure = random_probs(60, 8, 3, seed=1) ** 30
    pool = Predictions.from_probs(sure / sure.sum(axis=-1, keepdims=True))
    chosen = select(pool, 50, strategy="greedy-balance")
    assert chosen.choice.continued_from is not None
    assert facts(chosen)["continued_from"] == chosen.choice.continued_from
    assert facts(select(pool, 1, strategy="greedy-balance"))["continued_from"] is None
    clustered = select(pool, 5, strategy="cluster-balance")
    assert facts(clustered)["clustering_rounds"] == clustered.choice.clustering_rounds >= 1
    assert facts(chosen)["clustering_rounds"] is None


def test_records_say_what_happened(config, uninterrupted):
    assert [list(record) for record in uninterrupted] == [FIELDS] * 4
    assert [record["round"] for record in uninterrupted] == [0, 1, 2, 3]
    assert [record["num_labelled"] for record in uninterrupted] == [10, 15, 20, 25]
    assert [len(record["indices"]) for record in uninterrupted] == [5, 5, 5, 0]
    digits = load("digits", seed=3)
    splits = split(digits, config.split_sizes(default_sizes(digits)), 3)
    labelled, pool = splits.initial.tolist(), set(splits.pool.tolist())
    for record in uninterrupted:
        counts = [sum(int(digits.train_y[row]) == label for row in labelled) for label in range(10)]
        assert record["labels_per_class"] == counts
        assert set(record["indices"]) <= pool - set(labelled)
        labelled += record["indices"]
        assert record["num_validation"] == 30
        assert 0 <= record["validation_error"] <= 1
        assert set(record["metrics"]) == {
            "accuracy",
            "balanced_accuracy",
            "macro_auc",
            "macro_f1",
            "nll",
            "calibration_error",
        }
        assert set(record["seconds"]) == {"train", "predict", "select", "evaluate"}
        assert record["peak_memory"] > 2**20
        (kept,) = record["training"]
        assert 1 <= kept["epoch"] <= 4
        assert kept["steps"] == 2 * kept["epoch"]  # 128 samples an epoch, 64 a step
        assert 0 < kept["training_accuracy"] <= 1
    assert [record["strategy"] for record in uninterrupted] == ["batch-balance"] * 3 + [None]
    for record in uninterrupted[:-1]:
        assert record["threshold"] == pytest.approx(0.25 * record["validation_error"], abs=1e-12)
        assert record["num_pairs"] == 4
        assert 0 <= record["null_coverage"] <= record["coverage"] <= 1
    assert uninterrupted[-1]["threshold"] is None
    assert uninterrupted[-1]["metrics"]["accuracy"] > uninterrupted[0]["metrics"]["accuracy"]


def test_records_of_auto_name_what_it_stood_for(tmp_path):
    split = {"initial_per_class": 0, "validation": 10, "reference": 10, "pool": 60}
    records = run_trial(run_of("auto", split=split, **FOREST), 0, tmp_path, Goal(budget=10))
    assert [record["strategy"] for record in records] == ["max-herding", "u-herding", None]
    assert read_runs([tmp_path])[0].label == "auto"


def test_without_validation_the_error_is_cross_validated_where_a_threshold_needs_it(tmp_path):
    split = {"initial_per_class": 2, "validation": 0, "reference": 40, "pool": 60}
    forest = {**FOREST, "split": split}
    with_edges = run_trial(run_of("batch-balance", **forest), 0, tmp_path, GOAL)
    assert with_edges[0]["threshold"] == pytest.approx(0.25 * with_edges[0]["validation_error"], abs=1e-12)
    assert with_edges[0]["num_validation"] == 0
    assert with_edges[-1]["validation_error"] is None
    without = run_trial(run_of("margin", **forest), 0, tmp_path, GOAL)
    assert [record["validation_error"] for record in without] == [None] * 2
    assert without[0]["training"] == []


@pytest.mark.parametrize("phase", ["load", "train", "evaluate", "predict", "select"])
def test_stopped_in_any_phase_and_resumed(config, uninterrupted, tmp_path, phase):
    stops = 0
    for stop_round in (0, 1, 2, 3):

        def stop(step, stop_round=stop_round):
            if step.phase == phase and step.round == stop_round:
                raise KeyboardInterrupt

        try:
            records = run_trial(config, 3, tmp_path, GOAL, report=stop)
        except KeyboardInterrupt:
            stops += 1
    records = run_trial(config, 3, tmp_path, GOAL)
    assert stops == {"load": 1, "predict": 3, "select": 3}.get(phase, 4)
    assert timeless(records) == timeless(uninterrupted)
    assert read_runs([tmp_path])[0].trials == {3: records}


SCRIPT = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import torch
from small_runs import run_of
from batchbalance.lab.trial import Goal, run_trial
torch.set_num_threads(1)
tell = lambda step: print(step.phase, flush=True)
run_trial(run_of("batch-balance"), 3, Path(sys.argv[2]), Goal(budget=60), report=tell)
"""


@pytest.mark.slow
def test_a_killed_process_loses_at_most_its_round(config, tmp_path, parent):
    uninterrupted = run_trial(config, 3, tmp_path / "whole", Goal(budget=60))
    rng = np.random.default_rng(0)
    path = trial_path(tmp_path / config.folder_name, 3)
    survived = []
    for _ in range(3):
        with parent.start(SCRIPT, Path(__file__).parents[1] / "support", tmp_path) as process:
            for _ in range(rng.integers(5, 14)):  # counting phases lands in a round on any machine
                assert process.stdout.readline()
            time.sleep(rng.uniform(0, 0.02))
            process.kill()
            assert process.wait() == -9
        survived.append(path.read_bytes().count(b"\n"))
    assert survived == sorted(survived)
    assert survived[0] > 0
    assert survived[-1] < len(uninterrupted) == 11
    assert timeless(run_trial(config, 3, tmp_path, Goal(budget=60))) == timeless(uninterrupted)


def test_a_run_can_be_extended_and_equals_a_longer_one(config, uninterrupted, tmp_path):
    for budget in (10, 14, 19, 25, 25, 12):
        records = run_trial(config, 3, tmp_path, Goal(budget=budget))
    assert timeless(records) == timeless(uninterrupted)
    assert timeless(read_runs([tmp_path])[0].trials[3]) == timeless(uninterrupted)
    lines = trial_path(tmp_path / config.folder_name, 3).read_text().count("\n")
    assert lines == 6  # the last rounds of the budgets 14 and 19 were repeated with a batch


def test_records_name_the_versions(uninterrupted):
    expected = {
        "batchbalance": batchbalance.__version__,
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "python": ".".join(map(str, sys.version_info[:3])),
    }
    assert [record["versions"] for record in uninterrupted] == [expected] * 4


def test_records_of_a_resumed_trial_name_the_versions_of_their_rounds(config, uninterrupted, tmp_path, monkeypatch):
    now = uninterrupted[0]["versions"]
    with monkeypatch.context() as older:
        older.setattr("batchbalance.lab.trial.versions", lambda: {**now, "torch": "2.4.0"})
        run_trial(config, 3, tmp_path, Goal(budget=15))
    records = run_trial(config, 3, tmp_path, GOAL)
    assert [record["versions"]["torch"] for record in records] == ["2.4.0", now["torch"], now["torch"], now["torch"]]
    for record in records:
        record["versions"] = now
    assert timeless(records) == timeless(uninterrupted)


def test_records_written_before_go_on(config, uninterrupted, tmp_path):
    old = [{key: value for key, value in record.items() if key != "versions"} for record in uninterrupted[:2]]
    path = trial_path(tmp_path / config.folder_name, 3)
    path.parent.mkdir()
    (path.parent / "config.json").write_text(json.dumps(config.canonical), encoding="utf-8")
    with Journal(path) as journal:
        for record in old:
            journal.append(record)
    records = run_trial(config, 3, tmp_path, GOAL)
    assert records[:2] == old
    assert timeless(records[2:]) == timeless(uninterrupted[2:])
    assert read_runs([tmp_path])[0].trials == {3: records}


def test_a_finished_trial_needs_no_data(config, tmp_path, monkeypatch):
    run_trial(config, 3, tmp_path, Goal(budget=10))
    monkeypatch.setattr("batchbalance.lab.data.load", None)
    assert len(run_trial(config, 3, tmp_path, Goal(budget=10))) == 1


def test_strategies_are_paired_and_trials_differ(uninterrupted, tmp_path):
    random = run_trial(run_of("random"), 3, tmp_path, GOAL)
    assert random[0]["metrics"] == uninterrupted[0]["metrics"]
    assert random[0]["indices"] != uninterrupted[0]["indices"]
    assert random[0]["coverage"] is None
    assert random[0]["seconds"]["predict"] == 0
    other = run_trial(run_of("random"), 4, tmp_path, Goal(budget=10))
    assert other[0]["metrics"] != random[0]["metrics"]


def test_a_target_error_ends_a_trial(tmp_path):
    config = run_of("random")
    errors = [record["validation_error"] for record in run_trial(config, 3, tmp_path / "a", Goal(budget=40))]
    target = errors[2]
    records = run_trial(config, 3, tmp_path / "b", Goal(target_error=target))
    first = next(index for index, error in enumerate(errors) if error <= target)
    assert [record["validation_error"] for record in records] == errors[: first + 1]
    with pytest.raises(ValueError, match="`target_error` needs a validation set"):
        run_trial(run_of("random", split={"validation": 0}), 0, tmp_path, Goal(target_error=0.1))


def test_the_pool_runs_out(tmp_path):
    config = run_of("random", split={"initial_per_class": 1, "pool": 12, "validation": 10, "reference": 10})
    for _ in range(2):
        records = run_trial(config, 0, tmp_path, Goal(budget=1000))
        assert [record["num_labelled"] for record in records] == [10, 15, 20]


def test_small_validation_sets_and_none(tmp_path):
    split = {"initial_per_class": 1, "pool": 60, "validation": 18, "reference": "pool", "small_validation": True}
    records = run_trial(run_of("balance", split=split), 0, tmp_path, GOAL)
    assert [record["num_validation"] for record in records] == [10, 15, 18, 18]
    records = run_trial(run_of("balance", split={**split, "validation": 0}), 0, tmp_path, Goal(budget=15))
    assert [record["num_validation"] for record in records] == [0, 0]
    assert records[0]["validation_error"] is None
    assert records[0]["threshold"] > 0


def test_starting_without_labels_and_without_a_network(tmp_path):
    split = {"initial_per_class": 0, "pool": 60, "validation": 10, "reference": 10}
    batches = []
    for strategy in ("auto", "bald"):  # without a model, "auto" chooses in the place of every strategy that needs one
        records = run_trial(run_of(strategy, split=split, **FOREST), 0, tmp_path, Goal(budget=10))
        assert [record["num_labelled"] for record in records] == [0, 5, 10]
        assert records[0]["metrics"]["nll"] == pytest.approx(np.log(10), abs=1e-6)
        assert records[0]["metrics"]["macro_auc"] == 0.5
        batches.append(records[0]["indices"])
    assert batches[0] == batches[1]


def test_the_untrained_network_chooses_the_first_batch(tmp_path):
    split = {"initial_per_class": 0, "pool": 60, "validation": 10, "reference": 10}
    runs = [run_trial(run_of(name, split=split), 0, tmp_path, Goal(budget=10)) for name in ("random", "batch-balance")]
    assert [record["num_labelled"] for record in runs[1]] == [0, 5, 10]
    assert runs[0][0]["metrics"] == runs[1][0]["metrics"]
    assert runs[1][0]["num_pairs"] > 0
    assert runs[0][0]["indices"] != runs[1][0]["indices"]


@pytest.mark.parametrize(
    "settings",
    [
        FOREST,
        {"model": None, "training": None, "posterior": {"kind": "bayesian-head", "num_draws": 5}},
        {"posterior": {"kind": "deep-ensemble", "size": 2}, "candidates": 20, "edges": {"threshold": 0.1}},
    ],
)
def test_other_posteriors(settings, tmp_path):
    records = run_trial(run_of("power-balance", **settings), 0, tmp_path, Goal(budget=15))
    assert len(records) == 2
    assert records[0]["num_pairs"] > 0
    if "edges" in settings:
        assert records[0]["threshold"] == 0.1


def test_own_data_and_repeated_pools(tmp_path):
    rng = np.random.default_rng(0)
    y = rng.integers(3, size=120)
    np.savez(tmp_path / "own.npz", x=rng.normal(size=(120, 4)) + 2 * np.eye(4)[y], y=y)
    config = run_of("coreset", data={"name": str(tmp_path / "own.npz"), "copies": 2}, split={}, batch_size=2)
    records = run_trial(config, 0, tmp_path, Goal(budget=8))
    assert [record["num_labelled"] for record in records] == [6, 8]
    assert records[0]["num_validation"] == 9


def test_test_draws_average_the_first_draws_and_change_no_choice(config, uninterrupted, tmp_path):
    some = run_of("batch-balance", posterior={"num_draws": 8, "test_draws": 1})
    records = run_trial(some, 3, tmp_path, GOAL)
    assert [record["indices"] for record in records] == [record["indices"] for record in uninterrupted]
    assert [record["metrics"] for record in records] != [record["metrics"] for record in uninterrupted]

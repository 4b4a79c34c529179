"""The replay of stopping rules: what is recorded, and what the table says."""

import numpy as np
import pytest
from typer.testing import CliRunner

from batchbalance.project.stopping import Advice, Round
from benchmarks import stopping
from benchmarks.stopping import Record, forecasts, read, stopped_at, table

pytestmark = pytest.mark.bench


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Embeddings of three classes, easy to tell apart."""
    folder = tmp_path_factory.mktemp("embeddings")
    rng = np.random.default_rng(0)
    for part, num in (("train", 250), ("test", 60)):
        labels = rng.integers(0, 3, num)
        vectors = 3 * np.eye(5)[labels] + rng.normal(size=(num, 5))
        np.save(folder / f"blobs-{part}.npy", vectors.astype(np.float32))
        np.save(folder / f"blobs-{part}.labels.npy", labels)
    return folder / "blobs"


@pytest.mark.slow
def test_a_run_is_recorded_and_not_run_again(data, tmp_path, monkeypatch):
    options = ["--embeddings", str(data), "--records", str(tmp_path), "--runs", "1", "--labels", "60", "--batch", "10"]
    result = CliRunner().invoke(stopping.app, options)
    assert result.exit_code == 0, result.output
    record = read(tmp_path / "blobs-0.json")
    assert [each.num_labels for each in record.rounds] == [9, 18, 27, 36, 45, 54]
    assert [record.asked(end) for end in range(6)] == [10, 20, 30, 40, 50, 60]
    for end, each in enumerate(record.rounds):
        known = slice(0, end + 1)  # one audit label a batch
        assert each.audit_total == end + 1
        assert each.audit_correct == (each.predicted[known] == record.truth[known]).sum()
    assert len(record.accuracy) == 6
    assert record.accuracy[-1] > 0.8
    assert "| budget of 30 | 1 of 1 | 30 (30 to 30) | 30 |" in result.output
    monkeypatch.setattr(stopping, "run", lambda *_: pytest.fail("it is there already"))
    again = CliRunner().invoke(stopping.app, options)
    assert again.exit_code == 0
    assert again.output.splitlines()[-1] == result.output.splitlines()[-1]


def record(accuracy, audit_total=0):
    rounds = [Round(20 * (i + 1), 0.0, np.full(4, i), 0, audit_total) for i in range(len(accuracy))]
    return Record(rounds, np.zeros(4, dtype=int), list(accuracy))


def says(stop_at):
    return lambda _, end: Advice("x", "stop" if end >= stop_at else "go on", "")


def test_a_rule_stops_once_and_before_the_end():
    found = record([0.1, 0.2, 0.3])
    assert stopped_at(found, says(0)) == 0
    assert stopped_at(found, says(1)) == 1
    assert stopped_at(found, says(2)) is None


def test_labels_saved_and_accuracy_lost(monkeypatch):
    runs = [record([0.5, 0.6, 0.8]), record([0.5, 0.7, 0.7])]
    monkeypatch.setattr(stopping, "rules", lambda *_: {"second": says(1), "never": says(9)})
    lines = list(table(runs, 0.5))
    assert lines[0] == "Accuracy with all labels: 75.0 %.\n"
    assert lines[3] == "| second | 2 of 2 | 40 (40 to 40) | 20 | 65.0 | 10.0 | 20.0 |"
    assert lines[4] == "| never | 0 of 2 | | | | | |"


def test_rules_know_nothing_that_comes_later():
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 3, 60)
    levels = rng.random(60)
    rounds = []
    for step in range(1, 16):
        predicted = np.where(levels < 1 - step**-0.5, truth, (truth + 1) % 3)
        audited = 3 * step
        rounds.append(Round(27 * step, 0.0, predicted, int((predicted == truth)[:audited].sum()), audited))
    whole = Record(rounds, truth, [0.5] * 15)
    for rule in stopping.rules(0.3, 450).values():
        for end in range(15):
            cut = Record(rounds[: end + 1], truth, [0.5] * (end + 1))
            assert rule(whole, end) == rule(cut, end)


def test_forecasts_are_compared_with_what_came():
    assert forecasts([record([0.5, 0.6])]) == "There was no forecast to check."
    predicted = np.where(np.arange(40) < 30, 0, 1)
    rounds = [Round(50 * (i + 1), 0.0, predicted, 0, 40) for i in range(8)]
    flat, steep = (Record(rounds, np.zeros(40, dtype=int), [slope * i for i in range(8)]) for slope in (0.0, 0.1))
    assert "run on test data in 100 % and the mean gain of all runs in 100 %" in forecasts([flat])
    # Four forecasts of no gain in each run, from 200 labels on; what came is 10 points in one, 5 in the mean.
    found = forecasts([flat, steep])
    assert found.startswith("Forecasts of 50 labels: 8. ")
    assert "run on test data in 50 % and the mean gain of all runs in 0 %" in found
    assert found.endswith("the mean error of the forecast was -5.0 points.")

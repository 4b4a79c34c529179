"""Data whose items may have several labels: reading, splits, metrics against plain loops, a run and its report."""

import math

import pytest
import torch
from typer.testing import CliRunner

from batchbalance.cli import app
from batchbalance.errors import UnknownNameError
from batchbalance.lab.data import OwnData, SplitSizes, load, prepare
from batchbalance.lab.metrics import label_metrics
from batchbalance.lab.records import read_runs

CELLS = ["a;b", "a", "none", '["b", "c"]', "c", "b;a", "a;c", "b", "a;b;c", "c;b"]


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "own.csv"
    rows = [f"{i % 7},{i % 5},{CELLS[i % 10].replace(chr(34), chr(34) * 2)}" for i in range(60)]
    quoted = [f'{row.split(",", 2)[0]},{row.split(",", 2)[1]},"{row.split(",", 2)[2]}"' for row in rows]
    file.write_text("x,z,label\n" + "\n".join(quoted) + "\n")
    return file


def loop_metrics(probs, labels):
    counts = [[0, 0, 0] for _ in labels[0]]  # right, predicted, true
    exact, loss = 0, 0.0
    for row, truth in zip(probs, labels, strict=True):
        exact += all((p > 0.5) == (t == 1) for p, t in zip(row, truth, strict=True))
        for label, (p, t) in enumerate(zip(row, truth, strict=True)):
            counts[label][0] += p > 0.5 and t == 1
            counts[label][1] += p > 0.5
            counts[label][2] += t
            loss -= math.log(max(p if t else 1 - p, 2.0**-52))
    of_label = [2 * right / (said + true) for right, said, true in counts if true]
    total = [sum(each) for each in zip(*counts, strict=True)]
    return (
        exact / len(labels),
        2 * total[0] / (total[1] + total[2]),
        sum(of_label) / len(of_label),
        loss / len(labels) / len(counts),
    )


@pytest.mark.typed
@pytest.mark.parametrize("never", [False, True])
def test_metrics_against_plain_loops(never):
    random = torch.Generator().manual_seed(1)
    probs = torch.rand(40, 4, generator=random, dtype=torch.float64)
    labels = (torch.rand(40, 4, generator=random) < 0.3).long()
    labels[:, 3] *= not never  # a label that no item has
    found = label_metrics(probs, labels)
    expected = loop_metrics(probs.tolist(), labels.tolist())
    assert (found.exact_match, found.micro_f1, found.macro_f1, found.nll) == pytest.approx(expected, abs=1e-10)
    nothing = label_metrics(torch.zeros(3, 2), torch.zeros(3, 2, dtype=torch.long))
    assert (nothing.exact_match, nothing.micro_f1, nothing.macro_f1) == (1, 1, 1)


def test_labels_of_another_shape_are_refused():
    with pytest.raises(ValueError, match=r"must be 0 or 1 for each of \(3, 2\), got \(3, 3\)"):
        label_metrics(torch.zeros(3, 2), torch.zeros(3, 3, dtype=torch.long))


def test_cells_with_several_labels(path, tmp_path):
    data = load(str(path), data_dir=tmp_path, own=OwnData(multi_label=True))
    assert data.class_names == ("a", "b", "c")
    assert data.is_multi
    assert (data.train_y.shape, data.test_y.shape) == ((48, 3), (12, 3))
    told = torch.cat([data.train_y, data.test_y])
    for number, name in enumerate("abc"):
        assert int(told[:, number].sum()) == 6 * sum(name in cell for cell in CELLS if cell != "none")
    single = load(str(path), data_dir=tmp_path)
    assert "a;b" in single.class_names
    _, splits = prepare(str(path), data_dir=tmp_path, seed=0, own=OwnData(multi_label=True))
    assert not len(splits.initial)
    with pytest.raises(ValueError, match="must be 0 if an input may have several labels"):
        prepare(str(path), SplitSizes(initial_per_class=1), data_dir=tmp_path, seed=0, own=OwnData(multi_label=True))
    repeated, splits = prepare(str(path), data_dir=tmp_path, seed=0, copies=3, own=OwnData(multi_label=True))
    third = len(splits.pool) // 3
    assert torch.equal(repeated.train_y[splits.pool[:third]], repeated.train_y[splits.pool[third : 2 * third]])


def test_run_and_report(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = tmp_path / "c.toml"
    config.write_text(
        'batch_size = 5\nbudget = 15\ntrials = 2\nstrategies = ["random", "margin", "auto"]\n'
        f'[data]\nname = "{path}"\nmulti_label = true\n[split]\nvalidation = 0\nreference = 10\n'
    )
    done = CliRunner().invoke(app, ["run", str(config), "--data-dir", str(tmp_path)])
    assert done.exit_code == 0, done.output
    records = read_runs([tmp_path / "runs"])[0].trials[0]
    assert [record["num_labelled"] for record in records] == [0, 5, 10, 15]
    assert set(records[-1]["metrics"]) == {"exact_match", "micro_f1", "macro_f1", "nll"}
    assert (records[0]["metrics"]["micro_f1"], records[0]["metrics"]["nll"]) == (0, pytest.approx(math.log(2)))
    assert sum(records[-1]["labels_per_class"]) > 15
    for metric, title in ((None, "macro F1"), ("micro_f1", "micro F1")):
        chosen = [] if metric is None else ["--metric", metric]
        done = CliRunner().invoke(app, ["report", "runs", "--output", "r", *chosen])
        assert done.exit_code == 0, done.output
        assert title in done.output
    before = records
    assert CliRunner().invoke(app, ["run", str(config), "--budget", "20", "--data-dir", str(tmp_path)]).exit_code == 0
    after = read_runs([tmp_path / "runs"])[0].trials[0]
    assert [record["metrics"] for record in after[:4]] == [record["metrics"] for record in before]


def test_a_metric_of_one_class_is_not_one_of_labels(path, tmp_path, monkeypatch):
    from batchbalance.lab.report import compare
    from made_runs import made_run

    with pytest.raises(UnknownNameError, match="micro_f1"):
        compare([made_run(tmp_path, "random")], metric="micro_f1")

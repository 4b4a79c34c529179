"""`batchbalance compare` and `batchbalance demo`, as a newcomer types them."""

import csv
import re
import threading
from contextlib import closing

import numpy as np
import pytest
from typer.testing import CliRunner

from batchbalance import select
from batchbalance.cli import app, demo
from batchbalance.cli.compare import planned
from batchbalance.lab.data import OwnData, load
from batchbalance.lab.processes import run_task
from batchbalance.lab.trial import Goal, Trial, prepared
from batchbalance.project import Project


def run(*arguments, code=0):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == code, result.output
    return result


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch, tmp_path):
    """Trials are run without processes of their own; those have tests of their own."""
    monkeypatch.chdir(tmp_path)

    def run_tasks(tasks, num_jobs):
        for index, task in enumerate(tasks):
            told = []
            run_task(index, task, told.append)
            yield from told

    monkeypatch.setattr("batchbalance.lab.processes.run_tasks", run_tasks)


def write_clusters(path, num=150):
    """Three clusters, one of them small: what choosing by coverage finds sooner."""
    random = np.random.default_rng(0)
    kinds = random.choice(3, num, p=[0.48, 0.48, 0.04])
    kinds[:5] = 2
    points = random.normal(size=(num, 2)) * 0.3 + np.array([[0, 0], [6, 0], [0, 6]])[kinds]
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["a", "b", "kind"], *zip(*points.T.tolist(), kinds.tolist(), strict=True)])


@pytest.mark.slow
def test_a_table_is_compared_by_one_command(tmp_path):
    write_clusters(tmp_path / "points.csv")
    result = run("compare", "points.csv", "--label", "kind", "--trials", 3, "--budget", 8, "--batch-size", 4)
    assert "150 labelled inputs, 3 classes" in result.stdout
    assert "3 trials of auto, random, margin: 8 labels in batches of 4" in result.stdout
    told = " ".join(result.stdout.split())
    found = re.search(r"Choosing (helps|makes no measurable difference|does harm) here: the default is", told)
    low, high = map(float, re.search(r"the default is .*? than random \(([+-][\d.]+) to ([+-][\d.]+)\)", told).groups())
    assert (found[1] == "makes no measurable difference") == (low <= 0 <= high)
    assert "3 paired trials" in told
    assert (tmp_path / "compare-points" / "report" / "report.html").is_file()

    before = sorted((tmp_path / "compare-points" / "runs").iterdir())
    write_clusters(tmp_path / "points.csv", num=160)  # other data never continue these trials
    run("compare", "points.csv", "--label", "kind", "--trials", 2, "--budget", 8, "--batch-size", 4)
    assert len(list((tmp_path / "compare-points" / "runs").iterdir())) == len(before) + 1


def test_wide_tables_are_measured_as_in_a_project(tmp_path):
    random = np.random.default_rng(0)
    points = random.normal(size=(120, 40)) * random.uniform(0.2, 3, size=(120, 1))
    with (tmp_path / "wide.csv").open("w", newline="", encoding="utf-8") as file:
        rows = [[*row, number % 2] for number, row in enumerate(points.tolist())]
        csv.writer(file).writerows([[*(f"c{i}" for i in range(40)), "label"], *rows])
    own = OwnData(encoder="table")
    config = planned(load("./wide.csv", data_dir=tmp_path, own=own), own, ["auto"], 2, 20, 5).runs()[0]
    data, splits = prepared(config, 0, tmp_path)
    trial = Trial(config, 0, Goal(20), (data, splits), lambda _: None)
    chosen = trial.round(trial.learner([]), 0)["indices"]

    def by(metric):
        found = select(embeddings=data.train_inputs(splits.pool), batch_size=5, metric=metric)
        return splits.pool[found.indices].tolist()

    assert chosen == by("raw") != by("unit")
    with closing(Project.create("wide", table="wide.csv", classes=["0", "1"], drop=["label"], audit=0.0)) as project:
        vectors = np.load("wide/embeddings.npy")
        expected = select(embeddings=vectors, batch_size=5, metric="raw").indices
        assert [int(name) for name in project.ask(5).ids] == expected.tolist()


def test_mistakes_are_told_once(tmp_path):
    write_clusters(tmp_path / "points.csv")
    assert "must have a column 'class'" in run("compare", "points.csv", "--label", "class", code=2).stderr
    assert "name the right one with --label" in run("compare", "points.csv", code=2).stderr
    assert "no such data" in run("compare", "nothing.csv", code=2).stderr
    message = run("compare", "points.csv", "--label", "kind", "--budget", 900, code=2).stderr
    assert "--budget must be more than a batch of" in message


@pytest.mark.parametrize(("budget", "batch_size"), [(60, None), (61, None), (60, 25)])
def test_whole_batches_add_up_or_it_is_said(tmp_path, capsys, budget, batch_size):
    own = OwnData(label="kind")
    write_clusters(tmp_path / "points.csv")
    comparison = planned(load(str(tmp_path / "points.csv"), own=own), own, ["random"], 2, budget, batch_size)
    assert comparison.budget <= budget
    assert comparison.budget % comparison.batch_size == 0
    assert ("not at" in capsys.readouterr().err) == (comparison.budget < budget)


def test_run_on_an_own_table_needs_no_network_and_says_what_whole_batches_give(tmp_path):
    write_clusters(tmp_path / "points.csv")
    config = tmp_path / "c.toml"
    config.write_text(
        'batch_size = 10\nbudget = 20\nstrategies = ["random"]\n[data]\nname = "points.csv"\nlabel = "kind"\n'
        "[split]\ninitial_per_class = 2\nvalidation = 0\n"
    )
    result = run("run", config, "--runs-dir", tmp_path / "runs")
    assert "note: trials end at 16 labels, not at 20: 6 initial labels, then whole batches of 10" in result.stderr
    config.write_text(config.read_text().replace('label = "kind"', 'label = "none"'))
    result = run("run", config, "--runs-dir", tmp_path / "runs", code=2)
    assert result.stderr.count("must have a column 'none'") == 1
    config.write_text(config.read_text() + '[posterior]\nkind = "mc-dropout"\n')
    assert "omit [posterior] for a Bayesian head" in run("run", config, code=2).stderr


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(demo, "TRIALS", 2)
    monkeypatch.setattr(demo, "BUDGET", 40)
    monkeypatch.setattr(demo, "PAUSE", 0.0)


@pytest.mark.slow
def test_the_demo_tells_a_story_in_forty_lines(small, tmp_path):
    result = run("demo", "d", "--no-page")
    lines = result.output.splitlines()
    assert len(lines) <= 40
    rows = [line.split() for line in lines if re.fullmatch(r" +\d+ +0\.\d+ +0\.\d+", line)]
    assert [int(labels) for labels, *_ in rows] == [20, 40]
    assert "the default is" in result.stdout
    assert "batchbalance init mine" in result.stdout

    project = Project.open(tmp_path / "d" / "project")
    assert project.labels == {name: demo.answers_of(tmp_path / "d")[name] for name in project.labels}
    assert len(project.labels) == 40
    assert f"{project.status().curve[-1].value:.3f}" == rows[-1][1]


@pytest.mark.slow
def test_the_demo_opens_the_page_and_shows_labels_as_they_come(small, tmp_path, monkeypatch):
    served = []

    def serve_page(project, serving, *, no_open):
        served.append((project, serving.host, no_open))
        for _ in range(300):  # until the other thread has answered all
            if threading.Event().wait(0.1) or len(Project.open(project).labels) >= 40:
                break

    monkeypatch.setattr(demo, "serve_page", serve_page)
    result = run("demo", "d", "--auto", "--no-open")
    assert [str(each) for each in served[0]] == ["d/project", "127.0.0.1", "True"]
    assert re.search(r"^ +20 +0\.\d+ +0\.\d+$", result.stdout, re.M)
    assert "batchbalance label mine" in result.stdout

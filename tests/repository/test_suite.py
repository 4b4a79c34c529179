"""The suite of results/suite: its comparisons, its tables against plain loops, and what it says about time."""

import json
import math
import re
import shutil
import sys
import tarfile
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from batchbalance.lab.config import read_comparison
from batchbalance.lab.report.comparisons import compare
from made_runs import made_run, write_run

FOLDER = Path(__file__).parents[2] / "results" / "suite"
sys.path.insert(0, str(FOLDER))

import embeddings  # noqa: E402
import suite  # noqa: E402
import tables  # noqa: E402

LABELS = ["random", "u-herding", "max-herding", "margin", "batch-bald(max_configurations=1000)"]
SETS = ["banking10", "banking77", "cifar-10", "digits", "digits-copies", "dry-bean", "fashion-mnist", "mnist"]


def rate(label, shift=0):
    return 0.01 + 0.001 * ((LABELS.index(label) + shift) % len(LABELS))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    return {
        name: [made_run(folder / name, label, rate=rate(label, shift)) for label in LABELS]
        for name, shift in (("one-b10", 0), ("two-b10", 2))
    }


@pytest.fixture(scope="module")
def reports(runs):
    return {name: compare(found) for name, found in runs.items()}


def area(records):
    """The mean height by trapezia, in plain loops."""
    points = [(r["num_labelled"], r["metrics"]["accuracy"]) for r in records]
    total = sum((b[0] - a[0]) * (a[1] + b[1]) / 2 for a, b in pairwise(points))
    return total / (points[-1][0] - points[0][0])


def areas(found):
    return {run.label: {seed: area(records) for seed, records in run.trials.items()} for run in found}


def cells(text, row):
    line = next(line for line in text.splitlines() if line.startswith(f"| {row} |"))
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


def numbers(cell):
    return [float(x.replace("−", "-")) for x in re.findall(r"[+−]?\d+\.\d", cell)]


def test_the_arms_and_trials_are_those_of_the_plan():
    found = suite.comparisons()
    plan = (FOLDER / "PLAN.md").read_text(encoding="utf-8")
    facts = json.loads((FOLDER / "sets.json").read_text(encoding="utf-8"))
    for name, comparison in found.items():
        arms = [tables.short(run.label) for run in comparison.runs()]
        heads = comparison.posterior.kind == "bayesian-head"
        assert (len(arms), comparison.trials) == ((16, 20) if heads else (8, 10))
        assert len(set(arms)) == len(arms)
        assert all(arm.split(" (")[0] in plan for arm in arms)
        assert not heads or name.rpartition("-b")[0] in facts
        counts = {
            arm: suite.num_trials(run, comparison.trials) for arm, run in zip(arms, comparison.runs(), strict=True)
        }
        assert {arm for arm, count in counts.items() if count < comparison.trials} == (suite.FEWER if heads else set())
        assert name.startswith("repeated-mnist") or comparison.cold_start["name"] == "max-herding"
    assert {name.rpartition("-b")[0] for name, each in found.items() if each.posterior.kind == "bayesian-head"} == set(
        facts
    )


def test_sets_made_on_another_processor_are_the_same_and_other_data_are_not(tmp_path):
    rng = np.random.default_rng(1)
    whole = {"x": rng.normal(size=(50, 8)), "y": rng.integers(0, 3, 50), "x_test": rng.normal(size=(9, 8))}
    whole["y_test"] = np.arange(9) % 3

    def facts(**changes):
        np.savez(tmp_path / "set.npz", **(whole | changes))
        return embeddings.facts_of(tmp_path / "set.npz")

    known = json.loads(json.dumps(facts()))
    assert embeddings.differences(facts(x=(whole["x"] * (1 + 1e-5)).astype(np.float32)), known) == []
    assert embeddings.differences(facts(x=whole["x"][::-1]), known) == ["features"]
    assert embeddings.differences(facts(y=(whole["y"] + 1) % 3), known) == ["labels"]
    assert embeddings.differences(facts() | {"encoder": "new"}, known | {"encoder": "old"}) == ["encoder"]
    for row, projected in zip(np.linspace(0, 49, 32).astype(int), known["sketch"][0], strict=True):
        length = sum(sum(v * v for v in each) ** 0.5 for each in whole["x"]) / 50
        expected = [sum(v * math.cos(k * i) for i, v in enumerate(whole["x"][row])) / length for k in (1, 2)]
        assert projected == pytest.approx(expected, abs=1e-6)


def test_rare_classes_are_scored_by_macro_f1_beside_the_majority_class(tmp_path):
    assert [suite.metric_of(name) for name in ("cifar-10-rare5-b10", "banking77-tail-b10", "trec-b10")] == [
        "macro_f1",
        "macro_f1",
        "accuracy",
    ]
    runs = [made_run(tmp_path, label) for label in ("random", "u-herding", "u-herding(metric=raw)")]
    report = compare(runs, metric="macro_f1")
    (cell,) = tables.majority({"cifar-10-tail-b10": report}, {"cifar-10-tail": {"majority macro_f1": 0.25}})
    height = np.mean([*next(s for s in report.summaries if s.label == "random").areas.values()])
    assert numbers(cell) == pytest.approx([100 * (0.25 - height)], abs=0.051)
    assert tables.majority({"other-b10": report}, {}) == [""]
    assert {tables.short(run.label) for run in runs} == {"random", "u-herding", "u-herding (raw)"}


def test_differences_to_random_against_plain_loops(runs, reports):
    text = tables.table(["margin", "batch-bald"], reports, tables.against_random)
    for column, found in enumerate(runs.values()):
        height = areas(found)
        for name, label in (("margin", "margin"), ("batch-bald", LABELS[-1])):
            differences = [height[label][seed] - height["random"][seed] for seed in height["random"]]
            half = 2.5706 * np.std(differences, ddof=1) / len(differences) ** 0.5  # t of 5 degrees of freedom
            got = numbers(cells(text, f"`{name}`")[column])
            assert got == pytest.approx([100 * np.mean(differences), 100 * half], abs=0.051)


def flip_p(differences):
    """The share of all sign flips that give a sum at least as far from 0, in plain loops."""
    flips = product((1, -1), repeat=len(differences))
    sums = [sum(s * d for s, d in zip(signs, differences, strict=True)) for signs in flips]
    return sum(abs(each) >= abs(sum(differences)) - 1e-12 for each in sums) / len(sums)


def test_the_default_against_all_others(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "SIGNIFICANT", 0.15)  # six trials give no smaller p than 4 · 2/64, corrected
    found = [made_run(tmp_path, label, rate=rate(label), noise=0.1) for label in LABELS]
    others = [label for label in LABELS if label != "u-herding"]
    reports = tables.with_control({"one-b10": compare(found)})
    text = tables.table([label.split("(")[0] for label in others], reports, tables.against_control)
    height = areas(found)
    differences = {label: [height["u-herding"][s] - height[label][s] for s in height["random"]] for label in others}
    rejected, bold = True, 0
    by_p = sorted((flip_p(values), label) for label, values in differences.items())
    for position, (p, label) in enumerate(by_p):
        rejected = rejected and p * (len(by_p) - position) < tables.SIGNIFICANT
        (cell,) = cells(text, f"`{label.split('(')[0]}`")
        assert numbers(cell)[0] == pytest.approx(100 * np.mean(differences[label]), abs=0.051)
        assert cell.startswith("**") == rejected
        bold += rejected
    assert 0 < bold < len(others)


def test_where_on_the_curve_the_default_is_ahead(runs, reports):
    text = tables.where_ahead(["random", "margin", "max-herding"], reports)
    signs = set()
    for name, found in runs.items():
        ours = next(run for run in found if run.label == "u-herding").trials
        for column, rival in enumerate(["random", "margin", "max-herding"]):
            theirs = next(run for run in found if run.label == rival).trials
            cell = cells(text, name)[column]
            said = {}
            for behind, first, last in re.findall(r"(behind )?(\d+)(?:–(\d+))?", cell):
                for count in range(int(first), int(last or first) + 1):
                    said[count] = -1 if behind else 1
            for index, record in enumerate(ours[0]):
                values = [
                    ours[seed][index]["metrics"]["accuracy"] - theirs[seed][index]["metrics"]["accuracy"]
                    for seed in ours
                ]
                half = 2.5706 * np.std(values, ddof=1) / len(values) ** 0.5
                sign = 1 if np.mean(values) > half else -1 if np.mean(values) < -half else 0
                assert said.get(record["num_labelled"], 0) == sign
                signs.add(sign)
    assert signs == {-1, 0, 1}


def test_cells_of_a_strategy_that_has_not_been_run_are_empty(runs):
    some = {"one-b10": compare([run for run in runs["one-b10"] if run.label != "margin"])}
    for line in tables.by_count(["random", "margin"], some).splitlines()[2:]:
        _, other, missing = (cell.strip() for cell in line.strip("|").split("|"))
        assert numbers(other)
        assert missing == ""
    assert cells(tables.where_ahead(["margin"], some), "one-b10") == [""]


def test_the_default_over_data_sets(runs, reports):
    text = tables.over_sets(["margin"], reports)
    means = []
    for found in runs.values():
        height = areas(found)
        means.append(np.mean([height["u-herding"][seed] - height["margin"][seed] for seed in height["random"]]))
    half = 12.706 * np.std(means, ddof=1) / 2**0.5  # t of one degree of freedom
    difference, ahead = cells(text, "`margin`")
    assert numbers(difference) == pytest.approx([100 * np.mean(means), 100 * half], abs=0.051)
    assert ahead == f"{sum(value > 0 for value in means)} of 2"


def test_ranks_and_regret(runs, reports):
    names = tables.ranked(reports)
    text = tables.ranks(names, reports)
    means = [{label: np.mean(list(of.values())) for label, of in areas(found).items()} for found in runs.values()]
    ranks = {}
    for label in LABELS:
        places = [1 + sum(each[other] > each[label] for other in LABELS) for each in means]
        regrets = [100 * (max(each.values()) - each[label]) for each in means]
        ranks[label.split("(")[0]] = np.mean(places)
        row = cells(text, f"`{label.split('(')[0]}`")
        assert float(row[0]) == pytest.approx(np.mean(places), abs=0.051)
        assert float(row[1]) == pytest.approx(np.mean(regrets), abs=0.051)
        assert float(row[2].split()[0]) == pytest.approx(max(regrets), abs=0.051)
        assert int(row[3]) == sum(place == 1 for place in places)
        assert int(row[4]) == sum(each[label] < each["random"] for each in means)
    assert [ranks[name] for name in names] == sorted(ranks.values())


def test_the_sentences_of_readme_against_plain_loops(runs, reports):
    lines = tables.in_short(reports)
    means = []
    for found in runs.values():
        height = areas(found)
        means.append(np.mean([height["u-herding"][seed] - height["random"][seed] for seed in height["random"]]))
    assert numbers(lines[0])[0] == pytest.approx(100 * np.mean(means), abs=0.051)
    assert lines[0].endswith(f"over 2 data sets (95 % interval over data sets), ahead on {sum(x > 0 for x in means)}")
    best = [{label: np.mean(list(of.values())) for label, of in areas(found).items()} for found in runs.values()]
    near = sum(max(each.values()) - each["u-herding"] <= 0.005 for each in best)
    assert f"within half a point of the best strategy in {near} of 2 cells" in lines[-2]
    assert lines[-1] == "6 to 6 trials of each strategy in each cell"


def test_the_best_labels_against_plain_loops(runs, reports):
    random = next(run for run in runs["one-b10"] if run.label == "random")
    gained = {
        str(seed): {str(r["num_labelled"]): r["metrics"]["accuracy"] + 0.1 for r in random.trials[seed]}
        for seed in (0, 2)
    }
    cells_of = tables.best_labels(reports, {"one-b10": gained})
    assert numbers(cells_of[0]) == pytest.approx([10.0, 0.0], abs=0.051)
    assert cells_of[1] == ""


def test_ties_share_a_rank():
    assert tables.rank_of({"a": 0.5, "b": 0.7, "c": 0.5}, "a") == 2.5


def test_the_runs_of_coverage_have_the_baselines_in_every_table():
    found = suite.comparisons(FOLDER.parent / "cover")
    networks = {f"{name}-b{size}" for name in SETS[3:6] for size in (10, 25, 50, 100)}
    shared = {"repeated-mnist-b10", "cifar-10-b250"}
    assert set(found) == networks | shared
    assert [name for name in found if name.startswith("dry")] == [f"dry-bean-b{size}" for size in (10, 25, 50, 100)]
    for name, comparison in found.items():
        names = ["random", "margin", "coreset", "batch-balance", "max-herding", "u-herding", "cover-balance"]
        assert comparison.strategies == names
        assert comparison.trials == (30 if name in networks else 10)
        steps = 500 if name == "repeated-mnist-b10" else 1000
        assert name == "cifar-10-b250" or comparison.training.steps == steps
    for name in shared:  # records of one are records of the other
        others = suite.comparisons(FOLDER.parent / "first-suite")
        own, whole = ({run.label: run.canonical for run in each[name].runs()} for each in (found, others))
        assert own == {label: whole[label] for label in own}


def test_another_folder_is_run_kept_and_shown(runs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(suite, "FIGURES", tmp_path)
    folder = tmp_path / "other"
    folder.mkdir()
    for name, found in runs.items():
        (folder / f"{name}.toml").write_text((FOLDER / "digits-b10.toml").read_text(encoding="utf-8"), encoding="utf-8")
        for run in found:
            write_run(type(run)(Path("results/runs/other") / name / run.path.name, run.label, run.config, run.trials))
    (Path("results/runs/other") / "one-b10" / ".trial-0.jsonl.lock").touch()
    done = CliRunner().invoke(suite.app, ["keep", "--folder", "other"])
    assert done.exit_code == 0, done.output
    with tarfile.open(folder / suite.RECORDS) as archive:
        assert not [name for name in archive.getnames() if name.endswith(".lock")]
    shutil.rmtree("results")
    done = CliRunner().invoke(suite.app, ["show", "--folder", "other"])  # from what was kept
    assert done.exit_code == 0, done.output
    text = (folder / "tables.md").read_text(encoding="utf-8")
    assert "suite.py show --folder results/other" in text
    assert "badge" not in text  # no such run
    assert (tmp_path / "other.png").is_file()
    assert set(json.loads((folder / suite.SECONDS).read_text(encoding="utf-8"))) == set(runs)


@pytest.mark.parametrize("command", [["show"], ["keep"], ["run", "--data-dir", "."]])
def test_a_folder_without_comparisons_is_refused(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(suite.app, [*command, "--folder", "nowhere"])
    assert done.exit_code == 2
    assert "must hold comparisons, as digits-b10.toml, got none in nowhere" in done.output
    assert not list(tmp_path.iterdir())


def test_the_page_has_every_part(reports):
    text = tables.page(reports)
    assert text.count("\n## ") == 9
    assert cells(text, "trials") == ["6", "6"]
    assert tables.figure(reports).startswith(b"\x89PNG")


def test_the_hours_that_are_left(tmp_path, monkeypatch):
    comparison = read_comparison(FOLDER / "digits-b10.toml", ['strategies=["random", "margin"]'])
    monkeypatch.setattr(suite, "comparisons", lambda *_: {"digits-b10": comparison})
    known = {"digits-b10": {"random": 360.0, "margin": 720.0}}
    (tmp_path / suite.SECONDS).write_text(json.dumps(known), encoding="utf-8")
    dry = [
        "run",
        "--data-dir",
        str(tmp_path),
        "--folder",
        str(tmp_path),
        "--runs-dir",
        str(tmp_path / "runs"),
        "--dry-run",
    ]
    said = CliRunner().invoke(suite.app, dry).output
    assert "3.0 core-hours left of 3.0" in said  # ten trials of 0.3 hours
    folder = comparison.runs()[1].folder(tmp_path / "runs" / "digits-b10")
    done = made_run(folder.parent, "margin", seeds=range(4), counts=range(0, 110, 10))
    write_run(type(done)(folder, "margin", comparison.runs()[1].canonical, done.trials))
    assert "2.2 core-hours left of 3.0" in CliRunner().invoke(suite.app, dry).output  # four of margin are there

"""The reproduction of results/paper: its rows and claims, what it reads from records, and its page."""

import json
import re
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from batchbalance.lab.records import open_trial, read_runs, trial_path
from made_runs import made_run, write_run

ROOT = Path(__file__).parents[2]
sys.path += [str(ROOT / "results"), str(ROOT / "results" / "paper")]

import packing  # noqa: E402
import page  # noqa: E402
import readings  # noqa: E402
import reproduce  # noqa: E402
from readings import CONFIRMED, CONTRADICTED, NOT_CONFIRMED, Expectation  # noqa: E402

CLAIMS = reproduce.content()["claims"]


def test_every_figure_and_table_has_a_claim():
    told = " ".join(claim["where"] for claim in CLAIMS).lower()
    numbers = {kind: {int(n) for n in re.findall(rf"{kind}s? (\d+)", told)} for kind in ("figure", "table")}
    assert numbers["figure"] | {6} == set(range(1, 19))  # "figures 2 and 6"
    assert numbers["table"] == {1, 2, 3}


def test_claims_are_answered_by_rows_that_are_run():
    rows = reproduce.rows()
    assert set(reproduce.names_in_order()) == set(rows)
    for claim in CLAIMS:
        sources = [key for key in ("row", "records", "analysis", "not_run", "verdict") if key in claim]
        assert len(sources) == 1, claim
        names = [claim["row"]] if isinstance(claim.get("row"), str) else claim.get("row", [])
        assert set(names) <= set(rows)
        assert ("records" not in claim) or (ROOT / claim["records"]).is_file()
        assert claim.get("reading", "line_labels") in {**readings.OF_NUMBERS, **readings.OF_TRIALS}


@pytest.mark.parametrize("name", [name for name, row in reproduce.rows().items() if row.analysis is None])
def test_claims_name_strategies_that_their_rows_run(name, tmp_path):
    for task in reproduce.rows()[name].tasks(0, tmp_path, None):
        with open_trial(task.config.folder(task.runs_dir), task.config.canonical, 0):
            pass
    labels = set(page.trials_of(tmp_path))
    for claim in CLAIMS:
        if claim.get("row") == name:
            for each in claim.get("expect", []):
                assert {each["first"], each["second"]} <= labels, (claim["where"], labels)


def trials(**curves):
    """Records with these accuracies at 20, 30, … labels, one list of them for each seed."""
    return {
        name: {
            seed: [
                {"num_labelled": 20 + 10 * i, "metrics": {"accuracy": accuracy}}
                for i, accuracy in enumerate(accuracies)
            ]
            for seed, accuracies in enumerate(seeds)
        }
        for name, seeds in curves.items()
    }


def test_differences_are_paired_and_of_complete_trials():
    found = trials(
        one=[[0.1, 0.5, 0.7], [0.1, 0.6, 0.9], [0.1, 0.6]], two=[[0.1, 0.4, 0.4], [0.1, 0.4, 0.8], [0.1, 0.2]]
    )
    assert Expectation("one", "two").differences(found) == pytest.approx([(0.1 + 0.3) / 2, (0.2 + 0.1) / 2])
    assert Expectation("one", "two", at=30).differences(found) == pytest.approx([0.1, 0.2, 0.4])
    assert Expectation("one", "two", at=[30, 40]).differences(found) == pytest.approx([0.2, 0.15])
    assert Expectation("one", "three").finding(found) is None


@pytest.mark.parametrize(
    ("expectation", "interval", "verdict"),
    [
        ({}, (0.01, 0.03), CONFIRMED),
        ({}, (-0.01, 0.03), NOT_CONFIRMED),
        ({}, (-0.03, -0.01), CONTRADICTED),
        ({"above": 0.02}, (0.01, 0.03), NOT_CONFIRMED),
        ({"above": 0.02}, (0.001, 0.01), NOT_CONFIRMED),  # smaller than expected is not the opposite
        ({"above": -0.01}, (-0.005, 0.03), CONFIRMED),
        ({"above": -0.01}, (-0.05, -0.02), CONTRADICTED),
        ({"within": 0.01}, (-0.009, 0.009), CONFIRMED),
        ({"within": 0.01}, (-0.02, 0.009), NOT_CONFIRMED),
        ({"within": 0.01}, (0.011, 0.02), CONTRADICTED),
    ],
)
def test_verdicts(expectation, interval, verdict):
    assert Expectation("one", "two", **expectation).verdict(interval, 6) == verdict
    assert Expectation("one", "two", **expectation).verdict(interval, 2) == NOT_CONFIRMED


def test_a_claim_needs_all_its_comparisons():
    assert readings.joined([("a", CONFIRMED), ("b", CONFIRMED)]) == ("a; b", CONFIRMED)
    assert readings.joined([("a", CONFIRMED), ("b", NOT_CONFIRMED)])[1] == NOT_CONFIRMED
    assert readings.joined([("a", NOT_CONFIRMED), ("b", CONTRADICTED)])[1] == CONTRADICTED


def test_less_variation_wants_three_networks_that_agree():
    def numbers(*pairs):
        return [{"balance": {"median": ours}, "bald": {"median": bald}} for ours, bald in pairs]

    assert readings.less_variation(numbers((0.1, 0.2), (0.1, 0.2), (0.1, 0.3)))[1] == CONFIRMED
    assert readings.less_variation(numbers((0.2, 0.1), (0.2, 0.1), (0.2, 0.1)))[1] == CONTRADICTED
    assert readings.less_variation(numbers((0.2, 0.1), (0.1, 0.2), (0.2, 0.1)))[1] == NOT_CONFIRMED
    assert readings.less_variation(numbers((0.1, 0.2)))[1] == NOT_CONFIRMED


def test_first_ties():
    batches = [{"indices": [1], "continued_from": pick} for pick in (4, 5, None)]
    text, verdict = readings.first_ties({"released-balance": {0: batches}})
    assert "67% of 3 batches, and decide 37% of all picks" in text  # (6 + 5 + 0) of 30
    assert verdict == CONFIRMED


def test_the_page_tells_what_is_there(tmp_path):
    rows = reproduce.rows()
    claim = next(claim for claim in CLAIMS if claim["where"] == "Figure 9 (c), baselines")
    assert page.finding(claim, rows, tmp_path) == ("", "not run: time")
    for strategy, accuracy in (("random", 0.9), ("mean-std", 0.8), ("variation-ratio", 0.8), ("batch-bald", 0.7)):
        run = made_run(tmp_path / "dry-bean", strategy, seeds=range(4), counts=(14, 24))
        for seed, records in run.trials.items():
            records[1]["metrics"]["accuracy"] = accuracy + seed / 100
        write_run(run)
    outcome, verdict = page.finding(claim, rows, tmp_path)
    assert "`random` − `batch-bald` over the curve: +0.200 [+0.200, +0.200], 4 trials" in outcome
    assert verdict == CONFIRMED
    claim = {"row": "dry-bean", "reading": "clustering_rounds"}
    for num in (2, 4):
        run = made_run(tmp_path / str(num) / "dry-bean", "cluster-balance", seeds=range(num), counts=(14, 24))
        for records in run.trials.values():
            for each in records:
                each["clustering_rounds"] = 2
        write_run(run)
    assert page.finding(claim, rows, tmp_path / "4")[1] == CONFIRMED
    assert page.finding(claim, rows, tmp_path / "2")[1] == NOT_CONFIRMED  # too few trials
    text = page.page(CLAIMS, rows, tmp_path, dict.fromkeys(rows, (0, 0.25)))
    assert text.count("\n| Figure") + text.count("\n| Table") > 30
    assert "| `dry-bean` |" in text


def test_trials_that_were_run_earlier_are_not_run_again(tmp_path):
    row = reproduce.rows()["repeated-mnist-all-candidates"]
    row.unpack_earlier(tmp_path)
    missing = [
        task.config.label for task in row.tasks(2, tmp_path, None)
        if not trial_path(task.config.folder(task.runs_dir), 2).is_file()
    ]  # fmt: skip
    assert missing == ["batch-bald"]


def test_kept_records_are_gone_on_with(tmp_path, monkeypatch):
    monkeypatch.setattr(reproduce, "RECORDS", tmp_path / "records.tar.xz")
    write_run(made_run(tmp_path / "one" / "dry-bean", seeds=[0], counts=(14, 24)))
    (tmp_path / "one" / "dry-bean" / reproduce.SPENT).write_text('{"trial": 0, "seconds": 3600}\n', encoding="utf-8")
    keep = CliRunner().invoke(reproduce.app, ["keep", "--runs-dir", str(tmp_path / "one")])
    assert keep.exit_code == 0, keep.output
    said = CliRunner().invoke(reproduce.app, ["run", "--dry-run", "--runs-dir", str(tmp_path / "two")]).output
    assert "dry-bean: 0 of 6 trials, 1.00 h spent" in said
    assert page.trials_of(tmp_path / "two").keys() == {"random"}


def test_packed_records_keep_what_decides_how_a_trial_goes_on(tmp_path):
    run = made_run(tmp_path / "runs" / "one", seeds=[0], counts=(14, 24))
    for number, record in enumerate(run.trials[0]):
        record |= {"labels_per_class": [7, 7], "validation_error": 1 / 3, "indices": [number, 9]}
        record["metrics"]["accuracy"] = 2 / 3
    write_run(run)
    packing.pack(tmp_path / "runs", tmp_path / "one.tar.xz", ["one"])
    packing.unpack(tmp_path / "one.tar.xz", tmp_path / "again")
    (again,) = read_runs([tmp_path / "again"])
    assert again.config == run.config
    assert [record["indices"] for record in again.trials[0]] == [[0, 9], [1, 9]]
    assert {record["validation_error"] for record in again.trials[0]} == {1 / 3}
    assert {record["metrics"]["accuracy"] for record in again.trials[0]} == {0.666667}
    assert not any("labels_per_class" in record for record in again.trials[0])


def test_hours_and_the_schedule(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    order = [(row.name, seed) for row, seed in reproduce.schedule()]
    first = order.index(("repeated-mnist-copies3", 0))
    assert order[first + 1 : first + 3] == [("repeated-mnist-patience", 0), ("repeated-mnist-copies3", 1)]
    folder = tmp_path / "runs" / "dry-bean"
    folder.mkdir(parents=True)
    (folder / reproduce.SPENT).write_text(json.dumps({"trial": 0, "seconds": 360}) + "\n", encoding="utf-8")
    said = CliRunner().invoke(reproduce.app, ["run", "--dry-run", "--runs-dir", "runs"]).output
    assert "dry-bean: 0 of 6 trials, 0.10 h spent, 0.50 h left" in said
    assert "core-hours left" in said


def test_the_published_page_is_of_these_claims():
    text = (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8")
    for claim in CLAIMS:
        assert f"| {claim['where']} | {claim['says']} |" in text, "run: python results/paper/reproduce.py page"

"""Comparisons of made-up runs against plain loops, and of runs that are not as they should be."""

import itertools
import math
from dataclasses import replace

import pytest
from scipy import stats

from batchbalance.errors import UnknownNameError
from batchbalance.lab.report import compare, notes, tables
from batchbalance.lab.report.notes import verdict
from made_runs import RATES, made_records, made_run

LABELS = ("random", "bald", "batch-balance")


@pytest.fixture
def runs(tmp_path):
    return [made_run(tmp_path, label) for label in LABELS]


def loop_area(records, metric="accuracy", first=0, last=10**9):
    points = [(r["num_labelled"], r["metrics"][metric]) for r in records if first <= r["num_labelled"] <= last]
    total = 0.0
    for (x0, y0), (x1, y1) in itertools.pairwise(points):
        total += (x1 - x0) * (y0 + y1) / 2
    return total / (points[-1][0] - points[0][0])


def loop_p(differences):
    observed = abs(sum(differences)) - 1e-12
    signs = list(itertools.product((1, -1), repeat=len(differences)))
    return sum(abs(sum(s * d for s, d in zip(row, differences, strict=True))) >= observed for row in signs) / len(signs)


@pytest.mark.parametrize("metric", ["accuracy", "nll"])
def test_effects_and_tests_against_a_loop(runs, metric):
    report = compare(runs, metric=metric)
    random, *others = runs
    differences = {
        run.label: [loop_area(run.trials[s], metric) - loop_area(random.trials[s], metric) for s in range(6)]
        for run in others
    }
    p_values = sorted(loop_p(d) for d in differences.values())
    for comparison in report.comparisons:
        expected = differences[comparison.label]
        assert list(comparison.differences.values()) == pytest.approx(expected, abs=1e-10)
        assert comparison.effect == pytest.approx(sum(expected) / 6, abs=1e-10)
        assert comparison.p == pytest.approx(loop_p(expected), abs=1e-10)
        assert comparison.corrected_p >= comparison.p
        assert (comparison.least_p, comparison.least_corrected_p) == (2 / 64, 4 / 64)
        assert (comparison.span, comparison.num_shared) == ((20, 130), 6)
    assert min(c.corrected_p for c in report.comparisons) == pytest.approx(2 * p_values[0])
    assert report.higher_is_better == (metric == "accuracy")


def test_labels_to_a_target_and_saved_against_a_loop(runs):
    report = compare(runs, target=0.8)

    def reached(records):
        return next((r["num_labelled"] for r in records if r["metrics"]["accuracy"] >= 0.8), None)

    summaries = {s.label: s for s in report.summaries}
    for run in runs:
        assert summaries[run.label].reached == {s: reached(run.trials[s]) for s in range(6)}
        assert summaries[run.label].reached_total == {
            s: None if x is None else x + 100 for s, x in summaries[run.label].reached.items()
        }
    saved = sorted(summaries["random"].reached[s] - summaries["batch-balance"].reached[s] for s in range(6))
    comparison = next(c for c in report.comparisons if c.label == "batch-balance")
    assert comparison.saved == (saved[2] + saved[3]) / 2 > 0
    assert saved[0] <= comparison.saved_interval[0] <= comparison.saved <= comparison.saved_interval[1] <= saved[-1]
    assert comparison.num_saved == 6


def test_validation_labels_are_those_of_the_round_that_reached_the_target(tmp_path):
    run = made_run(tmp_path, seeds=[0], noise=0)
    for record in run.trials[0]:
        record["num_validation"] = record["num_labelled"] // 2
    summary = compare([run], target=0.8).summaries[0]
    assert summary.reached_total[0] == summary.reached[0] * 3 // 2


def test_a_target_never_reached_saves_infinitely_few_or_many(tmp_path):
    slow, fast = made_run(tmp_path, "random", rate=0.002), made_run(tmp_path, "bald", rate=0.02)
    assert compare([slow, fast], target=0.9).comparisons[0].saved == math.inf
    assert compare([slow, fast], target=0.9, control="bald").comparisons[0].saved == -math.inf
    nobody = compare([slow, made_run(tmp_path, "bald")], target=1.0).comparisons[0]
    assert (nobody.saved, nobody.saved_interval, nobody.num_saved) == (None, None, 0)


def test_labels_saved_need_half_of_the_seeds(tmp_path):
    slow, lucky = made_run(tmp_path, "random"), made_run(tmp_path, "bald")
    for num_lucky, saved in ((2, None), (3, math.inf)):
        for seed in range(num_lucky):
            lucky.trials[seed][-1]["metrics"]["accuracy"] = 1.0
        comparison = compare([slow, lucky], target=1.0).comparisons[0]
        assert (comparison.num_saved, comparison.saved) == (num_lucky, saved)
        assert comparison.saved_interval is None  # of fewer than six seeds


def test_the_default_target_is_reached_by_every_trial_of_the_control(runs):
    report = compare(runs)
    assert report.target == min(run[-1]["metrics"]["accuracy"] for run in runs[0].trials.values())
    assert None not in report.summaries[0].reached.values()
    assert "random at 130 labels" in report.target_origin
    worst = compare(runs, metric="nll")
    assert worst.target == max(run[-1]["metrics"]["nll"] for run in runs[0].trials.values())
    assert None not in worst.summaries[0].reached.values()


def test_values_at_counts(runs):
    report = compare(runs, at=[40, 45, 500])
    values = report.summaries[0].at("accuracy", 45)
    trials = runs[0].trials.values()
    expected = [(t[2]["metrics"]["accuracy"] + t[3]["metrics"]["accuracy"]) / 2 for t in trials]
    assert values == pytest.approx(expected, abs=1e-10)
    assert report.counts == (40, 45, 500)
    assert any("No value at 500 labels" in note for note in notes(report))


def test_costs(runs):
    summary = compare(runs).summaries[0]
    assert summary.select_seconds == [pytest.approx(0.1)] * 66  # 11 of the 12 rounds choose a batch
    assert (max(summary.recorded("peak_memory")), summary.labels) == (410_000_000, (20, 130))
    shown = {table.title: dict(zip(table.header, table.rows[0], strict=True)) for table in tables(compare(runs))}
    assert shown["Time and memory"]["a whole round"] == "2.2 s"
    assert shown["Labels used"]["all labels"] == "230"


def test_one_trial(tmp_path):
    report = compare([made_run(tmp_path, label, seeds=[3]) for label in LABELS])
    comparison = report.comparisons[0]
    assert (comparison.p, comparison.least_p, comparison.interval, comparison.saved_interval) == (1, 1, None, None)
    assert comparison.effect is not None
    assert any("one paired trial" in note for note in notes(report))


def test_under_ten_trials_warn_and_ten_do_not(tmp_path, runs):
    assert any("smallest p reachable is 0.031, and 0.062" in note for note in notes(compare(runs)))
    assert notes(compare([made_run(tmp_path, label, seeds=range(10)) for label in LABELS])) == []


def test_unequal_seeds_pair_the_shared_ones(tmp_path):
    runs = [made_run(tmp_path, "random", seeds=range(6)), made_run(tmp_path, "bald", seeds=[1, 4, 5, 8])]
    report = compare(runs)
    assert list(report.comparisons[0].differences) == [1, 4, 5]
    assert "Paired with random on the 3 of 6 seeds that both have: bald." in notes(report)


def test_no_shared_seed(tmp_path):
    report = compare([made_run(tmp_path, "random", seeds=[0, 1]), made_run(tmp_path, "bald", seeds=[2, 3])])
    comparison = report.comparisons[0]
    assert (comparison.num_shared, comparison.p, comparison.effect, comparison.corrected_p) == (0, None, None, None)


def test_a_missing_round_is_bridged(runs):
    del runs[1].trials[2][5]
    report = compare(runs)
    expected = loop_area(runs[1].trials[2]) - loop_area(runs[0].trials[2])
    assert report.comparisons[0].differences[2] == pytest.approx(expected, abs=1e-10)


def test_a_trial_that_has_just_begun_is_left_out(runs):
    runs[1].trials[2] = runs[1].trials[2][:2]
    report = compare(runs)
    assert report.span == (20, 130)
    assert list(report.comparisons[0].differences) == [0, 1, 3, 4, 5]
    found = notes(report)
    assert any("bald: trials omitted from the area" in note and note.endswith("labels: 2.") for note in found)
    assert any("bald: 1 of 6 shared trials do not cover" in note for note in found)


def test_a_run_that_stopped_early_is_compared_where_both_are(tmp_path, runs):
    runs[2] = made_run(tmp_path, "batch-balance", counts=range(20, 80, 10))
    report = compare(runs)
    early = next(c for c in report.comparisons if c.label == "batch-balance")
    assert early.span == report.span == (20, 70)
    expected = [loop_area(runs[2].trials[s]) - loop_area(runs[0].trials[s], last=70) for s in range(6)]
    assert list(early.differences.values()) == pytest.approx(expected, abs=1e-10)
    assert next(c for c in report.comparisons if c.label == "bald").span == (20, 130)
    assert any("over 20 to 70 labels, because batch-balance ends there" in note for note in notes(report))


def test_runs_without_common_labels(tmp_path):
    runs = [made_run(tmp_path, "random", counts=[10, 20]), made_run(tmp_path, "bald", counts=[50, 60])]
    report = compare(runs)
    assert (report.span, report.comparisons[0].p) == (None, None)
    assert report.summaries[0].areas == {}
    assert any("no label counts in common" in note for note in notes(report))


def test_mixed_versions_are_named(tmp_path, runs):
    def mark(run, seeds, **versions):
        for seed in seeds:
            for record in run.trials[seed]:
                record["versions"] = {"batchbalance": "0.2.0", "torch": "2.4.0", "numpy": "2.0.0"} | versions

    for run in runs:
        mark(run, range(6))
    assert not any("version" in note for note in notes(compare(runs)))
    mark(runs[1], [4, 5], torch="2.13.0")
    mark(runs[2], range(6), torch="2.13.0")
    said = "The records were written under different versions, which can change numbers: "
    assert said + "torch 2.4.0 (random, bald); torch 2.13.0 (bald, batch-balance)." in notes(compare(runs))
    older = [made_run(tmp_path, "random"), *runs[2:]]
    expected = "versions that the records do not name (random); batchbalance 0.2.0, torch 2.13.0, numpy 2.0.0 "
    assert said + expected + "(batch-balance)." in notes(compare(older))


def test_no_control(tmp_path):
    report = compare([made_run(tmp_path, "bald"), made_run(tmp_path, "batch-balance")])
    assert (report.control, report.comparisons) == (None, ())
    assert any("nothing is tested" in note for note in notes(report))


def test_the_control_is_the_run_of_random_whatever_its_label(tmp_path):
    runs = [made_run(tmp_path, "bald"), replace(made_run(tmp_path), label="random [batch_size=5]")]
    report = compare(runs)
    assert report.control == report.summaries[0].label == "random [batch_size=5]"


def test_two_randoms_are_no_control_until_one_is_named(tmp_path):
    runs = [replace(made_run(tmp_path), label=label) for label in ("random [a]", "random [b]")]
    assert compare(runs).control is None
    report = compare(runs, control="random [b]")
    assert [c.label for c in report.comparisons] == ["random [a]"]
    assert report.comparisons[0].p == 1


def test_null_metrics(runs):
    for record in runs[1].trials[0]:
        record["metrics"] = {"accuracy": None, "nll": 1.0}
    for records in runs[2].trials.values():
        for record in records:
            record["metrics"] = None
            record["seconds"] = record["peak_memory"] = record["num_validation"] = None
    report = compare(runs)
    assert report.empty == ("batch-balance",)
    found = notes(report)
    assert any("Omitted" in note and "batch-balance" in note for note in found)
    assert any("bald: 1 of 6 trials have no value of accuracy" in note for note in found)


def test_a_run_on_other_data_is_noted(runs):
    runs[1].config["data"] = {"name": "my/folder/own.csv"}
    assert any("differ in data or split (digits, own.csv)" in note for note in notes(compare(runs)))
    runs[1].config["data"] = runs[0].config["data"]
    assert compare(runs).alike
    runs[1].config["split"] = {"validation": 7}
    assert not compare(runs).alike


def test_mistakes(tmp_path, runs):
    with pytest.raises(UnknownNameError, match="did you mean 'accuracy'"):
        compare(runs, metric="acuracy")
    with pytest.raises(UnknownNameError, match="did you mean 'bald'"):
        compare(runs, control="blad")
    with pytest.raises(ValueError, match=r"from 0 to 1 for accuracy, got 90; write 0\.9"):
        compare(runs, target=90.0)
    with pytest.raises(ValueError, match="at least 0 for nll"):
        compare(runs, target=math.inf, metric="nll")
    with pytest.raises(ValueError, match="label counts of at least 0"):
        compare(runs, at=[-5])
    with pytest.raises(ValueError, match="'bald' more than once"):
        compare([*runs, runs[1]])
    with pytest.raises(ValueError, match="finished round, got none in 1 runs"):
        compare([made_run(tmp_path, seeds=[])])
    with pytest.raises(ValueError, match="finished round"):
        compare([])


def test_pairing_matters_in_the_made_runs():
    """Guards the fixtures: seeds shift all strategies alike."""
    first = [made_records(seed, RATES["random"])[-1]["metrics"]["accuracy"] for seed in range(6)]
    assert max(first) - min(first) > 0.02


def test_the_verdict_has_intervals_for_all_its_strategies_together(runs):
    report = compare(runs)
    told = verdict(report)
    num = len(report.comparisons)
    assert f"95 % intervals, corrected for {num} comparisons" in told
    for found in report.comparisons:
        differences = list(found.differences.values())
        reach = stats.t.ppf(1 - 0.025 / num, len(differences) - 1) * stats.sem(differences)
        centre = sum(differences) / len(differences)
        assert f"({100 * (centre - reach):+.1f} to {100 * (centre + reach):+.1f})" in told


def test_networks_that_did_not_fit_their_labels_are_named(tmp_path):
    runs = [made_run(tmp_path, label, seeds=range(10)) for label in LABELS]
    kept = [{"epoch": 2, "steps": 20, "training_accuracy": 1.0}, {"epoch": 1, "steps": 10, "training_accuracy": 0.95}]
    for run in runs:
        for records in run.trials.values():
            records[0]["training"] = kept
    assert notes(compare(runs)) == []
    worse = {"epoch": 2, "steps": 20, "training_accuracy": 0.55}
    runs[1].trials[3][0]["training"] = [kept[0], worse]
    (note,) = notes(compare(runs))
    assert note.startswith(f"{runs[1].label}: the networks of 1 of 10 rounds did not fit their training labels")
    assert "lowest 0.55 at 20 labels" in note

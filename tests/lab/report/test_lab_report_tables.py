"""Cells for people."""

import math
import statistics

import pytest

from batchbalance.lab.report import compare, overview, tables
from batchbalance.lab.report.tables import count, p_value, signed, spread
from made_runs import made_run


def test_cells():
    assert spread([0.5, 0.7]) == f"0.600 ± {statistics.stdev([0.5, 0.7]):.3f}"
    assert (spread([0.5]), spread([])) == ("0.500", "–")
    assert [count(x) for x in (5.0, -2.5, math.inf, -math.inf, None)] == ["5", "−2.5", "∞", "−∞", "–"]
    assert (signed(-0.01234), signed(0.5), signed(None)) == ("−0.0123", "+0.5000", "–")
    assert (p_value(0.03125), p_value(None)) == ("0.031", "–")


def test_every_row_fits_its_header(tmp_path):
    shapes = [
        [made_run(tmp_path, "random"), made_run(tmp_path, "bald")],
        [made_run(tmp_path, "bald", seeds=[4])],
        [made_run(tmp_path, "random", seeds=[0, 1]), made_run(tmp_path, "bald", seeds=[2])],
        [made_run(tmp_path, "random", counts=[10]), made_run(tmp_path, "bald", counts=[20])],
    ]
    for runs in shapes:
        report = compare(runs)
        for table in [*tables(report), overview(report)]:
            assert len(table.rows) in (len(runs), len(runs) - 1)
            assert all(len(row) == len(table.header) for row in table.rows)


def test_results_and_labels(tmp_path):
    run = made_run(tmp_path)
    report = compare([run], at=[130])
    titled = {table.title: table for table in tables(report)}
    last = [records[-1]["metrics"]["accuracy"] for records in run.trials.values()]
    cell = f"{statistics.fmean(last):.3f} ± {statistics.stdev(last):.3f}"
    assert titled["Accuracy by training labels"].rows[0][2] == cell
    assert titled["Labels used"].rows[0] == ("random", "6", "12", "20 to 130", "100", "230")
    assert titled["Time and memory"].rows[0] == ("random", "100 ms", "2.2 s", "410 MB")
    assert "Against random" not in titled
    assert "Wins" not in titled


def test_rounds_of_clustering_are_shown_if_there_are_any(tmp_path):
    clustered = made_run(tmp_path, "batch-balance", seeds=[0, 1])
    for seed, first in ((0, 3), (1, 7)):
        clustered.trials[seed][0]["clustering_rounds"] = first
        clustered.trials[seed][1]["clustering_rounds"] = 4
    report = compare([made_run(tmp_path, "random", seeds=[0, 1]), clustered])
    table = next(table for table in tables(report) if table.title == "Time and memory")
    assert table.header[-1] == "rounds of clustering"
    assert [row[-1] for row in table.rows] == ["–", "4, at most 7"]
    assert "usually less than 5" in table.text


def test_directions_are_told(tmp_path):
    runs = [made_run(tmp_path, "random"), made_run(tmp_path, "bald")]
    assert "lower is better" in tables(compare(runs, metric="nll"))[0].text
    assert tables(compare(runs, metric="nll"))[0].title == "NLL by training labels"
    assert "higher is better" in tables(compare(runs))[0].text


@pytest.mark.parametrize("target", [0.0, 1.0])
def test_targets_at_the_ends(tmp_path, target):
    runs = [made_run(tmp_path, "random"), made_run(tmp_path, "bald")]
    table = next(t for t in tables(compare(runs, target=target)) if t.title == "Labels to a target")
    assert table.rows[0][1:3] == (("6 of 6", "20") if target == 0 else ("0 of 6", "–"))


def test_time_and_memory_are_shown_if_records_tell_them(tmp_path):
    run = made_run(tmp_path)
    assert "Time and memory" in [table.title for table in tables(compare([run]))]
    for records in run.trials.values():
        for record in records:
            record["seconds"] = record["peak_memory"] = None
    assert "Time and memory" not in [table.title for table in tables(compare([run]))]

"""The benchmark produces its lines on tiny sizes; how fast anything is, no test says."""

import json
import math
import sys
import time
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from batchbalance.balance.closed_form import joint_balance
from batchbalance.balance.edges import connect
from batchbalance.errors import MissingExtraError, UnknownNameError
from benchmarks import (
    Line,
    Measured,
    Report,
    cover_cases,
    embeddings,
    growth,
    measure,
    peers,
    plain,
    plot_growth,
    run_benchmark,
    runner,
)
from benchmarks.__main__ import app
from benchmarks.growth import Growth, fitted_exponent, measure_growth
from benchmarks.inputs import random_pool
from benchmarks.measure import ChildError, Side, call_child, take_turns

pytestmark = pytest.mark.bench

TINY = {"N": 60, "S": 6, "C": 3, "B": 5, "M": 20, "D": 4, "L": 5, "T": 4, "K": 8}


@pytest.fixture
def tiny(monkeypatch, parent):
    """All cases at tiny sizes, no peers."""
    monkeypatch.setattr("benchmarks.cases.subprocess.run", parent.run_command)
    for name, case in runner.OWN_CASES.items():
        monkeypatch.setitem(runner.OWN_CASES, name, replace(case, full=(TINY,), quick=(TINY,)))
    for name, case in runner.WITH_PEERS.items():
        monkeypatch.setitem(runner.WITH_PEERS, name, replace(case, full=(TINY,), quick=(TINY,)))
    monkeypatch.setattr(cover_cases, "STEPS", 10)
    monkeypatch.setattr(runner, "take_turns", partial(take_turns, side_seconds=0))  # the round that warms up counts
    monkeypatch.setattr(runner, "QUICK", {"N": (30, 60)})
    monkeypatch.setattr(growth, "BASE", {"N": 30, "S": 6, "C": 3, "B": 3})


def test_every_case_gives_its_lines(tiny, tmp_path):
    report = run_benchmark(quick=True, repeats=1, peers=tmp_path / "none")
    assert {line.case for line in report.lines} == {*runner.OWN_CASES, *runner.WITH_PEERS}
    for line in report.lines:
        assert line.size == TINY
        assert line.ours.seconds > 0
        if line.case.startswith("peer-"):
            assert (line.other, line.ratio) == (None, None)
            assert "make bench" in line.absent
        elif line.other is not None:
            assert line.ratio == line.other.seconds / line.ours.seconds
    (curve,) = report.growth
    assert (curve.values, len(curve.seconds)) == ((30, 60), 2)
    assert report.environment["peers"] == {}


def test_a_case_without_memory_is_not_asked_for_it(tiny, monkeypatch):
    monkeypatch.setattr(runner, "peak_memory", lambda case, *_: float(len(case)))
    monkeypatch.setitem(runner.OWN_CASES, "bald", replace(runner.OWN_CASES["bald"], has_memory=False))
    bald, margin = run_benchmark(only=["bald", "margin"], repeats=1, memory=True).lines
    assert (bald.ours.peak_mib, margin.ours.peak_mib) == (None, 6.0)


def test_a_start_that_fails_is_told():
    (ours, _) = runner.OWN_CASES["startup"].build({**TINY, "B": TINY["N"] + 1}, 0)
    with pytest.raises(ChildError, match="must be at most 60"):
        ours.run()


@pytest.mark.parametrize("name", ["lazy", "badge", "coreset", "batch-bald", "clustering", "cover"])
def test_both_sides_choose_the_same_batch(name):
    (line,) = runner.time_case(runner.OWN_CASES[name], TINY, 0, 1)
    assert line.agreement == "same batch"


@pytest.mark.parametrize("name", ["bald", "entropy", "least-confidence", "margin", "mean-std", "epig", "ec2", "eced"])
def test_both_sides_compute_the_same_scores(name):
    (line,) = runner.time_case(runner.OWN_CASES[name], TINY, 0, 1)
    assert float(line.agreement.removeprefix("differ by ")) < 1e-5


def test_overlaps_of_pairs_by_enumeration_are_those_of_the_closed_form():
    from batchbalance import balance_scores, connect, information

    pool = random_pool(12, 6, 3, 1)
    edges = connect(pool, 0.05)
    found = plain.pair_overlaps(pool.log_probs().double(), edges, balance_scores(pool, edges).double())
    assert float((found - information(pool, edges, range(12), range(12)).double()).abs().max()) < 1e-5


def test_equation_6_estimates_the_closed_form():
    pool = random_pool(9, 12, 3, seed=4)
    edges = connect(pool, 0.05)
    weights = edges.edge_weights.float()
    exact = joint_balance(pool, edges, [0, 1, 2, 5])
    estimates = torch.tensor(
        [
            float(
                plain.SampledBalance(
                    pool.log_probs(), edges.ends, weights, torch.arange(3), 400, torch.Generator().manual_seed(seed)
                ).scores(torch.tensor([5]))
            )
            for seed in range(60)
        ],
        dtype=torch.float64,
    )
    assert abs(float(estimates.mean()) - exact) < 4 * float(estimates.std()) / 60**0.5 + 1e-6
    assert float(estimates.std()) > 0


def test_sides_take_turns_after_a_round_that_warms_up():
    order = []
    times = take_turns([Side("a", lambda: order.append("a")), Side("b", lambda: order.append("b"))], 2)
    assert order == ["a", "b"] * 3
    assert [len(t.seconds) for t in times] == [2, 2]


def test_a_slow_side_is_run_once_and_scaled_ones_are_multiplied():
    calls = []

    def slow():
        calls.append(time.sleep(0.02))
        return "first"

    (times,) = take_turns([Side("slow", slow, scale=100.0)], 5, side_seconds=0.01)
    assert (len(calls), len(times.seconds), times.result) == (1, 1, "first")
    assert times.median >= 2.0


def test_agreement():
    a, b = torch.tensor([3, 1, 2]), torch.tensor([1, 3, 5])
    assert runner.agreement(a, a) == "same batch"
    assert runner.agreement(a, b) == "2 of 3 points the same"
    assert runner.agreement(torch.tensor([1.0]), torch.tensor([1.5])) == "differ by 5e-01"
    assert runner.agreement(a, torch.tensor([1.0, 2.0, 3.0])) == ""
    assert runner.agreement(a, None) == ""


def test_a_line_compares_its_own_times():
    line = Line("case", TINY, Measured("ours", 2.0, (1.0, 2.0, 3.0)), Measured("other", 9.0, (9.0,)), target=5.0)
    assert (line.ratio, line.met) == (4.5, False)
    assert replace(line, target=4.5).met
    assert replace(line, target=None).met is None
    assert replace(line, other=None).met is None


def test_exponents_are_slopes_from_the_base_upwards():
    assert fitted_exponent((1, 2, 4), (3.0, 12.0, 48.0)) == pytest.approx(2, abs=1e-12)
    curve = Growth("N", {"N": 10}, (1, 10, 100), (5.0, 5.0, 50.0), 1.0)
    assert curve.exponent == pytest.approx(1, abs=1e-12)
    assert curve.met
    assert Growth("N", {"N": 10}, (10, 100), (5.0, 500.0), 1.0).met is False
    assert Growth("N", {"N": 10}, (10, 20), (5.0, 500.0), 1.0).met is None
    assert Growth("N", {"N": 10}, (1, 10), (5.0, 5.0), 1.0).exponent is None


def test_growth_changes_one_letter():
    steps = []
    base = {"N": 30, "S": 6, "C": 3, "B": 3}
    curve = measure_growth("B", (2, 4), seed=0, repeats=1, base=base, done=lambda: steps.append(1))
    assert (curve.letter, curve.values, len(steps), curve.limit) == ("B", (2, 4), 2, 1.0)
    assert all(seconds > 0 for seconds in curve.seconds)


def test_the_plot_is_written(tmp_path, monkeypatch):
    curve = Growth("N", {"N": 10}, (1, 10, 100), (5.0, 5.0, 50.0), 1.0)
    plot_growth([curve, replace(curve, seconds=(1.0, 2.0, 3.0))], tmp_path / "g.svg")
    assert "<svg" in (tmp_path / "g.svg").read_text(encoding="utf-8")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtraError, match="report"):
        plot_growth([curve], tmp_path / "h.svg")


def test_peak_memory_is_measured_in_a_fresh_process():
    hold = torch.ones(2**26)  # 256 MiB here must not count there
    found = runner.peak_memory("gain-pass", {"N": 200, "S": 6, "C": 3}, "gain pass", 0)
    assert hold.sum() > 0
    assert found is not None
    assert 0 <= found < 128


def test_a_peak_that_cannot_be_measured_is_left_out(monkeypatch):
    def fail(*_):
        raise ChildError("killed")

    monkeypatch.setattr(runner, "call_child", fail)
    assert runner.peak_memory("gain-pass", TINY, "gain pass", 0) is None


def test_peak_above_sees_what_is_freed_again(parent):
    code = (
        "import torch; from benchmarks.measure import peak_above\n"
        "torch.ones(2**26).sum()\n"  # freed before, so not counted
        "print(peak_above(lambda: torch.ones(2**24).sum()))\n"
    )
    ended, out, err = parent.run(code)
    assert ended == 0, err
    found = float(out)
    if measure.Path("/proc/self/clear_refs").exists():
        assert 60 <= found < 128


def test_a_child_that_fails_says_why(tmp_path):
    with pytest.raises(ChildError, match="TypeError: must be real number, not dict"):
        call_child("math:sqrt", {})
    with pytest.raises(ChildError, match="No such file"):
        call_child("math:floor", {}, str(tmp_path / "python"))


def test_a_peer_that_cannot_be_imported_is_absent(tmp_path, monkeypatch, parent):
    monkeypatch.setattr(measure.subprocess, "run", parent.run_command)
    monkeypatch.setattr(peers, "peer_python", lambda _: measure.Path(sys.executable))
    work = peers.same_batch(TINY, 0)
    result = peers.run_peer("batchbald_redux", "peer-batch-bald", work, TINY, folder=tmp_path, repeats=1)
    assert "No module named 'batchbald_redux'" in result.absent
    assert result.seconds == ()


def test_a_peer_that_runs_is_a_line(monkeypatch, tmp_path):
    answer = {"version": "2.0", "seconds": [3.0, 5.0, 4.0], "peak_mib": 7.0, "indices": [0, 1, 2, 3, 4]}
    monkeypatch.setattr(peers, "peer_python", lambda _: measure.Path(sys.executable))
    monkeypatch.setattr(peers, "call_child", lambda *_: answer)
    case = replace(runner.WITH_PEERS["peer-batch-bald"], full=(TINY,))
    with runner.progress("", None, False) as bar:
        lines, results = runner.time_peers(case, TINY, 0, 1, tmp_path, bar)
    assert len(lines) == 2 * len(results) == 6
    assert (lines[0].other.seconds, lines[0].other.peak_mib, lines[0].target) == (4.0, 7.0, 500)
    assert lines[0].ratio == 4.0 / lines[0].ours.seconds
    assert lines[1].agreement.endswith(("points the same", "same batch"))
    assert results[0].version == "2.0"


def test_json_holds_all_numbers(tmp_path):
    line = Line("case", TINY, Measured("ours", 2.0, (2.0,)), Measured("other", 9.0, (9.0,), "a part", 5.0), target=5.0)
    curve = Growth("N", {"N": 10}, (10, 100), (5.0, 50.0), 1.0)
    Report({"seed": 0}, (line,), (curve,)).write(tmp_path / "r.json")
    found = json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))
    assert set(found) == {"schema", "environment", "lines", "growth"}
    (read,) = found["lines"]
    assert set(read) == {"case", "size", "ours", "other", "agreement", "target", "absent", "ratio", "met"}
    assert set(read["ours"]) == {"name", "seconds", "runs", "scaled", "peak_mib"}
    assert (read["ratio"], read["met"], read["other"]["peak_mib"]) == (4.5, False, 5.0)
    assert math.isclose(found["growth"][0]["exponent"], 1)


def test_bad_arguments():
    with pytest.raises(UnknownNameError, match="did you mean 'greedy'"):
        run_benchmark(only=["gredy"])
    with pytest.raises(ValueError, match="`repeats` must be"):
        run_benchmark(only=["lazy"], repeats=0)


def command(*arguments):
    result = CliRunner().invoke(app, [*map(str, arguments)])
    return result.exit_code, result.stdout, result.stderr


def test_the_command_shows_a_table_and_writes_json(tiny, tmp_path):
    chosen = ("--only", "lazy", "--only", "peer-dropout", "--only", "growth", "--peers", tmp_path / "none")
    written = ("--output", tmp_path / "b.json", "--plot", tmp_path / "b.png")
    code, out, err = command("--quick", "--repeats", 1, "--threads", 1, "--seed", 3, *chosen, *written)
    assert code == 0, err
    for word in ("full passes", "absent", "make bench", "growth in N", "torch", "1 threads", "seed 3"):
        assert word in out
    found = json.loads((tmp_path / "b.json").read_text(encoding="utf-8"))
    assert {"machine", "cores", "threads", "versions", "peers", "seed", "quick"} <= set(found["environment"])
    assert (tmp_path / "b.png").stat().st_size > 1000


def test_the_command_refuses_mistakes_before_any_work(tmp_path):
    for arguments, message in [
        (("--only", "gredy"), "did you mean 'greedy'"),
        (("--output", "b.txt"), "--output must end in .json"),
        (("--output", tmp_path / "none" / "b.json"), "must be a folder"),
        (("--plot", "b.png", "--only", "lazy"), "add --only growth"),
        (("--threads", 0), "--threads must be at least 1"),
        (("--repeats", 0), "`repeats` must be"),
        (("--seed", -1, "--only", "lazy"), "`seed` must be"),
    ]:
        code, out, err = command(*arguments)
        assert (code, out) == (2, "")
        assert message in err


def test_embeddings_are_measured_on_small_data(tmp_path):
    rng = np.random.default_rng(0)
    (tmp_path / "banking77").mkdir()
    lines = ["text,category", *(f"{word} number {i},{word}" for i in range(6) for word in ("card", "rate"))]
    for part in ("train", "test"):
        (tmp_path / "banking77" / f"{part}.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (tmp_path / "cifar-10-batches-bin").mkdir()
    for name in ("data_batch_1.bin", "test_batch.bin"):
        records = rng.integers(0, 256, (104, 3073), dtype=np.uint8)
        records[:, 0] = np.arange(104) % 2
        (tmp_path / "cifar-10-batches-bin" / name).write_bytes(records.tobytes())
    options = ["--image-size", "32", "--train", "104", "--test", "4", "--trials", "2"]
    result = CliRunner().invoke(embeddings.app, ["--data-dir", str(tmp_path), *options])
    assert result.exit_code == 0, result.stderr
    assert "12 texts by wordllama" in result.stdout
    assert "accuracy with 12 labels on 12 test texts: 1.000" in " ".join(result.stdout.split())
    assert "104 images of 32 pixels by efficientnet-lite0" in result.stdout
    assert "accuracy with 100 labels on 4 test images: 0." in " ".join(result.stdout.split())
    assert "500 labels" not in result.stdout

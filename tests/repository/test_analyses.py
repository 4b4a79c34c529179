"""The analyses of results/paper: what they compute against plain loops, and their command."""

import json
import math
import sys
from pathlib import Path
from statistics import mean, stdev

import pytest
import torch
from typer.testing import CliRunner

from batchbalance import Predictions, connect
from batchbalance.balance.closed_form import BalanceModel
from batchbalance.lab.paper.experiments import read_experiment
from batchbalance.posteriors import Fitted, MCDropout
from batchbalance.posteriors.training.networks import tabular_mlp
from conftest import random_probs

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "results" / "paper"))

from analyse import ANALYSES, SETTINGS, analyse, app  # noqa: E402
from analyses.draws import (  # noqa: E402
    best,
    coverage,
    exact_picks,
    fewest_classes,
    sampled_picks,
    variation,
    with_truth,
)
from analyses.line_example import ask_bald, ask_ec2, worst_case  # noqa: E402
from analyses.run_time import slope  # noqa: E402
from analyses.single_batch import halved  # noqa: E402
from analyses.trained import first_draws  # noqa: E402

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What each analysis writes under the smoke preset: its numbers and the folder."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("analyses")
    found = {}
    for name in ANALYSES:
        paths = analyse(name, "smoke", folder)
        assert [path.name for path in paths] == [f"{name}-smoke.{kind}" for kind in ("json", "png", "svg")]
        found[name] = json.loads(paths[0].read_text(encoding="utf-8"))["numbers"]
        assert paths[1].read_bytes().startswith(b"\x89PNG")
        assert b"<svg" in paths[2].read_bytes()[:600]
    return found


def test_every_analysis_has_settings_and_is_in_the_docs():
    text = (ROOT / "docs" / "paper.md").read_text(encoding="utf-8")
    assert {path.stem for path in SETTINGS.iterdir()} == set(ANALYSES)
    for name in ANALYSES:
        found = read_experiment(SETTINGS / f"{name}.toml")
        command = f"python results/paper/analyse.py {name}"
        assert f"| {found.shows} | {found.title} | `{command}` | {found.cost} |" in text


def test_posterior_map(results):
    numbers = results["posterior-map"]
    assert 1 <= len(numbers["classes"]) <= 4
    assert math.isclose(sum(each["mass"] for each in numbers["classes"]), 1)
    accuracies = [each["mean_accuracy"] for each in numbers["classes"]]
    assert accuracies == sorted(accuracies)
    assert len(numbers["draws"]["x"]) == len(numbers["draws"]["accuracy"]) == numbers["num_draws"] == 12
    weighted = sum(each["mass"] * each["mean_accuracy"] for each in numbers["classes"])
    assert math.isclose(weighted, mean(numbers["draws"]["accuracy"]))


def test_fewest_classes():
    places = torch.tensor([0, 1, 2, 10, 11, 30])
    distances = (places[:, None] - places[None]).abs()
    radius, classes = fewest_classes(distances, 3)
    assert (radius, len(classes.unique())) == (2, 3)
    assert fewest_classes(distances, 1)[0] == 30
    assert fewest_classes(distances, 6)[0] == 0


def test_score_variation(results):
    numbers = results["score-variation"]
    for name in ("balance", "bald"):
        assert len(numbers[name]["values"]) + numbers[name]["num_undefined"] == numbers["num_points"] == 80
        assert all(value >= 0 for value in numbers[name]["values"])


def test_bald_has_half_of_the_draws_unless_they_are_equal(results, tmp_path):
    halved = results["score-variation"]
    assert halved["num_bald_draws"] == 6
    (path, *_) = analyse("score-variation", "smoke", tmp_path, changes=["options.equal_draws=true"])
    equal = json.loads(path.read_text(encoding="utf-8"))["numbers"]
    assert equal["num_bald_draws"] == 12
    assert equal["balance"] == halved["balance"]
    assert equal["bald"] != halved["bald"]


def test_strategies_without_edges_have_half_of_the_draws_unless_they_are_equal(tmp_path):
    few = ["options.batch_sizes=[2]", "options.strategies=['power-bald', 'power-balance']"]
    (path, *_) = analyse("run-time", "smoke", tmp_path, changes=few)
    table = json.loads(path.read_text(encoding="utf-8"))["numbers"]["complexities"]
    assert [(row["strategy"], row["num_draws"]) for row in table] == [("power-bald", 4), ("power-balance", 8)]
    whole = Fitted(MCDropout(tabular_mlp(2, (3,)), 6, 0), 0.25)
    half = halved(lambda inputs, labels, seed: whole)(torch.zeros(1, 3), torch.zeros(1), 5)  # noqa: ARG005
    assert half.posterior.draw_ids == whole.posterior.draw_ids[:3]
    assert half.validation_error == 0.25


def test_delta_against_k(results):
    numbers = results["delta-against-k"]
    assert len(numbers["mean"]) == len(numbers["std"]) == len(numbers["num_pairs"]) == 2
    assert all(0 <= value <= 1 for value in numbers["mean"])


def test_single_batch(results):
    numbers = results["single-batch"]
    assert numbers["sizes"] == [10, 15]
    for accuracy in (numbers["before"], *numbers["after"].values()):
        assert [len(each) for each in accuracy] == [2, 2]
        assert all(0 <= value <= 1 for each in accuracy for value in each)


def test_run_time(results):
    numbers = results["run-time"]
    assert {row["strategy"] for row in numbers["complexities"]} == set(numbers["seconds"])
    assert all(second is None or second > 0 for seconds in numbers["seconds"].values() for second in seconds)


def test_appendix_example(results):
    numbers = results["appendix-example"]
    assert numbers["bald"] == numbers["log_n"] == [2, 4]
    assert all(needed <= numbers["log_sigma"] == 2 for needed in numbers["ec2"])


@pytest.mark.parametrize(("num_hypotheses", "sigma"), [(16, 1 / 4), (30, 1 / 8), (256, 1 / 16)])
def test_appendix_bounds_hold_for_other_sizes(num_hypotheses, sigma):
    assert worst_case(num_hypotheses, sigma, ask_bald) == math.ceil(math.log2(num_hypotheses))
    assert worst_case(num_hypotheses, sigma, ask_ec2) <= math.ceil(math.log2(1 / sigma))


def test_saturation(results):
    numbers = results["saturation"]
    for name in ("coverage", "random", "null", "exact_informed", "sampled_informed"):
        assert len(numbers[name]) == 6
        assert all(-1e-12 <= value <= 1 + 1e-12 for value in numbers[name])
    assert numbers["coverage"] == sorted(numbers["coverage"])
    assert numbers["coverage"][0] >= numbers["random"][0]


def test_same_seed_same_numbers(results, tmp_path):
    (path, *_) = analyse("saturation", "smoke", tmp_path)
    assert json.loads(path.read_text(encoding="utf-8"))["numbers"] == results["saturation"]


def test_variation_is_std_over_mean():
    scores = torch.tensor([[1.0, 0.0, 5.0], [2.0, 0.0, 5.0], [6.0, 0.0, 5.5]], dtype=torch.float64)
    found = variation(scores).tolist()
    assert math.isclose(found[0], stdev([1, 2, 6]) / 3)
    assert math.isnan(found[1])
    assert math.isclose(found[2], stdev([5, 5, 5.5]) / mean([5, 5, 5.5]))


def test_slope_is_the_exponent():
    sizes = [1, 2, 5, 10, 100]
    assert math.isclose(slope(sizes, [3 * b**1.7 for b in sizes]), 1.7)
    assert math.isclose(slope(sizes, [2.0, 2.0, None, 2.0, None]), 0, abs_tol=1e-12)
    assert slope(sizes, [1.0, None, None, None, None]) is None


def test_truth_is_the_last_point():
    full = with_truth(torch.tensor([[0, 2], [2, 0]]), torch.tensor([5, 7]))
    assert full.tolist() == [[0, 2, 5], [2, 0, 7], [5, 7, 0]]


def test_best_knows_ties_and_what_is_left():
    left = torch.tensor([False, True, True, True])
    assert best(torch.tensor([9.0, 1.0, 3.0, 2.0]), left) == (2, True)
    assert best(torch.tensor([9.0, 3.0, 3.0, 2.0]), left) == (1, False)
    assert best(torch.zeros(4), torch.tensor([False, False, True, False])) == (2, False)


def test_coverage_against_plain_loops():
    probs = random_probs(5, 6, 3, seed=4)
    predictions = Predictions.from_probs(probs)
    edges = connect(predictions, 0.1)
    found = coverage(BalanceModel(predictions, edges), torch.tensor([3, 0, 4])).tolist()
    survival = {(j, a, b): 1.0 for j in range(6) for a, b in edges.ends.tolist()}
    for value, point in zip(found, (3, 0, 4), strict=True):
        for j, a, b in survival:
            p = probs[point]
            kept = sum(p[j][y] * p[a][y] / max(p[a]) * p[b][y] / max(p[b]) for y in range(3))
            survival[j, a, b] *= kept
        assert math.isclose(value, 1 - mean(survival.values()), abs_tol=1e-10)


def test_sampled_scores_tie_where_exact_ones_do_not():
    predictions = Predictions.from_probs(random_probs(60, 20, 10, seed=2, spread=4.0).astype("float32"))
    model = BalanceModel(predictions, connect(predictions, 0.05))
    picks, informed = exact_picks(model, 20)
    assert len(set(picks.tolist())) == 20
    assert bool(informed.all())
    assert not bool(sampled_picks(model, 20, 50, 0).all())


def test_first_draws_are_the_same_draws():
    predictions = Predictions.from_probs(random_probs(4, 6, 3, seed=5), draw_ids=range(6))
    few = first_draws(predictions, 2)
    assert few.draw_ids == ("0", "1")
    torch.testing.assert_close(few.log_probs(), predictions.log_probs()[:, :2])


def test_command(tmp_path):
    arguments = [
        "run-time",
        "--preset",
        "smoke",
        "--output",
        str(tmp_path),
        "--set",
        "options.batch_sizes=[2]",
    ]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    content = json.loads((tmp_path / "run-time-smoke.json").read_text(encoding="utf-8"))
    assert content["settings"]["options"]["batch_sizes"] == [2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["saturatin"], "did you mean 'saturation'?"),
        (["saturation", "--preset", "big"], "unknown preset 'big'"),
        (["run-time", "--preset", "smoke", "--set", "options.repeats=0"], "unknown setting of [options] 'repeats'"),
        (["saturation", "--preset", "smoke", "--set", "options.repeats=0"], "`repeats` must be greater than"),
    ],
)
def test_mistakes_are_told(arguments, message, tmp_path):
    result = CliRunner().invoke(app, [*arguments, "--output", str(tmp_path)], env={"COLUMNS": "200"})
    assert result.exit_code == 2
    assert message in result.output
    assert not list(tmp_path.iterdir())

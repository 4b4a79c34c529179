import re
from importlib.resources import files
from pathlib import Path

import pytest
from typer.testing import CliRunner

from batchbalance.cli import app
from batchbalance.lab.data import GENERATED, load
from batchbalance.lab.paper.experiments import PRESETS, experiment, experiment_names, halved_draws, merged
from batchbalance.lab.trial import Goal, run_trial

NAMES = [name for name in experiment_names() if experiment(name).analysis is None]

# From the paper: batch size, draws (2K), ratio, validation, reference; None where it leaves them open.
PAPER = {
    ("mnist", "b1"): (1, 200, 1 / 2, 10_000, 10_000),
    ("mnist", "b3"): (3, 200, 1 / 2, 10_000, 10_000),
    ("mnist", "b10"): (10, 200, 1 / 2, 10_000, 10_000),
    ("repeated-mnist", ""): (10, 200, 1 / 4, 10_000, 10_000),
    ("fashion-mnist", ""): (10, 200, 1 / 4, 10_000, 10_000),
    ("emnist-balanced", ""): (5, 20, 1 / 4, 18_800, 18_800),
    ("emnist-bymerge", ""): (5, 20, 1 / 4, 18_800, 18_800),
    ("emnist-byclass", ""): (5, 20, 1 / 4, 18_800, 18_800),
    ("svhn", ""): (1_000, None, 1 / 8, 5_000, 2_000),
    ("cifar-10", ""): (1_000, None, 1 / 8, 5_000, 5_000),
    ("cifar-10-csgmcmc", ""): (5_000, 24, None, 5_000, 5_000),
    ("cifar-10-multi-chain", ""): (5_000, 36, None, 5_000, 5_000),
    ("cifar-100", ""): (5_000, 12, None, 5_000, 5_000),
    ("k-study", "k50"): (1, 100, None, 10_000, 10_000),
    ("k-study", "k100"): (1, 200, None, 10_000, 10_000),
    ("har", ""): (10, 40, 1 / 4, 2_000, "pool"),
    ("drift", ""): (10, 40, 1 / 4, 2_000, "pool"),
    ("dry-bean", ""): (10, 40, 1 / 4, 2_000, "pool"),
    ("cinic-10", ""): (10, 100, None, 20_000, 40_000),
    ("repeats", "copies4"): (10, 200, 1 / 4, 10_000, 10_000),
}


def invoke(*arguments):
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "200"})


@pytest.mark.parametrize(("name", "part"), PAPER)
def test_paper_settings(name, part):
    found = experiment(name).comparisons("paper")[part]
    batch_size, num_draws, ratio, validation, reference = PAPER[name, part]
    assert (found.batch_size, found.trials) == (batch_size, 6)
    assert (found.split["validation"], found.split["reference"]) == (validation, reference)
    draws = found.posterior.num_draws if found.posterior.kind == "mc-dropout" else found.posterior.schedule.num_draws
    assert num_draws in (None, draws)
    assert ratio in (None, found.edges.ratio)


def test_paper_thresholds_copies_and_tables():
    edges = [run.edges for run in experiment("tau-study").comparisons("paper")[""].runs()]
    assert {edge.threshold for edge in edges} == {0.05, 0.15, 0.3, 0.0, None}
    assert {edge.ratio for edge in edges if edge.threshold is None} == {1 / 2, 1 / 4, 1 / 8}
    assert [part.data.copies for part in experiment("repeats").comparisons("paper").values()] == [1, 2, 3, 4]
    tables = {name: experiment(name).comparisons("paper")[""] for name in ("har", "drift", "dry-bean")}
    assert {n: (t.model["hidden"], t.training.samples_per_epoch) for n, t in tables.items()} == {
        "har": ([64, 64], 4096), "drift": ([32, 32], 4096), "dry-bean": ([8, 8], 8192),
    }  # fmt: skip
    assert experiment("cifar-100").comparisons("paper")[""].budget == 25_000


def test_every_number_has_a_source():
    for name in experiment_names():
        table = ""
        for line in (
            (files("batchbalance.lab.paper") / "settings" / f"{name}.toml").read_text(encoding="utf-8").splitlines()
        ):
            table = line if line.startswith("[") else table
            key, equals, value = line.partition("=")
            told = key.strip() in ("title", "shows", "reduced", "cost", "name", "analysis") or table.startswith(
                "[smoke"
            )
            if equals and not told and re.search(r"\d", value.partition("#")[0]):
                assert re.search("#.*(paper|ours|released code)", value), f"{name}: {line}"


@pytest.mark.slow
@pytest.mark.parametrize("preset", PRESETS)
def test_dry_runs_need_no_data(preset, tmp_path):
    for name in NAMES:
        result = invoke("run", name, "--preset", preset, "--dry-run", "--data-dir", str(tmp_path / "none"))
        assert result.exit_code == 0, result.output
        comparisons = experiment(name).comparisons(preset)
        expected = sum(len(each.runs()) * each.trials for each in comparisons.values())
        assert result.output.count(": 0 rounds in ") == expected


@pytest.fixture(scope="module")
def smoke_runs(tmp_path_factory):
    """A folder for all smoke presets: a run that several experiments share is done once, as by `batchbalance run`."""
    return tmp_path_factory.mktemp("smoke")


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_smoke_presets_run(name, smoke_runs):
    for comparison in experiment(name).comparisons("smoke").values():
        assert comparison.data.name in GENERATED
        goal = Goal(comparison.budget, comparison.target_error)
        for run in comparison.runs():
            records = run_trial(run, 0, smoke_runs / f"{goal.budget}-{goal.target_error}", goal)
            assert len(records) >= 2
            assert [len(record["indices"]) for record in records] == [run.batch_size] * (len(records) - 1) + [0]


def test_missing_data_are_named(tmp_path):
    wanted = {part.data.name for name in NAMES for part in experiment(name).comparisons("paper").values()}
    assert len(wanted) == 14
    for name in wanted:
        with pytest.raises(FileNotFoundError, match=r"data missing: put .* into .*; get"):
            load(name, data_dir=tmp_path, download=False)


def test_draws_as_in_the_complexity_table():
    parts = experiment("repeated-mnist-all").comparisons("paper", paper_draws=True)
    draws = {entry: part.posterior.num_draws for part in parts.values() for entry in part.strategies}
    assert draws == {
        "random": 100, "variation-ratio": 100, "mean-std": 100, "bald": 100, "batch-bald": 100, "power-bald": 100,
        "coreset": 100, "badge": 100, "power-balance": 200, "batch-balance": 200,
    }  # fmt: skip
    equal = experiment("repeated-mnist-all").comparisons("paper")
    assert {part.posterior.num_draws for part in equal.values()} == {200}
    chains = experiment("cifar-100").comparisons("paper")[""]
    assert halved_draws(chains) == [("", chains)]


def test_merging_leaves_its_arguments_alone():
    below, above = {"a": {"b": 1, "c": [1]}, "d": 2}, {"a": {"b": 3}, "d": {"e": 4}}
    assert merged(below, above) == {"a": {"b": 3, "c": [1]}, "d": {"e": 4}}
    assert below == {"a": {"b": 1, "c": [1]}, "d": 2}


@pytest.mark.slow
def test_run_by_name_from_the_command_line(tmp_path):
    result = invoke(
        "run", "dry-bean", "--preset", "smoke", "--runs-dir", str(tmp_path), "--set", 'strategies=["random"]'
    )
    assert result.exit_code == 0, result.output
    assert len(list((tmp_path / "dry-bean-smoke").glob("*/trial-0.jsonl"))) == 1


def test_every_name_is_in_the_docs():
    text = (Path(__file__).parents[1] / "docs" / "paper.md").read_text(encoding="utf-8")
    for name in experiment_names():
        found = experiment(name)
        command = f"batchbalance {'run' if found.analysis is None else 'analyse'} {name}"
        assert f"| {found.shows} | {found.title} | `{command}` | {found.cost} |" in text


def test_experiments_are_listed():
    result = invoke("experiments")
    assert all(f"{name}: " in result.output for name in experiment_names())
    result = invoke("experiments", "mnist")
    assert "Figure 3 (a) to (c)" in result.output
    assert "laptop: 2 trials" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "mnst"], "did you mean 'mnist'?"),
        (["run", "mnist", "--preset", "lap"], "unknown preset 'lap'"),
        (["run", "posterior-map"], "batchbalance analyse posterior-map"),
        (["run", "x.toml", "--preset", "paper"], "are for names of experiments"),
        (["experiments", "mnst"], "did you mean 'mnist'?"),
    ],
)
def test_mistakes_are_told(arguments, message):
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert message in result.output

from pathlib import Path

import pytest
from typer.testing import CliRunner

from batchbalance.cli import app
from batchbalance.lab.data import GENERATED, load
from batchbalance.lab.paper.experiments import PRESETS, experiment, experiment_names, halved_draws, merged
from batchbalance.lab.trial import Goal, LastPrepared, run_trial

NAMES = experiment_names()

# Batch size, draws (2K), ratio, validation, reference; None where neither the paper nor its code tells.
PAPER = {
    ("mnist", "b1"): (1, 200, 1 / 2, 10_000, 10_000),
    ("mnist", "b3"): (3, 200, 1 / 2, 10_000, 10_000),
    ("mnist", "b10"): (10, 200, 1 / 2, 10_000, 10_000),
    ("repeated-mnist", ""): (10, 200, 1 / 4, 10_000, 10_000),
    ("fashion-mnist", ""): (10, 200, 1 / 4, 10_000, 10_000),
    ("emnist-balanced", ""): (5, 20, 1 / 4, 18_800, 18_800),
    ("emnist-bymerge", ""): (5, 20, 1 / 4, 18_800, 18_800),
    ("emnist-byclass", ""): (5, 20, 1 / 4, 18_800, 18_800),
    ("svhn", ""): (1_000, 200, 1 / 8, 5_000, 2_000),
    ("cifar-10", ""): (1_000, 200, 1 / 8, 5_000, 5_000),
    ("cifar-10-csgmcmc", ""): (5_000, 24, 1 / 8, 5_000, 5_000),
    ("cifar-10-multi-chain", ""): (5_000, 36, 1 / 8, 5_000, 5_000),
    ("cifar-100", ""): (5_000, 12, 1 / 8, 5_000, 5_000),
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


def test_settings_of_the_released_code():
    networks = {name: experiment(name).comparisons("paper")[""] for name in ("svhn", "cifar-10", "cinic-10")}
    assert all(each.model["head"] == [4096, 4096] for each in networks.values())
    assert {n: (r.optimizer, r.learning_rate, r.patience, r.samples_per_epoch, r.max_epochs, r.augmentation)
            for n, r in ((name, each.training) for name, each in networks.items())} == {
        "svhn": ("sgd", 0.001, 20, 32_368, 5_000, "none"), "cifar-10": ("sgd", 0.001, 20, 32_368, 5_000, "crop-flip"),
        "cinic-10": ("adam", 0.0001, 3, 15_360, 500, "none"),
    }  # fmt: skip
    for name in ("fashion-mnist", "emnist-balanced", "emnist-bymerge", "emnist-byclass"):
        model = experiment(name).comparisons("paper")[""].model
        assert (model["hidden"], model["round_up"]) == (512, True)
    for name in ("har", "drift", "dry-bean"):
        table = experiment(name).comparisons("paper")[""]
        assert (table.training.batch_size, table.budget) == (128, 200)
    for name in ("cifar-10-csgmcmc", "cifar-10-multi-chain", "cifar-100"):
        chains = experiment(name).comparisons("paper")[""]
        schedule = chains.posterior.schedule
        assert (schedule.samples_per_epoch, schedule.noise_examples, schedule.temperature) == (50_000, 50_000, 2e-5)
        assert (schedule.class_weighted, schedule.augmentation) == (True, "crop-flip")
        assert {"name": "badge", "mean_gradients": True} in chains.strategies


@pytest.mark.slow
@pytest.mark.parametrize("preset", PRESETS)
def test_dry_runs_need_no_data(preset, tmp_path):
    for name in NAMES:
        if preset == "released" and not experiment(name).presets[preset]:
            continue
        result = invoke("run", name, "--preset", preset, "--dry-run", "--data-dir", str(tmp_path / "none"))
        assert result.exit_code == 0, result.output
        comparisons = experiment(name).comparisons(preset)
        expected = sum(len(each.runs()) * each.trials for each in comparisons.values())
        assert result.output.count(": 0 rounds in ") == expected


@pytest.fixture(scope="module")
def smoke_runs(tmp_path_factory):
    """A folder for all smoke presets: a run that several experiments share is done once, as by `batchbalance run`.

    What loads data sets for them keeps the last one, as its processes do.
    """
    return tmp_path_factory.mktemp("smoke"), LastPrepared()


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_smoke_presets_run(name, smoke_runs):
    folder, prepare = smoke_runs
    for comparison in experiment(name).comparisons("smoke").values():
        assert comparison.data.name in GENERATED
        goal = Goal(comparison.budget, comparison.target_error)
        for run in comparison.runs():
            records = run_trial(run, 0, folder / f"{goal.budget}-{goal.target_error}", goal, prepare=prepare)
            assert len(records) >= 2
            assert [len(record["indices"]) for record in records] == [run.batch_size] * (len(records) - 1) + [0]


def test_missing_data_are_named(tmp_path):
    wanted = {part.data.name for name in NAMES for part in experiment(name).comparisons("paper").values()}
    assert len(wanted) == 14
    for name in wanted:
        with pytest.raises(FileNotFoundError, match=r"data missing: put .* into .*; get"):
            load(name, data_dir=tmp_path, download=False)


def draws_of(name, preset, **options):
    """The draws of each strategy, for each part."""
    parts = experiment(name).comparisons(preset, **options)
    return {
        part: {run.strategy["name"]: run.posterior.num_draws for run in each.runs()} for part, each in parts.items()
    }


def test_draws_as_in_the_complexity_table():
    assert draws_of("repeated-mnist-all", "paper")[""] == {
        "random": 100, "variation-ratio": 100, "mean-std": 100, "bald": 100, "batch-bald": 100, "power-bald": 100,
        "coreset": 100, "badge": 100, "power-balance": 200, "batch-balance": 200,
    }  # fmt: skip
    assert set(draws_of("repeated-mnist-all", "paper", equal_draws=True)[""].values()) == {200}
    assert set(draws_of("repeated-mnist-all", "laptop")[""].values()) == {40}
    assert draws_of("mnist", "laptop", equal_draws=False)["b10"]["batch-bald"] == 20
    assert draws_of("k-study", "paper") == {
        "k50": {"bald": 50, "balance": 100}, "k100": {"bald": 100, "balance": 200},
    }  # fmt: skip
    chains = experiment("cifar-100").comparisons("paper")[""]
    assert halved_draws(chains) == chains


def test_draws_from_the_command_line(tmp_path):
    def shown(*options):
        result = invoke("run", "mnist", "--dry-run", "--runs-dir", str(tmp_path), "--trials", "1", *options)
        assert result.exit_code == 0, result.output
        return set(result.output.split())

    paper = shown("--preset", "paper")
    assert paper == shown("--preset", "paper", "--paper-draws")
    equal = shown("--preset", "paper", "--equal-draws")
    # batch-balance has 2K draws either way; the four others move
    assert len({word for word in paper - equal if "mnist-paper" in word}) == 4 * 3
    assert shown() == shown("--equal-draws") != shown("--paper-draws")


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
    text = (Path(__file__).parents[3] / "docs" / "paper.md").read_text(encoding="utf-8")
    for name in experiment_names():
        found = experiment(name)
        assert f"| {found.shows} | {found.title} | `batchbalance run {name}` | {found.cost} |" in text


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
        (["run", "x.toml", "--preset", "paper"], "are for names of experiments"),
        (["experiments", "mnst"], "did you mean 'mnist'?"),
    ],
)
def test_mistakes_are_told(arguments, message):
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert message in result.output

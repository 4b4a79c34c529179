"""Parts of users' own: by path, by entry point, and only if a file may import."""

import importlib.metadata
import re
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

from batchbalance import STRATEGIES, Predictions, Strategy, UnknownNameError, select
from batchbalance.arguments.registry import Registry, check_paths, import_modules, imported, imported_modules
from batchbalance.lab.config import read_comparison
from batchbalance.strategies import strategy_named
from conftest import random_probs

ROOT = Path(__file__).parents[2]

OWN = '''
from typing import ClassVar

import torch

from batchbalance import Strategy
from batchbalance.strategies import Choice


class Last(Strategy):
    """The last points, or every `step`-th from the end."""

    name: ClassVar[str] = "last"
    summary: ClassVar[str] = "the last points"

    step: int = 1

    def choose(self, problem):
        return Choice(problem.candidates.flip(0)[:: self.step][: problem.batch_size])


NOT_A_STRATEGY = 3
'''

CONFIG = """
batch_size = 5
budget = 20
trials = 10
strategies = ["random", {name = "own_strategies:Last", step = 2}]

[data]
name = "digits"

[split]
initial_per_class = 1
validation = 10
reference = 20
pool = 60
test = 50

[posterior]
kind = "committee"
size = 4
max_depth = 3
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "own_strategies.py").write_text(OWN)
    (tmp_path / "own.toml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    sys.modules.pop("own_strategies", None)


def test_a_path_names_a_strategy(folder):
    pool = Predictions.from_probs(random_probs(20, 4, 3))
    chosen = select(pool, 3, strategy="own_strategies:Last")
    assert chosen.indices.tolist() == [19, 18, 17]
    assert strategy_named("own_strategies:Last", {"step": "2"}).step == 2
    with pytest.raises(UnknownNameError, match="did you mean 'step'"):
        strategy_named("own_strategies:Last", {"steps": 2})


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("own_strategies:Lost", "did you mean 'Last'"),
        ("own_strategies:NOT_A_STRATEGY", "must be a subclass of batchbalance.Strategy, got 3"),
        ("nowhere:Last", "No module named 'nowhere'; install it, or run from the folder"),
        ("own strategies:Last", "must look like package.module:Name"),
        ("own_strategies:", "must look like package.module:Name"),
        ("own_strategie", "unknown strategy 'own_strategie'"),
    ],
)
def test_paths_that_lead_nowhere(folder, path, message):
    with pytest.raises(ValueError, match=message):
        strategy_named(path)


def test_a_file_imports_only_if_it_may(folder):
    with pytest.raises(ValueError, match=r"names the strategy 'own_strategies:Last', which would import code"):
        read_comparison(folder / "own.toml")
    assert "own_strategies" not in sys.modules
    runs = read_comparison(folder / "own.toml", allow_imports=True).runs()
    assert [run.label for run in runs] == ["random", "own_strategies:Last(step=2)"]
    for table, kind in (('[model]\nname = "a.b:C"', "network"), ('[posterior]\nkind = "a.b:C"', "kind of posterior")):
        text = CONFIG.replace('[posterior]\nkind = "committee"\nsize = 4\nmax_depth = 3\n', table).replace(
            ', {name = "own_strategies:Last", step = 2}', ""
        )
        (folder / "other.toml").write_text(text)
        with pytest.raises(ValueError, match=f"names the {kind} 'a.b:C'"):
            read_comparison(folder / "other.toml")


def test_what_the_command_line_names_is_the_users_own_act(folder):
    (folder / "plain.toml").write_text(CONFIG.replace(', {name = "own_strategies:Last", step = 2}', ""))
    runs = read_comparison(folder / "plain.toml", ['strategies=["own_strategies:Last"]']).runs()
    assert runs[0].chosen_strategy.name == "last"


@pytest.mark.slow
def test_ten_paired_trials_of_an_own_strategy(folder, parent):
    """As the docs show it: a file of one's own, no edit of the package."""
    command = ["from batchbalance.cli import main; main()", "run", "own.toml", "--runs-dir", "runs"]
    ended, _, err = parent.run(*command, cwd=folder)
    assert (ended, "--allow-imports" in err) == (2, True)
    ended, out, err = parent.run(*command, "--allow-imports", cwd=folder)
    assert ended == 0, err
    assert "20 of 20 trials are complete" in out
    assert sorted(path.name.rsplit("-", 1)[0] for path in (folder / "runs").iterdir()) == [
        "own_strategies-last-step=2",
        "random",
    ]


def test_the_guide_is_true(tmp_path, monkeypatch):
    text = (ROOT / "docs" / "development.md").read_text(encoding="utf-8")
    (strategy,) = re.findall(r"```python\n(.*?)```", text, re.S)
    config, entry_points = re.findall(r"```toml\n(.*?)```", text, re.S)
    (tmp_path / "own_strategies.py").write_text(strategy)
    (tmp_path / "own.toml").write_text(config)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    try:
        comparison = read_comparison(tmp_path / "own.toml", allow_imports=True)
        assert (comparison.trials, len(comparison.runs())) == (10, 3)
        pool = Predictions.from_probs(random_probs(40, 4, 3))
        chosen = select(pool, 3, strategy="own_strategies:ThinnedMargin").indices.tolist()
        assert set(chosen) <= set(select(pool, 15, strategy="margin").indices.tolist())
    finally:
        sys.modules.pop("own_strategies", None)
    for group in tomllib.loads(entry_points)["project"]["entry-points"]:
        assert group == STRATEGIES.group


def test_installed_packages_add_names(monkeypatch):
    entry = importlib.metadata.EntryPoint(
        "installed", "batchbalance.strategies.baselines:Random", "batchbalance.strategies"
    )
    found = [entry]

    def entry_points(group):
        return found if group == "batchbalance.strategies" else []

    monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)
    assert "installed" in STRATEGIES
    assert STRATEGIES["installed"] is STRATEGIES["random"]
    assert list(STRATEGIES)[-1] == "installed"
    assert len(STRATEGIES) == len(list(STRATEGIES))
    found[0] = importlib.metadata.EntryPoint("installed", "batchbalance:__version__", "batchbalance.strategies")
    with pytest.raises(ValueError, match="strategy 'installed' must be a subclass of"):
        STRATEGIES.named("installed")


def test_unknown_names():
    with pytest.raises(KeyError):
        STRATEGIES["randm"]
    with pytest.raises(UnknownNameError, match="did you mean 'random'"):
        STRATEGIES.named("randm")
    assert "randm" not in STRATEGIES
    assert 3 not in STRATEGIES


def test_own_parts_may_be_imported_when_they_are_asked_for():
    lazy = Registry("thing", "batchbalance.things", {"array": "numpy:array"}, callable, "a function")
    assert lazy.named("array") is np.array
    assert imported("thing", "batchbalance:Strategy") is Strategy


def test_names_without_paths_pass():
    check_paths({"random": "strategy"}, "a file")


def test_a_process_may_miss_modules_that_it_is_not_sent():
    import_modules(["a_module_of_another_folder"])
    assert "a_module_of_another_folder" not in imported_modules()

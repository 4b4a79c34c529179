"""The public names, what importing does, and which way imports point."""

import ast
import re
import subprocess
import sys
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

import batchbalance

SOURCE = Path(batchbalance.__file__).parent

# The rooms of the house, from the ground up. A module lives in the room here with the longest name that begins its own,
# and may import from its own room and from those before it.
ROOMS = [
    "errors", "arguments", "system", "predictions", "scores", "balance", "batches", "strategies", "selection",
    "posteriors.training", "encoders", "posteriors", "learner.labels", "learner", "project", "project.page",
    "project.bridge", "lab.data", "lab.metrics", "lab.strategies", "lab.records", "lab.config", "lab.trial",
    "lab.processes", "lab.report", "lab.paper", "cluster", "cli",
]  # fmt: skip
LIBRARY = ROOMS[: ROOMS.index("lab.data")]

PUBLIC = {
    "Badge", "Bait", "Balance", "Bald", "BatchBalance", "BatchBalanceError", "BatchBald", "BatchEvaluation",
    "ClusterBalance", "ClusterMargin", "CoreSet", "Cover", "CoverBalance", "DrawMismatchError", "DropQuery", "Ec2",
    "Eced", "Edges", "Entropy", "EnumeratedBalance", "Epig", "Explore", "Falcun", "FileFormatError",
    "GreedyBalance", "Learner", "LeastConfidence", "Margin", "MaxHerding", "MeanStd",
    "MissingExtraError", "NothingLeftError", "PartitionBalance", "PowerBalance", "PowerBald", "PowerSampling",
    "Predictions", "ProbCover", "Project", "PublishedUHerding", "Random", "Refine", "STRATEGIES", "SampledBalance",
    "Seek", "Selection", "StochasticBalance", "Strategy", "TypiClust", "UHerding", "UnknownNameError",
    "VariationRatio", "annealed_threshold", "balance_scores", "connect", "evaluate_batch", "hamming_distances",
    "information", "joint_balance", "select", "token_weights",
}  # fmt: skip


def test_public_names():
    assert set(batchbalance.__all__) == PUBLIC
    for name in PUBLIC:
        assert getattr(batchbalance, name).__doc__ or name == "STRATEGIES"


@pytest.mark.slow
def test_importing_is_inert():
    code = (
        "import sys, batchbalance, batchbalance.errors\n"
        "bad = {'torch', 'numpy', 'pydantic', 'batchbalance.selection'} & set(sys.modules)\n"
        "assert not bad, bad\n"
        "import torch\n"
        "before = (torch.get_rng_state().sum(), torch.get_num_threads(), torch.get_default_dtype())\n"
        "from batchbalance import *\n"
        "assert select is batchbalance.selection.select\n"
        "assert before == (torch.get_rng_state().sum(), torch.get_num_threads(), torch.get_default_dtype())\n"
        "bad = {'matplotlib', 'ray', 'pandas', 'requests', 'typer', 'batchbalance.lab'} & set(sys.modules)\n"
        "assert not bad, bad\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_names_are_the_same_to_type_checkers_and_at_run_time():
    tree = ast.parse((SOURCE / "__init__.py").read_text(encoding="utf-8"))
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    assert ast.unparse(block.test) == "TYPE_CHECKING"
    homes = {each.name: node.module for node in block.body for each in node.names}
    assert set(homes) == PUBLIC
    for name, home in homes.items():
        assert getattr(batchbalance, name) is getattr(import_module(home), name)


def test_what_the_front_door_holds_and_what_not():
    assert set(dir(batchbalance)) >= PUBLIC | {"scores", "__version__"}
    assert batchbalance.scores is import_module("batchbalance.scores")
    with pytest.raises(AttributeError, match="module 'batchbalance' has no attribute 'selekt'"):
        _ = batchbalance.selekt
    with pytest.raises(ImportError, match="cannot import name 'selekt'"):
        exec("from batchbalance import selekt")


def room_of(module):
    """The room of a module such as "lab.report.pages"."""
    found = [room for room in ROOMS if module == room or module.startswith(f"{room}.")]
    assert found, f"{module} lives in no room"
    return max(found, key=len)


@cache
def modules():
    """What every module imports from this package, by its name within it; `lab` itself holds rooms and is none."""
    paths = {".".join(path.relative_to(SOURCE).with_suffix("").parts): path for path in SOURCE.rglob("*.py")}
    paths = {name.removesuffix(".__init__"): path for name, path in paths.items() if name != "__init__"}
    trees = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in paths.items()}
    return {name: set(imported(tree, paths)) for name, tree in trees.items() if name != "lab"}


def imported(tree, names):
    """Those of some modules that a module imports anywhere in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "batchbalance":
            inner = node.module.removeprefix("batchbalance").removeprefix(".")
            for each in node.names:
                below = f"{inner}.{each.name}".removeprefix(".")
                if below in names or inner:
                    yield below if below in names else inner


def test_imports_point_one_way():
    assert "selection" in modules()["learner.learner"]  # they are found at all
    for name, others in modules().items():
        for other in others:
            assert ROOMS.index(room_of(other)) <= ROOMS.index(room_of(name)), f"{name} imports {other}"


def test_every_room_is_there():
    assert {room_of(name) for name in modules()} == set(ROOMS)


def test_the_library_never_imports_the_lab():
    for name, others in modules().items():
        if room_of(name) in LIBRARY:
            assert all(room_of(other) in LIBRARY for other in others), name


def test_nothing_is_printed_or_unpickled():
    for path in SOURCE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert "import pickle" not in text
        loads = text.count("torch.load(")
        assert len(re.findall(r"torch\.load\([^()]*weights_only=True\)", text)) == loads, path
        assert "allow_pickle=True" not in text

"""The public names, what importing does, and which way imports point."""

import ast
import subprocess
import sys
from pathlib import Path

import batchbalance

SOURCE = Path(batchbalance.__file__).parent

# A module may import from its own layer and from earlier ones.
LAYERS = [
    {"errors", "seeds", "files", "journal", "validation", "memory", "pools", "predictions", "progress"},
    {"equivalence", "acquisition", "selection", "shards", "strategies", "evaluation", "one_round", "query", "metrics"},
    {"models", "training", "data", "posteriors"},
    {"config", "runs", "fitting", "learner", "loop", "jobs"},
    {"distributed", "report", "bench"},
    {"experiments", "analyses"},
    {"cli"},
]

PUBLIC = {
    "Badge", "Balance", "Bald", "BatchBalance", "BatchBalanceError", "BatchBald", "BatchEvaluation", "ClusterBalance",
    "ClusterMargin", "CoreSet", "DrawMismatchError", "Ec2", "Eced", "Edges", "Entropy", "EnumeratedBalance", "Epig",
    "FileFormatError", "GreedyBalance", "HypothesisTable", "LeastConfidence", "Margin", "MeanStd",
    "MissingExtraError", "PartitionBalance", "PowerBalance", "PowerBald", "PowerSampling", "Predictions", "Random",
    "STRATEGIES", "SampledBalance", "Selection", "StochasticBalance", "Strategy", "UnknownNameError",
    "VariationRatio", "annealed_threshold", "balance_scores", "connect", "evaluate_batch", "hamming_distances",
    "information", "joint_balance", "select",
}  # fmt: skip


def test_public_names():
    assert set(batchbalance.__all__) == PUBLIC
    for name in PUBLIC:
        assert getattr(batchbalance, name).__doc__ or name == "STRATEGIES"


def test_importing_is_inert():
    code = (
        "import sys, random, torch, numpy as np\n"
        "before = (torch.get_rng_state().sum(), torch.get_num_threads(), torch.get_default_dtype())\n"
        "import batchbalance\n"
        "assert before == (torch.get_rng_state().sum(), torch.get_num_threads(), torch.get_default_dtype())\n"
        "bad = {'matplotlib', 'ray', 'pandas', 'requests', 'pooch', 'typer'} & set(sys.modules)\n"
        "assert not bad, bad\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def layer_of(module):
    return next(i for i, names in enumerate(LAYERS) if module in names)


def test_imports_point_one_way():
    for path in SOURCE.rglob("*.py"):
        module = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        if module == "__init__":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("batchbalance."):
                assert layer_of(node.module.split(".")[1]) <= layer_of(module), f"{path.name} imports {node.module}"


def test_nothing_is_printed_or_unpickled():
    for path in SOURCE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert "import pickle" not in text
        assert "torch.load(" not in text
        assert "allow_pickle=True" not in text

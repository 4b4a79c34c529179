"""A comparison small enough to be run many times."""

from batchbalance.arguments.sections import parsed
from batchbalance.lab.config import Comparison

SETTINGS = {
    "data": {"name": "digits"},
    "split": {"initial_per_class": 1, "validation": 30, "reference": 40, "pool": 120},
    "model": {"name": "tabular-mlp", "hidden": [16], "dropout": 0.3},
    "training": {"learning_rate": 0.01, "samples_per_epoch": 128, "max_epochs": 4},
    "posterior": {"num_draws": 8},
    "batch_size": 5,
    "budget": 25,
    "strategies": ["random"],
}
FOREST = {"model": None, "training": None, "posterior": {"kind": "committee", "size": 6}}


def run_of(strategy, **settings):
    """The config of one run."""
    whole = {**SETTINGS, **settings, "strategies": [strategy]}
    return parsed(lambda: Comparison(**whole)).runs()[0]


def timeless(records):
    """Records without what differs from run to run."""
    return [{key: value for key, value in r.items() if key not in ("seconds", "peak_memory")} for r in records]

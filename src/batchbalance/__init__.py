"""batchbalance: which unlabelled examples should be labelled next?

The names below are imported when they are first used: torch takes a second to import, and help needs none of it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from batchbalance.balance.closed_form import balance_scores, information, joint_balance
    from batchbalance.balance.edges import Edges, annealed_threshold, connect, hamming_distances
    from batchbalance.balance.evaluation import BatchEvaluation, evaluate_batch
    from batchbalance.batches.cover import Cover
    from batchbalance.errors import (
        BatchBalanceError,
        DrawMismatchError,
        FileFormatError,
        MissingExtraError,
        NothingLeftError,
        UnknownNameError,
    )
    from batchbalance.learner import Learner
    from batchbalance.predictions import Predictions
    from batchbalance.project import Project
    from batchbalance.scores import token_weights
    from batchbalance.selection import Selection, select
    from batchbalance.strategies import STRATEGIES, Strategy
    from batchbalance.strategies.baselines import (
        Badge,
        Bald,
        BatchBald,
        ClusterMargin,
        CoreSet,
        Ec2,
        Eced,
        Entropy,
        Epig,
        LeastConfidence,
        Margin,
        MeanStd,
        PowerBald,
        PowerSampling,
        Random,
        VariationRatio,
    )
    from batchbalance.strategies.connected import (
        Balance,
        BatchBalance,
        ClusterBalance,
        EnumeratedBalance,
        GreedyBalance,
        PartitionBalance,
        PowerBalance,
        SampledBalance,
        StochasticBalance,
    )
    from batchbalance.strategies.coverage import CoverBalance, MaxHerding, ProbCover, TypiClust, UHerding
    from batchbalance.strategies.refining import Refine
    from batchbalance.strategies.rivals import Bait, DropQuery, Falcun, PublishedUHerding
    from batchbalance.strategies.seeking import Explore, Seek

__version__ = "0.3.0"
__all__ = [
    "STRATEGIES",
    "Badge",
    "Bait",
    "Balance",
    "Bald",
    "BatchBalance",
    "BatchBalanceError",
    "BatchBald",
    "BatchEvaluation",
    "ClusterBalance",
    "ClusterMargin",
    "CoreSet",
    "Cover",
    "CoverBalance",
    "DrawMismatchError",
    "DropQuery",
    "Ec2",
    "Eced",
    "Edges",
    "Entropy",
    "EnumeratedBalance",
    "Epig",
    "Explore",
    "Falcun",
    "FileFormatError",
    "GreedyBalance",
    "Learner",
    "LeastConfidence",
    "Margin",
    "MaxHerding",
    "MeanStd",
    "MissingExtraError",
    "NothingLeftError",
    "PartitionBalance",
    "PowerBalance",
    "PowerBald",
    "PowerSampling",
    "Predictions",
    "ProbCover",
    "Project",
    "PublishedUHerding",
    "Random",
    "Refine",
    "SampledBalance",
    "Seek",
    "Selection",
    "StochasticBalance",
    "Strategy",
    "TypiClust",
    "UHerding",
    "UnknownNameError",
    "VariationRatio",
    "annealed_threshold",
    "balance_scores",
    "connect",
    "evaluate_batch",
    "hamming_distances",
    "information",
    "joint_balance",
    "select",
    "token_weights",
]

_HOMES = {  # where a name is from; those of __all__ that are not here are strategies
    "balance.closed_form": ["balance_scores", "information", "joint_balance"],
    "balance.edges": ["Edges", "annealed_threshold", "connect", "hamming_distances"],
    "balance.evaluation": ["BatchEvaluation", "evaluate_batch"],
    "batches.cover": ["Cover"],
    "errors": [
        "BatchBalanceError",
        "DrawMismatchError",
        "FileFormatError",
        "MissingExtraError",
        "NothingLeftError",
        "UnknownNameError",
    ],
    "learner": ["Learner"],
    "predictions": ["Predictions"],
    "project": ["Project"],
    "scores": ["token_weights"],
    "selection": ["Selection", "select"],
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}
_MODULES = ("balance", "batches", "errors", "predictions", "scores", "selection", "strategies")


def __getattr__(name: str) -> Any:
    """A public name, or a module that can be used without an import of its own (PEP 562)."""
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(f"{__name__}.{_HOME.get(name, 'strategies')}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})

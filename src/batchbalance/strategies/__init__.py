"""The named strategies. To register a strategy, import it here and name it in `__all__`."""

from typing import Any

from batchbalance.arguments.registry import Registry
from batchbalance.strategies.auto import AUTO, auto_strategy
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
from batchbalance.strategies.contract import Choice, ConnectedStrategy, Strategy
from batchbalance.strategies.coverage import CoverBalance, MaxHerding, ProbCover, TypiClust, UHerding
from batchbalance.strategies.pool import Pool
from batchbalance.strategies.refining import Refine
from batchbalance.strategies.rivals import Bait, DropQuery, Falcun, PublishedUHerding
from batchbalance.strategies.seeking import Explore, Seek

__all__ = [
    "AUTO",
    "STRATEGIES",
    "Badge",
    "Bait",
    "Balance",
    "Bald",
    "BatchBalance",
    "BatchBald",
    "Choice",
    "ClusterBalance",
    "ClusterMargin",
    "ConnectedStrategy",
    "CoreSet",
    "CoverBalance",
    "DropQuery",
    "Ec2",
    "Eced",
    "Entropy",
    "EnumeratedBalance",
    "Epig",
    "Explore",
    "Falcun",
    "GreedyBalance",
    "LeastConfidence",
    "Margin",
    "MaxHerding",
    "MeanStd",
    "PartitionBalance",
    "Pool",
    "PowerBalance",
    "PowerBald",
    "PowerSampling",
    "ProbCover",
    "PublishedUHerding",
    "Random",
    "Refine",
    "SampledBalance",
    "Seek",
    "StochasticBalance",
    "Strategy",
    "TypiClust",
    "UHerding",
    "VariationRatio",
    "auto_strategy",
    "strategy_named",
]


def _is_strategy(found: Any) -> bool:
    return isinstance(found, type) and issubclass(found, Strategy)


OWN: dict[str, type[Strategy]] = {
    found.name: found for found in map(globals().get, __all__) if _is_strategy(found) and hasattr(found, "name")
}
STRATEGIES: Registry[type[Strategy]] = Registry(
    "strategy",
    "batchbalance.strategies",
    OWN,
    _is_strategy,
    "a subclass of batchbalance.Strategy",
)


def strategy_named(name: str, options: dict[str, Any] | None = None) -> Strategy:
    """Return the strategy with this name, or at a path "package.module:Name", with these options.

    The error for an unknown name suggests the nearest one.
    """
    return STRATEGIES.named(name).with_options(options or {})

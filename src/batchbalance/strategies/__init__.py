"""The named strategies. To register a strategy, list it here."""

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

OWN = {
    strategy.name: strategy
    for strategy in (
        BatchBalance,
        GreedyBalance,
        StochasticBalance,
        ClusterBalance,
        PowerBalance,
        Balance,
        PartitionBalance,
        EnumeratedBalance,
        SampledBalance,
        CoverBalance,
        UHerding,
        PublishedUHerding,
        MaxHerding,
        ProbCover,
        TypiClust,
        Seek,
        Explore,
        Bald,
        BatchBald,
        PowerBald,
        PowerSampling,
        Epig,
        Entropy,
        Margin,
        LeastConfidence,
        VariationRatio,
        MeanStd,
        CoreSet,
        Badge,
        ClusterMargin,
        Bait,
        Falcun,
        DropQuery,
        Refine,
        Ec2,
        Eced,
        Random,
    )
}


STRATEGIES: Registry[type[Strategy]] = Registry(
    "strategy",
    "batchbalance.strategies",
    OWN,
    lambda found: isinstance(found, type) and issubclass(found, Strategy),
    "a subclass of batchbalance.Strategy",
)


def strategy_named(name: str, options: dict[str, Any] | None = None) -> Strategy:
    """Return the strategy with this name, or at a path "package.module:Name", with these options.

    The error for an unknown name suggests the nearest one.
    """
    return STRATEGIES.named(name).with_options(options or {})


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

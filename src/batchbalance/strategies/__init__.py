"""The named strategies. A strategy is registered by being listed here."""

from typing import Any

from batchbalance.errors import UnknownNameError
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
from batchbalance.strategies.contract import Choice, ConnectedStrategy, Problem, Strategy
from batchbalance.strategies.coverage import CoverBalance, MaxHerding, ProbCover, TypiClust, UHerding

STRATEGIES: dict[str, type[Strategy]] = {
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
        MaxHerding,
        ProbCover,
        TypiClust,
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
        Ec2,
        Eced,
        Random,
    )
}


def strategy_named(name: str, options: dict[str, Any] | None = None) -> Strategy:
    """The strategy of that name with these options; an unknown name suggests the nearest one."""
    if name not in STRATEGIES:
        raise UnknownNameError("strategy", name, STRATEGIES)
    return STRATEGIES[name].with_options(options or {})


__all__ = [
    "AUTO",
    "STRATEGIES",
    "Badge",
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
    "Ec2",
    "Eced",
    "Entropy",
    "EnumeratedBalance",
    "Epig",
    "GreedyBalance",
    "LeastConfidence",
    "Margin",
    "MaxHerding",
    "MeanStd",
    "PartitionBalance",
    "PowerBalance",
    "PowerBald",
    "PowerSampling",
    "ProbCover",
    "Problem",
    "Random",
    "SampledBalance",
    "StochasticBalance",
    "Strategy",
    "TypiClust",
    "UHerding",
    "VariationRatio",
    "auto_strategy",
    "strategy_named",
]

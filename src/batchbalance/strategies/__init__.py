"""The named strategies. A strategy is registered by being listed here."""

from typing import Any

from batchbalance.errors import UnknownNameError
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
    "Ec2",
    "Eced",
    "Entropy",
    "EnumeratedBalance",
    "Epig",
    "GreedyBalance",
    "LeastConfidence",
    "Margin",
    "MeanStd",
    "PartitionBalance",
    "PowerBalance",
    "PowerBald",
    "PowerSampling",
    "Problem",
    "Random",
    "SampledBalance",
    "StochasticBalance",
    "Strategy",
    "VariationRatio",
    "strategy_named",
]

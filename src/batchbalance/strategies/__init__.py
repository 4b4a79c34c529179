"""The named strategies. A strategy is registered by being listed here."""

from typing import Any

from batchbalance.errors import UnknownNameError
from batchbalance.strategies.balance import (
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
from batchbalance.strategies.baselines import Random
from batchbalance.strategies.contract import Choice, Problem, Strategy

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
    "Balance",
    "BatchBalance",
    "Choice",
    "ClusterBalance",
    "EnumeratedBalance",
    "GreedyBalance",
    "PartitionBalance",
    "PowerBalance",
    "Problem",
    "Random",
    "SampledBalance",
    "StochasticBalance",
    "Strategy",
    "strategy_named",
]

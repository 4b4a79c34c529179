"""The named strategies: every class with a name in the modules that are listed here."""

from typing import Any

from batchbalance.arguments.registry import Registry
from batchbalance.strategies import baselines, connected, coverage, refining, rivals, seeking
from batchbalance.strategies.auto import AUTO, auto_strategy
from batchbalance.strategies.baselines import Random
from batchbalance.strategies.contract import Choice, ConnectedStrategy, Strategy
from batchbalance.strategies.pool import Pool
from batchbalance.strategies.seeking import Explore, Seek


def _is_strategy(found: Any) -> bool:
    return isinstance(found, type) and issubclass(found, Strategy)


OWN: dict[str, type[Strategy]] = {
    found.name: found
    for module in (connected, coverage, seeking, baselines, rivals, refining)
    for key, found in vars(module).items()
    if _is_strategy(found) and found.__module__ == module.__name__ and hasattr(found, "name") and key[0] != "_"
}
globals().update({found.__name__: found for found in OWN.values()})  # the top of the package imports them from here

STRATEGIES: Registry[type[Strategy]] = Registry(
    "strategy", "batchbalance.strategies", OWN, _is_strategy, "a subclass of batchbalance.Strategy"
)


def strategy_named(name: str, options: dict[str, Any] | None = None) -> Strategy:
    """Return the strategy with this name, or at a path "package.module:Name", with these options.

    The error for an unknown name suggests the nearest one.
    """
    return STRATEGIES.named(name).with_options(options or {})


__all__ = [
    "AUTO",
    "OWN",
    "STRATEGIES",
    "Choice",
    "ConnectedStrategy",
    "Explore",
    "Pool",
    "Random",
    "Seek",
    "Strategy",
    "auto_strategy",
    "strategy_named",
]

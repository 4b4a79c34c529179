"""`refine`: first keep the points that any of several strategies would choose, then choose from them with one strategy.

Huseljic et al. 2025, "Cleaning the Pool" (arXiv 2511.22344), with one level of filtering.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, ClassVar

import torch
from pydantic import BeforeValidator, Field, PositiveInt, field_validator

from batchbalance.arguments.seeds import derived_seed
from batchbalance.strategies.contract import Choice, ConnectedStrategy, Strategy
from batchbalance.strategies.pool import Pool
from batchbalance.system.progress import progress

Names = Annotated[tuple[str, ...], BeforeValidator(lambda given: given.split(",") if isinstance(given, str) else given)]


class Refine(Strategy):
    """REFINE: a strategy on the points that other strategies chose from random parts of the pool.

    Attributes:
        strategy: chooses from the points that are kept, which are also the points to cover.
        ensemble: the strategies that filter, in turn; each with its default options.
        num_batches: the number of batches whose union is kept.
        share: the share of the candidates from which each of these batches is chosen.
    """

    name: ClassVar[str] = "refine"
    summary: ClassVar[str] = "u-herding on the union of batches chosen by many strategies from random parts of the pool"

    strategy: str = "u-herding"
    ensemble: Names = ("random", "margin", "badge", "bait", "typiclust", "drop-query", "max-herding", "u-herding")
    num_batches: PositiveInt = 50
    share: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] = 0.1

    @field_validator("strategy", "ensemble")
    @classmethod
    def _check_names(cls, given: str | tuple[str, ...]) -> str | tuple[str, ...]:
        if not given:
            raise ValueError("must name a strategy")
        for name in (given,) if isinstance(given, str) else given:
            _named(name)
        return given

    def flops(self, pool: Pool) -> float:
        """Return the operations of all batches."""
        filtering = sum(_named(name).flops(pool) for name in self.ensemble) / len(self.ensemble)
        return self.num_batches * self.share * filtering + _named(self.strategy).flops(pool)

    def memory_needed(self, pool: Pool) -> int:
        """Return the bytes of the strategy that needs most."""
        return max(_named(name).memory_needed(pool) for name in (self.strategy, *self.ensemble))

    def choose(self, pool: Pool) -> Choice:
        """Filter the candidates, and choose from those that are kept.

        The choice has no certificate, because that of the strategy holds only for the points that were kept.
        """
        self._check_edges()
        kept = torch.zeros(pool.num_points, dtype=torch.bool)
        with progress("filtering candidates", self.num_batches, pool.progress) as bar:
            for part, strategy in self._parts(pool):
                kept[strategy.choose(part).indices] = True
                bar.advance(1)
        found = _named(self.strategy).choose(pool.to_choose(candidates=kept.nonzero().flatten()))
        return replace(found, upper_bound=None, cover=None)

    def _parts(self, pool: Pool) -> Iterator[tuple[Pool, Strategy]]:
        """Yield random parts of the pool, and the strategy for each."""
        strategies = [_named(name) for name in self.ensemble]
        size = max(pool.batch_size, round(self.share * len(pool.candidates)))
        stream = pool.generator("refine")
        for i in range(self.num_batches):
            rows = torch.randperm(len(pool.candidates), generator=stream)[:size].sort().values
            seed = derived_seed(pool.seed, "refine", i)
            part = pool.to_choose(candidates=pool.candidates[rows], seed=seed, progress=False)
            yield part, strategies[i % len(strategies)]

    def _check_edges(self) -> None:
        """Raise unless all strategies join the same draws: a pool keeps one set of edges."""
        found = [_named(name) for name in (self.strategy, *self.ensemble)]
        if len({type(each).connect for each in found if isinstance(each, ConnectedStrategy)}) > 1:
            raise ValueError(
                f"`strategy` and `ensemble` of {self.name!r} must join draws in the same way, got "
                f"{', '.join(each.name for each in found)}; omit 'partition-balance'"
            )


def _named(name: str) -> Strategy:
    from batchbalance.strategies import strategy_named  # imported here to avoid an import cycle

    return strategy_named(name)

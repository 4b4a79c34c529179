"""The engine: labels, a model and a pool give the batch to label next.

`Learner` is the engine with a store; a project adds an audit set, a random arm and people; a trial is a learner whose
labels come from a data set; `select --labels` is the engine without a store. What they share is decided here: which
strategy "auto" is, what chooses before there is a model, and the seeds.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from batchbalance.arguments.seeds import derived_seed, generator
from batchbalance.errors import MissingPartError
from batchbalance.selection import Selection
from batchbalance.selection.choosing import choose_from
from batchbalance.strategies import Explore, Seek, Strategy, auto_strategy
from batchbalance.strategies.pool import Pool
from batchbalance.strategies.seeking import with_examples

MAX_UNLABELLED = 10_000  # points without labels that a fit looks at
LEAST_ALIKE = 10  # labels of one class from which on others are probably rare
ONE_CLASS = "all labels so far are of one class: half of the batch is as unlike them as can be, half is random"


def next_batch(
    pool: Pool,
    strategy: Strategy | None,
    classes: Sequence[Any],
    counts: Sequence[int],
    *,
    untrained: Callable[[], Pool | None] = lambda: None,
    class_names: Sequence[str] | None = None,
    advice: str = "",
    offered: Callable[[Strategy], int] | None = None,
    memory_budget: int | str | None = None,
) -> Selection:
    """Choose the next batch, by a strategy or by what can do without a model while there is none.

    A pool without predictions has no model: there are no labels, or too few. A strategy that can do without is then
    asked all the same; the others are asked about the untrained network if there is one. If that is not possible
    either, points unlike the labelled ones are explored once ten labels are all of one class, and otherwise "auto"
    decides by what is left.

    Args:
        pool: what is known, which points may be chosen, and how many.
        strategy: None for "auto".
        classes: all classes, as the strategy calls them.
        counts: how many labels each class has.
        untrained: makes the pool as an untrained network sees it, if there is one.
        class_names: what people call the classes; `classes` if omitted.
        advice: what helps to find a first example of a class.
        offered: how many points a strategy chooses, if that is not the batch size of the pool.
        memory_budget: as in ``select``.
    """
    seen = [number for number, count in enumerate(counts) if count]
    has_model = pool.has("predictions")
    notes: list[str] = []

    def chosen(by: Strategy, of: Pool) -> Selection:
        of = of if offered is None else of.to_choose(batch_size=offered(by))
        found = choose_from(of, by, memory_budget=memory_budget)
        return replace(found, warnings=(*notes, *found.warnings))

    if isinstance(strategy, Seek):
        strategy, missing = with_examples(strategy, classes, seen, class_names)
        strategy = strategy if has_model else None
        notes += [f"{missing}; {advice}" if advice else missing] * bool(missing)
    if strategy is not None:
        with suppress(MissingPartError) if not has_model else nullcontext():
            return chosen(strategy, pool)
        other = untrained()
        if other is not None:
            return chosen(strategy, other)
    if not has_model and len(seen) == 1 and sum(counts) >= LEAST_ALIKE and pool.has("embeddings"):
        notes = [f"{ONE_CLASS}; {advice}" if notes and advice else ONE_CLASS]
        return chosen(Explore(), pool)
    best, why = auto_strategy(pool, has_labels=bool(seen))
    named = "" if strategy is None else f"there is no model yet for {strategy.name!r}, so "
    return replace(chosen(best, pool), note=f"{named}auto chose {best.name!r}: {why}")


def batch_seed(seed: int, round_index: int) -> int:
    """Return the seed of one choice."""
    return derived_seed(seed, "select", round_index)


def fit_seed(seed: int, round_index: int) -> int:
    """Return the seed of one training."""
    return derived_seed(seed, "fit", round_index)


def sample_of(rows: Int[Tensor, " n"], seed: int) -> Int[Tensor, " m"]:
    """Return at most `MAX_UNLABELLED` of some rows, ascending, for a fit that looks at points without labels."""
    if len(rows) <= MAX_UNLABELLED:
        return rows
    return rows[torch.randperm(len(rows), generator=generator(seed, "unlabelled"))[:MAX_UNLABELLED].sort().values]

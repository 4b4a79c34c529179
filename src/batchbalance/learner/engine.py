"""The engine: labels, a model and a pool give the batch to label next.

`Learner` is the engine with a store; a project adds an audit set, a random arm and people; a trial is a learner whose
labels come from a data set; `select --labels` is the engine without a store. The decisions that they share are made
here: the strategy of "auto", the choice before there is a model, and the seeds.
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

MAX_UNLABELLED = 10_000  # maximum number of unlabelled points passed to a fit
LEAST_ALIKE = 10  # with this many labels of one class only, other classes are probably rare
ONE_CLASS = "all labels so far are of one class: half of the batch is far from them, half is random"


def next_batch(
    pool: Pool,
    strategy: Strategy | None,
    classes: Sequence[Any],
    counts: Sequence[int],
    *,
    untrained: Callable[[], Pool | None] = lambda: None,
    class_names: Sequence[str] | None = None,
    advice: str = "",
    memory_budget: int | str | None = None,
) -> Selection:
    """Choose the next batch, by a strategy, or without a model while there is none.

    A pool has no predictions while there are no labels, or too few. Strategies that need no predictions are then used
    as usual. Others use the untrained network if there is one. Otherwise, if at least ten labels are all of one
    class, "explore" chooses points far from the labelled ones; in all other cases "auto" chooses by the available
    data.

    Args:
        pool: the data, the candidates and the batch size.
        strategy: None for "auto".
        classes: all classes, as named in the strategy.
        counts: the number of labels of each class.
        untrained: returns the pool with predictions of an untrained network, if there is one.
        class_names: the names of the classes in messages; `classes` if omitted.
        advice: how to find a first example of a class, for messages.
        memory_budget: as in ``select``.
    """
    seen = [number for number, count in enumerate(counts) if count]
    has_model = pool.has("predictions")
    notes: list[str] = []

    def chosen(by: Strategy, of: Pool) -> Selection:
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
    """Return at most `MAX_UNLABELLED` of some rows, ascending, for a fit that uses unlabelled points."""
    if len(rows) <= MAX_UNLABELLED:
        return rows
    return rows[torch.randperm(len(rows), generator=generator(seed, "unlabelled"))[:MAX_UNLABELLED].sort().values]

"""Greedy in one round, for slow networks (RandGreeDi: Barbosa, Ene, Nguyen and Ward 2015).

The candidates are spread over shards at random, each shard picks a batch of its own, and a last greedy run chooses from
all of these batches; if the best batch of a shard is worth more, it is taken instead. In expectation over the spreading
the result is worth at least (1 − 1/e) / 2 of the best batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from batchbalance.arguments.seeds import generator
from batchbalance.balance.closed_form import BalanceModel, BalanceObjective, balance_path
from batchbalance.balance.greedy import Greedy, GreedyOptions, Objective, Offer, OneShard, Step, greedy, greedy_over


@dataclass(frozen=True, eq=False)
class ShardBatch:
    """What a shard picked.

    Attributes:
        positions: (≤ B,) among all candidates, in the order they were chosen.
        value: of the batch.
        largest: (≤ B,) the largest first gains of its points, or bounds on them.
        num_evaluations: gains computed.
    """

    positions: Int[Tensor, " b"]
    value: float
    largest: Float[Tensor, " b"]
    num_evaluations: int


def random_parts(num_candidates: int, num_parts: int, seed: int) -> list[Int[Tensor, " _"]]:
    """Positions of the candidates in ascending order, each in a part drawn at random; empty parts are omitted."""
    owners = torch.randint(num_parts, (num_candidates,), generator=generator(seed, "one-round"))
    parts = [(owners == part).nonzero().flatten() for part in range(num_parts)]
    return [part for part in parts if len(part)]


def shard_batch(objective: Objective, positions: Int[Tensor, " n"], options: GreedyOptions) -> ShardBatch:
    """The greedy batch of one shard, whose points have these `positions` among all candidates."""
    shard = _Remembering(objective, lazy=options.lazy)
    own = GreedyOptions(min(options.batch_size, len(positions)), options.seed)
    run = greedy_over(shard, objective.survival.copy(), own)
    return ShardBatch(positions[run.positions], float(run.gains.sum()), shard.first.largest, run.num_evaluations)


class _Remembering(OneShard):
    """A shard that keeps its first offer, which tells its largest first gains."""

    first: Offer

    def offers(self, step: Step, show: bool) -> Sequence[Offer]:
        """The offer of this part; the first one is kept."""
        offers = super().offers(step, show)
        if not len(step.chosen):
            self.first = offers[0]
        return offers


def merged(
    model: BalanceModel,
    candidates: Int[Tensor, " n"],
    batches: Sequence[ShardBatch],
    options: GreedyOptions,
) -> Greedy:
    """The better of a greedy run over all that the shards picked, and the best batch of a shard.

    The upper bound is the sum of the largest first gains, which the shards know; gains given the chosen batch would
    need a second round.
    """
    union = torch.cat([batch.positions for batch in batches]).sort().values
    run = greedy(BalanceObjective(model, candidates[union]), options)
    largest = torch.cat([batch.largest for batch in batches])
    run = replace(
        run,
        positions=union[run.positions],
        upper_bound=float(largest.topk(min(options.batch_size, len(largest))).values.sum()) * (1 + 1e-5),
        num_evaluations=run.num_evaluations + sum(batch.num_evaluations for batch in batches),
    )
    best = max(batches, key=lambda batch: batch.value)
    if best.value <= float(run.gains.sum()):
        return run
    others = run.positions[~torch.isin(run.positions, best.positions)]
    chosen = torch.cat([best.positions, others])[: options.batch_size]  # a small shard has fewer than B points
    gains = balance_path(model, candidates[chosen]).gains
    return replace(run, positions=chosen, gains=gains, continued_from=None, continuation=None)

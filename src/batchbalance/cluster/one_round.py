"""Greedy selection in one round, for slow networks (RandGreeDi: Barbosa, Ene, Nguyen and Ward 2015).

The candidates are assigned to shards at random, each shard chooses a batch of its own, and a last greedy run chooses
from the union of these batches. If the best batch of a shard is worth more, it is taken instead. In expectation over
the assignment the result is worth at least (1 − 1/e) / 2 of the best batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from batchbalance.arguments.seeds import generator
from batchbalance.balance.closed_form import BalanceModel, BalanceObjective, Survival, balance_path
from batchbalance.balance.greedy import SLACK, Greedy, GreedyOptions, LazyCandidates, greedy, greedy_from
from batchbalance.scores.ranking import Best


@dataclass(frozen=True, eq=False)
class ShardBatch:
    """The batch of one shard.

    Attributes:
        positions: (≤ B,) positions among all candidates, in the order they were chosen.
        value: Δ of the batch.
        largest: (≤ B,) the largest first gains of the shard's candidates, or bounds on them.
        num_evaluations: gains computed.
    """

    positions: Int[Tensor, " b"]
    value: float
    largest: Float[Tensor, " b"]
    num_evaluations: int


def random_parts(num_candidates: int, num_parts: int, seed: int) -> list[Int[Tensor, " _"]]:
    """Assign each candidate to a random part; return the ascending positions of each part that is not empty."""
    owners = torch.randint(num_parts, (num_candidates,), generator=generator(seed, "one-round"))
    parts = [(owners == part).nonzero().flatten() for part in range(num_parts)]
    return [part for part in parts if len(part)]


def shard_batch(objective: BalanceObjective, positions: Int[Tensor, " n"], options: GreedyOptions) -> ShardBatch:
    """Choose the greedy batch of one shard, whose points have these `positions` among all candidates."""
    own = GreedyOptions(min(options.batch_size, len(positions)), options.seed, lazy=options.lazy)
    candidates = _RememberingCandidates(objective, own)
    run = greedy_from(candidates, objective.survival.copy(), own)
    return ShardBatch(positions[run.positions], float(run.gains.sum()), candidates.first.largest, run.num_evaluations)


class _RememberingCandidates(LazyCandidates):
    """Candidates that remember the result of the first step, which contains their largest first gains."""

    first: Best

    def best(self, survival: Survival, chosen: Sequence[int], skip_small: bool = False) -> Best:
        best = super().best(survival, chosen, skip_small)
        if not chosen:
            self.first = best
        return best


def merged(
    model: BalanceModel,
    candidates: Int[Tensor, " n"],
    batches: Sequence[ShardBatch],
    options: GreedyOptions,
) -> Greedy:
    """Return the better of a greedy run over the union of the shards' batches and the best of these batches.

    The upper bound is the sum of the largest first gains, which the shards have computed. Gains given the chosen batch
    would need a second round.
    """
    union = torch.cat([batch.positions for batch in batches]).sort().values
    run = greedy(BalanceObjective(model, candidates[union]), options)
    largest = torch.cat([batch.largest for batch in batches])
    run = replace(
        run,
        positions=union[run.positions],
        upper_bound=float(largest.topk(min(options.batch_size, len(largest))).values.sum()) * SLACK,
        num_evaluations=run.num_evaluations + sum(batch.num_evaluations for batch in batches),
    )
    best = max(batches, key=lambda batch: batch.value)
    if best.value <= float(run.gains.sum()):
        return run
    others = run.positions[~torch.isin(run.positions, best.positions)]
    chosen = torch.cat([best.positions, others])[: options.batch_size]  # a small shard has fewer than B points
    gains = balance_path(model, candidates[chosen]).gains
    return replace(run, positions=chosen, gains=gains, continued_from=None, continuation=None)

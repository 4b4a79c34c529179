"""Greedy selection of a batch: repeatedly choose the candidate with the largest gain.

Δ is monotone and submodular, so a gain can only fall while the batch grows. An old gain is therefore an upper bound on
the new one, and a candidate whose bound is below the best new gain need not be evaluated again (lazy greedy). Working
precision may be float32. Candidates that float32 cannot distinguish are compared in float64, and ties go to the lowest
position, so neither laziness nor the way the pool is divided changes the batch.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from batchbalance.arguments.seeds import generator, gumbel
from batchbalance.balance.closed_form import BalanceModel, BalanceObjective, Survival
from batchbalance.predictions import Predictions
from batchbalance.scores.ranking import Best, LazyBounds, power_sample, quantised, weighed
from batchbalance.system.progress import progress

Continuation = Literal["tail", "power", "random"]

NOTHING_LEFT = 2.0**-52  # below this share of surviving weight, Δ no longer changes in float64
NEAR_TIE = 1e-4  # relative; far above the error of a float32 gain
PROBE = 512  # candidates evaluated before deciding between a lazy step and a full pass
LAZY_SHARE = 0.25  # a lazy step that would evaluate more than this share of the candidates becomes a full pass
MAX_REST = 8  # full passes before laziness is tried again, once it has failed several times in a row
LOG_SMALLEST = math.log(1e-30)  # below this, float32 gains come near its smallest numbers and lose digits
SLACK = 1 + 1e-5  # float32 gains may be off by a few parts in a million; an upper bound on them must not be


@dataclass(frozen=True)
class GreedyOptions:
    """Options of a greedy run.

    Attributes:
        batch_size: B, at most the number of candidates.
        seed: seed of the random parts.
        beta: if given, each pick is sampled with p ∝ gain^β instead of taking the largest gain.
        lazy: use old gains as upper bounds to skip evaluations. Never changes the batch.
        continuation: how to continue once the surviving weight is negligible in float64: "tail" continues with the
            rescaled gains (and with "power" once those are exactly 0), "power" samples with p ∝ first gain, "random"
            samples uniformly.
        progress: show progress.
    """

    batch_size: int
    seed: int = 0
    beta: float | None = None
    lazy: bool = True
    continuation: Continuation = "tail"
    progress: bool = False


@dataclass(frozen=True)
class Greedy:
    """The result of a greedy run.

    Attributes:
        positions: (B,) in the order they were chosen.
        gains: (B,) float64, in units of the objective.
        upper_bound: upper bound on the value of any batch of B candidates.
        continued_from: the pick (from 0) at which the continuation began because nothing meaningful was left to gain,
            or None.
        continuation: how the batch was filled from there on.
        num_evaluations: total number of gains computed.
    """

    positions: Int[Tensor, " B"]
    gains: Float[Tensor, " B"]
    upper_bound: float
    continued_from: int | None
    continuation: Continuation | None
    num_evaluations: int


@runtime_checkable
class Candidates(Protocol):
    """The candidates of a greedy run: ``LazyCandidates`` in this process, or ``cluster.shards.RayCandidates``."""

    @property
    def num_candidates(self) -> int:
        """The number of candidates."""

    def best(self, survival: Survival, chosen: Sequence[int]) -> Best:
        """Return the next pick; its position is -1 if no candidate gains anything."""

    def factors(self, position: int) -> tuple[Float[Tensor, "S E"], Float[Tensor, "S E"]]:
        """Return (1 − G, G) of a candidate."""

    def first_gains(self, survival: Survival) -> Float[Tensor, " n"]:
        """Return the gains of all candidates given a survival."""


@runtime_checkable
class Executor(Protocol):
    """Runs greedy selection outside this process."""

    def greedy(self, model: BalanceModel, candidates: Int[Tensor, " n"], options: GreedyOptions) -> Greedy:
        """Run ``greedy`` on the candidates."""

    def unsureness(self, predictions: Predictions) -> float:
        """Compute ``scores.unsureness``."""


def greedy(objective: BalanceObjective, options: GreedyOptions) -> Greedy:
    """Choose the candidate with the largest gain, B times. The survival of the objective is modified."""
    return greedy_from(LazyCandidates(objective, options), objective.survival, options)


def greedy_from(candidates: Candidates, survival: Survival, options: GreedyOptions) -> Greedy:
    """Choose the candidate with the largest gain, B times. The batch is within 1 − 1/e of the best one.

    Args:
        candidates: the points to choose from.
        survival: the survival of an empty batch; it is modified.
        options: batch size, seed, and how to continue once nothing is left to gain.
    """
    first = survival.copy()
    chosen: list[int] = []
    gains: list[float] = []
    upper_bound, num_evaluations = math.inf, 0
    continued_from: int | None = None
    applied: Continuation | None = None

    def add(position: int) -> None:
        discounts, kept = candidates.factors(position)
        gains.append(float((survival.scaled * discounts).sum()) * math.exp(survival.log_scale))
        survival.multiply(kept)
        chosen.append(position)
        bar.advance()

    with progress("choosing points", options.batch_size, options.progress) as bar:
        while len(chosen) < options.batch_size:
            if applied is None and survival.log_total - first.log_total < math.log(NOTHING_LEFT):
                applied, continued_from = options.continuation, len(chosen)
            position = -1
            if not chosen or applied in (None, "tail"):  # the first step also gives the bound on the best batch
                best = candidates.best(survival, chosen)
                position = best.position
                num_evaluations += best.num_evaluations
                # The best batch is worth at most Δ(A) plus the B largest gains given A, for every prefix A.
                upper_bound = min(upper_bound, sum(gains) + float(best.largest.sum()) * SLACK)
            if position >= 0:
                add(position)
                continue
            applied = "random" if options.continuation == "random" else "power"
            continued_from = len(chosen)
            for position in _fill(candidates, first, chosen, applied, options):
                add(position)
    return Greedy(
        torch.tensor(chosen),
        torch.tensor(gains, dtype=torch.float64),
        upper_bound,
        continued_from,
        applied,
        num_evaluations,
    )


def _fill(
    candidates: Candidates, first: Survival, chosen: Sequence[int], how: Continuation, options: GreedyOptions
) -> list[int]:
    """Return the rest of the batch, sampled by first gains or uniformly."""
    is_open = torch.ones(candidates.num_candidates, dtype=torch.bool)
    is_open[list(chosen)] = False
    left = is_open.nonzero().flatten()
    scores = candidates.first_gains(first)[left] if how == "power" else torch.ones(len(left), dtype=torch.float64)
    stream = generator(options.seed, "continuation")
    picks = power_sample(scores, options.batch_size - len(chosen), 1.0, generator=stream)
    return left[picks].tolist()


def pick_noise(options: GreedyOptions, num_candidates: int, num_chosen: int) -> Float[Tensor, " n"]:
    """Return the Gumbel noise of all candidates for one pick: the largest of β · log gain + noise has p ∝ gain^β."""
    return gumbel(num_candidates, generator=generator(options.seed, "stochastic-greedy", num_chosen))


class LazyCandidates:
    """Candidates in memory, with an upper bound on the gain of each.

    Bounds are stored as logs in units of the objective. They do not depend on the scale of the survival at the time,
    so bounds from different steps can be compared.

    Args:
        objective: the gains of the candidates.
        options: the options of the run.
        noise: returns the noise of these candidates for the pick after a number of others; ``pick_noise`` if omitted.
    """

    def __init__(
        self, objective: BalanceObjective, options: GreedyOptions, noise: Callable[[int], Tensor] | None = None
    ) -> None:
        self.objective = objective
        self._options = options
        self._noise = noise or partial(pick_noise, options, self.num_candidates)
        self._bounds = LazyBounds(self.num_candidates)
        self._failures = self._rest = 0  # lazy steps in a row that became full passes; steps to go without trying
        self._is_first = True

    @property
    def num_candidates(self) -> int:
        """The number of candidates."""
        return self.objective.num_candidates

    def factors(self, position: int) -> tuple[Float[Tensor, "S E"], Float[Tensor, "S E"]]:
        """Return (1 − G, G) of a candidate."""
        return self.objective.factors(position)

    def first_gains(self, survival: Survival) -> Float[Tensor, " n"]:
        """Return the gains of all candidates given a survival, in working precision."""
        self.objective.survival = survival
        return self._log(self.objective.gains()).exp()

    def best(self, survival: Survival, chosen: Sequence[int], skip_small: bool = False) -> Best:
        """Return the candidate of largest gain, or of largest (β · log gain + noise).

        Args:
            survival: the survival of the chosen points.
            chosen: their positions.
            skip_small: return no candidate if all gains are too small for float32, instead of computing all of them
                in float64.
        """
        self.objective.survival = survival
        options, bounds = self._options, self._bounds
        num_before = bounds.num_evaluations
        bounds.close(torch.tensor(chosen, dtype=torch.long))
        power, noise, margin = 1.0, torch.zeros((), dtype=torch.float64).expand(self.num_candidates), NEAR_TIE
        if options.beta is not None:
            power, noise, margin = options.beta, self._noise(len(chosen)), options.beta * NEAR_TIE
        self._refresh(lambda values: weighed(values, power, noise), margin)
        # `_refresh` has replaced every bound within `margin` of the best by a gain in working precision. These
        # contenders are compared in float64. Gains that are too small for float32 cannot rule out any candidate.
        is_small = float(bounds.values.max()) - survival.log_scale < LOG_SMALLEST
        keys = weighed(bounds.values, power, noise)
        contenders = (bounds.is_open if is_small else keys >= keys.max() - margin).nonzero().flatten()
        if is_small and skip_small:
            contenders = contenders[:0]
        gains = self.objective.exact_gains(contenders)
        bounds.values[contenders] = self._log(gains)
        largest = bounds.largest(options.batch_size).exp()
        num_evaluations = bounds.num_evaluations - num_before
        if not bool((gains > 0).any()):
            return Best(-1, -math.inf, largest, num_evaluations)
        exact = quantised(gains) if options.beta is None else weighed(gains.log(), power, noise[contenders])
        first = int(exact.argmax())
        return Best(int(contenders[first]), float(exact[first]), largest, num_evaluations)

    def _log(self, gains: Tensor) -> Tensor:
        """Return the logs of gains in units of the objective; `gains` come without the scale of the survival."""
        return gains.log() + self.objective.survival.log_scale

    def _evaluate_all(self) -> None:
        with progress("scoring points", self.num_candidates, self._options.progress and self._is_first) as bar:
            self._bounds.set(self._log(self.objective.gains(bar=bar)))

    def _refresh(self, keys: Callable[[Tensor], Tensor], margin: float) -> None:
        """Evaluate again every candidate that could still be the best, or nearly the best.

        A lazy step evaluates the candidates with the largest bounds first and stops once no other bound reaches the
        best gain. If the bounds rule out too few candidates, the step becomes a full pass, and the evaluations before
        it were wasted. After several such steps in a row, laziness is not tried again for a few steps.
        """
        if self._is_first:
            self._evaluate_all()
            self._is_first = False
        elif not self._options.lazy or int(self._bounds.is_open.sum()) <= 2 * PROBE or self._rest:
            self._rest = max(0, self._rest - 1)
            self._evaluate_all()
        elif self._bounds.settle(
            lambda positions: self._log(self.objective.gains(positions)), keys=keys, margin=margin,
            block=PROBE, growth=4, largest_block=4 * PROBE, max_share=LAZY_SHARE,
        ):  # fmt: skip
            self._failures = 0
        else:
            self._failures += 1
            self._rest = min(2**self._failures, MAX_REST)
            self._evaluate_all()

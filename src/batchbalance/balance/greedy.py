"""The greedy engine: pick the point of largest gain, again and again, from a pool in one part or in many.

A greedy run holds the survival matrix and what was chosen. The candidates lie in shards, here or on other machines;
each keeps bounds on the gains of its points and offers its best one. A step is the same in all cases, so that how the
pool is cut never changes a batch: working precision may be float32, but what it cannot tell apart is decided in
float64, and ties go to the lowest position.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol, get_args, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from batchbalance.arguments.seeds import generator, gumbel
from batchbalance.balance.closed_form import BalanceModel, Survival
from batchbalance.predictions import Predictions
from batchbalance.scores.bounds import LazyBounds
from batchbalance.scores.ranking import power_sample, quantised, weighed
from batchbalance.system.progress import Bar
from batchbalance.system.progress import progress as shown_progress

Continuation = Literal["tail", "power", "random"]
CONTINUATIONS: tuple[str, ...] = get_args(Continuation)

NOTHING_LEFT = 2.0**-52  # below this share of surviving weight, Δ no longer changes in float64
NEAR_TIE = 1e-4  # relative; far above what a float32 gain is off by
PROBE = 512  # candidates looked at before deciding between a lazy step and a full pass
LAZY_SHARE = 0.25  # a lazy step that must look at more than this share of the candidates becomes a full pass
MAX_REST = 8  # full passes before laziness is tried again, once it has failed several times in a row
LOG_SMALLEST = math.log(1e-30)  # below this, float32 gains come near its smallest numbers and lose digits


@dataclass(frozen=True)
class GreedyOptions:
    """How a greedy run is done.

    Attributes:
        batch_size: B, at most the number of candidates.
        seed: for the random parts.
        beta: if given, each pick is sampled with p ∝ gain^β instead of the largest.
        lazy: use that an old gain bounds a new one from above, to skip evaluations. Never changes the batch.
        continuation: what to do once what survives is below float64 meaning: "tail" goes on by the rescaled gains
            (and by "power" once those are exactly 0), "power" samples p ∝ first gain, "random" samples uniformly.
        progress: show how far it is.
    """

    batch_size: int
    seed: int = 0
    beta: float | None = None
    lazy: bool = True
    continuation: Continuation = "tail"
    progress: bool = False


@dataclass(frozen=True)
class Greedy:
    """What a greedy run chose.

    Attributes:
        positions: (B,) in the order they were chosen.
        gains: (B,) float64, in units of the objective.
        upper_bound: no batch of B candidates can be worth more than this.
        continued_from: the pick (from 0) at which the continuation began, because nothing meaningful was left to gain.
        continuation: how the batch was filled from there on.
        num_evaluations: gains computed in all.
    """

    positions: Int[Tensor, " B"]
    gains: Float[Tensor, " B"]
    upper_bound: float
    continued_from: int | None
    continuation: Continuation | None
    num_evaluations: int


@runtime_checkable
class Objective(Protocol):
    """A monotone submodular set function over positions 0 … num_candidates − 1, given what survives a batch."""

    survival: Survival

    @property
    def num_candidates(self) -> int:
        """How many positions there are."""

    def gains(self, positions: Int[Tensor, " p"] | None = None, bar: Bar | None = None) -> Float[Tensor, " p"]:
        """Gains in working precision, as float64, without the scale of the survival."""

    def exact_gains(self, positions: Int[Tensor, " p"]) -> Float[Tensor, " p"]:
        """Gains computed in float64, without the scale of the survival."""

    def factors(self, position: int) -> tuple[Float[Tensor, "S E"], Float[Tensor, "S E"]]:
        """(1 − G, G) of a point: the share of the survival that it takes, and the share that it leaves."""

    def keep(self, positions: Int[Tensor, " p"]) -> None:
        """Told once, after the first pass: the positions in the order in which they are worth memory."""


@dataclass(frozen=True, eq=False)
class Step:
    """What a shard must know to make its offer; it need not have seen the steps before.

    Attributes:
        survival: what survives the points chosen so far.
        chosen: their positions.
        num_candidates: positions of all shards together.
        options: of the run.
        exact: look at all points in float64, because every shard found its gains too small for float32.
    """

    survival: Survival
    chosen: Int[Tensor, " b"]
    num_candidates: int
    options: GreedyOptions
    exact: bool = False


@dataclass(frozen=True, eq=False)
class Offer:
    """The best point of a shard.

    Attributes:
        position: among all candidates; -1 if no point gains anything.
        key: what offers are compared by, float64; -inf if no point gains anything.
        largest: (≤ B,) the largest gains and bounds on gains, in units of the objective.
        num_evaluations: gains computed for this step.
        too_small: no offer is made, because the gains are too small for float32.
    """

    position: int
    key: float
    largest: Float[Tensor, " b"]
    num_evaluations: int
    too_small: bool = False


class Shard:
    """Some of the candidates. Bounds are kept as unscaled logs, so that they stay comparable for ever.

    Args:
        objective: over the points of this shard.
        positions: their positions among all candidates, ascending.
        lazy: as in ``GreedyOptions``.
    """

    def __init__(self, objective: Objective, positions: Int[Tensor, " n"], *, lazy: bool = True):
        self.objective = objective
        self.positions = positions
        self.lazy = lazy
        self._bounds = LazyBounds(len(positions))
        self._failures = self._rest = 0  # lazy steps in a row that became full passes; steps to go without trying
        self._is_first = True

    def first_gains(self, survival: Survival, bar: Bar | None = None) -> Float[Tensor, " n"]:
        """Gains of all points given a survival, in working precision."""
        self.objective.survival = survival
        return self._log(self.objective.gains(bar=bar)).exp()

    def offer(self, step: Step, bar: Bar | None = None) -> Offer:
        """The point of largest gain, or of largest (log gain · β + noise)."""
        self.objective.survival = step.survival
        options, bounds = step.options, self._bounds
        done = bounds.num_evaluations
        bounds.close(torch.isin(self.positions, step.chosen))
        power, noise, margin = 1.0, torch.zeros((), dtype=torch.float64).expand(len(self.positions)), NEAR_TIE
        if options.beta is not None:
            stream = generator(options.seed, "stochastic-greedy", len(step.chosen))
            noise = gumbel(step.num_candidates, generator=stream)[self.positions]
            power, margin = options.beta, options.beta * NEAR_TIE
        self._refresh(lambda values: weighed(values, power, noise), margin, bar)
        num_evaluations = bounds.num_evaluations - done
        if step.exact:
            contenders = bounds.is_open.nonzero().flatten()
        elif float(bounds.values.max()) - step.survival.log_scale < LOG_SMALLEST:
            return Offer(-1, -math.inf, self._largest(options.batch_size), num_evaluations, True)
        else:
            keys = weighed(bounds.values, power, noise)
            contenders = (keys >= keys.max() - margin).nonzero().flatten()
        gains = self.objective.exact_gains(contenders)
        bounds.values[contenders] = self._log(gains)
        largest = self._largest(options.batch_size)
        if not bool((gains > 0).any()):
            return Offer(-1, -math.inf, largest, num_evaluations)
        exact = quantised(gains) if options.beta is None else weighed(gains.log(), power, noise[contenders])
        best = int(exact.argmax())
        return Offer(int(self.positions[contenders[best]]), float(exact[best]), largest, num_evaluations)

    def _largest(self, num: int) -> Tensor:
        """The largest gains, or bounds where a gain is out of date: what the upper bound of the run is made of."""
        return self._bounds.values.topk(min(num, len(self.positions))).values.exp()

    def _log(self, gains: Tensor) -> Tensor:
        """Logs of gains in units of the objective: `gains` come without the scale of the survival."""
        return gains.log() + self.objective.survival.log_scale

    def _evaluate_all(self, bar: Bar | None = None) -> None:
        self._bounds.set(self._log(self.objective.gains(bar=bar)))

    def _refresh(self, keys: Callable[[Tensor], Tensor], margin: float, bar: Bar | None) -> None:
        """Evaluate again every position that could still be the best or nearly so.

        Gains only fall from step to step, so an old gain is a bound: a position whose bound is below the best new gain
        needs no look. If bounds rule too few out, the step becomes a full pass and costs more than it spared. After
        several such steps in a row, some full passes are made without trying.
        """
        if self._is_first:
            self._is_first = False
            self._evaluate_all(bar)
            self.objective.keep(self._bounds.values.argsort(descending=True))
        elif not self.lazy or int(self._bounds.is_open.sum()) <= 2 * PROBE or self._rest:
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


@runtime_checkable
class Shards(Protocol):
    """The candidates of a greedy run, in one part or many, here or on other machines."""

    @property
    def num_candidates(self) -> int:
        """Positions of all parts together."""

    def offers(self, step: Step, show: bool) -> Sequence[Offer]:
        """The best point of each part; `show` progress if every point is looked at for the first time."""

    def factors(self, position: int) -> tuple[Float[Tensor, "S E"], Float[Tensor, "S E"]]:
        """(1 − G, G) of a point."""

    def first_gains(self, survival: Survival) -> Float[Tensor, " n"]:
        """Gains of all candidates given a survival."""

    def close(self) -> None:
        """End what runs elsewhere."""


@runtime_checkable
class Executor(Protocol):
    """Where greedy runs are done, if not in this process."""

    def greedy(self, model: BalanceModel, candidates: Int[Tensor, " n"], options: GreedyOptions) -> Greedy:
        """``greedy`` on the candidates, elsewhere."""

    def unsureness(self, predictions: Predictions) -> float:
        """``scores.unsureness``, elsewhere."""


class OneShard:
    """All candidates in this process."""

    def __init__(self, objective: Objective, *, lazy: bool):
        self._objective = objective
        self._shard = Shard(objective, torch.arange(objective.num_candidates), lazy=lazy)

    @property
    def num_candidates(self) -> int:
        """How many there are."""
        return self._objective.num_candidates

    def offers(self, step: Step, show: bool) -> Sequence[Offer]:
        """The offer of the one shard there is."""
        with shown_progress("scoring points", self.num_candidates, show) as bar:
            return [self._shard.offer(step, bar)]

    def factors(self, position: int) -> tuple[Float[Tensor, "S E"], Float[Tensor, "S E"]]:
        """(1 − G, G) of a point."""
        return self._objective.factors(position)

    def first_gains(self, survival: Survival) -> Float[Tensor, " n"]:
        """Gains of all candidates given a survival."""
        return self._shard.first_gains(survival)

    def close(self) -> None:
        """Nothing runs elsewhere."""


def greedy(objective: Objective, options: GreedyOptions) -> Greedy:
    """``greedy_over`` for candidates in this process; the survival of the objective is changed."""
    return greedy_over(OneShard(objective, lazy=options.lazy), objective.survival, options)


def greedy_over(shards: Shards, survival: Survival, options: GreedyOptions) -> Greedy:
    """Pick the point of largest gain, B times; the result is within 1 − 1/e of the best batch.

    Args:
        shards: the candidates.
        survival: what survives an empty batch.
        options: batch size, seed, and how to go on once nothing is left to gain.
    """
    run = _GreedyRun(shards, survival, options)
    continued_from: int | None = None
    applied: Continuation | None = None
    best = run.best_position(options.progress)
    with shown_progress("choosing points", options.batch_size, options.progress) as bar:
        while len(run.chosen) < options.batch_size:
            if applied is None and run.log_remaining < math.log(NOTHING_LEFT):
                applied, continued_from = options.continuation, len(run.chosen)
            if run.chosen:
                best = run.best_position() if applied in (None, "tail") else None
            if best is not None:
                run.add(best)
                bar.advance()
                continue
            applied, continued_from = "random" if options.continuation == "random" else "power", len(run.chosen)
            run.fill(applied, bar.advance)
    return Greedy(
        torch.tensor(run.chosen),
        torch.tensor(run.gains, dtype=torch.float64),
        run.upper_bound,
        continued_from,
        applied,
        run.num_evaluations,
    )


class _GreedyRun:
    """The moving parts of ``greedy_over``: the survival, the picks so far, and a bound on the best batch."""

    def __init__(self, shards: Shards, survival: Survival, options: GreedyOptions):
        self._shards = shards
        self._survival = survival
        self._first = survival.copy()
        self._step = Step(survival, torch.empty(0, dtype=torch.long), shards.num_candidates, options)
        self.chosen: list[int] = []
        self.gains: list[float] = []
        self.num_evaluations = 0
        self.upper_bound = math.inf

    @property
    def log_remaining(self) -> float:
        """Log of the share of the largest value that is still to be gained."""
        return self._survival.log_total - self._first.log_total if self._first.log_total > -math.inf else -math.inf

    def best_position(self, show: bool = False) -> int | None:
        """The next pick, or None if no candidate gains anything; also lowers the bound on the best batch."""
        step = replace(self._step, chosen=torch.tensor(self.chosen, dtype=torch.long))
        offers = self._offers(step, show)
        if all(offer.too_small for offer in offers):
            offers = self._offers(replace(step, exact=True), False)
        # Δ(A) plus the B largest gains given A bounds the best batch. Gains in float32 may be off by a few parts in a
        # million, the bound must not be.
        largest = torch.cat([offer.largest for offer in offers])
        largest = largest.topk(min(step.options.batch_size, len(largest))).values
        self.upper_bound = min(self.upper_bound, sum(self.gains) + float(largest.sum()) * (1 + 1e-5))
        best = min(offers, key=lambda offer: (-offer.key, offer.position))
        return None if best.position < 0 else best.position

    def _offers(self, step: Step, show: bool) -> Sequence[Offer]:
        """One offer from each shard, and their evaluations counted."""
        offers = self._shards.offers(step, show)
        self.num_evaluations += sum(offer.num_evaluations for offer in offers)
        return offers

    def add(self, position: int) -> None:
        """Add a point to the batch, and remove from the survival what the point discounts."""
        discounts, kept = self._shards.factors(position)
        self.gains.append(float((self._survival.scaled * discounts).sum()) * math.exp(self._survival.log_scale))
        self._survival.multiply(kept)
        self.chosen.append(position)

    def fill(self, how: Continuation, advance: Callable[[], None]) -> None:
        """Complete the batch without looking at gains any more."""
        is_open = torch.ones(self._shards.num_candidates, dtype=torch.bool)
        is_open[self.chosen] = False
        left = is_open.nonzero().flatten()
        scores = torch.ones(len(left), dtype=torch.float64)
        if how == "power":
            scores = self._shards.first_gains(self._first)[left]
        options = self._step.options
        stream = generator(options.seed, "continuation")
        picks = power_sample(scores, options.batch_size - len(self.chosen), 1.0, generator=stream)
        for position in left[picks].tolist():
            self.add(position)
            advance()

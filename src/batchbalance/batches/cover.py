"""Coverage of a pool in the space of embeddings: one objective, chosen from by lazy greedy.

    F(A) = Σ_{x∈T} w(x) · max_{a ∈ A ∪ labelled} κ(x, a)

Monotone submodular for every w ≥ 0 and κ in [0, 1]: what a point adds to the cover of x is (κ(x, a) − m(x))₊, which
falls in m(x), the cover of x so far. Weights 1 and a Gaussian κ give MaxHerding (arXiv 2407.12212), weights of
uncertainty UHerding (arXiv 2412.20644), a ball in place of the Gaussian ProbCover (arXiv 2205.11320).

Matrix products of centred rows give upper bounds on gains, never less than the gain whatever is rounded. The few points
whose bound reaches the best gain are measured by differences of coordinates in float64. So neither the precision of the
products nor how the pool is cut ever changes a batch; ties go to the lowest position.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from batchbalance.arguments.seeds import generator
from batchbalance.balance.greedy import Offer
from batchbalance.batches.distances import BLOCK_NUMBERS
from batchbalance.batches.targets import Kernel, Targets
from batchbalance.predictions import spans_of
from batchbalance.scores.bounds import LazyBounds
from batchbalance.scores.ranking import quantised
from batchbalance.system import threads
from batchbalance.system.progress import Bar, progress

Rows = Callable[[Int[Tensor, " p"]], Float[Tensor, "p D"]]  # embeddings of some points, by their place in the pool

MAX_TARGETS, TARGETS_PER_PICK = 4096, 40  # targets at most, unless the batch is large
CACHE_LIMIT = 3 * 2**28  # bytes of bounds on similarities that are kept at most
NUM_RANDOM_BATCHES = 20
FIRST_BLOCK, LARGEST_BLOCK = 128, 1024  # candidates looked at before the first check, and at most at a time
EXACT_BLOCK = 1  # candidates measured by differences at a time, at first


@dataclass(frozen=True, eq=False)
class CoverStep:
    """What a shard must know to make its offer.

    Attributes:
        covered: (T,) the cover of each target so far.
        chosen: positions chosen so far.
        batch_size: B, the number of points to choose.
    """

    covered: Float[Tensor, " T"]
    chosen: Int[Tensor, " b"]
    batch_size: int


@dataclass(frozen=True, eq=False)
class CoverOffer(Offer):
    """The best point of a shard of candidates.

    Attributes:
        similarity: (T,) its κ to every target, measured by differences; None if no point gains anything.
    """

    similarity: Float[Tensor, " T"] | None = None


class CoverShard:
    """Some of the candidates, with upper bounds on their gains.

    Args:
        targets: what is to be covered.
        rows: embeddings of the candidates, by their place in the pool.
        candidates: (n,) their places in the pool.
        positions: (n,) their positions among all candidates, ascending.
        cache_bytes: what may be kept in memory to be faster.
    """

    def __init__(
        self,
        targets: Targets,
        rows: Rows,
        candidates: Int[Tensor, " n"],
        positions: Int[Tensor, " n"],
        *,
        cache_bytes: int = CACHE_LIMIT,
    ) -> None:
        self._targets, self._rows = targets, rows
        self._candidates, self._positions = candidates, positions
        self._bounds = LazyBounds(len(candidates))
        self._covered = targets.covered
        self._best = (-math.inf, -1, targets.covered)  # the largest gain measured, whose it is, and κ of that point
        self._is_first = True
        num_kept = min(cache_bytes, CACHE_LIMIT) // (len(targets) * targets.dtype.itemsize)
        self._kept = torch.empty(min(num_kept, len(candidates)), len(targets), dtype=targets.dtype)
        self._slots = torch.full((len(candidates),), -1)
        self._num_kept = 0

    def offer(self, step: CoverStep, bar: Bar | None = None) -> CoverOffer:
        """The point of largest gain."""
        bounds, done = self._bounds, self._bounds.num_evaluations
        self._covered, self._best = step.covered, (-math.inf, -1, step.covered)
        bounds.close(torch.isin(self._positions, step.chosen))
        if self._is_first:
            self._first_pass(bar or Bar())
        else:
            bounds.settle(
                self._upper_gains, margin=0.0, floor=0.0, block=FIRST_BLOCK, growth=2, largest_block=LARGEST_BLOCK
            )
        bounds.settle(
            self._gains, keys=quantised, margin=0.0, floor=0.0, block=EXACT_BLOCK, growth=2,
            largest_block=max(EXACT_BLOCK, BLOCK_NUMBERS // len(self._targets)),
        )  # fmt: skip
        num_evaluations = bounds.num_evaluations - done
        largest = bounds.values.topk(min(step.batch_size, len(bounds.values))).values.clamp_min(0)
        keys = quantised(bounds.values)
        best = int(keys.argmax())  # the first of the largest
        if not float(keys[best]) > 0:
            return CoverOffer(-1, -math.inf, largest, num_evaluations)
        _, whose, similarity = self._best
        if whose != best:  # a tie went to a lower position
            similarity = self._targets.similarities(self._rows(self._candidates[[best]]))[0]
        return CoverOffer(
            int(self._positions[best]), float(keys[best]), largest, num_evaluations, similarity=similarity
        )

    def _first_pass(self, bar: Bar) -> None:
        self._is_first = False
        num = len(self._candidates)
        gains = torch.empty(num, dtype=torch.float64)
        keep_all = len(self._kept) == num

        def fill(span: slice) -> None:
            found = self._similarity_bounds(self._candidates[span])
            if keep_all:
                self._kept[span] = found.cpu()
            gains[span] = self._targets.bounds_of(found, self._covered)

        threads.each(fill, spans_of(num, BLOCK_NUMBERS // max(len(self._targets), self._targets.num_features)), bar)
        if keep_all:
            self._slots = torch.arange(num)
            self._num_kept = num
        self._bounds.set(gains)

    def _gains(self, positions: Int[Tensor, " p"]) -> Float[Tensor, " p"]:
        similarities = self._targets.similarities(self._rows(self._candidates[positions]))
        gains = self._targets.gains(similarities, self._covered)
        largest = int(gains.argmax())
        if float(gains[largest]) > self._best[0]:
            self._best = float(gains[largest]), int(positions[largest]), similarities[largest].clone()
        return gains

    def _upper_gains(self, positions: Int[Tensor, " p"]) -> Float[Tensor, " p"]:
        """Upper bounds on gains, from what is kept and from matrix products."""
        gains = torch.empty(len(positions), dtype=torch.float64)
        is_kept = self._slots[positions] >= 0
        if bool(is_kept.any()):
            kept = self._kept[self._slots[positions[is_kept]]].to(self._covered.device)
            gains[is_kept] = self._targets.bounds_of(kept, self._covered)
        new = positions[~is_kept]
        if len(new):
            found = self._similarity_bounds(self._candidates[new])
            self._keep(new, found)
            gains[~is_kept] = self._targets.bounds_of(found, self._covered)
        return gains

    def _similarity_bounds(self, places: Int[Tensor, " p"]) -> Float[Tensor, "p T"]:
        """Upper bounds on κ; where a candidate is a target, its products may be known."""
        which = self._targets.cloud.known(places)
        is_known = which >= 0
        if not bool(is_known.any()):
            return self._targets.similarity_bounds(self._rows(places))
        found = torch.empty(len(places), len(self._targets), dtype=self._targets.dtype, device=self._covered.device)
        found[is_known] = self._targets.own_bounds(which[is_known])
        if not bool(is_known.all()):
            found[~is_known] = self._targets.similarity_bounds(self._rows(places[~is_known]))
        return found

    def _keep(self, positions: Int[Tensor, " p"], found: Float[Tensor, "p T"]) -> None:
        """Keep as many as there is room for."""
        num = min(len(positions), len(self._kept) - self._num_kept)
        slots = torch.arange(self._num_kept, self._num_kept + num)
        self._kept[slots] = found[:num].cpu()
        self._slots[positions[:num]] = slots
        self._num_kept += num


@runtime_checkable
class CoverShards(Protocol):
    """The candidates of a run, in one part or many, here or on other machines."""

    def offers(self, step: CoverStep, show: bool) -> Sequence[CoverOffer]:
        """The best point of each part."""


@runtime_checkable
class CoverExecutor(Protocol):
    """Where the shards of a run live, if not in this process."""

    def cover(self, problem: "CoverProblem") -> "Covering":
        """``cover`` elsewhere."""


@dataclass(frozen=True, eq=False)
class CoverProblem:
    """What is to be covered, by which points.

    Attributes:
        targets: what is to be covered.
        rows: embeddings of points, by their place in the pool.
        candidates: (n,) places of the points that may be chosen, ascending.
        batch_size: B, at most n.
        seed: for what is filled up at random, and for the random batches.
        cache_bytes: what may be kept in memory to be faster.
        progress: show how far it is.
    """

    targets: Targets
    rows: Rows
    candidates: Int[Tensor, " n"]
    batch_size: int
    seed: int = 0
    cache_bytes: int = CACHE_LIMIT
    progress: bool = False


@dataclass(frozen=True, eq=False)
class Covering:
    """What a run of greedy chose.

    Attributes:
        positions: (B,) among the candidates, in the order they were chosen.
        gains: (B,) what each adds to F, float64; 0 for those that were taken at random.
        upper_bound: no batch of B candidates adds more than this to F.
        filled_from: the pick (from 0) from which on nothing was left to gain and the batch is random, or None.
        num_evaluations: gains and bounds computed in all.
    """

    positions: Int[Tensor, " B"]
    gains: Float[Tensor, " B"]
    upper_bound: float
    filled_from: int | None
    num_evaluations: int


class _OneShard:
    """All candidates in this process."""

    def __init__(self, problem: CoverProblem):
        positions = torch.arange(len(problem.candidates))
        self._num = len(positions)
        self._shard = CoverShard(
            problem.targets, problem.rows, problem.candidates, positions, cache_bytes=problem.cache_bytes
        )

    def offers(self, step: CoverStep, show: bool) -> Sequence[CoverOffer]:
        """One offer."""
        with progress("scoring points", self._num, show) as bar:
            return [self._shard.offer(step, bar)]


def cover(problem: CoverProblem, shards: CoverShards | None = None) -> Covering:
    """Pick the point that adds most to F, B times; the result adds at least 1 − 1/e of what the best batch adds.

    Args:
        problem: what is to be covered, by which points.
        shards: the candidates; those of this process if omitted.
    """
    shards = shards or _OneShard(problem)
    targets, covered = problem.targets, problem.targets.covered
    chosen: list[int] = []
    gains: list[float] = []
    upper_bound, num_evaluations = math.inf, 0
    filled_from: int | None = None
    with progress("choosing points", problem.batch_size, problem.progress) as bar:
        while len(chosen) < problem.batch_size:
            step = CoverStep(covered, torch.tensor(chosen, dtype=torch.long), problem.batch_size)
            offers = shards.offers(step, problem.progress and not chosen)
            num_evaluations += sum(offer.num_evaluations for offer in offers)
            largest = torch.cat([offer.largest for offer in offers])
            largest = largest.topk(min(problem.batch_size, len(largest))).values
            upper_bound = min(upper_bound, sum(gains) + float(largest.sum()))
            best = min(offers, key=lambda offer: (-offer.key, offer.position))
            if best.similarity is None:
                filled_from = len(chosen)
                break
            similarity = best.similarity.to(covered)
            gains.append(float(targets.gains(similarity.unsqueeze(0), covered)))
            covered = torch.maximum(covered, similarity)
            chosen.append(best.position)
            bar.advance()
    if filled_from is not None:
        left = torch.ones(len(problem.candidates), dtype=torch.bool)
        left[chosen] = False
        rest = left.nonzero().flatten()
        order = torch.randperm(len(rest), generator=generator(problem.seed, "cover-fill"))
        chosen += rest[order[: problem.batch_size - len(chosen)]].tolist()
        gains += [0.0] * (problem.batch_size - len(gains))
    return Covering(
        torch.tensor(chosen),
        torch.tensor(gains, dtype=torch.float64),
        min(upper_bound, targets.total - float(targets.covered @ targets.weights)),
        filled_from,
        num_evaluations,
    )


@dataclass(frozen=True, eq=False)
class Cover:
    """What a batch covers of the weighted pool in the space of embeddings, all as shares of its weight.

    Attributes:
        kernel: "gaussian" or "ball".
        length: σ of the Gaussian, or the radius of the ball.
        gains: (B,) what each point adds to those before it.
        coverage: (B,) what is covered after each point, labelled points included.
        labelled_coverage: what the labelled points cover alone.
        random_coverage: mean coverage of 20 random batches of this size, labelled points included.
        certificate: the batch adds at least this share of what the best batch of its size adds, as far as the targets
            tell; None if nothing can be added.
        num_targets: points whose cover was measured.
        num_points: points of the pool that they stand for; the same unless they are a sample.
        filled_from: the pick (from 0) from which on nothing was left to gain and the batch is random, or None.
    """

    kernel: Kernel
    length: float
    gains: Float[Tensor, " B"]
    coverage: Float[Tensor, " B"]
    labelled_coverage: float
    random_coverage: float
    certificate: float | None
    num_targets: int
    num_points: int
    filled_from: int | None

    @property
    def is_sampled(self) -> bool:
        """Whether the targets are a sample of the pool, so that all these numbers are estimates from it."""
        return self.num_targets < self.num_points


def cover_value(problem: CoverProblem, found: Covering) -> Cover:
    """What the batch of a run covers, beside random batches, and its certificate."""
    targets = problem.targets
    share = 1 / targets.total if targets.total > 0 else 0.0
    start = float(targets.covered @ targets.weights) * share
    gains = found.gains * share
    added = float(found.gains.sum())
    length = targets.squared_length / (2 if targets.kernel == "gaussian" else 1)
    return Cover(
        kernel=targets.kernel,
        length=math.sqrt(length),
        gains=gains,
        coverage=(start + gains.cumsum(dim=0)).clamp_max(1.0),
        labelled_coverage=start,
        random_coverage=_random_coverage(problem) * share,
        certificate=min(1.0, added / found.upper_bound) if found.upper_bound > 0 else None,
        num_targets=len(targets),
        num_points=len(problem.candidates),
        filled_from=found.filled_from,
    )


def _random_coverage(problem: CoverProblem) -> float:
    """The mean of F over random batches, in working precision."""
    targets, num = problem.targets, len(problem.candidates)
    streams = [generator(problem.seed, "random-baseline", repeat) for repeat in range(NUM_RANDOM_BATCHES)]
    picks = torch.cat([torch.randperm(num, generator=stream)[: problem.batch_size] for stream in streams])
    batches = torch.arange(NUM_RANDOM_BATCHES).repeat_interleave(problem.batch_size).to(targets.covered.device)
    covered = targets.covered.to(targets.dtype).repeat(NUM_RANDOM_BATCHES, 1)
    for span in spans_of(len(picks), BLOCK_NUMBERS // max(len(targets), targets.num_features)):
        found = targets.similarity_bounds(problem.rows(problem.candidates[picks[span]]), slack=False)
        for batch in batches[span].unique().tolist():
            covered[batch] = torch.maximum(covered[batch], found[batches[span] == batch].amax(dim=0))
    return float((covered.double() @ targets.weights).mean())

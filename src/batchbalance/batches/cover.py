"""Coverage of a pool in the space of embeddings: one objective, maximised by lazy greedy selection.

    F(A) = Σ_{x∈T} w(x) · max_{a ∈ A ∪ labelled} κ(x, a)

F is monotone submodular for every w ≥ 0 and κ in [0, 1]: a point adds (κ(x, a) − m(x))₊ to the cover of x, which
decreases in m(x), the cover of x so far. Weights 1 and a Gaussian κ give MaxHerding (arXiv 2407.12212). Uncertainty
as weights gives UHerding (arXiv 2412.20644), and a ball instead of the Gaussian ProbCover (arXiv 2205.11320).

Matrix products of centred rows give upper bounds on gains that hold despite rounding. The few points whose bound
reaches the best gain are measured by differences of coordinates in float64. So neither the precision of the products
nor the division of the pool changes a batch. Ties go to the lowest position.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from batchbalance.arguments.seeds import generator
from batchbalance.batches.distances import BLOCK_NUMBERS
from batchbalance.batches.targets import Kernel, Targets
from batchbalance.predictions import spans_of
from batchbalance.scores.ranking import Best, LazyBounds, quantised
from batchbalance.system import threads
from batchbalance.system.progress import progress

EmbeddingRows = Callable[[Int[Tensor, " p"]], Float[Tensor, "p D"]]  # embeddings of points, by their index in the pool

MAX_TARGETS, TARGETS_PER_PICK = 4096, 40  # the largest number of targets, unless the batch is large
CACHE_LIMIT = 3 * 2**28  # maximum bytes of cached bounds on similarities
NUM_RANDOM_BATCHES = 20
FIRST_BLOCK, LARGEST_BLOCK = 128, 1024  # candidates bounded before the first check, and maximum at a time
EXACT_BLOCK = 1  # candidates measured by differences in the first block


@dataclass(frozen=True, eq=False)
class CoverProblem:
    """The targets to cover and the points that may cover them.

    Attributes:
        targets: the targets.
        rows: returns embeddings of points by their index in the pool.
        candidates: (n,) indices of the points that may be chosen, ascending.
        batch_size: B, at most n.
        seed: seed of the random batches, and of random picks once nothing is left to gain.
        cache_bytes: memory that may be used to save time.
        progress: show progress.
    """

    targets: Targets
    rows: EmbeddingRows
    candidates: Int[Tensor, " n"]
    batch_size: int
    seed: int = 0
    cache_bytes: int = CACHE_LIMIT
    progress: bool = False


@dataclass(frozen=True, eq=False)
class Covering:
    """The result of a greedy run.

    Attributes:
        positions: (B,) positions among the candidates, in the order they were chosen.
        gains: (B,) the gain of each in F, float64; 0 for those that were chosen at random.
        upper_bound: upper bound on what any batch of B candidates adds to F.
        filled_from: the pick (from 0) from which the batch is random because nothing was left to gain, or None.
        num_evaluations: total number of gains and bounds computed.
    """

    positions: Int[Tensor, " B"]
    gains: Float[Tensor, " B"]
    upper_bound: float
    filled_from: int | None
    num_evaluations: int


@runtime_checkable
class CoverChoices(Protocol):
    """The candidates of a run: ``CoverCandidates`` in this process, or ``cluster.shards.RayCoverCandidates``."""

    def best(self, covered: Float[Tensor, " T"], chosen: Sequence[int]) -> Best:
        """Return the candidate that adds most to F, given the cover of each target and the positions chosen so far."""


@runtime_checkable
class CoverExecutor(Protocol):
    """Runs coverage outside this process."""

    def cover(self, problem: CoverProblem) -> Covering:
        """Run ``cover``."""


def cover(problem: CoverProblem, candidates: CoverChoices | None = None) -> Covering:
    """Choose the point that adds most to F, B times. The batch adds at least 1 − 1/e of what the best batch adds.

    Args:
        problem: the targets and the points that may be chosen.
        candidates: finds the best point of each step; ``CoverCandidates`` if omitted.
    """
    candidates = candidates or CoverCandidates(problem)
    targets, covered = problem.targets, problem.targets.covered
    chosen: list[int] = []
    gains: list[float] = []
    upper_bound, num_evaluations = math.inf, 0
    filled_from: int | None = None
    with progress("choosing points", problem.batch_size, problem.progress) as bar:
        while len(chosen) < problem.batch_size:
            best = candidates.best(covered, chosen)
            num_evaluations += best.num_evaluations
            upper_bound = min(upper_bound, sum(gains) + float(best.largest.sum()))
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


class CoverCandidates:
    """Candidates in this process, with an upper bound on the gain of each."""

    def __init__(self, problem: CoverProblem) -> None:
        self._problem, self._targets = problem, problem.targets
        self._candidates = problem.candidates
        self._bounds = LazyBounds(len(self._candidates))
        self._covered = self._targets.covered
        self._measured = (-math.inf, -1, self._covered)  # the largest gain measured in a step, its position, and its κ
        self._is_first = True
        num_cached = min(problem.cache_bytes, CACHE_LIMIT) // (len(self._targets) * self._targets.dtype.itemsize)
        num_cached = min(num_cached, len(self._candidates))
        self._cache = torch.empty(num_cached, len(self._targets), dtype=self._targets.dtype)
        self._slots = torch.full((len(self._candidates),), -1)  # the row of the cache of a candidate, or -1
        self._num_cached = 0

    def best(self, covered: Float[Tensor, " T"], chosen: Sequence[int]) -> Best:
        """Return the candidate that adds most to F, given the cover of each target and the positions chosen so far.

        The step has two stages. The first replaces bounds from earlier steps by bounds given `covered`, which cost a
        matrix product, until no earlier bound exceeds the largest of them. The second replaces these by exact gains,
        which are slow to compute, until no bound exceeds the largest exact gain.
        """
        bounds, num_before = self._bounds, self._bounds.num_evaluations
        self._covered, self._measured = covered, (-math.inf, -1, covered)
        bounds.close(torch.tensor(chosen, dtype=torch.long))
        if self._is_first:
            self._first_pass()
        else:
            bounds.settle(
                self._upper_gains, margin=0.0, floor=0.0, block=FIRST_BLOCK, growth=2, largest_block=LARGEST_BLOCK
            )
        bounds.settle(
            self._gains, keys=quantised, margin=0.0, floor=0.0, block=EXACT_BLOCK, growth=2,
            largest_block=max(EXACT_BLOCK, BLOCK_NUMBERS // len(self._targets)),
        )  # fmt: skip
        num_evaluations = bounds.num_evaluations - num_before
        largest = bounds.largest(self._problem.batch_size).clamp_min(0)
        keys = quantised(bounds.values)
        position = int(keys.argmax())  # the first of the largest
        if not float(keys[position]) > 0:
            return Best(-1, -math.inf, largest, num_evaluations)
        _, measured, similarity = self._measured
        if measured != position:  # a tie went to a lower position
            similarity = self._targets.similarities(self._rows(position))[0]
        return Best(position, float(keys[position]), largest, num_evaluations, similarity)

    def _rows(self, positions: Int[Tensor, " p"] | slice | int) -> Float[Tensor, "p D"]:
        return self._problem.rows(self._candidates[positions].reshape(-1))

    def _first_pass(self) -> None:
        """Bound the gains of all candidates, and cache all bounds on similarities if there is room for them."""
        num = len(self._candidates)
        gains = torch.empty(num, dtype=torch.float64)
        cache_all = len(self._cache) == num

        def fill(span: slice) -> None:
            found = self._similarity_bounds(self._candidates[span])
            if cache_all:
                self._cache[span] = found.cpu()
            gains[span] = self._targets.bounds_of(found, self._covered)

        spans = spans_of(num, BLOCK_NUMBERS // max(len(self._targets), self._targets.num_features))
        with progress("scoring points", num, self._problem.progress) as bar:
            threads.each(fill, spans, bar)
        if cache_all:
            self._slots = torch.arange(num)
            self._num_cached = num
        self._is_first = False
        self._bounds.set(gains)

    def _gains(self, positions: Int[Tensor, " p"]) -> Float[Tensor, " p"]:
        """Return exact gains, and remember κ of the largest: it is nearly always the next pick."""
        similarities = self._targets.similarities(self._rows(positions))
        gains = self._targets.gains(similarities, self._covered)
        largest = int(gains.argmax())
        if float(gains[largest]) > self._measured[0]:
            self._measured = float(gains[largest]), int(positions[largest]), similarities[largest].clone()
        return gains

    def _upper_gains(self, positions: Int[Tensor, " p"]) -> Float[Tensor, " p"]:
        """Return upper bounds on gains, from the cache where possible and from matrix products elsewhere."""
        gains = torch.empty(len(positions), dtype=torch.float64)
        is_cached = self._slots[positions] >= 0
        if bool(is_cached.any()):
            cached = self._cache[self._slots[positions[is_cached]]].to(self._covered.device)
            gains[is_cached] = self._targets.bounds_of(cached, self._covered)
        new = positions[~is_cached]
        if len(new):
            found = self._similarity_bounds(self._candidates[new])
            gains[~is_cached] = self._targets.bounds_of(found, self._covered)
            num = min(len(new), len(self._cache) - self._num_cached)
            slots = torch.arange(self._num_cached, self._num_cached + num)
            self._cache[slots], self._slots[new[:num]] = found[:num].cpu(), slots
            self._num_cached += num
        return gains

    def _similarity_bounds(self, indices: Int[Tensor, " p"]) -> Float[Tensor, "p T"]:
        """Return upper bounds on κ. A candidate that is also a target may have its products computed already."""
        which = self._targets.cloud.known(indices)
        is_known = which >= 0
        if not bool(is_known.any()):
            return self._targets.similarity_bounds(self._problem.rows(indices))
        found = torch.empty(len(indices), len(self._targets), dtype=self._targets.dtype, device=self._covered.device)
        found[is_known] = self._targets.own_bounds(which[is_known])
        if not bool(is_known.all()):
            found[~is_known] = self._targets.similarity_bounds(self._problem.rows(indices[~is_known]))
        return found


@dataclass(frozen=True, eq=False)
class Cover:
    """The coverage of the weighted pool by a batch, in shares of the pool's weight.

    Attributes:
        kernel: "gaussian" or "ball".
        length: σ of the Gaussian, or the radius of the ball.
        gains: (B,) the gain of each point given those before it.
        coverage: (B,) coverage after each point, including the labelled points.
        labelled_coverage: coverage of the labelled points alone.
        random_coverage: mean coverage of 20 random batches of this size, including the labelled points.
        certificate: the batch adds at least this share of what the best batch of its size adds, measured on the
            targets; None if nothing can be added.
        num_targets: number of points whose cover was measured.
        num_points: number of points of the pool that they represent; the same unless they are a sample.
        filled_from: the pick (from 0) from which the batch is random because nothing was left to gain, or None.
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
        """Whether the targets are a sample of the pool, so that all these numbers are estimates."""
        return self.num_targets < self.num_points


def cover_value(problem: CoverProblem, found: Covering) -> Cover:
    """Return the coverage of the batch of a run, the coverage of random batches, and the certificate."""
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
    """Return the mean of F over random batches, in working precision."""
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

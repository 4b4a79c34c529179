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
from typing import Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from batchbalance import threads
from batchbalance.balance.greedy import Offer
from batchbalance.batches.distances import BLOCK_NUMBERS, nearest_distances
from batchbalance.bounds import LazyBounds
from batchbalance.predictions import spans_of
from batchbalance.progress import Bar, progress
from batchbalance.ranking import quantised
from batchbalance.seeds import generator

Kernel = Literal["gaussian", "ball"]
Rows = Callable[[Int[Tensor, " p"]], Float[Tensor, "p D"]]  # embeddings of some points, by their place in the pool

MAX_TARGETS, TARGETS_PER_PICK = 4096, 40  # targets at most, unless the batch is large
CACHE_LIMIT = 3 * 2**28  # bytes of bounds on similarities that are kept at most
NUM_RANDOM_BATCHES = 20
BOUNDARY = 1e-12  # relative; a squared distance that is so close to the radius is inside
FIRST_BLOCK, LARGEST_BLOCK = 128, 1024  # candidates looked at before the first check, and at most at a time
EXACT_BLOCK = 4  # candidates measured by differences at a time, at first


def squared_length(targets: Float[Tensor, "T D"], batch_size: int) -> float:
    """ℓ² = 2σ²: the median over targets of the squared distance to the k-th nearest other one, k = |T| / B.

    Only distinct targets count, so that copies do not make it 0; k is rounded and clipped to 1 … |T| − 1. With a single
    distinct target there is no distance, and ℓ² = 1.
    """
    points = targets.unique(dim=0).double()
    num = len(points)
    if num == 1:
        return 1.0
    k = min(max(round(num / batch_size), 1), num - 1)
    shifted = points - points.median(dim=0).values  # one point far away must not cost the others their digits
    norms = shifted.square().sum(dim=1)
    found = torch.empty(num, dtype=torch.float64, device=points.device)
    for span in spans_of(num, BLOCK_NUMBERS // num):
        apart = torch.addmm(norms, shifted[span], shifted.T, alpha=-2)  # a constant of the row is left out
        apart[torch.arange(len(apart)), torch.arange(span.start, span.stop)] = -torch.inf
        neighbours = apart.kthvalue(k + 1, dim=1).indices
        found[span] = (points[span] - points[neighbours]).square().sum(dim=1)
    return max(float(found.quantile(0.5)), torch.finfo(torch.float64).tiny)


class Targets:
    """What is to be covered, and how near a point is to it.

    Args:
        points: (T, D) embeddings of the targets.
        weights: (T,) what each is worth; not negative.
        kernel: "gaussian", κ = exp(−d² / ℓ²); or "ball", κ = 1 up to the distance ℓ.
        squared_length: ℓ².
        labelled: (L, D) embeddings of points that cover already.
    """

    def __init__(
        self,
        points: Float[Tensor, "T D"],
        weights: Float[Tensor, " T"],
        kernel: Kernel,
        squared_length: float,
        labelled: Float[Tensor, "L D"] | None = None,
    ) -> None:
        self.points = points.double()
        self.weights = weights.to(points.device, torch.float64)
        self.kernel, self.squared_length = kernel, squared_length
        self.total = float(self.weights.sum())
        self.covered = torch.zeros_like(self.weights)
        if labelled is not None and len(labelled):
            nearest = nearest_distances(self.points, labelled.to(self.points)).to(points.device)
            self.covered = self._similarity(nearest.square() / squared_length)
        self._centre = self.points.median(dim=0).values
        scaled = (self.points - self._centre) / math.sqrt(squared_length)
        norms = scaled.square().sum(dim=1)
        # float32 will do unless its rounding would blur most bounds, as with tight clusters that are far apart
        blurred = 4 * float(norms.quantile(0.9)) * self._rounding(torch.float32)
        self.dtype = torch.float32 if blurred <= 0.01 else torch.float64
        self._scaled = (2 * scaled).to(self.dtype)
        self._norms = norms

    def __len__(self) -> int:
        return len(self.points)

    @property
    def num_features(self) -> int:
        """The number of features of a point, D."""
        return self.points.shape[1]

    def similarities(self, rows: Float[Tensor, "p D"]) -> Float[Tensor, "p T"]:
        """κ of points and targets, measured by differences in float64."""
        apart = torch.cdist(rows.double(), self.points, compute_mode="donot_use_mm_for_euclid_dist")
        return self._similarity(apart.square_() / self.squared_length)

    def similarity_bounds(self, rows: Float[Tensor, "p D"], *, slack: bool = True) -> Float[Tensor, "p T"]:
        """κ by a matrix product in working precision; with `slack` never less than it is."""
        rounding = self._rounding(self.dtype) if slack else 0.0
        shifted = ((rows.double() - self._centre) / math.sqrt(self.squared_length)).to(self.dtype)
        norms = shifted.double().square().sum(dim=1)
        own, other = ((each * (1 - rounding) - rounding).to(self.dtype) for each in (norms, self._norms))
        squared = torch.addmm(
            other, shifted, self._scaled.T, alpha=-1
        )  # in place from here on: it is the largest array
        squared += own.unsqueeze(1)
        if not (bool(own.isfinite().all()) and bool(other.isfinite().all())):
            squared.nan_to_num_(nan=0.0)  # numbers beyond the range of floats: nothing is known, so the bound is 1
        return self._similarity(squared.clamp_min_(0))

    def bounds_of(self, bounds: Float[Tensor, "p T"], covered: Float[Tensor, " T"]) -> Float[Tensor, " p"]:
        """Upper bounds on gains from upper bounds on κ, float64."""
        so_far = covered.to(self.dtype)
        so_far = torch.where(so_far.double() > covered, so_far.nextafter(torch.zeros_like(so_far)), so_far)
        gains = (bounds - so_far).clamp_min_(0) @ self.weights.to(self.dtype)
        return gains.double().cpu() * (1 + self._rounding(self.dtype, len(self)))

    def gains(self, rows: Float[Tensor, "p D"], covered: Float[Tensor, " T"]) -> Float[Tensor, " p"]:
        """What points add to F, measured by differences in float64."""
        return ((self.similarities(rows) - covered).clamp_min_(0) @ self.weights).cpu()

    def _similarity(self, squared: Tensor) -> Tensor:
        """κ of squared distances in units of ℓ²; overwrites them."""
        if self.kernel == "gaussian":
            return squared.neg_().exp_()
        return (squared <= 1 + BOUNDARY).to(squared.dtype)

    def _rounding(self, dtype: torch.dtype, num_terms: int | None = None) -> float:
        """How far a sum of products may be off, as a share of the sizes of its terms."""
        return 4 * torch.finfo(dtype).eps * math.sqrt(num_terms or self.num_features)


@dataclass(frozen=True, eq=False)
class CoverStep:
    """What a shard must know to make its offer.

    Attributes:
        covered: (T,) the cover of each target so far.
        chosen: positions chosen so far.
        batch_size: B.
    """

    covered: Float[Tensor, " T"]
    chosen: Int[Tensor, " b"]
    batch_size: int


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
        self._is_first = True
        num_kept = min(cache_bytes, CACHE_LIMIT) // (len(targets) * targets.dtype.itemsize)
        self._kept = torch.empty(min(num_kept, len(candidates)), len(targets), dtype=targets.dtype)
        self._slots = torch.full((len(candidates),), -1)
        self._num_kept = 0

    def offer(self, step: CoverStep, bar: Bar | None = None) -> Offer:
        """The point of largest gain."""
        bounds, done = self._bounds, self._bounds.num_evaluations
        self._covered = step.covered
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
            return Offer(-1, -math.inf, largest, num_evaluations)
        return Offer(int(self._positions[best]), float(keys[best]), largest, num_evaluations)

    def _first_pass(self, bar: Bar) -> None:
        self._is_first = False
        num = len(self._candidates)
        gains = torch.empty(num, dtype=torch.float64)
        keep_all = len(self._kept) == num

        def fill(span: slice) -> None:
            found = self._targets.similarity_bounds(self._rows(self._candidates[span]))
            if keep_all:
                self._kept[span] = found.cpu()
            gains[span] = self._targets.bounds_of(found, self._covered)

        threads.each(fill, spans_of(num, BLOCK_NUMBERS // max(len(self._targets), self._targets.num_features)), bar)
        if keep_all:
            self._slots = torch.arange(num)
            self._num_kept = num
        self._bounds.set(gains)

    def _gains(self, positions: Int[Tensor, " p"]) -> Float[Tensor, " p"]:
        return self._targets.gains(self._rows(self._candidates[positions]), self._covered)

    def _upper_gains(self, positions: Int[Tensor, " p"]) -> Float[Tensor, " p"]:
        """Upper bounds on gains, from what is kept and from matrix products."""
        gains = torch.empty(len(positions), dtype=torch.float64)
        is_kept = self._slots[positions] >= 0
        if bool(is_kept.any()):
            kept = self._kept[self._slots[positions[is_kept]]].to(self._covered.device)
            gains[is_kept] = self._targets.bounds_of(kept, self._covered)
        new = positions[~is_kept]
        if len(new):
            found = self._targets.similarity_bounds(self._rows(self._candidates[new]))
            self._keep(new, found)
            gains[~is_kept] = self._targets.bounds_of(found, self._covered)
        return gains

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

    def offers(self, step: CoverStep, show: bool) -> Sequence[Offer]:
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

    def offers(self, step: CoverStep, show: bool) -> Sequence[Offer]:
        """The offer of the one shard there is."""
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
            if best.position < 0:
                filled_from = len(chosen)
                break
            similarity = targets.similarities(problem.rows(problem.candidates[[best.position]]))[0]
            gains.append(float((similarity - covered).clamp_min(0) @ targets.weights))
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
    targets, total = problem.targets, 0.0
    for repeat in range(NUM_RANDOM_BATCHES):
        stream = generator(problem.seed, "random-baseline", repeat)
        picks = torch.randperm(len(problem.candidates), generator=stream)[: problem.batch_size]
        covered = targets.covered
        for span in spans_of(len(picks), BLOCK_NUMBERS // max(len(targets), targets.num_features)):
            rows = problem.rows(problem.candidates[picks[span].sort().values])
            found = targets.similarity_bounds(rows, slack=False).amax(dim=0)
            covered = torch.maximum(covered, found.double())
        total += float(covered @ targets.weights)
    return total / NUM_RANDOM_BATCHES

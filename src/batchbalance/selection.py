"""How a batch is chosen from scores or from a joint objective: top-k, power sampling, lazy greedy, clustering.

Ties go to the lowest index. Working precision may be float32; near-ties are decided in float64, so that how the pool
is cut into chunks never changes a batch.
"""

import math
from dataclasses import dataclass
from typing import Literal, Protocol, get_args, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from batchbalance.predictions import CHUNK_NUMBERS, spans_of
from batchbalance.seeds import generator, gumbel

Continuation = Literal["tail", "power", "random"]
CONTINUATIONS: tuple[str, ...] = get_args(Continuation)

NEAR_TIE = 1e-4  # relative; far above what a float32 gain is off by
TIE_BITS = 40  # float64 values that agree to this many bits are a tie
PROBE = 512  # candidates looked at before deciding between a lazy step and a full pass
LAZY_SHARE = 0.25  # a lazy step that must look at more than this share of the candidates becomes a full pass
LOG_SMALLEST = math.log(1e-30)  # below this, float32 gains come near its smallest numbers and lose digits
NOTHING_LEFT = 2.0**-52  # below this share of surviving weight, Δ no longer changes in float64
MAX_ROUNDS = 100


@runtime_checkable
class Objective(Protocol):
    """A monotone submodular set function over positions 0 … num_candidates − 1 that grows one point at a time."""

    @property
    def num_candidates(self) -> int:
        """How many positions there are."""

    @property
    def log_scale(self) -> float:
        """Gains are to be multiplied by exp of this; it may fall as points are added."""

    @property
    def log_remaining(self) -> float:
        """Log of the share of the largest value that is still to be gained."""

    def gains(self, positions: Int[Tensor, " p"] | None = None) -> Float[Tensor, " p"]:
        """Gains in working precision, as float64."""

    def exact_gains(self, positions: Int[Tensor, " p"]) -> Float[Tensor, " p"]:
        """Gains computed in float64."""

    def add(self, position: int) -> None:
        """Put a point into the set."""


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


def quantised(values: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """Float64 values rounded to 40 bits, so that values which differ only by rounding compare equal."""
    mantissa, exponent = torch.frexp(values.double())
    return torch.ldexp((mantissa * 2.0**TIE_BITS).round() / 2.0**TIE_BITS, exponent)


def top_k(scores: Float[Tensor, " n"], num: int) -> Int[Tensor, " k"]:
    """Positions of the `num` largest scores, best first; ties go to the lowest position."""
    return torch.sort(quantised(scores), descending=True, stable=True).indices[:num]


def weighed(log_scores: Float[Tensor, " n"], power: float, noise: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """Power · log score + noise; -inf for a score of 0, whatever the power."""
    return torch.where(log_scores == -torch.inf, -torch.inf, power * log_scores + noise)


def power_sample(
    scores: Float[Tensor, " n"], num: int, beta: float, *, generator: torch.Generator
) -> Int[Tensor, " k"]:
    """`num` positions drawn without replacement with p ∝ score^β, by the Gumbel top-k trick, in drawing order.

    Positions with score 0 are drawn, uniformly, only once no other is left.
    """
    noise = gumbel(len(scores), generator=generator)
    keys = weighed(scores.double().log(), beta, noise)
    ranked = torch.sort(keys, descending=True, stable=True).indices
    num_positive = int((scores > 0).sum())
    zeros = ranked[num_positive:]
    return torch.cat([ranked[:num_positive], zeros[noise[zeros].argsort(descending=True)]])[:num]


def greedy(
    objective: Objective,
    batch_size: int,
    *,
    seed: int = 0,
    beta: float | None = None,
    lazy: bool = True,
    continuation: Continuation = "tail",
) -> Greedy:
    """Pick the point of largest gain, `batch_size` times; the result is within 1 − 1/e of the best batch.

    Args:
        objective: what to maximise; it is changed.
        batch_size: B, at most the number of candidates.
        seed: for the random parts.
        beta: if given, each pick is sampled with p ∝ gain^β instead of the largest.
        lazy: use that an old gain bounds a new one from above, to skip evaluations. Never changes the batch.
        continuation: what to do once what survives is below float64 meaning: "tail" goes on by the rescaled gains
            (and by "power" once those are exactly 0), "power" samples p ∝ first gain, "random" samples uniformly.
    """
    run = _GreedyRun(objective, batch_size, seed, beta, lazy)
    continued_from: int | None = None
    applied: Continuation | None = None
    while len(run.chosen) < batch_size:
        if applied is None and objective.log_remaining < math.log(NOTHING_LEFT):
            applied, continued_from = continuation, len(run.chosen)
        best = run.best_position() if applied in (None, "tail") else None
        if best is not None:
            run.add(best)
            continue
        applied, continued_from = "random" if continuation == "random" else "power", len(run.chosen)
        run.fill(applied)
    run.tighten_bound()
    return Greedy(
        torch.tensor(run.chosen),
        torch.tensor(run.gains, dtype=torch.float64),
        run.upper_bound,
        continued_from,
        applied,
        run.num_evaluations,
    )


class _GreedyRun:
    """The moving parts of ``greedy``. Bounds are kept as unscaled logs, so that they stay comparable for ever."""

    def __init__(self, objective: Objective, batch_size: int, seed: int, beta: float | None, lazy: bool):
        self.objective = objective
        self.batch_size = batch_size
        self.seed = seed
        self.beta = beta
        self.lazy = lazy
        self.chosen: list[int] = []
        self.gains: list[float] = []
        self.num_evaluations = 0
        self.upper_bound = torch.inf
        self.open = torch.ones(objective.num_candidates, dtype=torch.bool)
        self.log_bounds = torch.full((objective.num_candidates,), torch.inf, dtype=torch.float64)
        self._evaluate_all()
        self.first_gains = self.log_bounds.exp()

    def _evaluate_all(self) -> None:
        self.log_bounds = self._log(self.objective.gains())
        self.log_bounds[~self.open] = -torch.inf
        self.num_evaluations += self.objective.num_candidates

    def _evaluate(self, positions: Tensor) -> None:
        self.log_bounds[positions] = self._log(self.objective.gains(positions))
        self.log_bounds[~self.open] = -torch.inf
        self.num_evaluations += len(positions)

    def _log(self, gains: Tensor) -> Tensor:
        return gains.log() + self.objective.log_scale

    def best_position(self) -> int | None:
        """The next pick, or None if no candidate gains anything."""
        if self.beta is None:
            power, noise, margin = 1.0, torch.zeros_like(self.log_bounds), NEAR_TIE
        else:
            stream = generator(self.seed, "stochastic-greedy", len(self.chosen))
            power, noise, margin = self.beta, gumbel(len(self.open), generator=stream), self.beta * NEAR_TIE
        if self.chosen:  # before the first pick, every bound is a fresh gain
            self._refresh(power, noise, margin)
        if float(self.log_bounds.max()) - self.objective.log_scale < LOG_SMALLEST:
            contenders = self.open.nonzero().flatten()  # too small for float32: its gains are rounded, or 0
        else:
            keys = weighed(self.log_bounds, power, noise)
            contenders = (keys >= keys.max() - margin).nonzero().flatten()
        gains = self.objective.exact_gains(contenders)
        self.log_bounds[contenders] = self._log(gains)
        self.tighten_bound()
        if not bool((gains > 0).any()):
            return None
        exact = quantised(gains) if self.beta is None else weighed(gains.log(), power, noise[contenders])
        return int(contenders[exact.argmax()])

    def _refresh(self, power: float, noise: Tensor, margin: float) -> None:
        """Re-evaluate every position that could still be the best or nearly so."""
        num_open = int(self.open.sum())
        keys = weighed(self.log_bounds, power, noise)
        if not self.lazy or num_open <= 2 * PROBE:
            self._evaluate_all()
            return
        probe = keys.topk(PROBE).indices
        self._evaluate(probe)
        fresh = torch.zeros_like(self.open)
        fresh[probe] = True
        while True:
            keys = weighed(self.log_bounds, power, noise)
            best = keys[fresh].max()
            rivals = ((keys >= best - margin) & ~fresh & self.open).nonzero().flatten()
            if len(rivals) == 0:
                return
            if len(rivals) > LAZY_SHARE * num_open:
                self._evaluate_all()
                return
            block = rivals[keys[rivals].topk(min(len(rivals), 4 * PROBE)).indices]
            self._evaluate(block)
            fresh[block] = True

    def add(self, position: int) -> None:
        gain = float(self.objective.exact_gains(torch.tensor([position])))
        self.gains.append(gain * math.exp(self.objective.log_scale))
        self.objective.add(position)
        self.chosen.append(position)
        self.open[position] = False
        self.log_bounds[position] = -torch.inf

    def fill(self, how: Continuation) -> None:
        """Complete the batch without looking at gains any more."""
        left = self.open.nonzero().flatten()
        scores = self.first_gains[left] if how == "power" else torch.ones(len(left), dtype=torch.float64)
        stream = generator(self.seed, "continuation")
        picks = power_sample(scores, self.batch_size - len(self.chosen), 1.0, generator=stream)
        for position in left[picks].tolist():
            self.add(position)

    def tighten_bound(self) -> None:
        """Lower the bound on the best batch: Δ(A) plus the B largest gains given A, by any prefix A."""
        largest = self.log_bounds.exp().topk(self.batch_size).values.sum()
        # Gains in float32 may be off by a few parts in a million, the bound must not be.
        self.upper_bound = min(self.upper_bound, sum(self.gains) + float(largest) * (1 + 1e-5))


def balance_clustering(
    features: Float[Tensor, "n F"],
    scores: Float[Tensor, " n"],
    seeds: Int[Tensor, " B"],
    *,
    max_rounds: int = MAX_ROUNDS,
) -> Int[Tensor, " B"]:
    """BALanCe-Clustering (Algorithm 3): k-medoids under I(x, y) = ⟨φ_x, φ_y⟩, I(x, x) = Δ(x).

    The value Σ_{x∈cluster} I(x, y) of a centroid y is ⟨φ_y, Σ_x φ_x⟩ + Δ(y) − ‖φ_y‖², so that a round is linear in
    the size of the clusters. A centroid stays in its own cluster; ties keep the current centroid.

    Args:
        features: φ of the points.
        scores: Δ of the points.
        seeds: positions of the first centroids.
        max_rounds: stop after this many rounds even if centroids still move.

    Returns:
        Positions of the centroids, in the order of their seeds.
    """
    num_clusters = len(seeds)
    own = scores - torch.einsum("nf,nf->n", features, features)
    tolerance = 1e-6 if features.dtype == torch.float32 else 1e-12
    centroids = seeds.clone()
    for _ in range(max_rounds):
        assigned = _nearest(features, features[centroids], tolerance)
        assigned[centroids] = torch.arange(num_clusters, device=assigned.device)
        sums = torch.zeros(num_clusters, features.shape[1], dtype=features.dtype, device=features.device)
        sums.index_add_(0, assigned, features)
        spans = spans_of(len(features), CHUNK_NUMBERS // features.shape[1])
        values = own + torch.cat([(features[span] * sums[assigned[span]]).sum(dim=1) for span in spans])
        moved = _best_members(values, assigned, centroids, tolerance)
        if torch.equal(moved, centroids):
            break
        centroids = moved
    return centroids


def _nearest(features: Tensor, centres: Tensor, tolerance: float) -> Tensor:
    """The first centre of largest similarity to each point."""
    parts = []
    for span in spans_of(len(features), CHUNK_NUMBERS // len(centres)):
        similarity = features[span] @ centres.T
        largest = similarity.amax(dim=1, keepdim=True)
        parts.append((similarity >= largest - tolerance * largest.abs()).to(torch.uint8).argmax(dim=1))
    return torch.cat(parts)


def _best_members(values: Tensor, assigned: Tensor, centroids: Tensor, tolerance: float) -> Tensor:
    """The lowest-numbered member of largest value in each cluster, unless the current centroid is as good."""
    best = torch.full((len(centroids),), -torch.inf, dtype=values.dtype, device=values.device)
    best.scatter_reduce_(0, assigned, values, reduce="amax")
    slack = tolerance * best.abs()
    is_best = values >= (best - slack)[assigned]
    positions = torch.arange(len(values), device=values.device)
    first = torch.full_like(centroids, len(values))
    first.scatter_reduce_(0, assigned[is_best], positions[is_best], reduce="amin")
    return torch.where(values[centroids] >= best - slack, centroids, first)

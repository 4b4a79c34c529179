"""How a batch is chosen from scores or from a joint objective: top-k, power sampling, lazy greedy, clustering.

Ties go to the lowest index. Working precision may be float32; near-ties are decided in float64, so that how the pool
is cut into chunks never changes a batch.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol, get_args, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from batchbalance.acquisition.balance import BalanceModel, Survival
from batchbalance.predictions import CHUNK_NUMBERS, Predictions, spans_of
from batchbalance.progress import progress as shown_progress
from batchbalance.seeds import generator, gumbel
from batchbalance.shards import Objective, Offer, Shard, Step, quantised, weighed

Continuation = Literal["tail", "power", "random"]
CONTINUATIONS: tuple[str, ...] = get_args(Continuation)

NOTHING_LEFT = 2.0**-52  # below this share of surviving weight, Δ no longer changes in float64
MAX_ROUNDS = 100


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


def top_k(scores: Float[Tensor, " n"], num: int) -> Int[Tensor, " k"]:
    """Positions of the `num` largest scores, best first; ties go to the lowest position."""
    return torch.sort(quantised(scores), descending=True, stable=True).indices[:num]


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

    def greedy(
        self,
        model: BalanceModel,
        candidates: Int[Tensor, " n"],
        batch_size: int,
        *,
        seed: int,
        beta: float | None,
        lazy: bool,
        continuation: Continuation,
        progress: bool,
    ) -> Greedy:
        """``greedy`` on the candidates, elsewhere."""

    def unsureness(self, predictions: Predictions) -> float:
        """``query.unsureness``, elsewhere."""


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
        """One offer."""
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


def greedy(
    objective: Objective,
    batch_size: int,
    *,
    seed: int = 0,
    beta: float | None = None,
    lazy: bool = True,
    continuation: Continuation = "tail",
    stop_below: float = 0.0,
    progress: bool = False,
) -> Greedy:
    """``greedy_over`` for candidates in this process; the survival of the objective is changed.

    With `lazy`, an old gain, which bounds a new one from above, spares evaluations. It never changes the batch.
    """
    shards = OneShard(objective, lazy=lazy)
    return greedy_over(
        shards,
        objective.survival,
        batch_size,
        seed=seed,
        beta=beta,
        continuation=continuation,
        stop_below=stop_below,
        progress=progress,
    )


def greedy_over(
    shards: Shards,
    survival: Survival,
    batch_size: int,
    *,
    seed: int = 0,
    beta: float | None = None,
    continuation: Continuation = "tail",
    stop_below: float = 0.0,
    progress: bool = False,
) -> Greedy:
    """Pick the point of largest gain, `batch_size` times; the result is within 1 − 1/e of the best batch.

    Args:
        shards: the candidates.
        survival: what survives an empty batch.
        batch_size: B, at most the number of candidates.
        seed: for the random parts.
        beta: if given, each pick is sampled with p ∝ gain^β instead of the largest.
        continuation: what to do once what survives is below float64 meaning: "tail" goes on by the rescaled gains
            (and by "power" once those are exactly 0), "power" samples p ∝ first gain, "random" samples uniformly.
        stop_below: give fewer points than B once a smaller share than this survives.
        progress: show how far it is.
    """
    run = _GreedyRun(shards, survival, batch_size, seed, beta)
    continued_from: int | None = None
    applied: Continuation | None = None
    best = run.best_position(progress)
    with shown_progress("choosing points", batch_size, progress) as bar:
        while len(run.chosen) < batch_size and not (run.chosen and run.share_left < stop_below):
            if applied is None and run.log_remaining < math.log(NOTHING_LEFT):
                applied, continued_from = continuation, len(run.chosen)
            if run.chosen:
                best = run.best_position() if applied in (None, "tail") else None
            if best is not None:
                run.add(best)
                bar.advance()
                continue
            applied, continued_from = "random" if continuation == "random" else "power", len(run.chosen)
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
    """The moving parts of ``greedy_over``."""

    def __init__(self, shards: Shards, survival: Survival, batch_size: int, seed: int, beta: float | None):
        self._shards = shards
        self._survival = survival
        self._first = survival.copy()
        self._step = Step(survival, torch.empty(0, dtype=torch.long), batch_size, shards.num_candidates, seed, beta)
        self.chosen: list[int] = []
        self.gains: list[float] = []
        self.num_evaluations = 0
        self.upper_bound = math.inf

    @property
    def share_left(self) -> float:
        """The share of the largest value that is still to be gained."""
        return math.exp(self.log_remaining)

    @property
    def log_remaining(self) -> float:
        """Log of the share of the largest value that is still to be gained."""
        return self._survival.log_total - self._first.log_total if self._first.log_total > -math.inf else -math.inf

    def best_position(self, show: bool = False) -> int | None:
        """The next pick, or None if no candidate gains anything."""
        step = replace(self._step, chosen=torch.tensor(self.chosen, dtype=torch.long))
        offers = self._offers(step, show)
        if all(offer.too_small for offer in offers):
            offers = self._offers(replace(step, exact=True), False)
        # Δ(A) plus the B largest gains given A bounds the best batch. Gains in float32 may be off by a few parts in a
        # million, the bound must not be.
        largest = torch.cat([offer.largest for offer in offers])
        largest = largest.topk(min(step.num_largest, len(largest))).values
        self.upper_bound = min(self.upper_bound, sum(self.gains) + float(largest.sum()) * (1 + 1e-5))
        best = min(offers, key=lambda offer: (-offer.key, offer.position))
        return None if best.position < 0 else best.position

    def _offers(self, step: Step, show: bool) -> Sequence[Offer]:
        offers = self._shards.offers(step, show)
        self.num_evaluations += sum(offer.num_evaluations for offer in offers)
        return offers

    def add(self, position: int) -> None:
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
        stream = generator(self._step.seed, "continuation")
        picks = power_sample(scores, self._step.num_largest - len(self.chosen), 1.0, generator=stream)
        for position in left[picks].tolist():
            self.add(position)
            advance()


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

"""The BALanCe family: one acquisition function Δ, and several ways to choose a batch by it (section 3)."""

from typing import Annotated, ClassVar

import torch
from jaxtyping import Float
from pydantic import Field, PositiveInt
from torch import Tensor

from batchbalance.balance.closed_form import BalanceModel, BalanceObjective
from batchbalance.balance.clustering import balance_clustering
from batchbalance.balance.edges import Edges, partition_edges
from batchbalance.balance.estimators import (
    MAX_CONFIGURATIONS,
    ConfigurationEstimator,
    check_enumerable,
    estimator_bytes,
)
from batchbalance.balance.greedy import NEAR_TIE, Continuation, GreedyOptions, greedy
from batchbalance.scores.ranking import power_sample, top_k
from batchbalance.strategies.contract import Choice, Coldness, ConnectedStrategy, filled
from batchbalance.strategies.pool import Pool
from batchbalance.system.progress import progress

MAX_ALL_PAIRS_DRAWS = 64  # joint strategies on all pairs cost S³C per point
MAX_FEATURE_BYTES = 8 * 2**30
LARGE_BATCH = 50  # the paper uses clustering from this batch size

Subset = Annotated[float, Field(ge=1, allow_inf_nan=False)]  # a multiple of the batch size


class BalanceStrategy(ConnectedStrategy):
    """Base class of the family.

    Attributes:
        offset: divide likelihood ratios by the largest of any draw, so that label noise alone discounts nothing.
    """

    offset: bool = False

    def in_pieces(self, pool: Pool) -> bool:
        """Return True unless reading the predictions is the longest part."""
        return pool.predictions.device.type == "cpu" and not pool.predictions.source.is_made_on_demand

    def model(self, pool: Pool) -> BalanceModel:
        """Return the closed form for this pool."""
        if pool.predictions.num_labels is not None:  # not even single points have a short form
            self.check_pairs(pool)
        return BalanceModel(
            pool.predictions,
            self.edges(pool),
            offset=self.offset,
            cache_bytes=pool.cache_bytes,
        )

    def joint_model(self, pool: Pool) -> BalanceModel:
        """Return the closed form; raise ValueError if there are too many edges for a joint strategy."""
        self.check_pairs(pool)
        return self.model(pool)

    def check_pairs(self, pool: Pool) -> None:
        """Raise ValueError if all pairs of too many draws would be evaluated for each draw."""
        num_draws = pool.predictions.num_draws
        if self.edges(pool).design in ("all", "partition") and num_draws > MAX_ALL_PAIRS_DRAWS:
            raise ValueError(
                f"`pairs` must not be 'all' with more than {MAX_ALL_PAIRS_DRAWS} draws for {self.name!r}, got "
                f"{num_draws} draws: the cost grows with their cube; use pairs={4 * num_draws}"
                + (", or strategy 'balance'" if pool.predictions.num_labels is None else "")
            )


def single_scores(model: BalanceModel, pool: Pool) -> Float[Tensor, " n"]:
    """Return Δ of the candidates, computed in working precision, as float64."""
    rows = pool.candidates
    scores = torch.empty(len(rows), dtype=torch.float64)
    with progress("scoring points", len(rows), pool.progress) as bar:

        def fill(span: slice) -> None:
            scores[span] = model.scores(rows[span]).double().cpu()

        model.each(fill, len(rows), bar)
    return scores


def best_single(model: BalanceModel, pool: Pool) -> Choice:
    """Return the candidates of largest Δ; those that float32 cannot distinguish are compared in float64."""
    scores = single_scores(model, pool)
    last = scores.topk(pool.batch_size).values[-1]
    contenders = (scores >= last * (1 - NEAR_TIE)).nonzero().flatten()
    rows = pool.candidates[contenders]
    exact = torch.cat([model.scores(rows[span], torch.float64).cpu() for span in model.spans(len(rows))])
    best = top_k(exact, min(pool.batch_size, int((exact > 0).sum())))
    return filled(pool, rows[best], exact[best])


class Balance(BalanceStrategy):
    """Sequential BALanCe: the points of largest Δ, each scored on its own."""

    name: ClassVar[str] = "balance"
    summary: ClassVar[str] = "the top points by Δ, each on its own (the paper's sequential BALanCe)"

    def choose(self, pool: Pool) -> Choice:
        """Take the largest scores."""
        return best_single(self.model(pool), pool)


class PartitionBalance(BalanceStrategy):
    """BALanCe-Partition (appendix): explicit equivalence classes, edges between all draws of different classes."""

    name: ClassVar[str] = "partition-balance"
    summary: ClassVar[str] = "top points by Δ with explicit classes from farthest-first traversal"

    def connect(self, pool: Pool) -> Edges:
        """Join all draws of different classes."""
        return partition_edges(pool.reference, pool.threshold, pool.seed, max_reference=pool.max_reference)

    def choose(self, pool: Pool) -> Choice:
        """Take the largest scores."""
        return best_single(self.model(pool), pool)


class GreedyBalance(BalanceStrategy):
    """Exact greedy on the joint Δ, at any batch size.

    Attributes:
        continuation: how to continue once the surviving weight is negligible in float64: "tail" continues with it,
            "power" samples by Δ of single points, which learns better (docs/results.md), "random" samples uniformly.
    """

    name: ClassVar[str] = "greedy-balance"
    summary: ClassVar[str] = "exact greedy on the joint Δ, lazy; sampled by Δ once nothing is left to gain"

    runs_on_executors: ClassVar[bool] = True

    continuation: Continuation = "power"

    def choose(self, pool: Pool) -> Choice:
        """Maximise the joint Δ one point at a time."""
        return _greedy_choice(pool, self.joint_model(pool), self.continuation)


class StochasticBalance(BalanceStrategy):
    """Stochastic greedy, more robust than greedy: each pick is drawn with p ∝ gain^β.

    Attributes:
        beta: 0 is uniform sampling, larger is greedier.
        continuation: as in greedy-balance.
    """

    name: ClassVar[str] = "stochastic-balance"
    summary: ClassVar[str] = "each pick sampled with p ∝ (gain given the picks so far)^β"

    runs_on_executors: ClassVar[bool] = True

    beta: Coldness = 8.0
    continuation: Continuation = "power"

    def choose(self, pool: Pool) -> Choice:
        """Sample one point at a time."""
        return _greedy_choice(pool, self.joint_model(pool), self.continuation, self.beta)


def _greedy_choice(pool: Pool, model: BalanceModel, continuation: Continuation, beta: float | None = None) -> Choice:
    options = GreedyOptions(pool.batch_size, pool.seed, beta=beta, continuation=continuation, progress=pool.progress)
    if pool.executor is None:
        run = greedy(BalanceObjective(model, pool.candidates), options)
    else:
        run = pool.executor.greedy(model, pool.candidates, options)
    return Choice(
        pool.candidates[run.positions],
        scores=run.gains,
        upper_bound=run.upper_bound,
        continued_from=run.continued_from,
        continuation=run.continuation,
    )


class PowerBalance(BalanceStrategy):
    """PowerBALanCe: sampling without replacement with p(x) ∝ Δ(x)^β.

    Attributes:
        beta: coldness β; 0 is uniform sampling.
    """

    name: ClassVar[str] = "power-balance"
    summary: ClassVar[str] = "sampling without replacement with p ∝ Δ^β (PowerBALanCe)"

    beta: Coldness = 1.0

    def choose(self, pool: Pool) -> Choice:
        """Sample by power."""
        scores = single_scores(self.model(pool), pool)
        picks = power_sample(scores, pool.batch_size, self.beta, generator=pool.generator("power"))
        return Choice(pool.candidates[picks], scores=scores[picks])


class ClusterBalance(BalanceStrategy):
    """BALanCe-Clustering (Algorithm 3) on a subset sampled with p(x) ∝ Δ(x)^β.

    Attributes:
        beta: coldness β of the subset and of the first centroids.
        subset: size of the subset, as a multiple of the batch size (the paper: 2 with MC dropout, 3 with cSG-MCMC).
    """

    name: ClassVar[str] = "cluster-balance"
    summary: ClassVar[str] = "power-sampled subset, then clustering by the overlap I(x, y); the centroids"

    beta: Coldness = 1.0
    subset: Subset = 2.0

    def in_pieces(self, pool: Pool) -> bool:  # noqa: ARG002
        """Return False: clustering is a few large products."""
        return False

    def memory_needed(self, pool: Pool) -> int:
        """Return the bytes of the features of the subset, of the centroids and of the cluster sums."""
        num_points = min(self.subset * pool.batch_size, len(pool.candidates)) + 2 * pool.batch_size
        edges = self.edges(pool)
        return round(num_points * edges.num_draws * edges.num_edges * pool.predictions.dtype.itemsize)

    def choose(self, pool: Pool) -> Choice:
        """Sample a subset and cluster it."""
        model = self.joint_model(pool)
        scores = single_scores(model, pool)
        size = round(min(self.subset * pool.batch_size, len(scores)))
        drawn = power_sample(scores, size, self.beta, generator=pool.generator("subset"))
        members = drawn.sort().values
        rows = pool.candidates[members]
        width = len(model.draw_weights) * len(model.edge_weights)
        needed = size * width * pool.predictions.dtype.itemsize
        if needed > MAX_FEATURE_BYTES:
            raise ValueError(
                f"clustering {size} points over {width} pairs of draw and edge must fit in "
                f"{MAX_FEATURE_BYTES / 2**30:.0f} GiB, got {needed / 2**30:.1f} GiB; use fewer pairs or lower `subset`"
            )
        features = torch.empty(size, width, dtype=pool.predictions.dtype, device=model.device)
        for span in model.spans(size):
            features[span] = model.features(rows[span])
        own = scores[members].to(features)
        seeds = power_sample(scores[members], pool.batch_size, self.beta, generator=pool.generator("centroids"))
        centroids, num_rounds = balance_clustering(features, own, seeds.to(features.device))
        centroids = centroids.cpu()
        return Choice(rows[centroids], scores=scores[members][centroids], clustering_rounds=num_rounds)


class BatchBalance(BalanceStrategy):
    """Algorithm 1 of the paper: exact greedy for small batches, clustering for large ones.

    Attributes:
        large_batch: the smallest batch size for clustering (the paper: 50).
        continuation: option of greedy-balance.
        beta: option of cluster-balance.
        subset: option of cluster-balance.
    """

    name: ClassVar[str] = "batch-balance"
    summary: ClassVar[str] = f"the paper's Algorithm 1: greedy under {LARGE_BATCH}, clustering from there on"

    runs_on_executors: ClassVar[bool] = True

    large_batch: PositiveInt = LARGE_BATCH
    continuation: Continuation = "power"
    beta: Coldness = 1.0
    subset: Subset = 2.0

    def in_pieces(self, pool: Pool) -> bool:
        """Return whether the batch is small and greedy runs in pieces."""
        return pool.batch_size < self.large_batch and super().in_pieces(pool)

    def memory_needed(self, pool: Pool) -> int:
        """Return 0 for greedy, and the bytes of clustering for large batches."""
        if pool.batch_size < self.large_batch:
            return 0
        return ClusterBalance(beta=self.beta, subset=self.subset).memory_needed(pool)

    def choose(self, pool: Pool) -> Choice:
        """Choose by greedy-balance or cluster-balance."""
        is_small = pool.batch_size < self.large_batch
        for option in ("beta", "subset") if is_small else ("continuation",):
            if getattr(self, option) != type(self).model_fields[option].default:
                raise ValueError(
                    f"option `{option}` of {self.name!r} must not be given at batch size {pool.batch_size}: it is "
                    f"used {'from' if is_small else 'below'} {self.large_batch} points {'on' if is_small else 'only'}"
                )
        if pool.executor is not None and not is_small:
            raise ValueError(
                f"`executor` is used by {self.name!r} below {self.large_batch} points only, got {pool.batch_size}; "
                "use strategy 'greedy-balance'"
            )
        if is_small:
            return GreedyBalance(offset=self.offset, continuation=self.continuation).choose(pool)
        return ClusterBalance(offset=self.offset, beta=self.beta, subset=self.subset).choose(pool)


class EnumeratedBalance(BalanceStrategy):
    """Greedy on Δ by enumerating every label configuration: exact, and exponential in the batch size."""

    name: ClassVar[str] = "enumerated-balance"
    summary: ClassVar[str] = "greedy by enumerating all C^b label configurations (small batches only)"

    def in_pieces(self, pool: Pool) -> bool:  # noqa: ARG002
        """Return False: its products are large."""
        return False

    def configurations(self, pool: Pool) -> int | None:
        """Return the number of label configurations to sample, or None to enumerate them."""
        check_enumerable(pool.predictions.num_answers, pool.batch_size)
        return None

    def memory_needed(self, pool: Pool) -> int:
        """Return the bytes of the table of configurations and of a block of scores."""
        enumerated = min(MAX_CONFIGURATIONS, pool.predictions.num_answers**pool.batch_size)
        return estimator_bytes(pool.predictions, self.configurations(pool) or enumerated)

    def choose(self, pool: Pool) -> Choice:
        """Maximise the estimate of Δ one point at a time."""
        return _estimated_greedy(self.joint_model(pool), pool, self.configurations(pool))


class SampledBalance(EnumeratedBalance):
    """Greedy with the estimator of the paper's text: enumeration for b < 4, then importance sampling (eq. 6).

    Attributes:
        num_samples: M, the number of sampled label configurations.
    """

    name: ClassVar[str] = "sampled-balance"
    summary: ClassVar[str] = (
        "greedy with the estimator of the paper's text: enumeration for b < 4, then M sampled labels"
    )

    num_samples: PositiveInt = 10_000

    def configurations(self, pool: Pool) -> int | None:  # noqa: ARG002
        """Return the number of samples."""
        return self.num_samples


def _estimated_greedy(model: BalanceModel, pool: Pool, num_samples: int | None) -> Choice:
    stream = pool.generator("configurations")
    estimator = ConfigurationEstimator(model, num_samples=num_samples, generator=stream)
    left = pool.candidates
    chosen: list[int] = []
    values: list[float] = []
    notes: tuple[str, ...] = ()
    saturated = model.edges.total_weight * (1 - 1e-6)
    for pick in range(pool.batch_size):
        if pick:
            estimator.add(chosen[-1])
        scores = estimator.scores(left)
        largest = float(scores.max())
        tied = (scores == largest).nonzero().flatten()
        if len(tied) > 1 and (largest <= 0 or largest >= saturated):
            best = int(tied[torch.randint(len(tied), (), generator=stream)])
            notes = notes or (
                f"from pick {pick + 1} on, several points have the same estimate of Δ and one of them is chosen at "
                "random; 'greedy-balance' still distinguishes them",
            )
        else:
            best = int(top_k(scores, 1))
        values.append(float(scores[best]))
        chosen.append(int(left[best]))
        left = torch.cat([left[:best], left[best + 1 :]])
    return Choice(torch.tensor(chosen), scores=torch.tensor(values, dtype=torch.float64), notes=notes)

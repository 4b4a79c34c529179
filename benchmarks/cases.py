"""The lines of the benchmark that need nothing but this library: ours against a plain form of the same thing."""

import shutil
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from batchbalance import ClusterBalance, scores
from batchbalance.arguments.seeds import generator
from batchbalance.balance.closed_form import BalanceModel, BalanceObjective, balance_scores
from batchbalance.balance.clustering import balance_clustering
from batchbalance.balance.edges import connect
from batchbalance.balance.estimators import ENUMERATE_BELOW, ConfigurationEstimator
from batchbalance.balance.finite import ec2, eced
from batchbalance.balance.greedy import GreedyOptions, greedy
from batchbalance.batches import badge, cluster_margin, k_center
from batchbalance.batches.batch_bald import batch_bald
from batchbalance.predictions import Predictions
from batchbalance.scores import bald, epig
from batchbalance.scores.ranking import power_sample
from batchbalance.selection import select
from benchmarks import plain
from benchmarks.inputs import random_embeddings, random_pool, random_probs
from benchmarks.measure import ChildError, Side

Size = dict[str, int]
SAMPLED_POINTS = 4  # the sampled estimator is timed on this many points
THRESHOLD = 0.05


@dataclass(frozen=True)
class Case:
    """A line, or one for each other side if there are several.

    Attributes:
        name: of the case.
        build: sides for a size and a seed, ours first.
        full: sizes of the whole benchmark.
        quick: sizes of the quick one; none leaves the case out.
        target: the least ratio wanted against the first other side at full size.
        has_memory: whether its peak memory can be measured; not that of a process of its own.
    """

    name: str
    build: Callable[[Size, int], list[Side]]
    full: tuple[Size, ...]
    quick: tuple[Size, ...] = ()
    target: float | None = None
    has_memory: bool = True


def startup_against_torch(size: Size, seed: int) -> list[Side]:
    """`batchbalance select` of a small file, from start to exit; a process that imports torch and nothing else."""
    pool = Path(tempfile.mkdtemp()) / "pool.npz"
    _pool(size, seed).save(pool)

    def process(*arguments: str) -> None:
        done = subprocess.run([sys.executable, "-P", "-c", *arguments], capture_output=True, text=True)
        if done.returncode:
            raise ChildError(done.stderr)

    def ours() -> None:
        process("from batchbalance.cli import main; main()", "select", str(pool), "--batch-size", str(size["B"]))

    weakref.finalize(ours, shutil.rmtree, pool.parent)
    return [Side("batchbalance select", ours), Side("import torch", lambda: process("import torch"))]


def greedy_against_sampling(size: Size, seed: int) -> list[Side]:
    """Exact greedy on the whole pool; the sampled estimator, as the paper writes it and as ours, on a few points.

    It is timed at the last pick. The picks before the fourth, which it enumerates, are left out of its time.
    """
    model = _model(size, seed)
    batch = torch.arange(size["B"] - 1)
    ends, weights = model.edges.ends, model.edge_weights.float()
    stream = generator(seed, "benchmark configurations")
    paper = plain.SampledBalance(model.predictions.log_probs(), ends, weights, batch, size["M"], stream)
    estimator = ConfigurationEstimator(model, num_samples=size["M"], generator=generator(seed, "benchmark"))
    for index in batch.tolist():
        estimator.add(index)
    few = torch.arange(size["B"], size["B"] + SAMPLED_POINTS)
    num_picks = size["B"] - ENUMERATE_BELOW + 1
    scale = size["N"] * num_picks / SAMPLED_POINTS
    scaled = f"{SAMPLED_POINTS} points of one pick of {num_picks}, scaled linearly"
    return [
        Side("greedy-balance", lambda: _greedy(model, size["B"])),
        Side("eq. 6 of the paper", lambda: paper.scores(few), scale, scaled),
        Side("sampled-balance", lambda: estimator.scores(few), scale, scaled),
    ]


def lazy_against_full_passes(size: Size, seed: int) -> list[Side]:
    """The same greedy batch with and without lazy evaluation."""
    model = _model(size, seed)
    return [
        Side("lazy", lambda: _greedy(model, size["B"])),
        Side("full passes", lambda: _greedy(model, size["B"], lazy=False)),
    ]


def gain_pass_against_product(size: Size, seed: int) -> list[Side]:
    """One gain of every candidate; one matrix product of the same number of operations."""
    model = _model(size, seed)
    objective = BalanceObjective(model, torch.arange(size["N"]))
    stream = generator(seed, "benchmark")
    left = torch.rand(size["N"] * size["C"], size["S"], generator=stream)
    right = torch.rand(size["S"], len(model.edge_weights), generator=stream)
    out = torch.empty(len(left), right.shape[1])
    return [
        Side("gain pass", objective.gains),
        Side("matrix product", lambda: torch.mm(left, right, out=out)),
    ]


def clustering_against_enumeration(size: Size, seed: int) -> list[Side]:
    """BALanCe-Clustering of n points from features; from overlaps by enumeration of all C² label pairs."""
    model = _model(size, seed)
    every = torch.arange(size["N"])
    scores = balance_scores(model.predictions, model.edges).double()
    seeds = power_sample(scores, size["B"], 1.0, generator=generator(seed, "benchmark centroids"))

    def ours() -> Tensor:
        features = torch.cat([model.features(every[span]) for span in model.spans(len(every))])
        return balance_clustering(features, scores.to(features), seeds)[0]

    def enumerated() -> Tensor:
        log_probs = model.predictions.log_probs()
        return plain.medoids(plain.pair_overlaps(log_probs, model.edges, scores.to(log_probs)), seeds)

    return [Side("cluster-balance", ours), Side("all C² label pairs", enumerated)]


def badge_against_gradients(size: Size, seed: int) -> list[Side]:
    """BADGE without and with its gradient embeddings."""
    probs, points = random_probs(size["N"], size["C"], seed), random_embeddings(size["N"], size["D"], seed)
    return [
        Side("badge", lambda: badge(probs, points, size["B"], generator=generator(seed, "benchmark"))[0]),
        Side("unfactored", lambda: plain.badge(probs, points, size["B"], generator(seed, "benchmark"))),
    ]


def coreset_against_loop(size: Size, seed: int) -> list[Side]:
    """k-center with distances kept, and with all of them anew at every pick."""
    points = random_embeddings(size["N"], size["D"], seed)
    labelled = random_embeddings(size["L"], size["D"], seed, "labelled")
    return [
        Side("coreset", lambda: k_center(points, size["B"], labelled=labelled)[0]),
        Side("plain loop", lambda: plain.k_center(points, size["B"], labelled)),
    ]


def cluster_margin_against_published(size: Size, seed: int) -> list[Side]:
    """Clusters of the uncertain points only, and of the whole pool."""
    probs, points = random_probs(size["N"], size["C"], seed), random_embeddings(size["N"], size["D"], seed)
    return [
        Side(
            "cluster-margin",
            lambda: cluster_margin(1 - torch.diff(probs.topk(2).values)[:, 0].abs(), points, size["B"])[0],
        ),
        Side("clusters of the pool", lambda: plain.cluster_margin(probs, points, size["B"])),
    ]


def batch_bald_against_enumeration(size: Size, seed: int) -> list[Side]:
    """BatchBALD with bounds, and every joint entropy at every pick."""
    pool = _pool(size, seed)
    return [
        Side("batch-bald", lambda: batch_bald(pool, size["B"], generator=generator(seed, "benchmark"))[0]),
        Side("all joint entropies", lambda: plain.batch_bald(pool.log_probs(), size["B"])),
    ]


def epig_against_whole_arrays(size: Size, seed: int) -> list[Side]:
    """EPIG block by block, and from all joint distributions at once."""
    pool, targets = _pool(size, seed), random_pool(size["T"], size["S"], size["C"], seed + 1)
    return [
        Side("epig", lambda: epig(pool, targets)),
        Side("whole arrays", lambda: plain.epig(pool.log_probs(), targets.log_probs())),
    ]


def score_case(
    ours: Callable[[Predictions], Tensor], other: Callable[[Tensor], Tensor], name: str
) -> Callable[[Size, int], list[Side]]:
    """A score of single points against one line of torch over the whole array."""

    def build(size: Size, seed: int) -> list[Side]:
        pool = _pool(size, seed)
        return [Side(name, lambda: ours(pool)), Side("whole arrays", lambda: other(pool.log_probs()))]

    return build


def ec2_against_edges(size: Size, seed: int) -> list[Side]:
    """EC² at once, and edge by edge."""
    pool = _pool(size, seed)
    edges = connect(pool, THRESHOLD, size["K"], seed)
    return [Side("ec2", lambda: ec2(pool, edges)), Side("each edge", lambda: plain.ec2(pool.log_probs(), edges))]


def eced_against_edges(size: Size, seed: int) -> list[Side]:
    """ECED at once, and edge by edge."""
    pool = _pool(size, seed)
    edges = connect(pool, THRESHOLD, size["K"], seed)
    return [Side("eced", lambda: eced(pool, edges)), Side("each edge", lambda: plain.eced(pool.log_probs(), edges))]


def whole_select(size: Size, seed: int) -> list[Side]:
    """`select` by greedy, with all that it reports."""
    pool = _pool(size, seed)
    return [Side("select", lambda: select(pool, size["B"], strategy="greedy-balance", threshold=THRESHOLD, seed=seed))]


def large_clustering(size: Size, seed: int) -> list[Side]:
    """`select` by clustering, for a batch of thousands."""
    pool, strategy = _pool(size, seed), ClusterBalance(subset=3)
    return [Side("select", lambda: select(pool, size["B"], strategy=strategy, threshold=THRESHOLD, seed=seed))]


def large_batch_bald(size: Size, seed: int) -> list[Side]:
    """BatchBALD at full size."""
    return batch_bald_against_enumeration(size, seed)[:1]


def large_badge(size: Size, seed: int) -> list[Side]:
    """BADGE at full size."""
    return badge_against_gradients(size, seed)[:1]


def _pool(size: Size, seed: int) -> Predictions:
    return random_pool(size["N"], size["S"], size["C"], seed)


def _model(size: Size, seed: int) -> BalanceModel:
    pool = _pool(size, seed)
    return BalanceModel(pool, connect(pool, THRESHOLD, seed=seed))


def _greedy(model: BalanceModel, batch_size: int, *, lazy: bool = True) -> Tensor:
    objective = BalanceObjective(model, torch.arange(model.predictions.num_points))
    return greedy(objective, GreedyOptions(batch_size, lazy=lazy)).positions


def _score_cases() -> list[Case]:
    """One case for each score of single points."""
    forms: dict[str, tuple[Callable[[Predictions], Tensor], Callable[[Tensor], Tensor]]] = {
        "bald": (bald, plain.bald),
        "entropy": (scores.entropy, lambda p: plain.entropy(p.exp().mean(dim=1))),
        "least-confidence": (scores.least_confidence, lambda p: 1 - p.exp().mean(dim=1).amax(dim=1)),
        "variation-ratio": (scores.variation_ratio, lambda p: 1 - p.exp().mean(dim=1).amax(dim=1)),
        "margin": (scores.margin, plain.margin),
        "mean-std": (scores.mean_std, lambda p: p.exp().std(dim=1, correction=0).mean(dim=1)),
    }
    full, quick = {"N": 20_000, "S": 50, "C": 10}, {"N": 2_000, "S": 50, "C": 10}
    return [Case(name, score_case(*pair, name), (full,), (quick,)) for name, pair in forms.items()]


LARGE = {"N": 40_000, "S": 200, "C": 10, "B": 10}
EDGES = {"N": 20_000, "S": 50, "C": 10, "K": 500}

CASES = [
    Case(
        "greedy", greedy_against_sampling, ({**LARGE, "M": 10_000},), ({**LARGE, "N": 4_000, "M": 10_000},),
        5_000.0,
    ),
    Case(
        "lazy", lazy_against_full_passes,
        (LARGE, {"N": 10_000, "S": 40, "C": 10, "B": 10}, {"N": 10_000, "S": 40, "C": 10, "B": 100}),
        ({"N": 10_000, "S": 40, "C": 10, "B": 10},), 1 / 1.1,
    ),
    Case("gain-pass", gain_pass_against_product, (LARGE,), ({**LARGE, "N": 4_000},), 0.5),
    Case(
        "clustering", clustering_against_enumeration,
        ({"N": 400, "S": 40, "C": 10, "B": 200}, {"N": 600, "S": 24, "C": 100, "B": 200}),
        ({"N": 200, "S": 24, "C": 20, "B": 100},),
    ),
    Case(
        "badge", badge_against_gradients, ({"N": 20_000, "D": 128, "C": 20, "B": 30},),
        ({"N": 4_000, "D": 64, "C": 20, "B": 10},),
    ),
    Case(
        "coreset", coreset_against_loop, ({"N": 20_000, "D": 128, "L": 200, "B": 30},),
        ({"N": 4_000, "D": 64, "L": 100, "B": 20},),
    ),
    Case(
        "cluster-margin", cluster_margin_against_published, ({"N": 4_000, "D": 128, "C": 20, "B": 40},),
        ({"N": 1_000, "D": 64, "C": 20, "B": 20},),
    ),
    Case(
        "batch-bald", batch_bald_against_enumeration, ({"N": 2_000, "S": 50, "C": 10, "B": 4},),
        ({"N": 400, "S": 50, "C": 10, "B": 4},),
    ),
    *_score_cases(),
    Case(
        "epig", epig_against_whole_arrays, ({"N": 1_000, "T": 100, "S": 50, "C": 10},),
        ({"N": 200, "T": 100, "S": 50, "C": 10},),
    ),
    Case("ec2", ec2_against_edges, (EDGES,), ({**EDGES, "N": 1_000},)),
    Case("eced", eced_against_edges, (EDGES,), ({**EDGES, "N": 1_000},)),
    Case(
        "startup", startup_against_torch, ({"N": 500, "S": 20, "C": 8, "B": 5},),
        ({"N": 500, "S": 20, "C": 8, "B": 5},), 0.8, has_memory=False,
    ),
    Case("select", whole_select, (LARGE,), ({**LARGE, "N": 4_000},)),
    Case("large-clustering", large_clustering, ({"N": 20_000, "S": 24, "C": 100, "B": 5_000},)),
    Case("large-batch-bald", large_batch_bald, ({"N": 50_000, "S": 50, "C": 10, "B": 10},)),
    Case("large-badge", large_badge, ({"N": 50_000, "D": 512, "C": 100, "B": 100},)),
]  # fmt: skip

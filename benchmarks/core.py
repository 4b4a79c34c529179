"""Core speed, as ratios of two things timed in one run: python benchmarks/core.py [--quick]."""

import argparse
import resource
import statistics
import time
from collections.abc import Callable

import torch

from batchbalance import ClusterBalance, Predictions, connect, select
from batchbalance.acquisition.balance import BalanceModel, BalanceObjective
from batchbalance.acquisition.estimators import ConfigurationEstimator
from batchbalance.seeds import generator
from batchbalance.selection import greedy


def seconds(run: Callable[[], object], repeats: int) -> float:
    """Median wall-clock time of a call, after one that warms up."""
    run()
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        run()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def peak_gib() -> float:
    """The most memory this process has held so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def random_predictions(num_points: int, num_draws: int, num_classes: int) -> Predictions:
    """A pool on which draws disagree in part."""
    stream = generator(0, "benchmark")
    logits = torch.randn(num_points, num_draws, num_classes, generator=stream)
    logits += 3 * torch.randn(num_points, 1, num_classes, generator=stream)
    logits += 1.5 * torch.randn(1, num_draws, num_classes, generator=stream)
    return Predictions.from_logits(logits)


def greedy_against_sampling(predictions: Predictions, batch_size: int, num_samples: int, repeats: int) -> None:
    """Exact greedy over the whole pool against the paper's estimator, timed on a few points and scaled linearly."""
    edges = connect(predictions, 0.05)
    model = BalanceModel(predictions, edges)
    every = torch.arange(predictions.num_points)
    exact = seconds(lambda: greedy(BalanceObjective(model, every), batch_size), repeats)
    estimator = ConfigurationEstimator(model, num_samples=num_samples, generator=generator(0, "benchmark"))
    for index in range(batch_size - 1):
        estimator.add(index)
    few = torch.arange(batch_size, batch_size + 4)
    per_point = seconds(lambda: estimator.scores(few), repeats) / len(few)
    sampled_picks = max(0, batch_size - 3)
    sampled = per_point * predictions.num_points * sampled_picks
    print(
        f"greedy, B = {batch_size}: {exact:.2f} s; sampled estimator, M = {num_samples:,}: {per_point:.3f} s a point "
        f"and pick, {sampled / 3600:.2f} h for picks 4 to {batch_size} (4 points timed, scaled linearly): "
        f"{sampled / exact:,.0f} times slower"
    )


def gain_pass_against_product(predictions: Predictions, repeats: int) -> None:
    """One gain of every candidate against one matrix product of the same number of operations."""
    edges = connect(predictions, 0.05)
    objective = BalanceObjective(BalanceModel(predictions, edges), torch.arange(predictions.num_points))
    left = torch.rand(predictions.num_points * predictions.num_classes, predictions.num_draws)
    right = torch.rand(predictions.num_draws, edges.num_edges)
    out = torch.empty(len(left), edges.num_edges)
    gains = seconds(objective.gains, repeats)
    product = seconds(lambda: torch.mm(left, right, out=out), repeats)
    print(f"gain pass {gains:.3f} s; matrix product of equal flops {product:.3f} s: {gains / product:.2f} times")


def main() -> None:
    """Print every line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the points")
    quick = parser.parse_args().quick
    num_points, repeats = (4_000, 3) if quick else (40_000, 5)
    print(
        f"torch {torch.__version__}, {torch.get_num_threads()} threads, {num_points:,} points × 200 draws × 10 classes"
    )
    predictions = random_predictions(num_points, 200, 10)
    before = peak_gib()
    gain_pass_against_product(predictions, repeats)
    greedy_against_sampling(predictions, 10, 10_000, repeats)
    started = time.perf_counter()
    select(predictions, 10, strategy="greedy-balance")
    print(f"select, greedy-balance, B = 10, with all that it reports: {time.perf_counter() - started:.2f} s")
    print(f"peak memory {peak_gib() - before:.2f} GiB above making the predictions")

    size, batch = (2_000, 500) if quick else (20_000, 5_000)
    many = random_predictions(size, 24, 100)
    started = time.perf_counter()
    select(many, batch, strategy=ClusterBalance(subset=3), threshold=0.05)
    whole = time.perf_counter() - started
    print(
        f"cluster-balance, {size:,} points × 24 draws × 100 classes, B = {batch:,}: {whole:.1f} s, {peak_gib():.2f} GiB"
    )


if __name__ == "__main__":
    main()

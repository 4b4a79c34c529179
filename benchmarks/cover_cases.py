"""The lines of the benchmark on coverage, and on a machine where another process uses a core."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from batchbalance import MaxHerding
from batchbalance.arguments.seeds import generator
from batchbalance.batches import badge, k_center
from batchbalance.batches.cover import MAX_TARGETS
from batchbalance.batches.targets import squared_length
from batchbalance.posteriors import MCDropout
from batchbalance.posteriors.training.fitting import Recipe, fit, fresh_model
from batchbalance.posteriors.training.networks import tabular_mlp
from batchbalance.predictions import Predictions
from batchbalance.selection import select
from benchmarks import plain
from benchmarks.cases import THRESHOLD, Case, Size
from benchmarks.inputs import mapped_embeddings, random_embeddings, random_pool, random_probs
from benchmarks.measure import Side

STEPS = 300  # of training


def cover_against_matrix(size: Size, seed: int) -> list[Side]:
    """Coverage of all points; the same from a matrix of all pairs, with a full pass for every pick."""
    points = random_embeddings(size["N"], size["D"], seed)
    length = squared_length(points, size["B"])
    strategy = MaxHerding(max_targets=size["N"])
    return [
        Side("max-herding", lambda: select(embeddings=points, batch_size=size["B"], strategy=strategy).indices),
        Side("full matrix", lambda: plain.max_herding(points, size["B"], length)),
    ]


def large_cover(size: Size, seed: int) -> list[Side]:
    """`select` by coverage of a sample of targets; other strategies on the same embeddings."""
    points, probs = random_embeddings(size["N"], size["D"], seed), random_probs(size["N"], size["C"], seed)
    return [
        Side("max-herding", lambda: select(embeddings=points, batch_size=size["B"], strategy="max-herding")),
        Side("coreset", lambda: k_center(points, size["B"])),
        Side("badge", lambda: badge(probs, points, size["B"], generator=generator(seed, "benchmark"))),
    ]


def cover_against_product(strategy: str, size: Size, seed: int) -> list[Side]:
    """Coverage of a memory-mapped file within 1 GiB; one product of all points and targets, which it is made of."""
    points = mapped_embeddings(size["N"], size["D"], seed)
    pool = None
    if strategy == "u-herding":
        pool = Predictions.from_probs(random_probs(size["N"], size["C"], seed).unsqueeze(1))
    targets = torch.from_numpy(points[:MAX_TARGETS]).T.contiguous()

    def run() -> Tensor:
        return select(pool, size["B"], embeddings=points, strategy=strategy, memory_budget="1GiB", seed=seed).indices

    def product() -> None:
        for start in range(0, size["N"], 1024):
            torch.from_numpy(points[start : start + 1024]) @ targets

    return [Side(strategy, run), Side("matrix product", product)]


def mapped_cover(size: Size, seed: int) -> list[Side]:
    """Coverage of embeddings in a memory-mapped file, within a memory budget."""
    points = mapped_embeddings(size["N"], size["D"], seed)

    def run() -> Tensor:
        return select(embeddings=points, batch_size=size["B"], memory_budget="768MiB", strategy="max-herding").indices

    return [Side("max-herding", run)]


@contextmanager
def busy_neighbour() -> Iterator[None]:
    """Another process that uses a core, for as long as the block runs."""
    with subprocess.Popen([sys.executable, "-P", "-S", "-c", "while True: pass"]) as neighbour:
        try:
            yield
        finally:
            neighbour.kill()


def busy_selection(size: Size, seed: int) -> list[Side]:
    """`select`."""
    pool = random_pool(size["N"], size["S"], size["C"], seed)
    return beside_a_neighbour(
        lambda: select(pool, size["B"], strategy="greedy-balance", threshold=THRESHOLD, seed=seed).indices
    )


def busy_training(size: Size, seed: int) -> list[Side]:
    """`fit` of a small network."""
    x, y = small_data(size, seed)
    build = partial(tabular_mlp, 10, (size["D"],))
    return beside_a_neighbour(lambda: fit(build, x, y, Recipe(steps=STEPS), num_classes=10, seed=seed).kept)


def busy_prediction(size: Size, seed: int) -> list[Side]:
    """`predict` of a small network."""
    x, _ = small_data(size, seed)
    posterior = MCDropout(fresh_model(partial(tabular_mlp, 10, (size["D"],)), seed, "cpu"), size["S"], seed)
    return beside_a_neighbour(lambda: posterior.predict(x).log_probs())


def small_data(size: Size, seed: int) -> tuple[Tensor, Tensor]:
    """Rows of features and labels of ten classes."""
    labels = torch.randint(10, (size["N"],), generator=generator(seed, "benchmark labels"))
    return random_embeddings(size["N"], size["D"], seed), labels


def beside_a_neighbour(run: Callable[[], Any]) -> list[Side]:
    """All threads and one, beside a process that uses a core and alone: all should take as long."""
    every = torch.get_num_threads()

    def on(threads: int, busy: bool) -> Callable[[], Any]:
        def timed() -> Any:
            torch.set_num_threads(threads)
            try:
                if not busy:
                    return run()
                with busy_neighbour():
                    return run()
            finally:
                torch.set_num_threads(every)

        return timed

    return [
        Side("all threads, busy", on(every, True)),
        Side("one thread, busy", on(1, True)),
        Side("all threads", on(every, False)),
        Side("one thread", on(1, False)),
    ]


COVER_CASES = [
    Case(
        "cover", cover_against_matrix, ({"N": 8_000, "D": 128, "B": 50},), ({"N": 1_000, "D": 64, "B": 20},),
    ),
    Case("large-cover", large_cover, ({"N": 40_000, "D": 512, "C": 10, "B": 100},)),
    Case(
        "cover-limit", partial(cover_against_product, "max-herding"),
        ({"N": 200_000, "D": 512, "B": 100}, {"N": 1_000_000, "D": 384, "B": 100}),
        ({"N": 6_000, "D": 128, "B": 20},), 1 / 0.7,
    ),
    Case(
        "weighted-cover-limit", partial(cover_against_product, "u-herding"),
        ({"N": 200_000, "D": 512, "C": 10, "B": 100}, {"N": 1_000_000, "D": 384, "C": 10, "B": 100}),
        ({"N": 6_000, "D": 128, "C": 10, "B": 20},), 1 / 0.7,
    ),
    Case("mapped-cover", mapped_cover, ({"N": 1_000_000, "D": 256, "B": 100},)),
    Case(
        "busy", busy_selection,
        ({"N": 1_000, "S": 100, "C": 10, "B": 10}, {"N": 60_000, "S": 40, "C": 10, "B": 30}),
        ({"N": 1_000, "S": 100, "C": 10, "B": 10},), 1 / 1.5,
    ),
    Case(
        "busy-training", busy_training,
        ({"N": 200, "D": 64},), ({"N": 200, "D": 64},), 1 / 1.5,
    ),
    Case(
        "busy-prediction", busy_prediction,
        ({"N": 5_000, "D": 64, "S": 100},), ({"N": 500, "D": 64, "S": 40},), 1 / 1.5,
    ),
]  # fmt: skip

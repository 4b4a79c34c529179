"""`python -m benchmarks.heads`: how good the draws of Bayesian heads are on embeddings, and what they cost."""

import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from numpy.typing import NDArray
from torch import Tensor

from batchbalance.cli.app import out, reported_errors
from batchbalance.lab.metrics import calibration_error, nll
from batchbalance.posteriors import BayesianHead
from batchbalance.system.files import mapped_array
from batchbalance.system.memory import peak_memory, reset_peak_memory

Array = NDArray[Any]

COLUMNS = ("one draw", "mean", "NLL", "calibration", "disagree", "CPU s")
POOL_ROWS = 2000  # of the pool, on which draws are compared

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


@app.command("compare")
def compare_command(
    embeddings: Annotated[Path, typer.Option(help="Embeddings to take labels and the pool from, as .npy.")],
    labels: Annotated[Path, typer.Option(help="Their labels, as .npy.")],
    test_embeddings: Annotated[Path, typer.Option(help="Embeddings to test on, as .npy.")],
    test_labels: Annotated[Path, typer.Option(help="Their labels, as .npy.")],
    num_labels: Annotated[list[int] | None, typer.Option(help="Repeatable; else 50, 200, 500 and 2,000.")] = None,
    num_draws: Annotated[int, typer.Option(help="Draws of each head.")] = 100,
    trials: Annotated[int, typer.Option(help="Random sets of labels that a number is the mean of.")] = 3,
) -> None:
    """Compare the most probable weights, Laplace draws and bootstrap heads, as a table in Markdown."""
    with reported_errors():
        x, y, test_x, test_y = (mapped_array(path) for path in (embeddings, labels, test_embeddings, test_labels))
        classes = np.unique(y)
        truth = torch.from_numpy(np.searchsorted(classes, test_y))
        out.print(f"| labels | head | {' | '.join(COLUMNS)} |\n| --- | --- |{' --- |' * len(COLUMNS)}", soft_wrap=True)
        for count in num_labels or (50, 200, 500, 2000):
            rows: dict[str, list[list[float]]] = {"MAP": [], "laplace": [], "bootstrap": []}
            for seed in range(trials):
                order = np.random.default_rng(seed).permutation(len(x))
                chosen, pool = np.sort(order[:count]), x[np.sort(order[count:][:POOL_ROWS])]
                for method in ("laplace", "bootstrap"):
                    cpu = time.process_time()
                    head = BayesianHead(method, num_draws, seed=seed)
                    head.fit(x[chosen], y[chosen], classes=classes.tolist(), unlabelled=x)
                    cpu = time.process_time() - cpu
                    rows[method].append([*measured(head, test_x, truth, pool), cpu])
                    if method == "laplace":
                        rows["MAP"].append([*measured(head.most_probable, test_x, truth, pool), float("nan")])
            for name, values in rows.items():
                cells = [f"{value:.3f}" if value == value else "" for value in np.mean(values, axis=0)]
                out.print(f"| {count:,} | {name} | {' | '.join(cells)} |", soft_wrap=True)


@app.command("size")
def size_command(
    num_labels: Annotated[int, typer.Option(help="Labels.")] = 500,
    num_features: Annotated[int, typer.Option(help="D.")] = 768,
    num_classes: Annotated[int, typer.Option(help="C.")] = 100,
    num_points: Annotated[int, typer.Option(help="Points of the pool, whose predictions go to a file.")] = 20_000,
) -> None:
    """Time and peak memory of heads on made-up embeddings of a size; memory is that of the whole process."""
    with reported_errors(), tempfile.TemporaryDirectory() as folder:
        rng = np.random.default_rng(0)
        centres = rng.normal(size=(num_classes, num_features)).astype(np.float32)
        labels = rng.integers(num_classes, size=num_labels)
        x = centres[labels] + 4 * rng.normal(size=(num_labels, num_features)).astype(np.float32)
        pool = 4 * rng.normal(size=(num_points, num_features)).astype(np.float32)
        for method in ("laplace", "bootstrap"):
            head = BayesianHead(method)
            costs(f"{method} fit", partial(head.fit, x, labels, num_classes=num_classes, unlabelled=pool))
            costs(f"{method} predict", partial(head.predict, pool, path=Path(folder) / "pool.npy"))


def costs(what: str, work: Callable[[], object]) -> None:
    """Do some work and print a line about it."""
    reset_peak_memory()
    started, cpu = time.perf_counter(), time.process_time()
    work()
    seconds = f"{time.perf_counter() - started:.1f} s, {time.process_time() - cpu:.1f} s of CPU"
    out.print(f"{what}: {seconds}, {peak_memory() / 2**20:.0f} MiB", soft_wrap=True)


def measured(head: BayesianHead, x: Array, truth: Tensor, pool: Array) -> list[float]:
    """Accuracy of one draw and of the mean, NLL and calibration error of the mean, disagreement of two draws."""
    predictions = head.predict(x)
    mean = predictions.mean_probs()
    one = (predictions.log_probs().argmax(dim=2) == truth[:, None]).double().mean()
    right = (mean.argmax(dim=1) == truth).double().mean()
    votes = head.predict(pool).log_probs().argmax(dim=2)
    half = votes.shape[1] // 2
    differ = (votes[:, :half] != votes[:, half : 2 * half]).double().mean() if half else float("nan")
    return [float(one), float(right), nll(mean, truth), calibration_error(mean, truth), float(differ)]


if __name__ == "__main__":
    app()

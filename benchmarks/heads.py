"""`python -m benchmarks.heads`: how good the draws of Bayesian heads are on embeddings, as a table in Markdown."""

import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from numpy.typing import NDArray
from torch import Tensor

from batchbalance.cli.app import out, reported_errors
from batchbalance.files import mapped_array
from batchbalance.lab.metrics import calibration_error, nll
from batchbalance.posteriors import BayesianHead

Array = NDArray[Any]

COLUMNS = ("one draw", "mean", "NLL", "calibration", "disagree", "CPU s")
POOL_ROWS = 2000  # of the pool, on which draws are compared

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


@app.command()
def heads_command(
    embeddings: Annotated[Path, typer.Option(help="Embeddings to take labels and the pool from, as .npy.")],
    labels: Annotated[Path, typer.Option(help="Their labels, as .npy.")],
    test_embeddings: Annotated[Path, typer.Option(help="Embeddings to test on, as .npy.")],
    test_labels: Annotated[Path, typer.Option(help="Their labels, as .npy.")],
    num_labels: Annotated[list[int] | None, typer.Option(help="Repeatable; else 50, 200, 500 and 2,000.")] = None,
    num_draws: Annotated[int, typer.Option(help="Draws of each head.")] = 100,
    trials: Annotated[int, typer.Option(help="Random sets of labels that a number is the mean of.")] = 3,
) -> None:
    """Compare the most probable weights, Laplace draws and bootstrap heads."""
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

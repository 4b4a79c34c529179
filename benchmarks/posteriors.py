"""Speed and memory of posteriors, as ratios measured in one run: `python benchmarks/posteriors.py [--small]`.

Both sides of a ratio get the same inputs, batches and threads, and are timed in turn; each ratio is one of medians.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from torch import Tensor, nn

from batchbalance.models import mnist_cnn
from batchbalance.posteriors import MCDropout
from batchbalance.training import Recipe, fit


def timed(sides: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Median seconds of each side; the sides take turns."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(repeats):
        for name, run in sides.items():
            started = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - started)
    return {name: median(values) for name, values in seconds.items()}


@torch.no_grad()
def repeated(model: nn.Module, inputs: Tensor, num_draws: int, rows: int) -> None:
    """The usual way: every input `num_draws` times, in forward passes of `rows` rows."""
    model.train()
    for batch in inputs.repeat_interleave(num_draws, dim=0).split(rows):
        torch.log_softmax(model(batch), dim=-1)


@torch.no_grad()
def looped(model: nn.Module, inputs: Tensor, num_draws: int, rows: int) -> None:
    """A pass over the inputs for each draw."""
    model.train()
    for _ in range(num_draws):
        for batch in inputs.split(rows):
            torch.log_softmax(model(batch), dim=-1)


def predict_ratios(num_inputs: int, num_draws: int, rows: int, repeats: int) -> None:
    """`predict` against the two usual ways, on the MNIST network."""
    model = mnist_cnn()
    inputs = torch.rand(num_inputs, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    few = max(1, num_draws // 20)  # the usual ways take a time in proportion to the draws, so a few tell it
    sides = {
        "predict": lambda: MCDropout(model, num_draws).predict(inputs, batch_size=rows),
        "repeated": lambda: repeated(model, inputs, few, rows),
        "looped": lambda: looped(model, inputs, few, rows),
    }
    seconds = timed(sides, repeats)
    print(f"predict, {num_inputs} images, {num_draws} draws, batches of {rows}: {seconds['predict']:.1f} s")
    for name, text in (("repeated", "repeating the input"), ("looped", "looping over draws")):
        whole = seconds[name] * num_draws / few
        print(f"  {text}: {whole:.1f} s (from {few} draws), {whole / seconds['predict']:.1f} times as long")


def minimal_epoch(inputs: Tensor, labels: Tensor, batch_size: int) -> None:
    """The loop a user would write for the same training."""
    model = mnist_cnn()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    loss = nn.CrossEntropyLoss(len(labels) / (10 * torch.bincount(labels, minlength=10).float()))
    model.train()
    for rows in torch.randperm(len(inputs)).split(batch_size):
        optimizer.zero_grad()
        loss(model(inputs[rows]), labels[rows]).backward()
        optimizer.step()


def training_ratio(num_inputs: int, repeats: int) -> None:
    """An epoch of `fit` against the hand-written loop."""
    g = torch.Generator().manual_seed(0)
    inputs, labels = torch.rand(num_inputs, 1, 28, 28, generator=g), torch.randint(10, (num_inputs,), generator=g)
    recipe = Recipe(max_epochs=1, batch_size=64)
    sides = {
        "fit": lambda: fit(mnist_cnn, inputs, labels, recipe, num_classes=10),
        "minimal": lambda: minimal_epoch(inputs, labels, 64),
    }
    seconds = timed(sides, repeats)
    ratio = seconds["fit"] / seconds["minimal"]
    print(f"training epoch, {num_inputs} images: {seconds['fit']:.2f} s, {ratio:.2f} times the hand-written loop")


def peak_memory(num_inputs: int) -> int:
    """Peak resident megabytes of a fresh process that predicts images, made on the fly, into a file."""
    script = f"import runpy; runpy.run_path({str(Path(__file__))!r})['predict_to_file']({num_inputs})"
    return int(subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout)


def predict_to_file(num_inputs: int) -> None:
    """Predict into a temporary file, then print the peak memory of this process."""

    class Images(torch.utils.data.Dataset[Tensor]):
        def __len__(self) -> int:
            return num_inputs

        def __getitem__(self, row: int) -> Tensor:
            return torch.full((1, 28, 28), row / num_inputs)

    with tempfile.TemporaryDirectory() as folder:
        MCDropout(mnist_cnn(width=0.125), 50).predict(Images(), batch_size=256, path=Path(folder) / "p.npy")
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)


def main() -> None:
    """Print all lines."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="a tenth of the work, for a quick look")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, help="threads of torch; its own choice if left out")
    chosen = parser.parse_args()
    if chosen.threads:
        torch.set_num_threads(chosen.threads)
    share = 10 if chosen.small else 1
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, medians of {chosen.repeats}")
    predict_ratios(2000 // share, 200, 200, chosen.repeats)
    training_ratio(4096 // share, chosen.repeats)
    sizes = (4_000 // share, 40_000 // share)
    small, large = (peak_memory(size) for size in sizes)
    print(f"peak memory of predict into a file: {small} MB for {sizes[0]} images, {large} MB for {sizes[1]}")


if __name__ == "__main__":
    main()

"""The lines of the benchmark on posteriors: prediction, training, and memory of predicting into a file."""

import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn

from batchbalance.networks import mnist_cnn
from batchbalance.posteriors import MCDropout
from batchbalance.seeds import derived_seed, generator
from batchbalance.training import Recipe, fit
from benchmarks import plain
from benchmarks.cases import Case, Size
from benchmarks.inputs import random_images
from benchmarks.measure import Side

ROWS = 200  # rows of a forward pass


def network(seed: int, width: float = 1.0) -> nn.Module:
    """The paper's network for MNIST, from fresh weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derived_seed(seed, "benchmark network"))
        return mnist_cnn(width=width)


def prediction_against_usual(size: Size, seed: int) -> list[Side]:
    """MC-dropout prediction; the usual ways take a time in proportion to the draws, so a few draws tell it."""
    model, inputs = network(seed), random_images(size["N"], seed)
    few = max(1, size["S"] // 20)
    scale, scaled = size["S"] / few, f"{few} draws of {size['S']}, scaled linearly"
    return [
        Side("predict", lambda: MCDropout(model, size["S"], seed).predict(inputs, batch_size=ROWS)),
        Side("repeated input", lambda: plain.repeated(model, inputs, few, ROWS), scale, scaled),
        Side("loop over draws", lambda: plain.looped(model, inputs, few, ROWS), scale, scaled),
    ]


def training_against_loop(size: Size, seed: int) -> list[Side]:
    """An epoch of `fit`; of a hand-written loop."""
    inputs = random_images(size["N"], seed)
    labels = torch.randint(10, (size["N"],), generator=generator(seed, "benchmark labels"))
    recipe = Recipe(max_epochs=1, batch_size=64)

    def written_by_hand() -> None:
        with torch.random.fork_rng(devices=[]):
            plain.epoch(network(seed), inputs, labels, 64, 10)

    return [
        Side("fit", lambda: fit(mnist_cnn, inputs, labels, recipe, num_classes=10, seed=seed)),
        Side("hand-written loop", written_by_hand),
    ]


def prediction_into_file(size: Size, seed: int) -> list[Side]:
    """Images made on the fly, predictions straight into a file: memory must not grow with N."""

    class Images(torch.utils.data.Dataset[Tensor]):
        def __len__(self) -> int:
            return size["N"]

        def __getitem__(self, row: int) -> Tensor:
            return torch.full((1, 28, 28), row / size["N"])

    def run() -> None:
        with tempfile.TemporaryDirectory() as folder:
            posterior = MCDropout(network(seed, 0.125), size["S"], seed)
            posterior.predict(Images(), batch_size=256, path=Path(folder) / "predictions.npy")

    return [Side("predict into a file", run)]


POSTERIOR_CASES = [
    Case("mc-dropout", prediction_against_usual, ({"N": 2_000, "S": 200},), ({"N": 100, "S": 40},)),
    Case("training", training_against_loop, ({"N": 4_096},), ({"N": 512},)),
    Case("predict-to-file", prediction_into_file, ({"N": 4_000, "S": 50}, {"N": 40_000, "S": 50})),
]

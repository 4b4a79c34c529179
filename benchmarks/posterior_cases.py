"""The lines of the benchmark on posteriors: prediction, training, and memory of predicting into a file."""

import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from batchbalance.arguments.seeds import derived_seed, generator
from batchbalance.posteriors import MCDropout
from batchbalance.posteriors.training import Recipe, fit
from batchbalance.posteriors.training.networks import mnist_cnn, resnet18, tabular_mlp
from benchmarks import plain
from benchmarks.cases import Case, Size
from benchmarks.inputs import random_images
from benchmarks.measure import Side

ROWS = 200  # rows of a forward pass
SMALL = 50  # inputs up to which a loop over all draws is short enough to be timed as it is


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


class Net(nn.Module):
    """A backbone without dropout, and a head with it, as people write it."""

    def __init__(self, backbone: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.backbone, self.head = backbone, head

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits (n, 10)."""
        return self.head(self.backbone(inputs))  # type: ignore[no-any-return]


def backbone_and_head() -> nn.Module:
    """A small ResNet-18 and a linear layer behind dropout."""
    return Net(resnet18(width=0.25).features, nn.Sequential(nn.Dropout(0.5), nn.Linear(128, 10)))


def small_table() -> nn.Module:
    """The paper's smallest network."""
    return tabular_mlp(10, (16,), hidden=(8, 8))


def normalised_convolutions() -> nn.Module:
    """3 × 3 filters with batch normalisation and dropout between."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Dropout2d(0.25),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout2d(0.25),
        nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Dropout(0.5), nn.Linear(32, 10),
    )  # fmt: skip


class Dropping(nn.Module):
    """A small residual network with dropout throughout, of which little comes before the first one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(16, 32), nn.Linear(32, 10)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Dropout(0.1)) for _ in range(4))

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits (n, 10)."""
        hidden = self.first(inputs)
        for block in self.blocks:
            hidden = hidden + block(hidden)
        return self.head(hidden)  # type: ignore[no-any-return]


class Tokens(nn.Module):
    """A classifier of sequences by their mean: attention or an LSTM with dropout inside."""

    def __init__(self, attention: bool) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(64, 4, 128, 0.1, batch_first=True)
        encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.body: nn.Module = encoder if attention else nn.LSTM(64, 64, 2, dropout=0.3, batch_first=True)
        self.head = nn.Linear(64, 10)

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits (n, 10)."""
        hidden = self.body(inputs)
        return self.head((hidden[0] if isinstance(hidden, tuple) else hidden).mean(dim=1))  # type: ignore[no-any-return]


def network_against_loop(build: Callable[[], nn.Module], *shape: int) -> Callable[[Size, int], list[Side]]:
    """MC-dropout prediction of a network, all of it from the model to log-probabilities; a loop over draws."""

    def sides(size: Size, seed: int) -> list[Side]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derived_seed(seed, "benchmark network"))
            model = build()
        inputs = torch.randn(size["N"], *shape, generator=generator(seed, "benchmark inputs"))
        few = max(1, size["S"] // (10 if size["N"] > SMALL else 1))
        scale, scaled = size["S"] / few, f"{few} draws of {size['S']}, scaled linearly" if few < size["S"] else ""
        return [
            Side("predict", lambda: MCDropout(model, size["S"], seed).predict(inputs, batch_size=ROWS)),
            Side("loop over draws", lambda: plain.looped(model, inputs, few, ROWS), scale, scaled),
        ]

    return sides


NETWORKS: list[tuple[str, Callable[[], nn.Module], tuple[int, ...], int, float]] = [
    ("backbone", backbone_and_head, (3, 32, 32), 200, 8.0),
    ("tabular", small_table, (16,), 2_000, 1.0),
    ("convolutions", normalised_convolutions, (3, 16, 16), 200, 1.0),
    ("throughout", Dropping, (16,), 2_000, 0.95),
    ("attention", lambda: Tokens(True), (32, 64), 200, 1.0),
    ("lstm", lambda: Tokens(False), (32, 64), 200, 1.0),
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
    *(
        Case(
            f"mc-dropout-{name}",
            network_against_loop(build, *shape),
            tuple({"N": size, "S": 100} for size in ((10, 50, 500, num) if name == "throughout" else (num,))),
            ({"N": min(num, SMALL), "S": 100},),
            target,
        )
        for name, build, shape, num, target in NETWORKS
    ),
    Case("training", training_against_loop, ({"N": 4_096},), ({"N": 512},)),
    Case("predict-to-file", prediction_into_file, ({"N": 4_000, "S": 50}, {"N": 40_000, "S": 50})),
]

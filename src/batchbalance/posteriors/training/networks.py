"""The paper's networks (appendix "Datasets used in the main paper"), which return logits and the last hidden layer.

Every network is a `Classifier`: a chain of layers up to the last hidden layer, and a linear head. `width` scales the
number of filters and hidden units, for laptops. The paper does not specify some sizes; docs/posteriors.md lists those
of its released code, and the options that set them.
"""

import math
from collections.abc import Callable, Sequence
from inspect import Parameter, signature
from typing import Any

import torch
from torch import Tensor, nn

from batchbalance.arguments.checks import check_flag, check_real, check_whole
from batchbalance.arguments.registry import Registry
from batchbalance.posteriors.training.calling import Batch, logits_from, num_rows

MAX_WIDTH = 100  # times the width of the paper's networks
MAX_UNITS = 10**6


class Classifier(nn.Module):
    """A network in two parts, ``head(features(x))``.

    Attributes:
        features: inputs to the last hidden layer, (N, ...) to (N, D).
        head: last hidden layer to logits, (N, D) to (N, C).
        input_shape: the shape of one input.
    """

    def __init__(self, features: nn.Sequential, head: nn.Linear, input_shape: Sequence[int]) -> None:
        super().__init__()
        self.features = features
        self.head = head
        self.input_shape = tuple(input_shape)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return logits, (N, C)."""
        return self.head(self.embed(inputs))  # type: ignore[no-any-return]

    def embed(self, inputs: Tensor) -> Tensor:
        """Return the last hidden layer, (N, D)."""
        if tuple(inputs.shape[1:]) != self.input_shape:
            wanted = ", ".join(map(str, self.input_shape))
            raise ValueError(f"`inputs` must have shape (N, {wanted}), got {tuple(inputs.shape)}")
        return self.features(inputs)  # type: ignore[no-any-return]


def mnist_cnn(
    num_classes: int = 10, input_shape: Sequence[int] = (1, 28, 28), *, dropout: float = 0.5, width: float = 1.0
) -> Classifier:
    """Build two blocks of [5×5 convolution, dropout2d, 2×2 max-pool, ReLU] with 32 and 64 filters, then 128 units.

    The convolutions are not padded: 28×28 becomes 12×12, then 4×4, so the hidden layer has 1024 inputs.
    """
    _check(num_classes, input_shape, 3, dropout=dropout, width=width)
    blocks = _blocks(input_shape[0], [_scaled(32, width), _scaled(64, width)], kernel=5, padding=0, dropout=dropout)
    size = _flat_size(blocks, input_shape)
    return _with_mlp(blocks, size, [_scaled(128, width)], num_classes, input_shape, dropout)


def fashion_cnn(
    num_classes: int = 10,
    input_shape: Sequence[int] = (1, 28, 28),
    *,
    dropout: float = 0.5,
    width: float = 1.0,
    hidden: int = 128,
    round_up: bool = False,
) -> Classifier:
    """Build the network for EMNIST and Fashion-MNIST: three blocks as in `mnist_cnn`, of 32, 64, 128 3×3 filters.

    The convolutions are padded by 1 and keep the size. Pools that round down reduce 28×28 to 14×14, 7×7, then 3×3, so
    the hidden layer has 1152 inputs. Pools that round up end at 4×4, with 2048 inputs. With `hidden` 512 the last
    layers are 2048–512–C, as in the released code, after the three pools of the paper's text.
    """
    _check(num_classes, input_shape, 3, dropout=dropout, width=width, hidden=[hidden], round_up=round_up)
    filters = [_scaled(count, width) for count in (32, 64, 128)]
    blocks = _blocks(input_shape[0], filters, kernel=3, padding=1, dropout=dropout, round_up=round_up)
    size = _flat_size(blocks, input_shape)
    return _with_mlp(blocks, size, [_scaled(hidden, width)], num_classes, input_shape, dropout)


def tabular_mlp(
    num_classes: int,
    input_shape: Sequence[int],
    *,
    hidden: Sequence[int] = (64, 64),
    dropout: float = 0.5,
    width: float = 1.0,
) -> Classifier:
    """Build hidden layers with ReLU and dropout. The paper: (64, 64) HAR, (32, 32) DRIFT, (8, 8) Dry Bean."""
    _check(num_classes, input_shape, 1, dropout=dropout, width=width, hidden=hidden)
    return _with_mlp([], input_shape[0], [_scaled(count, width) for count in hidden], num_classes, input_shape, dropout)


def vgg11(
    num_classes: int = 10,
    input_shape: Sequence[int] = (3, 32, 32),
    *,
    dropout: float = 0.5,
    width: float = 1.0,
    head: Sequence[int] = (512, 512),
) -> Classifier:
    """Build VGG-11 with batch normalisation for 32×32 images, and hidden layers `head` with dropout on top.

    The released code has 4096–4096–C on top. The convolutions have no dropout, so they run once for all draws of
    MC dropout.
    """
    _check(num_classes, input_shape, 3, dropout=dropout, width=width, head=head)
    layers: list[nn.Module] = []
    channels = input_shape[0]
    for filters, pooled in ((64, 1), (128, 1), (256, 0), (256, 1), (512, 0), (512, 1), (512, 0), (512, 1)):
        count = _scaled(filters, width)
        layers += [nn.Conv2d(channels, count, 3, padding=1), nn.BatchNorm2d(count), nn.ReLU()]
        layers += [nn.MaxPool2d(2)] if pooled else []
        channels = count
    layers.append(nn.Flatten())
    hidden = [_scaled(count, width) for count in head]
    return _with_mlp(layers, _flat_size(layers, input_shape), hidden, num_classes, input_shape, dropout)


def resnet18(
    num_classes: int = 10, input_shape: Sequence[int] = (3, 32, 32), *, dropout: float = 0.0, width: float = 1.0
) -> Classifier:
    """Build ResNet-18 for 32×32 images (3×3 stem, no first pooling), the network of the paper's cSG-MCMC runs.

    It has no dropout unless `dropout` is above 0: then one layer before the head. `width` must be at least 0.125: with
    fewer filters, convolutions of torch 2.13 in channels-last layout have crashed in training on the CPU.
    """
    _check(num_classes, input_shape, 3, dropout=dropout, width=width)
    if width < 0.125:
        raise ValueError(f"`width` must be at least 0.125 for resnet18, got {width}")
    stem = _scaled(64, width)
    layers: list[nn.Module] = [nn.Conv2d(input_shape[0], stem, 3, padding=1, bias=False), nn.BatchNorm2d(stem)]
    layers.append(nn.ReLU())
    channels = stem
    for filters, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        count = _scaled(filters, width)
        layers += [_Residual(channels, count, stride), _Residual(count, count, 1)]
        channels = count
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    layers += [nn.Dropout(dropout)] if dropout else []
    return Classifier(nn.Sequential(*layers), nn.Linear(channels, num_classes), input_shape)


tabular_mlp.flat_inputs = True  # type: ignore[attr-defined]  # takes one row of features

Network = Callable[..., nn.Module]

OWN: dict[str, Network] = {
    "mnist-cnn": mnist_cnn,
    "fashion-cnn": fashion_cnn,
    "tabular-mlp": tabular_mlp,
    "vgg11": vgg11,
    "resnet18": resnet18,
}
NETWORKS: Registry[Network] = Registry(
    "network",
    "batchbalance.networks",
    OWN,
    callable,
    "a function or class that builds an nn.Module",
)


def network_named(name: str) -> Network:
    """Return the builder of a network by its name in `NETWORKS`, or at a path "package.module:Name"."""
    return NETWORKS.named(name)


def built(network: Network, num_classes: int, input_shape: Sequence[int], **options: Any) -> Any:
    """Call a builder, with `num_classes` and `input_shape` if it takes arguments of these names."""
    taken = signature(network).parameters
    given = {"num_classes": num_classes, "input_shape": tuple(input_shape)}
    return network(**{name: value for name, value in given.items() if name in taken}, **options)


def network_options(network: Network) -> dict[str, Any]:
    """Return the options of a builder and their defaults: all arguments but `num_classes` and `input_shape`."""
    return {
        name: option.default
        for name, option in signature(network).parameters.items()
        if name not in ("num_classes", "input_shape") and option.kind not in (option.VAR_POSITIONAL, option.VAR_KEYWORD)
    }


@torch.no_grad()
def flops_of(model: nn.Module, inputs: Batch, within: Sequence[nn.Module] | None = None) -> float:
    """Estimate the operations of a network for one input: those of linear layers and convolutions.

    Args:
        model: a network in eval mode.
        inputs: (n, ...) a few inputs, which are run once.
        within: count only the operations in these modules; in all if omitted.
    """
    total = 0.0

    def count(layer: nn.Module, _: Any, output: Tensor) -> None:
        nonlocal total
        total += 2 * layer.weight[0].numel() * output.numel()  # type: ignore[index]

    counted = (nn.Linear, nn.modules.conv._ConvNd)
    parts = {part for module in ([model] if within is None else within) for part in module.modules()}
    handles = [part.register_forward_hook(count) for part in parts if isinstance(part, counted)]
    try:
        logits_from(model, inputs)
    finally:
        for handle in handles:
            handle.remove()
    return total / num_rows(inputs)


class _Residual(nn.Module):
    """Two 3×3 convolutions and a shortcut, which is a 1×1 convolution where the shape changes."""

    def __init__(self, channels: int, filters: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, filters, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(filters),
            nn.ReLU(),
            nn.Conv2d(filters, filters, 3, padding=1, bias=False),
            nn.BatchNorm2d(filters),
        )
        same = stride == 1 and channels == filters
        projection = (nn.Conv2d(channels, filters, 1, stride, bias=False), nn.BatchNorm2d(filters))
        self.shortcut = nn.Sequential(*(() if same else projection))

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.relu(self.body(inputs) + self.shortcut(inputs))


def _blocks(
    channels: int, filters: Sequence[int], *, kernel: int, padding: int, dropout: float, round_up: bool = False
) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for count in filters:
        layers += [nn.Conv2d(channels, count, kernel, padding=padding), nn.Dropout2d(dropout)]
        layers += [nn.MaxPool2d(2, ceil_mode=round_up), nn.ReLU()]
        channels = count
    return [*layers, nn.Flatten()]


def _with_mlp(
    layers: Sequence[nn.Module],
    size: int,
    hidden: Sequence[int],
    num_classes: int,
    input_shape: Sequence[int],
    dropout: float,
) -> Classifier:
    """Append hidden layers with ReLU and dropout to layers with `size` outputs, and add a linear head."""
    layers = list(layers)
    for count in hidden:
        layers += [nn.Linear(size, count), nn.ReLU(), nn.Dropout(dropout)]
        size = count
    return Classifier(nn.Sequential(*layers), nn.Linear(size, num_classes), input_shape)


def _flat_size(layers: Sequence[nn.Module], input_shape: Sequence[int]) -> int:
    """Return the number of outputs for one input."""
    size = list(input_shape)
    for layer in layers:
        if isinstance(layer, nn.Conv2d):
            size = [layer.out_channels, *(side + 2 * layer.padding[0] - layer.kernel_size[0] + 1 for side in size[1:])]  # type: ignore[operator]
        elif isinstance(layer, nn.MaxPool2d):
            size = [size[0], *((side + int(layer.ceil_mode)) // 2 for side in size[1:])]
    if min(size) < 1:
        raise ValueError(f"`input_shape` must be larger for this network, got {tuple(input_shape)}")
    return math.prod(size)


def check_network(name: str, options: dict[str, Any]) -> None:
    """Raise ValueError if the options of a built-in network are invalid for all inputs."""
    if name in OWN:
        shape = signature(OWN[name]).parameters["input_shape"].default
        with torch.device("meta"):  # allocates no memory for the weights
            OWN[name](2, (8,) if shape is Parameter.empty else shape, **options)


def _scaled(count: int, width: float) -> int:
    return max(1, round(count * width))


def _check(
    num_classes: int,
    input_shape: Sequence[int],
    num_axes: int,
    *,
    dropout: float,
    width: float,
    round_up: bool = False,
    **units: Sequence[int],
) -> None:
    """Raise ValueError unless classes, the shape of an input and the options are valid; `units` are of layers."""
    if check_real("dropout", dropout) >= 1:
        raise ValueError(f"`dropout` must be in [0, 1), got {dropout}")
    if check_real("width", width, above=True) > MAX_WIDTH:
        raise ValueError(f"`width` must be at most {MAX_WIDTH}, got {width}; 1 gives the networks of the paper")
    check_flag("round_up", round_up)
    for name, counts in units.items():
        if not isinstance(counts, list | tuple) or not counts:
            raise ValueError(f"`{name}` must be the units of at least one layer, such as [64, 64], got {counts!r}")
        for count in counts:
            check_whole(name, count, 1, MAX_UNITS)
    check_whole("num_classes", num_classes)
    if len(input_shape) != num_axes or min(input_shape) < 1:
        wanted = "(features,)" if num_axes == 1 else "(channels, height, width)"
        raise ValueError(f"`input_shape` must be {wanted} with positive sizes, got {tuple(input_shape)}")

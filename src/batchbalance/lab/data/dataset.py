"""A data set in memory: a training part and a test part, and how raw inputs become network inputs.

Images stay uint8 and are normalised when they are read, so that the largest data set of the paper (814,255 images)
takes 640 MB rather than 2.5 GB. Tables are standardised once. All statistics are computed on training inputs only,
without test inputs or labels.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float32, Int64, UInt8
from numpy.typing import NDArray
from torch import Tensor

Rows = slice | Tensor | Sequence[int]


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Inputs and labels of the training part, from which splits are drawn, and of the test part.

    Attributes:
        name: the name it was loaded with.
        train_x: (N, channels, height, width) uint8 images, or (N, ...) normalised float32.
        train_y: (N,) int64 classes, or (N, L) of 0 and 1 if an input may have several labels.
        test_x: (T, ...) like `train_x`.
        test_y: (T,) or (T, L) like `train_y`.
        class_names: one name for each class.
        mean: (channels,) mean of the training images on the scale 0 to 1; None unless the images are uint8.
        std: (channels,) their standard deviation.
    """

    name: str
    train_x: UInt8[Tensor, "N c h w"] | Float32[Tensor, "N ..."]
    train_y: Int64[Tensor, "N ..."]
    test_x: UInt8[Tensor, "T c h w"] | Float32[Tensor, "T ..."]
    test_y: Int64[Tensor, "T ..."]
    class_names: tuple[str, ...]
    mean: Float32[Tensor, " c"] | None = None
    std: Float32[Tensor, " c"] | None = None

    @property
    def num_classes(self) -> int:
        """The number of classes, C, or of labels, L."""
        return len(self.class_names)

    @property
    def is_multi(self) -> bool:
        """Whether an input may have several labels, or none."""
        return self.train_y.ndim == 2

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return tuple(self.train_x.shape[1:])

    def train_inputs(self, rows: Rows = slice(None)) -> Float32[Tensor, "n ..."]:
        """Return normalised inputs of some rows of the training part."""
        return self._inputs(self.train_x, rows)

    def test_inputs(self, rows: Rows = slice(None)) -> Float32[Tensor, "n ..."]:
        """Return normalised inputs of some rows of the test part."""
        return self._inputs(self.test_x, rows)

    def _inputs(self, x: Tensor, rows: Rows) -> Tensor:
        picked = x[rows if isinstance(rows, slice) else torch.as_tensor(rows, dtype=torch.long)]
        if self.mean is None or self.std is None or picked.dtype != torch.uint8:
            return picked
        scale, shift = 1 / (255 * self.std), self.mean / self.std
        return picked.to(torch.float32).mul_(scale[:, None, None]).sub_(shift[:, None, None])

    def __repr__(self) -> str:
        sizes = f"{len(self.train_y)} training and {len(self.test_y)} test inputs"
        return f"Dataset({self.name!r}, {sizes} of shape {self.input_shape}, {self.num_classes} classes)"


def assemble(
    name: str,
    train: tuple[NDArray[Any], NDArray[Any]],
    test: tuple[NDArray[Any], NDArray[Any]],
    class_names: Sequence[str],
) -> Dataset:
    """Create a data set from (inputs, integer classes) of both parts.

    uint8 inputs are images, (N, height, width) or (N, channels, height, width). Other inputs are standardised with the
    training part's mean and standard deviation, per image channel or table feature.
    """
    train_x, test_x = (torch.from_numpy(np.require(x, requirements=["C", "W"])) for x, _ in (train, test))
    train_y, test_y = (torch.from_numpy(np.require(y, np.int64, ["C", "W"])) for _, y in (train, test))
    if train_x.shape[1:] != test_x.shape[1:]:
        raise ValueError(
            f"training and test inputs of {name} must have one shape, got {tuple(train_x.shape[1:])} "
            f"and {tuple(test_x.shape[1:])}"
        )
    if train_x.ndim == 3:
        train_x, test_x = train_x.unsqueeze(1), test_x.unsqueeze(1)
    if train_x.dtype == torch.uint8 and train_x.ndim == 4:
        mean, std = byte_moments(train_x)
        return Dataset(name, train_x, train_y, test_x, test_y, tuple(class_names), mean, std)
    train_x, test_x = standardise(train_x, test_x)
    return Dataset(name, train_x, train_y, test_x, test_y, tuple(class_names))


def byte_moments(x: UInt8[Tensor, "N c h w"]) -> tuple[Float32[Tensor, " c"], Float32[Tensor, " c"]]:
    """Return mean and standard deviation of each channel on the scale 0 to 1; a constant channel has deviation 1.

    Both are computed from counts of the 256 values, so they are exact and do not depend on the order of the images.
    """
    values = torch.arange(256, dtype=torch.float64) / 255
    moments = []
    for channel in range(x.shape[1]):
        counts = torch.bincount(x[:, channel].flatten(), minlength=256).to(torch.float64)
        share = counts / counts.sum()
        mean = share @ values
        std = (share @ (values - mean).square()).sqrt()
        moments.append((float(mean), float(std) or 1.0))
    mean_c, std_c = torch.tensor(moments, dtype=torch.float32).T
    return mean_c, std_c


def standardise(
    train_x: Float[Tensor, "N ..."] | UInt8[Tensor, "N ..."], test_x: Float[Tensor, "T ..."] | UInt8[Tensor, "T ..."]
) -> tuple[Float32[Tensor, "N ..."], Float32[Tensor, "T ..."]]:
    """Scale both parts so that every feature (or channel) of the training part has mean 0 and deviation 1.

    A feature that is constant in the training part is only shifted.
    """
    train_x, test_x = train_x.to(torch.float64), test_x.to(torch.float64)
    over = (0,) if train_x.ndim == 2 else (0, *range(2, train_x.ndim))
    mean = train_x.mean(dim=over, keepdim=True)
    std = train_x.std(dim=over, correction=0, keepdim=True)
    std = torch.where(std > 1e-12 * mean.abs(), std, 1.0)
    return ((train_x - mean) / std).to(torch.float32), ((test_x - mean) / std).to(torch.float32)

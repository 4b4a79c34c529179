"""Some points of a pool as they are sent to a worker: numbers, or where and how it finds them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Int
from torch import Tensor

from batchbalance.errors import FileFormatError
from batchbalance.files import MappedFile, mapped_array
from batchbalance.pools import JoinedPredictions, join
from batchbalance.posteriors.pool import InputFile, Loader, PredictedFile
from batchbalance.predictions import Predictions
from batchbalance.validation import Values, as_nsc, as_tensor


@runtime_checkable
class Part(Protocol):
    """Points of a pool, in ascending order."""

    def load(self) -> tuple[Predictions, Int[Tensor, " n"]]:
        """Predictions, and the rows of them where the points are."""


@dataclass(frozen=True, eq=False)
class SentPart:
    """Points whose numbers are sent."""

    predictions: Predictions

    def load(self) -> tuple[Predictions, Int[Tensor, " n"]]:
        """The numbers."""
        return self.predictions, torch.arange(self.predictions.num_points)


@dataclass(frozen=True, eq=False)
class FilePart:
    """Points in a ``.npy`` file, which a worker maps and does not read."""

    path: Path
    shape: tuple[int, ...]
    axes: str
    values: Values
    draw_ids: tuple[str, ...] | None
    weights: Tensor | None
    rows: Int[Tensor, " n"]

    def load(self) -> tuple[Predictions, Int[Tensor, " n"]]:
        """The whole file, and the rows."""
        array = mapped_array(self.path)
        stored = as_nsc(as_tensor(array), self.axes)
        check_shape(self.path, self.shape, tuple(stored.shape))
        file = MappedFile.of(array, self.path, self.axes)
        return Predictions(stored, self.values, self.draw_ids, self.weights, file), self.rows


@dataclass(frozen=True, eq=False)
class PredictedPart:
    """Points that a worker predicts from their inputs, once, and keeps in memory."""

    loader: Loader
    path: Path
    shape: tuple[int, ...]
    batch_size: int
    draw_ids: tuple[str, ...] | None
    rows: Int[Tensor, " n"]

    def load(self) -> tuple[Predictions, Int[Tensor, " n"]]:
        """Predict the inputs."""
        inputs = InputFile.open(self.path)
        check_shape(self.path, self.shape, inputs.array.shape)
        posterior = self.loader()
        if posterior.draw_ids != self.draw_ids:
            raise FileFormatError("the saved posterior must be the same on every worker, got one with other draws")
        blocks = torch.split(self.rows, self.batch_size)
        parts = [posterior.predict(inputs.read(block), batch_size=self.batch_size).log_probs() for block in blocks]
        predicted = Predictions(torch.cat(parts), "log-probs", self.draw_ids, posterior.weights)
        return predicted, torch.arange(len(self.rows))


@dataclass(frozen=True, eq=False)
class JoinedPart:
    """Points of several pieces."""

    parts: Sequence[Part]
    draw_ids: tuple[str, ...] | None
    weights: Tensor | None

    def load(self) -> tuple[Predictions, Int[Tensor, " n"]]:
        """The pieces, joined."""
        pieces, rows, start = [], [], 0
        for part in self.parts:
            piece, inner = part.load()
            pieces.append(replace(piece, draw_ids=self.draw_ids, weights=self.weights))
            rows.append(inner + start)
            start += piece.num_points
        return join(pieces), torch.cat(rows)


def part_of(predictions: Predictions, rows: Int[Tensor, " n"]) -> Part:
    """Some points of a pool, ready to be sent."""
    ids, weights = predictions.draw_ids, predictions.weights
    if isinstance(predictions, JoinedPredictions):
        return JoinedPart([part_of(piece, inner) for piece, inner, _ in predictions.inside(rows)], ids, weights)
    if isinstance(predictions, PredictedFile) and predictions.inputs is not None and predictions.loader is not None:
        inputs = predictions.inputs
        return PredictedPart(
            predictions.loader, inputs.path.absolute(), inputs.array.shape, predictions.batch_size, ids, rows
        )
    if predictions.file is not None:
        file, shape = predictions.file, tuple(predictions.stored.shape)
        return FilePart(file.path.absolute(), shape, file.axes, predictions.values, ids, weights, rows)
    return SentPart(Predictions(predictions.stored[rows].cpu(), predictions.values, ids, weights))


def check_shape(path: Path, expected: tuple[int, ...], found: tuple[int, ...]) -> None:
    """Raise FileFormatError if a worker finds another file than the driver did."""
    if found != expected:
        raise FileFormatError(f"{path} must hold the pool's {expected} numbers on every worker, got {found}")

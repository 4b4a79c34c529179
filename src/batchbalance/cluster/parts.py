"""Some points of a pool as they are sent to a worker: their numbers, or where to read or predict them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Int
from torch import Tensor

from batchbalance.arguments.checks import as_tensor
from batchbalance.errors import FileFormatError
from batchbalance.posteriors.pool import InputFile, Loader, PredictedInputs
from batchbalance.predictions import Draws, Joined, OnDemand, Predictions, Source, Stored, Values, as_nsc, join
from batchbalance.system.files import MappedFile, mapped_array


@runtime_checkable
class Part(Protocol):
    """Points of a pool, in ascending order."""

    def load(self) -> tuple[Predictions, Int[Tensor, " n"]]:
        """Return predictions, and the rows of the points in them."""


@dataclass(frozen=True, eq=False)
class SentPart:
    """Points whose numbers are sent."""

    predictions: Predictions

    def load(self) -> tuple[Predictions, Int[Tensor, " n"]]:
        """Return the predictions and all their rows."""
        return self.predictions, torch.arange(self.predictions.num_points)


@dataclass(frozen=True, eq=False)
class FilePart:
    """Points in a ``.npy`` file, which a worker maps into memory."""

    path: Path
    shape: tuple[int, ...]
    axes: str
    values: Values
    draws: Draws
    rows: Int[Tensor, " n"]

    def load(self) -> tuple[Predictions, Int[Tensor, " n"]]:
        """Return the whole file and the rows of the points."""
        array = mapped_array(self.path)
        stored, _ = as_nsc(as_tensor(array), self.axes)
        check_shape(self.path, self.shape, tuple(stored.shape))
        file = MappedFile.of(array, self.path, self.axes)
        return Predictions(Stored(stored, self.values, file), self.draws), self.rows


@dataclass(frozen=True, eq=False)
class PredictedPart:
    """Points that a worker predicts from their inputs, once, and keeps in memory."""

    loader: Loader
    path: Path
    shape: tuple[int, ...]
    batch_size: int
    draws: Draws
    rows: Int[Tensor, " n"]

    def load(self) -> tuple[Predictions, Int[Tensor, " n"]]:
        """Predict the inputs."""
        inputs = InputFile.open(self.path)
        check_shape(self.path, self.shape, inputs.array.shape)
        posterior = self.loader()
        if posterior.draw_ids != self.draws.ids:
            raise FileFormatError("the saved posterior must be the same on every worker, got one with other draws")
        blocks = torch.split(self.rows, self.batch_size)
        parts = [posterior.predict(inputs.read(block), batch_size=self.batch_size).log_probs() for block in blocks]
        return Predictions(Stored(torch.cat(parts)), self.draws), torch.arange(len(self.rows))


@dataclass(frozen=True, eq=False)
class JoinedPart:
    """Points of several pieces."""

    parts: Sequence[Part]
    draws: Draws

    def load(self) -> tuple[Predictions, Int[Tensor, " n"]]:
        """Return the joined pieces and the rows of the points."""
        pieces, rows, start = [], [], 0
        for part in self.parts:
            piece, inner = part.load()
            pieces.append(replace(piece, draws=self.draws))
            rows.append(inner + start)
            start += piece.num_points
        return join(pieces), torch.cat(rows)


def part_of(predictions: Predictions, rows: Int[Tensor, " n"]) -> Part:
    """Return some points of a pool in a form that can be sent."""
    if predictions.num_labels is not None:
        return SentPart(predictions.subset(rows).to("cpu"))
    return _part(predictions.source, predictions.draws, rows)


def _part(source: Source, draws: Draws, rows: Int[Tensor, " n"]) -> Part:
    if isinstance(source, Joined):
        return JoinedPart([_part(piece, draws, inner) for piece, inner, _ in source.inside(rows)], draws)
    if isinstance(source, OnDemand) and isinstance(source.make, PredictedInputs):
        made = source.make
        path, shape = made.inputs.path.absolute(), made.inputs.array.shape
        return PredictedPart(made.loader, path, shape, made.batch_size, draws, rows)
    if isinstance(source, Stored) and source.file is not None:
        return FilePart(source.file.path.absolute(), source.shape, source.file.axes, source.values, draws, rows)
    if isinstance(source, Stored):
        return SentPart(Predictions(Stored(source.numbers[rows].cpu(), source.values), draws))
    return SentPart(Predictions(Stored(source.log_probs(rows).cpu()), draws))


def check_shape(path: Path, expected: tuple[int, ...], found: tuple[int, ...]) -> None:
    """Raise FileFormatError if a worker finds a different file than the driver."""
    if found != expected:
        raise FileFormatError(f"{path} must hold the pool's {expected} numbers on every worker, got {found}")

"""Some points of a pool as they are sent to a worker: their numbers, or where to read them."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from jaxtyping import Int
from torch import Tensor

from batchbalance.arguments.checks import as_tensor
from batchbalance.errors import FileFormatError
from batchbalance.predictions import Draws, Joined, Predictions, Source, Stored, Values, as_nsc, join
from batchbalance.system.files import MappedFile, mapped_array

Loaded = tuple[Predictions, Int[Tensor, " n"]]  # predictions, and the rows of the points in them
Part = Callable[[], Loaded]  # points of a pool, in ascending order; called by the worker


def part_of(predictions: Predictions, rows: Int[Tensor, " n"]) -> Part:
    """Return some points of a pool in a form that can be sent."""
    if predictions.num_labels is not None:
        return partial(_sent, predictions.subset(rows).to("cpu"))
    return _part(predictions.source, predictions.draws, rows)


def _part(source: Source, draws: Draws, rows: Int[Tensor, " n"]) -> Part:
    if isinstance(source, Joined):
        return partial(_joined, [_part(piece, draws, inner) for piece, inner, _ in source.inside(rows)], draws)
    if isinstance(source, Stored) and source.file is not None:
        path = source.file.path.absolute()
        return partial(_from_file, path, source.shape, source.file.axes, source.values, draws, rows)
    if isinstance(source, Stored):
        return partial(_sent, Predictions(Stored(source.numbers[rows].cpu(), source.values), draws))
    return partial(_sent, Predictions(Stored(source.log_probs(rows).cpu()), draws))


def _sent(predictions: Predictions) -> Loaded:
    """Return predictions whose numbers were sent."""
    return predictions, torch.arange(predictions.num_points)


def _from_file(
    path: Path, shape: tuple[int, ...], axes: str, values: Values, draws: Draws, rows: Int[Tensor, " n"]
) -> Loaded:
    """Map a whole ``.npy`` file into memory."""
    array = mapped_array(path)
    stored, _ = as_nsc(as_tensor(array), axes)
    check_shape(path, shape, tuple(stored.shape))
    return Predictions(Stored(stored, values, MappedFile.of(array, path, axes)), draws), rows


def _joined(parts: Sequence[Part], draws: Draws) -> Loaded:
    """Join the points of several pieces."""
    pieces, rows, start = [], [], 0
    for part in parts:
        piece, inner = part()
        pieces.append(replace(piece, draws=draws))
        rows.append(inner + start)
        start += piece.num_points
    return join(pieces), torch.cat(rows)


def check_shape(path: Path, expected: tuple[int, ...], found: tuple[int, ...]) -> None:
    """Raise FileFormatError if a worker finds a different file than the driver."""
    if found != expected:
        raise FileFormatError(f"{path} must hold the pool's {expected} numbers on every worker, got {found}")

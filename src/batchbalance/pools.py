"""A pool in several pieces: predictions of the same draws on points that lie one after the other, in many files say.

Pieces are joined without being copied. A joined pool is `Predictions` like any other: its points are numbered through,
piece after piece.
"""

import bisect
import itertools
import os
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from batchbalance.errors import FileFormatError
from batchbalance.predictions import Predictions, Rows
from batchbalance.validation import Values


@dataclass(frozen=True, eq=False, repr=False)
class JoinedPredictions(Predictions):
    """Predictions of a pool that lies in pieces. Make one with ``join`` or ``load_parts``.

    Attributes:
        pieces: predictions of consecutive points.
        ids: names of the points, or None.
    """

    pieces: tuple[Predictions, ...] = ()
    ids: tuple[Hashable, ...] | None = None

    @property
    def ends(self) -> list[int]:
        """For each piece, the point after its last one."""
        return list(itertools.accumulate(piece.num_points for piece in self.pieces))

    @property
    def is_made_on_demand(self) -> bool:
        """Whether any piece is."""
        return any(piece.is_made_on_demand for piece in self.pieces)

    def inside(self, rows: Tensor) -> list[tuple[Predictions, Tensor, Tensor]]:
        """The pieces that hold some of the points: (piece, its rows, where they stand in `rows`)."""
        ends = torch.tensor(self.ends)
        owners = torch.searchsorted(ends, rows, right=True)
        found = []
        for owner in owners.unique().tolist():
            where = (owners == owner).nonzero().flatten()
            piece = self.pieces[owner]
            found.append((piece, rows[where] - (ends[owner] - piece.num_points), where))
        return found

    def log_probs(self, rows: Rows = slice(None)) -> Float[Tensor, "n S C"]:
        """Log-probabilities of some points, (n, S, C), in ``dtype``."""
        if isinstance(rows, slice):
            start, stop, step = rows.indices(self.num_points)
            if step == 1 and stop > start:
                return self._stretch(start, stop)
            rows = range(start, stop, step)
        rows = torch.as_tensor(rows, dtype=torch.long)
        picked = torch.empty(len(rows), self.num_draws, self.num_classes, dtype=self.dtype)
        for piece, inner, where in self.inside(rows):
            picked[where] = piece.log_probs(inner).to("cpu", self.dtype)
        return picked

    def _stretch(self, start: int, stop: int) -> Tensor:
        """Consecutive points, without a copy if they lie in one piece."""
        ends = self.ends
        parts = []
        for index in range(bisect.bisect_right(ends, start), bisect.bisect_left(ends, stop) + 1):
            first = ends[index] - self.pieces[index].num_points
            part = self.pieces[index].log_probs(slice(max(start, first) - first, min(stop, ends[index]) - first))
            parts.append(part.to("cpu", self.dtype))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def subset(self, rows: Rows) -> Predictions:
        """The same draws on some of the points, in memory."""
        return Predictions(self.log_probs(rows), "log-probs", self.draw_ids, self.weights)


def placeholder(num_points: int, num_draws: int, num_classes: int, dtype: torch.dtype) -> Tensor:
    """What predictions without numbers of their own store: NaN of the right shape, which take no memory."""
    return torch.full((1, 1, 1), torch.nan, dtype=dtype).expand(num_points, num_draws, num_classes)


def join(
    pieces: Sequence[Predictions],
    *,
    ids: Sequence[Sequence[Hashable]] | None = None,
    names: Sequence[str] | None = None,
) -> JoinedPredictions:
    """One pool from predictions of the same draws on its pieces; nothing is copied.

    Args:
        pieces: the predictions, in the order in which their points are numbered.
        ids: for each piece, the names of its points; no two points may share one.
        names: what the pieces are called in messages.

    Raises:
        ValueError: if there is no piece, or two points have the same id.
        DrawMismatchError: if draws, weights or classes differ.
    """
    if not pieces:
        raise ValueError("a pool must have at least one piece, got none")
    names = [f"piece {number}" for number in range(len(pieces))] if names is None else names
    known = next((piece for piece in pieces if piece.draw_ids is not None), pieces[0])
    for piece, name in zip(pieces, names, strict=True):
        known.check_same_draws(piece, name)
    dtype = torch.float64 if any(piece.dtype == torch.float64 for piece in pieces) else torch.float32
    shape = (sum(piece.num_points for piece in pieces), known.num_draws, known.num_classes)
    return JoinedPredictions(
        placeholder(*shape, dtype),
        "log-probs",
        known.draw_ids,
        known.weights,
        pieces=tuple(pieces),
        ids=None if ids is None else _checked_ids(ids, pieces, names),
    )


def _checked_ids(
    ids: Sequence[Sequence[Hashable]], pieces: Sequence[Predictions], names: Sequence[str]
) -> tuple[Hashable, ...]:
    if len(ids) != len(pieces):
        raise ValueError(f"`ids` must be given for each of {len(pieces)} pieces, got {len(ids)}")
    holder: dict[Hashable, str] = {}
    for listed, piece, name in zip(ids, pieces, names, strict=True):
        if len(listed) != piece.num_points:
            raise ValueError(f"`ids` of {name} must name its {piece.num_points} points, got {len(listed)}")
        for each in listed:
            if each in holder:
                raise ValueError(f"`ids` must be distinct, got {each!r} in {holder[each]} and in {name}")
            holder[each] = name
    return tuple(holder)


def load_parts(
    paths: Sequence[str | os.PathLike[str]],
    values: Values | None = None,
    axes: str = "nsc",
    *,
    ids: Sequence[Sequence[Hashable]] | None = None,
    check: Callable[[Predictions], float] | None = None,
) -> Predictions:
    """Read a pool that lies in several files, each as ``Predictions.load`` does.

    Args:
        paths: the files, in the order in which their points are numbered.
        values: as in ``Predictions.load``.
        axes: as in ``Predictions.load``.
        ids: for each file, the names of its points; no two points may share one.
        check: as in ``Predictions.load``.

    Raises:
        ValueError: if there is no file, or two points have the same id.
        FileFormatError: if a file is damaged, or given twice.
        DrawMismatchError: if draws, weights or classes differ.
    """
    check_distinct_files([Path(path) for path in paths])
    pieces = [Predictions.load(path, values, axes, check=check) for path in paths]
    if len(pieces) == 1 and ids is None:
        return pieces[0]
    return join(pieces, ids=ids, names=[str(path) for path in paths])


def check_distinct_files(paths: Sequence[Path]) -> None:
    """Raise unless there is a file and all are there, none of them twice under any name."""
    if not paths:
        raise ValueError("a pool must have at least one file, got none")
    seen: dict[tuple[int, int], Path] = {}
    for path in paths:
        if not path.is_file():
            raise FileNotFoundError(f"no such file: {path}")
        status = path.stat()
        other = seen.setdefault((status.st_dev, status.st_ino), path)
        if other is not path:
            raise FileFormatError(f"the files of a pool must be distinct, got {other} and {path}, which are one file")

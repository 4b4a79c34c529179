"""Sources of a pool's numbers: stored or memory-mapped, joined from pieces, or computed on demand."""

import bisect
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from batchbalance.arguments.checks import compute_dtype
from batchbalance.predictions.arrays import LABEL_VALUES, Values, check_rows
from batchbalance.system.files import MappedFile

Rows = slice | Tensor | Sequence[int]

CPU = torch.device("cpu")  # where posteriors return their predictions
CHUNK_NUMBERS = 2**22  # numbers converted at a time: 16 MiB of float32, small enough to stay near the cache


def spans_of(num: int, step: int) -> list[slice]:
    """Return consecutive slices of `step` (at least 1) elements that cover `num` elements."""
    step = max(1, step)
    return [slice(start, min(start + step, num)) for start in range(0, num, step)]


@runtime_checkable
class Source(Protocol):
    """The numbers of a pool: its shape, and the class probabilities of any of its points."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """The numbers of points, draws and classes, (N, S, C)."""

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the numbers that are read: float64 or float32."""

    @property
    def device(self) -> torch.device:
        """The device of the numbers that are read."""

    @property
    def is_made_on_demand(self) -> bool:
        """Whether every read computes the numbers again."""

    @property
    def holds_probs(self) -> bool:
        """Whether `probs` is read without computing logarithms."""

    def log_probs(self, rows: Rows) -> Float[Tensor, "n S C"]:
        """Return the log-probabilities of some points."""

    def probs(self, rows: Rows) -> Float[Tensor, "n S C"]:
        """Return the probabilities of some points."""

    def check(self, rows: slice) -> float:
        """Return how far the sums of some points are from 1; raise ValueError unless they are distributions."""


@dataclass(frozen=True, eq=False)
class Stored:
    """Numbers in memory, or in a memory-mapped file.

    Attributes:
        numbers: (N, S, C), of any real type; (N, S, L) for values of labels, which are N·L points with two classes.
        values: the kind of numbers.
        file: the file that they are mapped from, or None.
    """

    numbers: Tensor
    values: Values = "log-probs"
    file: MappedFile | None = None

    @property
    def shape(self) -> tuple[int, int, int]:
        """The numbers of points, draws and classes, (N, S, C)."""
        n, s, c = self.numbers.shape
        return (n * c, s, 2) if self.values in LABEL_VALUES else (n, s, c)

    @property
    def dtype(self) -> torch.dtype:
        """Float64 if the stored numbers are float64, else float32."""
        return compute_dtype(self.numbers.dtype)

    @property
    def device(self) -> torch.device:
        """The device of the numbers."""
        return self.numbers.device

    @property
    def is_made_on_demand(self) -> bool:
        """False: the numbers are stored."""
        return False

    @property
    def holds_probs(self) -> bool:
        """Whether the numbers are probabilities."""
        return self.values == "probs"

    def log_probs(self, rows: Rows) -> Float[Tensor, "n S C"]:
        """Return the log-probabilities of some points."""
        picked = self._of_labels(rows) if self.values in LABEL_VALUES else self._picked(rows)
        if self.values == "log-probs" and picked.dtype == self.dtype:
            return picked
        picked = picked.to(self.dtype)
        # 16-bit numbers and probabilities are normalised here; log-probabilities in 32 or 64 bit are kept
        # to the bit, so that saving and loading changes nothing.
        as_probs = self.values in ("probs", "label-probs")
        return torch.log_softmax(picked.clamp_min(0).log() if as_probs else picked, dim=-1)

    def _of_labels(self, rows: Rows) -> Float[Tensor, "n S 2"]:
        """Return numbers for "no" and "yes" of some of the N·L questions."""
        count = self.numbers.shape[2]
        if isinstance(rows, slice):
            rows = torch.arange(*rows.indices(len(self.numbers) * count))
        rows = torch.as_tensor(rows, dtype=torch.long)
        items, inverse = torch.unique(rows // count, return_inverse=True)
        yes = self._picked(items).transpose(1, 2).to(self.dtype)[inverse, rows % count]
        return torch.stack([1 - yes if self.values == "label-probs" else torch.zeros_like(yes), yes], dim=-1)

    def probs(self, rows: Rows) -> Float[Tensor, "n S C"]:
        """Return the probabilities of some points."""
        if self.values != "probs":
            return self.log_probs(rows).exp()
        probs = self._picked(rows).to(self.dtype).clamp_min(0)
        return probs / probs.sum(dim=-1, keepdim=True)

    def check(self, rows: slice) -> float:
        """Return how far the stored sums of some points are from 1; raise ValueError unless they are distributions."""
        if self.values in LABEL_VALUES:  # numbers are stored by item
            start, stop, _ = rows.indices(self.shape[0])
            count = self.numbers.shape[2]
            rows = slice(start // count, -(-stop // count))
        return check_rows(self.numbers, self.values, self._readable_spans(rows))

    def _picked(self, rows: Rows) -> Tensor:
        if self.file is not None:
            self.file.check()
        return self.numbers[rows if isinstance(rows, slice) else torch.as_tensor(rows, dtype=torch.long)]

    def _readable_spans(self, rows: slice) -> Iterator[slice]:
        start, stop, _ = rows.indices(len(self.numbers))
        for span in spans_of(stop - start, CHUNK_NUMBERS // self.numbers[0].numel()):
            if self.file is not None:
                self.file.check()
            yield slice(start + span.start, start + span.stop)


@dataclass(frozen=True, eq=False)
class Joined:
    """Consecutive pieces with continuous numbering of their points; nothing is copied.

    Attributes:
        pieces: at least one, of the same draws and classes.
    """

    pieces: tuple[Source, ...]

    @property
    def shape(self) -> tuple[int, int, int]:
        """(N, S, C) of all pieces together."""
        _, s, c = self.pieces[0].shape
        return self.ends[-1], s, c

    @property
    def ends(self) -> list[int]:
        """For each piece, the point after its last one."""
        return list(itertools.accumulate(piece.shape[0] for piece in self.pieces))

    @property
    def dtype(self) -> torch.dtype:
        """Float64 if any piece is."""
        return torch.float64 if any(piece.dtype == torch.float64 for piece in self.pieces) else torch.float32

    @property
    def device(self) -> torch.device:
        """The device of the first piece."""
        return self.pieces[0].device

    @property
    def is_made_on_demand(self) -> bool:
        """Whether any piece is computed on demand."""
        return any(piece.is_made_on_demand for piece in self.pieces)

    @property
    def holds_probs(self) -> bool:
        """False: pieces may hold different kinds of values."""
        return False

    def inside(self, rows: Tensor) -> list[tuple[Source, Tensor, Tensor]]:
        """Return the pieces that hold some of the points: (piece, its rows, their positions in `rows`)."""
        ends = torch.tensor(self.ends)
        owners = torch.searchsorted(ends, rows, right=True)
        found = []
        for owner in owners.unique().tolist():
            where = (owners == owner).nonzero().flatten()
            piece = self.pieces[owner]
            found.append((piece, rows[where] - (ends[owner] - piece.shape[0]), where))
        return found

    def log_probs(self, rows: Rows) -> Float[Tensor, "n S C"]:
        """Return the log-probabilities of some points."""
        num_points, num_draws, num_classes = self.shape
        if isinstance(rows, slice):
            start, stop, step = rows.indices(num_points)
            if step == 1 and stop > start:
                return self._stretch(start, stop)
            rows = range(start, stop, step)
        rows = torch.as_tensor(rows, dtype=torch.long)
        picked = torch.empty(len(rows), num_draws, num_classes, dtype=self.dtype, device=self.device)
        for piece, inner, where in self.inside(rows):
            picked[where] = piece.log_probs(inner).to(picked)
        return picked

    def probs(self, rows: Rows) -> Float[Tensor, "n S C"]:
        """Return the probabilities of some points."""
        return self.log_probs(rows).exp()

    def check(self, rows: slice) -> float:
        """Return the largest deviation of any piece, each on its own points."""
        start, stop, _ = rows.indices(self.shape[0])
        parts = self._overlapping(start, stop) if stop > start else []
        return max((piece.check(inner) for piece, inner in parts), default=0.0)

    def _overlapping(self, start: int, stop: int) -> list[tuple[Source, slice]]:
        """Return the pieces that hold some of the consecutive points, and the rows of these points in each piece."""
        ends = self.ends
        found = []
        for index in range(bisect.bisect_right(ends, start), bisect.bisect_left(ends, stop) + 1):
            piece = self.pieces[index]
            first = ends[index] - piece.shape[0]
            found.append((piece, slice(max(start, first) - first, min(stop, ends[index]) - first)))
        return found

    def _stretch(self, start: int, stop: int) -> Tensor:
        """Return consecutive points, without a copy if they are in one piece."""
        parts = [piece.log_probs(rows).to(self.device, self.dtype) for piece, rows in self._overlapping(start, stop)]
        return parts[0] if len(parts) == 1 else torch.cat(parts)


@dataclass(frozen=True, eq=False)
class Placed:
    """Another source whose numbers are moved to a device as they are read."""

    source: Source
    device: torch.device

    @property
    def shape(self) -> tuple[int, int, int]:
        """The numbers of points, draws and classes, (N, S, C)."""
        return self.source.shape

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the source."""
        return self.source.dtype

    @property
    def is_made_on_demand(self) -> bool:
        """Whether the source is computed on demand."""
        return self.source.is_made_on_demand

    @property
    def holds_probs(self) -> bool:
        """Whether the source holds probabilities."""
        return self.source.holds_probs

    def log_probs(self, rows: Rows) -> Float[Tensor, "n S C"]:
        """Return the log-probabilities of some points, on the device."""
        return self.source.log_probs(rows).to(self.device)

    def probs(self, rows: Rows) -> Float[Tensor, "n S C"]:
        """Return the probabilities of some points, on the device."""
        return self.source.probs(rows).to(self.device)

    def check(self, rows: slice) -> float:
        """Check the source."""
        return self.source.check(rows)


@dataclass(frozen=True, eq=False)
class OnDemand:
    """Numbers that every read computes again.

    Attributes:
        shape: (N, S, C).
        dtype: the dtype that `make` returns.
        make: returns checked log-probabilities of some points.
        device: where `make` returns them.
    """

    shape: tuple[int, int, int]
    dtype: torch.dtype
    make: Callable[[Rows], Tensor]
    device: torch.device = CPU

    @property
    def is_made_on_demand(self) -> bool:
        """True: the numbers are computed when they are read."""
        return True

    @property
    def holds_probs(self) -> bool:
        """False: these are log-probabilities."""
        return False

    def log_probs(self, rows: Rows) -> Float[Tensor, "n S C"]:
        """Compute the log-probabilities of some points."""
        return self.make(rows)

    def probs(self, rows: Rows) -> Float[Tensor, "n S C"]:
        """Compute the probabilities of some points."""
        return self.make(rows).exp()

    def check(self, rows: slice) -> float:  # noqa: ARG002
        """Return 0: the outputs of a log-softmax sum to 1 up to rounding."""
        return 0.0

"""Sources of a pool's numbers: stored or memory-mapped, joined from pieces, or computed on demand."""

import bisect
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence

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


class Source(ABC):
    """The numbers of a pool: its shape, and the class probabilities of any of its points.

    Attributes:
        shape: the numbers of points, draws and classes, (N, S, C).
        dtype: the dtype of the numbers that are read: float64 or float32.
        device: the device of the numbers that are read.
        is_made_on_demand: whether every read computes the numbers again.
        holds_probs: whether `probs` is read without computing logarithms.
    """

    is_made_on_demand = False
    holds_probs = False

    def __init__(self, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> None:
        num_points, num_draws, num_classes = shape
        self.shape, self.dtype, self.device = (num_points, num_draws, num_classes), dtype, device

    @abstractmethod
    def log_probs(self, rows: Rows) -> Float[Tensor, "n S C"]:
        """Return the log-probabilities of some points."""

    def probs(self, rows: Rows) -> Float[Tensor, "n S C"]:
        """Return the probabilities of some points."""
        return self.log_probs(rows).exp()

    @abstractmethod
    def check(self, rows: slice) -> float:
        """Return how far the sums of some points are from 1; raise ValueError unless they are distributions."""


class Stored(Source):
    """Numbers in memory, or in a memory-mapped file.

    Args:
        numbers: (N, S, C), of any real type; (N, S, L) for values of labels, which are N·L points with two classes.
        values: the kind of numbers.
        file: the file that they are mapped from, or None.
    """

    def __init__(self, numbers: Tensor, values: Values = "log-probs", file: MappedFile | None = None) -> None:
        n, s, c = numbers.shape
        shape = (n * c, s, 2) if values in LABEL_VALUES else (n, s, c)
        super().__init__(shape, compute_dtype(numbers.dtype), numbers.device)
        self.numbers, self.values, self.file = numbers, values, file
        self.holds_probs = values == "probs"

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


class Joined(Source):
    """Consecutive pieces with continuous numbering of their points; nothing is copied.

    Args:
        pieces: at least one, of the same draws and classes.
    """

    def __init__(self, pieces: Sequence[Source]) -> None:
        self.pieces = pieces
        self.ends = list(itertools.accumulate(piece.shape[0] for piece in pieces))  # the point after each piece
        is_exact = any(piece.dtype == torch.float64 for piece in pieces)
        shape = (self.ends[-1], *pieces[0].shape[1:])
        super().__init__(shape, torch.float64 if is_exact else torch.float32, pieces[0].device)
        self.is_made_on_demand = any(piece.is_made_on_demand for piece in pieces)

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


class OnDemand(Source):
    """Numbers that every read computes again.

    Args:
        shape: (N, S, C).
        dtype: the dtype that `make` returns.
        make: returns checked log-probabilities of some points.
        device: where `make` returns them.
    """

    is_made_on_demand = True

    def __init__(
        self, shape: Sequence[int], dtype: torch.dtype, make: Callable[[Rows], Tensor], device: torch.device = CPU
    ) -> None:
        super().__init__(shape, dtype, device)
        self.make = make

    def log_probs(self, rows: Rows) -> Float[Tensor, "n S C"]:
        """Compute the log-probabilities of some points."""
        return self.make(rows)

    def check(self, rows: slice) -> float:  # noqa: ARG002
        """Return 0: the outputs of a log-softmax sum to 1 up to rounding."""
        return 0.0

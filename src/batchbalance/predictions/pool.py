"""Predictions: class log-probabilities of N points under S posterior draws, used throughout the library.

The letters used everywhere: N points, S draws, C classes, E edges, B batch size, M sampled label
configurations, D features of an embedding, L labels of an item. A draw is one hypothesis on every point, so draw 7 on
the pool and draw 7 on the reference set are the same network; draw ids let the library check that.

An item with several labels is L binary questions that are answered together. Its predictions are stored as those of
N·L points with two classes, "no" and "yes", the questions of an item next to each other.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from jaxtyping import Float, Int, Num
from torch import Tensor

from batchbalance.arguments.checks import as_tensor
from batchbalance.errors import DrawMismatchError, FileFormatError, UnknownNameError
from batchbalance.predictions.arrays import (
    LABEL_VALUES,
    Label,
    Values,
    as_nsc,
    check_classes,
    check_draw_ids,
    check_same_classes,
    check_weights,
    over_answers,
)
from batchbalance.predictions.draws import Draws, mean_over_draws
from batchbalance.predictions.files import read_array, write_predictions
from batchbalance.predictions.notes import usual_axes
from batchbalance.predictions.sources import CHUNK_NUMBERS, OnDemand, Rows, Source, Stored, spans_of
from batchbalance.system.files import MappedFile
from batchbalance.system.progress import Bar

MAX_JOINT_LABELS = 10  # up to this many labels, scores of whole sets of labels enumerate all 2^L of them
ROUNDING = 1e-5  # how far from 1 the sum of a float32 distribution may be by rounding alone


@dataclass(frozen=True, eq=False, repr=False)
class Predictions:
    """Class log-probabilities of N points under S draws. Created by ``from_probs``, ``from_logits``, ``load``.

    Attributes:
        source: where the numbers come from. Read them with ``log_probs``.
        draws: the draws.
        classes: the C labels, in the order of the class axis, or None.
        num_labels: L, if an item may have several labels or none; else None, and each point has one of C classes.
    """

    source: Source
    draws: Draws
    classes: tuple[Label, ...] | None = None
    num_labels: int | None = None

    @classmethod
    def from_probs(
        cls,
        x: Any,
        axes: str = "nsc",
        *,
        draw_ids: Sequence[str | int] | None = None,
        weights: Any = None,
        classes: Any = None,
    ) -> "Predictions":
        """Return predictions from class probabilities.

        Args:
            x: a NumPy array, a torch tensor, or anything ``torch.from_dlpack`` takes; it is copied.
            axes: the order of the axes of `x`: a permutation of "nsc", or of "nc" for a single model.
            draw_ids: S distinct names of the draws. Sets that have them combine only if they are equal.
            weights: S non-negative draw weights that sum to 1; equal weights if omitted.
            classes: the C labels, in the order of the class axis. Sets that have them combine only if they are equal.
        """
        return _checked(x, "probs", axes, draw_ids, weights, classes)._in_memory()

    @classmethod
    def from_logits(
        cls,
        x: Any,
        axes: str = "nsc",
        *,
        draw_ids: Sequence[str | int] | None = None,
        weights: Any = None,
        classes: Any = None,
    ) -> "Predictions":
        """Return predictions from unnormalised log-probabilities; arguments as in ``from_probs``."""
        return _checked(x, "logits", axes, draw_ids, weights, classes)._in_memory()

    @classmethod
    def from_log_probs(
        cls,
        x: Any,
        axes: str = "nsc",
        *,
        draw_ids: Sequence[str | int] | None = None,
        weights: Any = None,
        classes: Any = None,
    ) -> "Predictions":
        """Return predictions from log-probabilities; arguments as in ``from_probs``."""
        return _checked(x, "log-probs", axes, draw_ids, weights, classes)._in_memory()

    @classmethod
    def from_label_probs(
        cls,
        x: Any,
        axes: str = "nsl",
        *,
        draw_ids: Sequence[str | int] | None = None,
        weights: Any = None,
        classes: Any = None,
    ) -> "Predictions":
        """Return predictions of items that may have several labels, or none; given a draw, labels are independent.

        Args:
            x: the probability of each label, (N, S, L) in [0, 1].
            axes: the order of the axes of `x`: a permutation of "nsl", or of "nl" for a single model.
            draw_ids: as in ``from_probs``.
            weights: as in ``from_probs``.
            classes: the L names of the labels.
        """
        return _checked(x, "label-probs", axes, draw_ids, weights, classes)._in_memory()

    @classmethod
    def from_label_logits(
        cls,
        x: Any,
        axes: str = "nsl",
        *,
        draw_ids: Sequence[str | int] | None = None,
        weights: Any = None,
        classes: Any = None,
    ) -> "Predictions":
        """Return predictions from log-odds of labels, as of a sigmoid layer; arguments as in ``from_label_probs``."""
        return _checked(x, "label-logits", axes, draw_ids, weights, classes)._in_memory()

    @classmethod
    def from_rewards(cls, x: Any, *, draw_ids: Sequence[str | int] | None = None, weights: Any = None) -> "Predictions":
        """Return predictions of which answer is preferred, from the rewards of two or more answers to each prompt.

        Answer a is preferred to answer b with probability σ(r_a − r_b); of more answers, by a softmax of rewards.

        Args:
            x: (N, S, 2) the rewards of both answers of each pair under each draw.
            draw_ids: as in ``from_probs``.
            weights: as in ``from_probs``.
        """
        return cls.from_logits(x, draw_ids=draw_ids, weights=weights)

    def _in_memory(self) -> "Predictions":
        """Return a copy of the log-probabilities in the memory of this process."""
        log_probs = torch.empty(self.source.shape, dtype=self.dtype, device=self.device)
        for rows, chunk in self.question_chunks():
            log_probs[rows] = chunk
        return replace(self, source=Stored(log_probs))

    @property
    def shape(self) -> tuple[int, int, int]:
        """The numbers of points, draws and classes, (N, S, C), or of items, draws and labels, (N, S, L)."""
        return self.num_points, self.num_draws, self.num_classes

    @property
    def num_points(self) -> int:
        """The number of points, N."""
        return self.source.shape[0] // (self.num_labels or 1)

    @property
    def num_draws(self) -> int:
        """The number of draws, S."""
        return self.source.shape[1]

    @property
    def num_classes(self) -> int:
        """The number of classes, C, or of labels, L."""
        return self.num_labels or self.source.shape[2]

    @property
    def num_answers(self) -> int:
        """The number of possible answers for a point: C, or 2^L for items with several labels."""
        return int(self.source.shape[2] ** (self.num_labels or 1))

    @property
    def questions(self) -> "Predictions":
        """For items with several labels, predictions of N·L points with the classes 0 and 1; else these predictions.

        Question l of item n is point n·L + l. Given a draw, the answers to all questions are independent.
        """
        return self if self.num_labels is None else replace(self, classes=None, num_labels=None)

    def question_rows(self, rows: Rows) -> slice | Tensor:
        """Return the points of `questions` that belong to some points, those of one point next to each other."""
        count = self.num_labels or 1
        if isinstance(rows, slice):
            start, stop, step = rows.indices(self.num_points)
            if step == 1:
                return slice(start * count, max(start, stop) * count)
            rows = range(start, stop, step)
        first = torch.as_tensor(rows, dtype=torch.long) * count
        return first if count == 1 else (first.unsqueeze(1) + torch.arange(count, device=first.device)).flatten()

    def joint(self) -> "Predictions":
        """Return predictions whose classes are the 2^L possible sets of labels, computed on demand; else these ones.

        Class 0 is the empty set; the first label is the first binary digit. Raise ValueError for more than 10 labels.
        """
        if self.num_labels is None:
            return self
        if self.num_labels > MAX_JOINT_LABELS:
            raise ValueError(
                f"this score needs all 2^L sets of labels and must have at most {MAX_JOINT_LABELS} labels, got "
                f"{self.num_labels}; use 'greedy-balance', 'u-herding', 'margin' or 'badge', which need only each "
                "label, or bald with combine='mean'"
            )

        def made(rows: Rows) -> Float[Tensor, "n S A"]:
            return over_answers(self.source.log_probs(self.question_rows(rows)), self.num_labels or 1)

        shape = (self.num_points, self.num_draws, self.num_answers)
        return Predictions(OnDemand(shape, self.dtype, made, self.device), self.draws)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that ``log_probs`` returns: float64 if the stored numbers are float64, else float32."""
        return self.source.dtype

    @property
    def device(self) -> torch.device:
        """The device of the tensors that ``log_probs`` returns."""
        return self.source.device

    @property
    def draw_ids(self) -> tuple[str, ...] | None:
        """S distinct names of the draws, or None."""
        return self.draws.ids

    @property
    def weights(self) -> Tensor | None:
        """(S,) float64 draw weights that sum to 1, or None for equal weights."""
        return self.draws.weights

    @property
    def draw_weights(self) -> Float[Tensor, " S"]:
        """The draw weights, float64; 1/S each if none were given."""
        return self.draws.all_weights

    def log_probs(self, rows: Rows = slice(None)) -> Float[Tensor, "n S C"]:
        """Return the log-probabilities of some points, (n, S, C), in ``dtype``."""
        self.check_one_class()
        return self.source.log_probs(rows)

    def probs(self, rows: Rows = slice(None)) -> Float[Tensor, "n S C"]:
        """Return the probabilities of some points, (n, S, C), in ``dtype``; no logarithm if they are stored."""
        self.check_one_class()
        return self.source.probs(rows)

    def check_one_class(self) -> None:
        """Raise ValueError if items have several labels."""
        if self.num_labels is not None:
            raise ValueError(
                f"predictions must be of one class for each point here, got {self.num_labels} labels for each item; "
                "read `label_probs()` or `questions`, and choose by 'batch-balance', 'u-herding', 'margin', 'entropy', "
                "'badge' or 'bald'"
            )

    def chunks(
        self, numbers: int = CHUNK_NUMBERS, bar: Bar | None = None
    ) -> Iterator[tuple[slice, Float[Tensor, "n S C"]]]:
        """Yield (rows, log-probabilities) over all points, about `numbers` numbers at a time; `bar` counts points."""
        self.check_one_class()
        yield from self.question_chunks(numbers, bar)

    def question_chunks(
        self, numbers: int = CHUNK_NUMBERS, bar: Bar | None = None
    ) -> Iterator[tuple[slice, Float[Tensor, "q S C"]]]:
        """Yield the same over all questions, those of a point together."""
        count = self.num_labels or 1
        for span in spans_of(self.num_points, numbers // (self.num_draws * self.num_classes)):
            rows = slice(span.start * count, span.stop * count)
            yield rows, self.source.log_probs(rows)
            if bar is not None:
                bar.advance(span.stop - span.start)

    def check(self, rows: slice = slice(None)) -> float:
        """Return how far the sums of some points are from 1; raise ValueError unless they are distributions."""
        return self.source.check(rows)

    def mean_probs(self) -> Float[Tensor, "N C"]:
        """Return the weighted mean over draws of the class probabilities, (N, C)."""
        weights = self.draw_weights.to(self.device, self.dtype)
        return torch.cat([mean_over_draws(weights, chunk.exp()) for _, chunk in self.chunks()])

    def label_probs(self) -> Float[Tensor, "N L"]:
        """Return the weighted mean over draws of the probability of each label of each item."""
        if self.num_labels is None:
            raise ValueError("predictions must be of several labels for each item here; use `mean_probs`")
        return self.questions.mean_probs()[:, 1].view(-1, self.num_labels)

    def hard_labels(self, rows: Rows = slice(None)) -> Int[Tensor, "n S"]:
        """Return the most probable class of each point under each draw; ties go to the lowest class."""
        return self.log_probs(rows).argmax(dim=-1)

    def most_probable(self, rows: Rows = slice(None)) -> list[Label]:
        """Return the label of the most probable class of each point by the mean of draws; its number if unnamed."""
        best = self.subset(rows).mean_probs().argmax(dim=1).tolist()
        return best if self.classes is None else [self.classes[index] for index in best]

    def subset(self, rows: Rows) -> "Predictions":
        """Return predictions of the same draws on some of the points, in memory."""
        return replace(self, source=Stored(self.source.log_probs(self.question_rows(rows))))

    def to(self, device: str | torch.device) -> "Predictions":
        """Return the same predictions, moved to a device as they are read."""
        place = torch.device(device)
        if place == self.device:
            return self

        def moved(rows: Rows) -> Tensor:
            return self.source.log_probs(rows).to(place)

        return replace(self, source=OnDemand(self.source.shape, self.dtype, moved, place))

    def with_weights(self, weights: Any) -> "Predictions":
        """Return the same predictions with these draw weights."""
        return replace(self, draws=replace(self.draws, weights=check_weights(weights, self.num_draws)))

    def with_classes(self, classes: Any) -> "Predictions":
        """Return the same predictions with these class labels."""
        return replace(self, classes=check_classes(classes, self.num_classes))

    def check_same_draws(self, other: "Predictions", name: str = "reference") -> None:
        """Raise DrawMismatchError unless `other` holds the same draws, weights and classes."""
        if (other.num_classes, other.num_labels) != (self.num_classes, self.num_labels):
            kinds = [f"{p.num_classes} {'classes' if p.num_labels is None else 'labels'}" for p in (self, other)]
            raise DrawMismatchError(f"`{name}` must have the pool's {kinds[0]}, got {kinds[1]}")
        check_same_classes(self.classes, other.classes, name)
        self.draws.check_same(other.draws, name)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        values: Values | None = None,
        axes: str = "nsc",
        *,
        draw_ids: Sequence[str | int] | None = None,
        weights: Any = None,
        classes: Any = None,
    ) -> "Predictions":
        """Read a ``.npy``, ``.npz`` or ``.safetensors`` file; nothing is ever unpickled.

        A ``.npy`` file is memory-mapped: it is validated chunk by chunk and converted at each read, so it may be
        larger than memory. Its description is read from the file beside it that ``save`` and ``predict`` write
        (``pool.npy.json``), if there is one. The other two hold a named array ``probs``, ``logits``, ``log_probs``,
        ``label_probs`` or ``label_logits``, and may hold ``draw_ids``, ``weights`` and ``classes``.

        Args:
            path: the file.
            values: the kind of numbers; if omitted, it is taken from the file, and is probabilities by default.
                The numbers are checked, so logits or log-probabilities are not mistaken for probabilities.
            axes: the order of the axes in the file; "nsl" by default for values of labels.
            draw_ids: as in ``from_probs``; overrides the file's own.
            weights: as in ``from_probs``; overrides the file's own.
            classes: as in ``from_probs``; overrides the file's own.
        """
        path = Path(path)
        found = read_array(path, values, axes)
        if values is not None and found.values is not None and values != found.values:
            raise FileFormatError(f"{path} holds {found.values}, but `values` is {values!r}; omit `values`")
        kind = values or found.values or "probs"
        axes = "nsl" if kind in LABEL_VALUES and axes == "nsc" else usual_axes(axes, found.array.ndim)
        try:
            loaded = _checked(
                found.array,
                kind,
                axes,
                found.draw_ids if draw_ids is None else draw_ids,
                found.weights if weights is None else weights,
                found.classes if classes is None else classes,
                MappedFile.of(found.array, path, axes) if isinstance(found.array, np.memmap) else None,
            )
        except FileFormatError:
            raise
        except (TypeError, ValueError) as error:
            raise FileFormatError(f"{path}: {error}") from error
        return loaded if path.suffix == ".npy" else loaded._in_memory()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write log-probabilities to a ``.npy``, ``.npz`` or ``.safetensors`` file, atomically.

        The axes are "nsc", or "nlsc" with the classes "no" and "yes" if items have several labels. Beside a ``.npy``
        file a small JSON file, ``pool.npy.json``, records values, draw ids, weights and classes.
        """
        n, s, c = self.source.shape
        shape = (n, s, c) if self.num_labels is None else (self.num_points, self.num_labels, s, c)
        chunks = (chunk for _, chunk in self.question_chunks())
        write_predictions(Path(path), shape, self.dtype, chunks, self.draw_ids, self.weights, self.classes)

    def __repr__(self) -> str:
        counted = "classes" if self.num_labels is None else "labels"
        kind = f"{self.num_points} points, {self.num_draws} draws, {self.num_classes} {counted}"
        return f"Predictions({kind}, {str(self.dtype).removeprefix('torch.')})"


def stored_predictions(
    numbers: Num[Tensor, "N S C"],
    values: Values = "log-probs",
    draw_ids: tuple[str, ...] | None = None,
    weights: Tensor | None = None,
    file: MappedFile | None = None,
    classes: tuple[Label, ...] | None = None,
    num_labels: int | None = None,
) -> Predictions:
    """Return predictions from numbers that are known to be valid; they are neither checked nor copied.

    With `num_labels` the numbers are (N, S, L) if `values` are of labels, else those of all questions, (N·L, S, 2).
    """
    draws = Draws(numbers.shape[1], draw_ids, weights)
    return Predictions(Stored(numbers, values, file), draws, classes=classes, num_labels=num_labels)


def _checked(
    x: Any,
    values: Values,
    axes: str,
    draw_ids: Sequence[str | int] | None,
    weights: Any,
    classes: Any = None,
    file: MappedFile | None = None,
) -> Predictions:
    """Validate chunk by chunk, but keep the numbers unchanged; they are converted at each read."""
    if values not in get_args(Values):
        raise UnknownNameError("kind of values", str(values), get_args(Values))
    numbers, num_labels = as_nsc(as_tensor(x), axes, of_labels=values in LABEL_VALUES)
    ids, checked_weights = check_draw_ids(draw_ids, numbers.shape[1]), check_weights(weights, numbers.shape[1])
    names = check_classes(classes, num_labels or numbers.shape[2])
    wrapped = stored_predictions(numbers, values, ids, checked_weights, file, names, num_labels)
    off = wrapped.check()
    # Log-probabilities that are off by more than rounding are normalised when read, as logits are.
    if values == "log-probs" and off > ROUNDING:
        return replace(wrapped, source=Stored(numbers, "logits", file))
    return wrapped

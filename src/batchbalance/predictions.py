"""Predictions: class log-probabilities of N points under S posterior draws, the currency of the library.

The letters used everywhere: N points, S draws, C classes, E edges, B batch size, M sampled label
configurations, D features of an embedding. A draw is one hypothesis on every point, so draw 7 on the pool and
draw 7 on the reference set are the same network; draw ids let the library check that.
"""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn, get_args

import numpy as np
import safetensors.torch
import torch
from jaxtyping import Float, Int
from torch import Tensor

from batchbalance.errors import DrawMismatchError, FileFormatError, UnknownNameError
from batchbalance.files import MappedFile, replacing
from batchbalance.progress import Bar
from batchbalance.validation import Values, as_nsc, as_tensor, check_draw_ids, check_rows, check_weights, compute_dtype

Rows = slice | Tensor | Sequence[int]

ROUNDING = 1e-5  # how far from 1 the sum of a float32 distribution may be by rounding alone
CHUNK_NUMBERS = 2**22  # numbers converted at a time: 16 MiB of float32, small enough to stay near the cache


@dataclass(frozen=True, eq=False, repr=False)
class Predictions:
    """Class log-probabilities of N points under S draws. Make one with ``from_probs`` and its sisters.

    Attributes:
        stored: (N, S, C) numbers; memory-mapped if they come from a ``.npy`` file. Read with ``log_probs``.
        values: what the stored numbers are. Predictions made in memory hold log-probabilities.
        draw_ids: S distinct names of the draws, or None.
        weights: (S,) float64 draw weights that sum to 1, or None for equal weights.
        file: the file that `stored` is mapped from, or None.
    """

    stored: Tensor
    values: Values
    draw_ids: tuple[str, ...] | None = None
    weights: Tensor | None = None
    file: MappedFile | None = None

    @classmethod
    def from_probs(
        cls, x: Any, axes: str = "nsc", *, draw_ids: Sequence[str | int] | None = None, weights: Any = None
    ) -> "Predictions":
        """Predictions from class probabilities.

        Args:
            x: a NumPy array, a torch tensor, or anything ``torch.from_dlpack`` takes; it is copied.
            axes: the order of the axes of `x`: a permutation of "nsc", or of "nc" for a single model.
            draw_ids: S distinct names of the draws. Sets that have them combine only if they are equal.
            weights: S non-negative draw weights that sum to 1; equal weights if left out.
        """
        return cls._wrap(x, "probs", axes, draw_ids, weights)._converted()

    @classmethod
    def from_logits(
        cls, x: Any, axes: str = "nsc", *, draw_ids: Sequence[str | int] | None = None, weights: Any = None
    ) -> "Predictions":
        """Predictions from unnormalised log-probabilities; arguments as in ``from_probs``."""
        return cls._wrap(x, "logits", axes, draw_ids, weights)._converted()

    @classmethod
    def from_log_probs(
        cls, x: Any, axes: str = "nsc", *, draw_ids: Sequence[str | int] | None = None, weights: Any = None
    ) -> "Predictions":
        """Predictions from log-probabilities; arguments as in ``from_probs``."""
        return cls._wrap(x, "log-probs", axes, draw_ids, weights)._converted()

    @classmethod
    def _wrap(
        cls,
        x: Any,
        values: Values,
        axes: str,
        draw_ids: Sequence[str | int] | None,
        weights: Any,
        file: MappedFile | None = None,
        check: Callable[["Predictions"], float] | None = None,
    ) -> "Predictions":
        """Validate chunk by chunk but keep the numbers as they are, to be converted at each read."""
        if values not in get_args(Values):
            raise UnknownNameError("kind of values", str(values), get_args(Values))
        stored = as_nsc(as_tensor(x), axes)
        num_draws = stored.shape[1]
        wrapped = cls(stored, values, check_draw_ids(draw_ids, num_draws), check_weights(weights, num_draws), file)
        off = wrapped.check() if check is None else check(wrapped)
        # Log-probabilities that are off by more than rounding need what logits need: to be normalised when read.
        return replace(wrapped, values="logits") if values == "log-probs" and off > ROUNDING else wrapped

    def _converted(self) -> "Predictions":
        log_probs = torch.empty(self.stored.shape, dtype=self.dtype, device=self.stored.device)
        for rows, chunk in self.chunks():
            log_probs[rows] = chunk
        return replace(self, stored=log_probs, values="log-probs")

    @property
    def num_points(self) -> int:
        """N."""
        return self.stored.shape[0]

    @property
    def num_draws(self) -> int:
        """S."""
        return self.stored.shape[1]

    @property
    def num_classes(self) -> int:
        """C."""
        return self.stored.shape[2]

    @property
    def dtype(self) -> torch.dtype:
        """The type that ``log_probs`` returns: float64 if that is what is stored, else float32."""
        return compute_dtype(self.stored.dtype)

    @property
    def is_made_on_demand(self) -> bool:
        """Whether every read computes the numbers anew."""
        return False

    @property
    def draw_weights(self) -> Float[Tensor, " S"]:
        """The draw weights, float64; 1/S each if none were given."""
        if self.weights is not None:
            return self.weights
        return torch.full((self.num_draws,), 1 / self.num_draws, dtype=torch.float64)

    def log_probs(self, rows: Rows = slice(None)) -> Float[Tensor, "n S C"]:
        """Log-probabilities of some points, (n, S, C), in ``dtype``."""
        picked = self._picked(rows)
        if self.values == "log-probs" and picked.dtype == self.dtype:
            return picked
        picked = picked.to(self.dtype)
        # 16-bit numbers and probabilities are normalised here; log-probabilities in 32 or 64 bit are kept
        # to the bit, so that saving and loading changes nothing.
        return torch.log_softmax(picked.clamp_min(0).log() if self.values == "probs" else picked, dim=-1)

    def probs(self, rows: Rows = slice(None)) -> Float[Tensor, "n S C"]:
        """Probabilities of some points, (n, S, C), in ``dtype``; stored probabilities need no logarithm on the way."""
        if self.values != "probs":
            return self.log_probs(rows).exp()
        probs = self._picked(rows).to(self.dtype).clamp_min(0)
        return probs / probs.sum(dim=-1, keepdim=True)

    def _picked(self, rows: Rows) -> Tensor:
        if self.file is not None:
            self.file.check()
        return self.stored[rows if isinstance(rows, slice) else torch.as_tensor(rows, dtype=torch.long)]

    def chunks(
        self, numbers: int = CHUNK_NUMBERS, bar: Bar | None = None
    ) -> Iterator[tuple[slice, Float[Tensor, "n S C"]]]:
        """Yield (rows, log-probabilities) over all points, about `numbers` numbers at a time; `bar` counts points."""
        for rows in self.spans(numbers):
            yield rows, self.log_probs(rows)
            if bar is not None:
                bar.advance(rows.stop - rows.start)

    def spans(self, numbers: int = CHUNK_NUMBERS) -> list[slice]:
        """Consecutive slices that cover all points, each of about `numbers` numbers."""
        return spans_of(self.num_points, numbers // (self.num_draws * self.num_classes))

    def check(self, rows: slice = slice(None)) -> float:
        """How far the stored sums of some points are from 1; raises ValueError unless they are distributions.

        Predictions are checked when they are made; this is for doing it elsewhere.
        """
        return check_rows(self.stored, self.values, self._readable_spans(rows))

    def _readable_spans(self, rows: slice) -> Iterator[slice]:
        start, stop, _ = rows.indices(self.num_points)
        for span in spans_of(stop - start, CHUNK_NUMBERS // (self.num_draws * self.num_classes)):
            if self.file is not None:
                self.file.check()
            yield slice(start + span.start, start + span.stop)

    def mean_probs(self) -> Float[Tensor, "N C"]:
        """The weighted mean over draws of the class probabilities, (N, C)."""
        weights = self.draw_weights.to(self.stored.device, self.dtype)
        return torch.cat([torch.einsum("s,nsc->nc", weights, chunk.exp()).cpu() for _, chunk in self.chunks()])

    def hard_labels(self, rows: Rows = slice(None)) -> Int[Tensor, "n S"]:
        """The most probable class of each point under each draw; a tie goes to the lowest class."""
        return self.log_probs(rows).argmax(dim=-1)

    def subset(self, rows: Rows) -> "Predictions":
        """The same draws on some of the points."""
        return replace(self, stored=self.log_probs(rows), values="log-probs")

    def with_weights(self, weights: Float[Tensor, " S"]) -> "Predictions":
        """The same predictions with these draw weights."""
        return replace(self, weights=check_weights(weights, self.num_draws))

    def check_same_draws(self, other: "Predictions", name: str = "reference") -> None:
        """Raise DrawMismatchError unless `other` holds the same draws, weights and classes."""
        if other.num_classes != self.num_classes:
            raise DrawMismatchError(
                f"`{name}` must have the pool's {self.num_classes} classes, got {other.num_classes}"
            )
        check_same_draws(
            (self.num_draws, self.draw_ids, self.weights),
            (other.num_draws, other.draw_ids, other.weights),
            name,
        )

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        values: Values | None = None,
        axes: str = "nsc",
        *,
        draw_ids: Sequence[str | int] | None = None,
        weights: Any = None,
        check: Callable[["Predictions"], float] | None = None,
    ) -> "Predictions":
        """Read a ``.npy``, ``.npz`` or ``.safetensors`` file; nothing is ever unpickled.

        A ``.npy`` file is memory-mapped: it is validated chunk by chunk and converted at each read, so it may be
        larger than memory. The other two hold a named array ``probs``, ``logits`` or ``log_probs``, and may hold
        ``draw_ids`` and ``weights``.

        Args:
            path: the file.
            values: what the numbers are; may be left out if the array's name says it. Probabilities if nothing
                says otherwise: the numbers are checked, so logits or log-probabilities cannot pass for them.
            axes: the order of the axes in the file.
            draw_ids: as in ``from_probs``; overrides the file's own.
            weights: as in ``from_probs``; overrides the file's own.
            check: does the work of ``Predictions.check``, on other machines say; it is done here if left out.
        """
        path = Path(path)
        array, named_values, file_ids, file_weights = _read(path, values)
        if values is not None and named_values is not None and values != named_values:
            raise FileFormatError(f"{path} holds {named_values}, but `values` says {values}; leave `values` out")
        try:
            wrapped = cls._wrap(
                array,
                values or named_values or "probs",
                axes,
                file_ids if draw_ids is None else draw_ids,
                file_weights if weights is None else weights,
                MappedFile.of(array, path, axes) if isinstance(array, np.memmap) else None,
                check,
            )
        except FileFormatError:
            raise
        except (TypeError, ValueError) as error:
            raise FileFormatError(f"{path}: {error}") from error
        return wrapped if path.suffix == ".npy" else wrapped._converted()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write log-probabilities, axes "nsc", to a ``.npy``, ``.npz`` or ``.safetensors`` file, atomically."""
        path = Path(path)
        if path.suffix == ".npy" and (self.draw_ids is not None or self.weights is not None):
            raise ValueError(f"a .npy file keeps neither draw ids nor weights; save {path.stem} as .npz instead")
        _check_suffix(path)
        with replacing(path) as temporary:
            if path.suffix == ".npy":
                shape = tuple(self.stored.shape)
                number = np.float64 if self.dtype == torch.float64 else np.float32
                written = np.lib.format.open_memmap(temporary, mode="w+", dtype=number, shape=shape)
                for rows, chunk in self.chunks():
                    written[rows] = chunk.cpu().numpy()
                written.flush()
                return
            arrays = {"log_probs": self.log_probs().cpu()}
            if self.weights is not None:
                arrays["weights"] = self.weights
            if path.suffix == ".npz":
                named: dict[str, Any] = {name: tensor.numpy() for name, tensor in arrays.items()}
                if self.draw_ids is not None:
                    named["draw_ids"] = np.array(self.draw_ids, dtype=np.str_)
                np.savez(temporary, **named)
            else:
                metadata = None if self.draw_ids is None else {"draw_ids": json.dumps(self.draw_ids)}
                contiguous = {k: v.contiguous() for k, v in arrays.items()}
                safetensors.torch.save_file(contiguous, temporary, metadata=metadata)

    def __repr__(self) -> str:
        kind = f"{self.num_points} points, {self.num_draws} draws, {self.num_classes} classes"
        return f"Predictions({kind}, {self.values}, {self.stored.dtype})"


def spans_of(num: int, step: int) -> list[slice]:
    """Consecutive slices of `step` (at least 1) that cover `num` things."""
    step = max(1, step)
    return [slice(start, min(start + step, num)) for start in range(0, num, step)]


def check_same_draws(
    ours: tuple[int, tuple[str, ...] | None, Tensor | None],
    theirs: tuple[int, tuple[str, ...] | None, Tensor | None],
    name: str,
) -> None:
    """Raise DrawMismatchError unless two (S, draw ids, weights) describe the same draws.

    Where only one side has ids, an equal S is all that can be checked.
    """
    if theirs[0] != ours[0]:
        raise DrawMismatchError(
            f"`{name}` must hold the same draws as the pool: {ours[0]} draws, got {theirs[0]}; "
            "predict both with one posterior"
        )
    if ours[1] is not None and theirs[1] is not None and ours[1] != theirs[1]:
        at = next(i for i, (a, b) in enumerate(zip(ours[1], theirs[1], strict=True)) if a != b)
        raise DrawMismatchError(
            f"`{name}` must hold the same draws as the pool, got draw {theirs[1][at]!r} where the pool has "
            f"{ours[1][at]!r} (position {at}); predict both with one posterior"
        )
    uniform = torch.full((ours[0],), 1 / ours[0], dtype=torch.float64)
    mine, others = (uniform if w is None else w for w in (ours[2], theirs[2]))
    if not torch.allclose(mine, others, rtol=1e-9, atol=1e-12):  # normalising again moves the last digit
        raise DrawMismatchError(f"`{name}` must carry the same draw weights as the pool; give both the same")


def _check_suffix(path: Path) -> None:
    if path.suffix not in (".npy", ".npz", ".safetensors"):
        raise FileFormatError(f"{path} must end in .npy, .npz or .safetensors, got {path.suffix or 'no ending'!r}")


def _read(path: Path, values: Values | None) -> tuple[Any, Values | None, list[str] | None, Any]:
    """(array, values its name tells, draw ids, weights) of a file."""
    _check_suffix(path)
    if not path.is_file():
        raise FileNotFoundError(f"no such file: {path}")
    if path.stat().st_size == 0:
        raise FileFormatError(f"{path} is empty")
    try:
        if path.suffix == ".npy":
            return np.load(path, mmap_mode="c", allow_pickle=False), None, None, None
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as archive:
                arrays = {name: archive[name] for name in archive.files}
            ids = arrays.pop("draw_ids", None)
            return (
                *_named_values(path, arrays, values),
                None if ids is None else ids.tolist(),
                arrays.get("weights"),
            )
        with safetensors.safe_open(path, framework="pt") as opened:
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
            listed = (opened.metadata() or {}).get("draw_ids")
        return (
            *_named_values(path, tensors, values),
            None if listed is None else json.loads(listed),
            tensors.get("weights"),
        )
    except FileFormatError:
        raise
    except Exception as error:  # the readers raise a dozen types for a damaged file
        _raise_unreadable(path, error)


def _named_values(path: Path, arrays: dict[str, Any], values: Values | None) -> tuple[Any, Values | None]:
    for name in get_args(Values):
        if name.replace("-", "_") in arrays:
            return arrays[name.replace("-", "_")], name
    others = [name for name in arrays if name != "weights"]
    if values is not None and len(others) == 1:
        return arrays[others[0]], None
    raise FileFormatError(
        f"{path} must hold an array named probs, logits or log_probs, got {', '.join(sorted(arrays)) or 'none'}; "
        "a file with one array of another name needs `values` to say what it holds"
    )


def _raise_unreadable(path: Path, error: Exception) -> NoReturn:
    if "pickle" in str(error).lower() or "Python objects" in str(error):
        raise FileFormatError(f"{path} holds pickled objects, which are never loaded; save a plain array") from error
    raise FileFormatError(f"{path} is damaged or not a {path.suffix} file: {error}") from error

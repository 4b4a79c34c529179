"""The interface of encoders: a batch of images, texts or rows of a table becomes vectors of D numbers.

Any function ``f(batch) -> (n, D)`` becomes one.
"""

import hashlib
import inspect
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, get_args, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray

from batchbalance.arguments.checks import unmasked

Vectors = NDArray[np.float32]  # (n, D)
Kind = Literal["images", "texts", "rows"]
KINDS: tuple[Kind, ...] = get_args(Kind)
MOST_CHARACTERS = 100_000  # read of a text: about 40 pages; 10 million take WordLlama 39 s and 6.5 GB


@runtime_checkable
class Encoder(Protocol):
    """An object that encodes inputs as vectors. The same inputs in the same batch always give the same numbers.

    Attributes:
        name: its name on the command line and in records.
        kind: what it reads: "images" (Pillow images in RGB), "texts" (strings) or "rows" (dicts of cells); None if
            unknown.
        dim: D; None before the first batch or before `fit`.
        fingerprint: changes whenever the same inputs may give other numbers.
    """

    @property
    def name(self) -> str: ...  # noqa: D102

    @property
    def kind(self) -> Kind | None: ...  # noqa: D102

    @property
    def dim(self) -> int | None: ...  # noqa: D102

    @property
    def fingerprint(self) -> str: ...  # noqa: D102

    def encode(self, batch: Sequence[Any]) -> Any:
        """Return the vectors of a batch, (n, D)."""


@runtime_checkable
class FittedEncoder(Encoder, Protocol):
    """An encoder that is fitted on all inputs before the first batch; it is fitted once it has a `dim`."""

    def fit(self, inputs: Iterable[Any]) -> None:
        """Fit the encoder on inputs, which can be iterated over more than once."""


class FunctionEncoder:
    """A user's function as an encoder.

    Args:
        function: `f(batch) -> (n, D)`; an array, a tensor or a list of rows.
        name: the name of the encoder; by default the module and name of the function.
        kind: what it reads; None if unknown.
        fingerprint: by default a hash of its source file and its name.
    """

    def __init__(
        self,
        function: Callable[[Sequence[Any]], Any],
        name: str | None = None,
        kind: Kind | None = None,
        fingerprint: str | None = None,
    ) -> None:
        named = function if hasattr(function, "__qualname__") else type(function)
        self.name = name or f"{named.__module__}:{named.__qualname__}"
        self.kind = kind
        self.dim: int | None = None
        if fingerprint is None:
            try:
                source = hashlib.sha256(Path(inspect.getfile(named)).read_bytes()).hexdigest()[:16]
            except (OSError, TypeError):  # a built-in, or defined at a prompt
                source = "no source"
            fingerprint = f"{self.name}/{source}"
        self.fingerprint = fingerprint
        self._function = function

    def encode(self, batch: Sequence[Any]) -> Any:
        """Call the function."""
        try:
            return self._function(batch)
        except Exception as error:  # a user's function may raise anything
            raise ValueError(f"encoder {self.name!r} must take a batch, got {type(error).__name__}: {error}") from error


def as_encoder(given: Any, name: str | None = None) -> Encoder:
    """Return an encoder from an encoder, a class of encoders, an object with `encode`, or a function.

    Raises:
        TypeError: if it is none of these.
        ValueError: if its attribute `kind` is unknown.
    """
    if inspect.isclass(given):
        given = given()
    kind = getattr(given, "kind", None)
    if kind is not None and kind not in KINDS:
        raise ValueError(f"`kind` of an encoder must be one of {', '.join(KINDS)}, got {kind!r}; or omit it")
    if isinstance(given, Encoder):
        return given
    function = getattr(given, "encode", given)
    if not callable(function):
        raise TypeError(
            f"an encoder must be a function of a batch or have `encode`, got {name or ''} {type(given).__name__}"
        )
    return FunctionEncoder(function, name, kind, getattr(given, "fingerprint", None))


def cut(value: Any) -> Any:
    """Return at most the first 100,000 characters of a text; anything else is returned unchanged."""
    return value[:MOST_CHARACTERS] if isinstance(value, str) else value


def encoded(encoder: Encoder, batch: Sequence[Any]) -> Vectors:
    """Return the vectors of a batch, checked: (n, D) float32.

    Raises:
        ValueError: if they have another shape, or are not finite.
    """
    given = encoder.encode([cut(value) for value in batch])
    if isinstance(given, torch.Tensor):
        given = given.detach().cpu().numpy()
    array = np.asarray(unmasked(f"the output of encoder {encoder.name!r}", given))
    expected = f"an array of {len(batch)} rows and {encoder.dim or 'D'} columns"
    wrong_dim = encoder.dim is not None and array.shape[1:] != (encoder.dim,)
    if array.ndim != 2 or len(array) != len(batch) or not array.shape[1] or wrong_dim or array.dtype.kind not in "fiub":
        raise ValueError(f"encoder {encoder.name!r} must return {expected}, got {array.dtype} of shape {array.shape}")
    with np.errstate(over="ignore"):
        vectors = np.ascontiguousarray(array, dtype=np.float32)
    if not np.isfinite(vectors).all():
        raise ValueError(f"encoder {encoder.name!r} must return finite numbers, got NaN, infinity or beyond float32")
    return vectors

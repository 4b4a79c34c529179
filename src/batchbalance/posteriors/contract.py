"""The base class of all posteriors: a fixed list of hypotheses that predict any inputs.

A subclass computes the logits of one batch under all draws; streaming, files, checks and saving are done here. If an
item may have several labels, they are log-odds or probabilities of each label instead, as `_values` says.
"""

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from batchbalance.posteriors.inputs import Inputs, batches_of, fitting, num_points
from batchbalance.posteriors.saved import write_saved
from batchbalance.posteriors.training.calling import changed, num_rows, padding_of, placed, some_rows
from batchbalance.posteriors.training.fitting import check_dtype
from batchbalance.posteriors.training.networks import flops_of
from batchbalance.predictions import Label, Predictions, Values, check_rows, note_path, stored_predictions, write_note
from batchbalance.system import threads
from batchbalance.system.files import MappedFile, mapped_array, replacing
from batchbalance.system.memory import as_text, free_memory
from batchbalance.system.progress import Bar
from batchbalance.system.progress import progress as shown_progress


class Posterior(ABC):
    """S hypotheses that stay the same on every set of inputs, in every chunk and after saving.

    Attributes:
        kind: the name of the family, written into saved folders.
        takes_structures: whether batches may be dicts and tuples of tensors, not only tensors.
        weights: (S,) draw weights that sum to 1, or None for equal weights.
        classes: the C labels, in the order of the class axis, or None if they have no names.
    """

    kind: ClassVar[str]
    takes_structures: ClassVar[bool] = False
    weights: Tensor | None = None
    classes: list[Any] | None = None
    _values: Values = "log-probs"  # or those of labels, which are stored as they are
    _draw_ids: tuple[str, ...] = ()  # empty before a fit
    _network: nn.Module | None = None  # if the draws share one; its config names the padding token
    _flops: float | None = None  # of the network, for one input

    @property
    def draw_ids(self) -> tuple[str, ...]:
        """The S names of the draws, which distinguish them from those of any other posterior."""
        self._check_fitted()
        return self._draw_ids

    def _check_fitted(self) -> None:
        """Raise ValueError before a fit."""
        if not self._draw_ids:
            raise ValueError(f"{type(self).__name__} must be fitted first, got one without draws; call `fit`")

    @abstractmethod
    def _logits(self, batch: Any) -> Tensor:
        """Return the logits of a batch under every draw, (n, S, C)."""

    @abstractmethod
    def _hidden(self, batch: Any) -> Tensor:
        """Return the last hidden layer of a batch, the mean over draws, (n, D)."""

    def _hidden_of_draws(self, batch: Any) -> Tensor:
        """Return the last hidden layer of a batch under every draw, (n, S, D); the same for all unless overridden."""
        return self._hidden(batch).flatten(1).unsqueeze(1).expand(-1, self.num_draws, -1)

    def _logits_and_hidden(self, batch: Any) -> tuple[Tensor, Tensor]:
        """Return the results of `_logits` and `_hidden`; overridden where one pass is enough for both."""
        return self._logits(batch), self._hidden(batch)

    def _pass_flops(self, batch: Any) -> float:
        """Return the approximate number of operations for a batch under one draw; infinity if unknown."""
        if self._network is None:
            return math.inf
        if self._flops is None:
            self._flops = flops_of(self._network, self._placed(some_rows(batch, slice(1))))
        return self._flops * num_rows(batch)

    def _placed(self, batch: Any) -> Any:
        """Return a batch on the device of the network; raise ValueError if it is of another dtype."""
        self._check_fitted()
        model: nn.Module = self._network  # type: ignore[assignment]
        check_dtype(model, batch)
        parameter = next(model.parameters(), None)
        return changed(batch, lambda part: placed(part, part.device if parameter is None else parameter.device))

    @abstractmethod
    def _state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the tensors and the options (numbers, strings, lists) that ``load`` needs."""

    @classmethod
    @abstractmethod
    def load(cls, directory: str | os.PathLike[str], network: Any = None) -> "Posterior":
        """Read a saved posterior.

        Args:
            directory: the folder.
            network: a network of the same architecture or a function that builds one, for posteriors that save weights
                but no code; None for the others.
        """

    @property
    def num_draws(self) -> int:
        """The number of draws, S."""
        return len(self.draw_ids)

    def __repr__(self) -> str:
        try:
            draws = f"{self.num_draws} draws"
        except ValueError:
            draws = "not fitted"
        return f"{type(self).__name__}({draws})"

    @property
    def class_names(self) -> tuple[Label, ...] | None:
        """The labels as in `Predictions`."""
        return None if self.classes is None else tuple(self.classes)

    @property
    def batch_size(self) -> int:
        """The number of inputs in a batch, unless a call sets it."""
        return 512

    def _batches(self, inputs: Any, batch_size: int | None) -> Iterator[Any]:
        """Yield consecutive batches of inputs, as `_logits` takes them."""
        size = self.batch_size if batch_size is None else batch_size
        return batches_of(inputs, size, structured=self.takes_structures, padding=padding_of(self._network))

    def predict(
        self,
        inputs: Inputs,
        *,
        batch_size: int | None = None,
        path: str | os.PathLike[str] | None = None,
        progress: bool = False,
    ) -> Predictions:
        """Return the class log-probabilities of `inputs` under every draw.

        Args:
            inputs: a tensor or array (N, ...); a dict (also a `BatchEncoding`) or a tuple of such tensors, for networks
                that take them; a Dataset, or a DataLoader that does not shuffle, of any of these. Of items that are
                tuples, the first entry is used; labels in a dict are ignored.
            batch_size: inputs per batch, ``self.batch_size`` if omitted; a DataLoader has its own.
            path: a ``.npy`` file to stream into. The result is then memory-mapped, and memory does not grow with N. A
                small JSON file beside it, such as ``pool.npy.json``, describes its contents.
            progress: show progress.
        """
        total = num_points(inputs)
        with shown_progress("predicting", total, progress) as bar:
            chunks = self._chunks(inputs, batch_size, bar, self._logits)
            if path is None:
                return self._stored(_collected(chunks, total))
            if Path(path).suffix != ".npy":
                raise ValueError(f"`path` must end in .npy, got {str(path)!r}")
            if total is None:
                raise ValueError("`inputs` must have a length to be streamed into a file; omit `path`")
            with replacing(path, first=note_path(Path(path))) as temporary, temporary.open("wb") as file:
                _write_npy(file, chunks, total)
        array = mapped_array(Path(path))
        write_note(Path(path), array.shape, self._values, self.draw_ids, self.weights, self.class_names)
        return self._stored(torch.from_numpy(array), MappedFile.of(array, Path(path)))

    def _stored(self, numbers: Tensor, mapped: MappedFile | None = None) -> Predictions:
        """Return predictions of numbers as `_chunks` yields them."""
        num_labels = None if self._values == "log-probs" else numbers.shape[2]
        names = self.class_names
        return stored_predictions(numbers, self._values, self.draw_ids, self.weights, mapped, names, num_labels)

    def embed(
        self, inputs: Inputs, *, every_draw: bool = False, batch_size: int | None = None, progress: bool = False
    ) -> Tensor:
        """Return the last hidden layer (the input of the last linear layer), the mean over draws, (N, D).

        With `every_draw`, return that of each draw, (N, S, D).
        """
        total = num_points(inputs)
        parts: list[Tensor] = []
        with shown_progress("embedding", total, progress) as bar:
            for hidden in self._passes(inputs, batch_size, bar, self._hidden_of_draws if every_draw else self._hidden):
                parts.append(hidden.flatten(2 if every_draw else 1).cpu())
                if len(parts) == 1:
                    _check_fits(parts[0], total)
        return torch.cat(parts)

    def predict_and_embed(
        self, inputs: Inputs, *, batch_size: int | None = None, progress: bool = False
    ) -> tuple[Predictions, Tensor]:
        """Return predictions and embeddings; MC dropout of a chain of layers computes both in one pass."""
        total = num_points(inputs)
        parts: list[Tensor] = []

        def logits_of(batch: Any) -> Tensor:
            logits, hidden = self._logits_and_hidden(batch)
            parts.append(hidden.flatten(1).cpu())
            if len(parts) == 1:
                _check_fits(parts[0], total)
            return logits

        with shown_progress("predicting", total, progress) as bar:
            numbers = _collected(self._chunks(inputs, batch_size, bar, logits_of), total)
        return self._stored(numbers), torch.cat(parts)

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Write the draws into a folder: safetensors and JSON. An interrupted save leaves an older one usable."""
        tensors, options = self._state()
        write_saved(directory, self.kind, tensors, options)

    def _passes(
        self, inputs: Inputs, batch_size: int | None, bar: Bar, run: Callable[[Any], Tensor]
    ) -> Iterator[Tensor]:
        """Yield the result of `run` for each batch, on a number of threads that depends on the cost of a pass."""
        for batch in self._batches(inputs, batch_size):
            with torch.no_grad(), fitting(batch), threads.for_passes(self._pass_flops(batch)):
                found = run(batch)
            yield found
            bar.advance(len(found))

    def _chunks(
        self, inputs: Inputs, batch_size: int | None, bar: Bar, logits_of: Callable[[Any], Tensor]
    ) -> Iterator[Tensor]:
        """Yield the log-probabilities of each batch, (n, S, C), or the values of labels, (n, S, L)."""
        seen, of_labels = 0, self._values != "log-probs"

        def log_probs(batch: Any) -> Tensor:
            logits = logits_of(batch)
            if seen == 0 and not of_labels:
                if logits.shape[-1] < 2:
                    raise ValueError(
                        "predictions must be of at least two classes, got one; check the last layer of the model"
                    )
                check_rows(logits, "logits", [slice(0, len(logits))])
            if logits.dtype == torch.bfloat16:  # NumPy has no bfloat16
                logits = logits.float()
            chunk = logits.cpu() if of_labels else torch.log_softmax(logits, dim=-1).cpu()
            wrong = torch.isnan(chunk).any(dim=-1).nonzero()
            if len(wrong):
                row, draw = wrong[0].tolist()
                raise ValueError(
                    f"predictions must be finite, got NaN at point {seen + row}, draw {draw}; "
                    "check `inputs` for NaN or huge numbers"
                )
            if of_labels:
                check_rows(chunk, self._values, [slice(0, len(chunk))])
            return chunk

        for chunk in self._passes(inputs, batch_size, bar, log_probs):
            yield chunk
            seen += len(chunk)


class LastLinear:
    """The last linear layer that ran in a forward pass, and its input.

    Attributes:
        layer: the layer.
        inputs: its input.
        outputs: its output.
    """

    layer: nn.Linear
    inputs: Tensor
    outputs: Tensor

    def __call__(self, logits: Tensor) -> Tensor:
        """Return the input of the layer, (n, D), after a forward pass that returned these logits.

        For a network that classifies every token and then picks one, such as GPT-2, it is the input of that token.
        """
        inputs, outputs = self.inputs, self.outputs
        if outputs.ndim == 3 and outputs.shape[::2] == logits.shape:
            picked = (outputs == logits.unsqueeze(1)).all(dim=2)
            if bool(picked.any(dim=1).all()):
                return inputs[torch.arange(len(inputs), device=inputs.device), picked.int().argmax(dim=1)]
        return inputs.clone()


@contextmanager
def last_hidden(model: nn.Module) -> Iterator[LastLinear]:
    """Record the last linear layer that runs in a network while the block runs."""
    linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
    if not linear:
        raise ValueError("the model must have a linear layer for `embed`, got none; end it with nn.Linear")
    last = LastLinear()

    def record(layer: nn.Linear, args: tuple[Tensor, ...], output: Tensor) -> None:
        last.layer, last.inputs, last.outputs = layer, args[0], output

    handles = [module.register_forward_hook(record) for module in linear]
    try:
        yield last
    finally:
        for handle in handles:
            handle.remove()


def _collected(chunks: Iterator[Tensor], total: int | None) -> Tensor:
    """Return all chunks in one (N, S, C) tensor, without a second copy if N is known."""
    if total is None:
        return torch.cat(list(chunks))
    stored, filled = torch.empty(0), 0
    for chunk in _counted(chunks, total):
        if not filled:
            stored = torch.empty((total, *chunk.shape[1:]), dtype=chunk.dtype)
        with threads.one_thread():  # a chunk is too small for several threads
            stored[filled : filled + len(chunk)] = chunk
        filled += len(chunk)
    return stored


def _check_fits(hidden: Tensor, total: int | None) -> None:
    """Raise ValueError if embeddings of all points do not fit in memory, as can happen with sparse rows."""
    size, free = hidden[0].nbytes * (total or 0), free_memory()
    if size > free:
        raise ValueError(
            f"embeddings of {total:,} points × {hidden[0].numel():,} features must fit in memory, {as_text(free)} are "
            f"free, got {as_text(size)}; reduce the features, or choose a strategy without embeddings"
        )


def _write_npy(file: BinaryIO, chunks: Iterator[Tensor], total: int) -> None:
    """Write chunks to a file, not to a memory map, because mapped pages would count as memory in use."""
    for number, chunk in enumerate(_counted(chunks, total)):
        numbers = chunk.contiguous().numpy()
        if number == 0:
            header = {"descr": np.lib.format.dtype_to_descr(numbers.dtype), "fortran_order": False}
            np.lib.format.write_array_header_1_0(file, {**header, "shape": (total, *numbers.shape[1:])})
        file.write(numbers.data)


def _counted(chunks: Iterator[Tensor], total: int) -> Iterator[Tensor]:
    """Yield chunks that must have `total` rows together."""
    seen = 0
    for chunk in chunks:
        seen += len(chunk)
        yield chunk
    if seen != total:
        raise ValueError(f"`inputs` must yield as many examples as its length, {total}, got {seen}")

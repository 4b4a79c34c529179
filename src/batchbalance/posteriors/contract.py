"""What every posterior is: a fixed list of hypotheses that can be asked about any inputs.

A subclass says how one batch becomes logits under all draws; streaming, files, checks and saving are done here.
"""

import hashlib
import json
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import numpy as np
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, SequentialSampler

from batchbalance import threads
from batchbalance.calling import Batch, as_batch, collated, described, first_of, num_rows, some_rows
from batchbalance.checks import check_whole
from batchbalance.errors import FileFormatError
from batchbalance.files import MappedFile, mapped_array, replacing
from batchbalance.machine import as_text, free_memory
from batchbalance.posteriors.rows import described_rows, height
from batchbalance.predictions import Label, Predictions, check_rows, note_path, stored_predictions, write_note
from batchbalance.progress import Bar
from batchbalance.progress import progress as shown_progress

# A tensor or array (N, ...), a Dataset, or a DataLoader; posteriors of networks take dicts and tuples of tensors as
# well, those that wrap an estimator tables.
Inputs = Any

FORMAT = "batchbalance posterior"
VERSION = 1


class Posterior(ABC):
    """S hypotheses that stay the same on every set of inputs, in every chunk and after saving.

    Attributes:
        kind: the name of the family, written into saved folders.
        takes_structures: whether batches may be dicts and tuples of tensors, or single tensors only.
        weights: (S,) draw weights that sum to 1, or None for equal weights.
        classes: the C labels, in the order of the class axis, or None if they have no names.
    """

    kind: ClassVar[str]
    takes_structures: ClassVar[bool] = False
    weights: Tensor | None = None
    classes: list[Any] | None = None

    @property
    @abstractmethod
    def draw_ids(self) -> tuple[str, ...]:
        """S names that tell these draws from those of any other posterior."""

    @property
    def _padding(self) -> int:
        """The token that items of a data set are padded with."""
        return 0

    @abstractmethod
    def _logits(self, batch: Any) -> Tensor:
        """Logits of a batch under every draw, (n, S, C)."""

    @abstractmethod
    def _hidden(self, batch: Any) -> Tensor:
        """The last hidden layer of a batch, the mean over draws, (n, D)."""

    def _hidden_of_draws(self, batch: Any) -> Tensor:
        """The last hidden layer of a batch under every draw, (n, S, D); unless overridden, all draws have the same."""
        return self._hidden(batch).flatten(1).unsqueeze(1).expand(-1, self.num_draws, -1)

    def _logits_and_hidden(self, batch: Any) -> tuple[Tensor, Tensor]:
        """What `_logits` and `_hidden` give; overridden where one pass is enough for both."""
        return self._logits(batch), self._hidden(batch)

    def _pass_flops(self, batch: Any) -> float:  # noqa: ARG002
        """About how many operations a batch takes under one draw; infinity if that is not known."""
        return math.inf

    @abstractmethod
    def _state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The tensors and the options (numbers, strings, lists) that `load` needs."""

    @classmethod
    @abstractmethod
    def loaded(cls, directory: str | os.PathLike[str], network: Any) -> "Posterior":
        """Read what ``save`` wrote; `network` is a network or what builds one, None for posteriors without one."""

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
        """The labels as `Predictions` carry them."""
        return None if self.classes is None else tuple(self.classes)

    @property
    def batch_size(self) -> int:
        """How many inputs are looked at at a time, unless a call says otherwise."""
        return 512

    def _batches(self, inputs: Any, batch_size: int | None) -> Iterator[Any]:
        """Consecutive batches of inputs, as `_logits` takes them."""
        size = self.batch_size if batch_size is None else batch_size
        return batches_of(inputs, size, structured=self.takes_structures, padding=self._padding)

    def predict(
        self,
        inputs: Inputs,
        *,
        batch_size: int | None = None,
        path: str | os.PathLike[str] | None = None,
        progress: bool = False,
    ) -> Predictions:
        """Class log-probabilities of `inputs` under every draw.

        Args:
            inputs: a tensor or array (N, ...); a dict (also a `BatchEncoding`) or a tuple of such tensors, for networks
                that take them; a Dataset, or a DataLoader that does not shuffle, of any of these. Of items that are
                tuples, the first entry is taken; labels in a dict are ignored.
            batch_size: inputs looked at at a time, ``self.batch_size`` if omitted; a DataLoader has its own.
            path: a ``.npy`` file to stream into. The result is then memory-mapped, and memory does not grow with N. A
                small JSON file beside it, as ``pool.npy.json``, says what it holds.
            progress: show how far it is.
        """
        total = _num_points(inputs)
        with shown_progress("predicting", total, progress) as bar:
            chunks = self._chunks(inputs, batch_size, bar, self._logits)
            if path is None:
                numbers = _collected(chunks, total)
                return stored_predictions(numbers, "log-probs", self.draw_ids, self.weights, classes=self.class_names)
            if Path(path).suffix != ".npy":
                raise ValueError(f"`path` must end in .npy, got {str(path)!r}")
            if total is None:
                raise ValueError("`inputs` must have a length to be streamed into a file; leave `path` out")
            with replacing(path, first=note_path(Path(path))) as temporary, temporary.open("wb") as file:
                _write_npy(file, chunks, total)
        array = mapped_array(Path(path))
        ids, weights, classes = self.draw_ids, self.weights, self.class_names
        write_note(Path(path), array.shape, "log-probs", ids, weights, classes)
        mapped = MappedFile.of(array, Path(path))
        return stored_predictions(torch.from_numpy(array), "log-probs", ids, weights, mapped, classes)

    def embed(
        self, inputs: Inputs, *, every_draw: bool = False, batch_size: int | None = None, progress: bool = False
    ) -> Tensor:
        """The last hidden layer (the input of the last linear layer), mean over draws, (N, D).

        With `every_draw` it is that of each draw, (N, S, D).
        """
        total = _num_points(inputs)
        with shown_progress("embedding", total, progress) as bar, torch.no_grad():
            parts = []
            for batch in self._batches(inputs, batch_size):
                with fitting(batch), threads.for_passes(self._pass_flops(batch)):
                    hidden = self._hidden_of_draws(batch).flatten(2) if every_draw else self._hidden(batch).flatten(1)
                    parts.append(hidden.cpu())
                if len(parts) == 1:
                    _check_fits(hidden, total)
                bar.advance(len(hidden))
        return torch.cat(parts)

    def predict_and_embed(
        self, inputs: Inputs, *, batch_size: int | None = None, progress: bool = False
    ) -> tuple[Predictions, Tensor]:
        """What `predict` and `embed` give, for MC dropout of layers in a chain in one pass."""
        total = _num_points(inputs)
        parts: list[Tensor] = []

        def logits_of(batch: Any) -> Tensor:
            logits, hidden = self._logits_and_hidden(batch)
            parts.append(hidden.flatten(1).cpu())
            if len(parts) == 1:
                _check_fits(parts[0], total)
            return logits

        with shown_progress("predicting", total, progress) as bar:
            numbers = _collected(self._chunks(inputs, batch_size, bar, logits_of), total)
        predictions = stored_predictions(numbers, "log-probs", self.draw_ids, self.weights, classes=self.class_names)
        return predictions, torch.cat(parts)

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Write the draws into a folder: safetensors and JSON. A save that is cut short leaves an older one usable."""
        tensors, options = self._state()
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        listing = directory / "posterior.json"
        if any(directory.iterdir()) and not listing.is_file():
            raise FileFormatError(f"{directory} must be empty or hold a saved posterior; choose another folder")
        digest = fingerprint(tensors, self.kind, json.dumps(options))
        weights = directory / f"weights-{digest}.safetensors"
        with replacing(weights) as temporary:
            contiguous = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
            safetensors.torch.save_file(contiguous, temporary)
        content = {"format": FORMAT, "version": VERSION, "kind": self.kind, "weights": weights.name, "options": options}
        with replacing(listing) as temporary:
            temporary.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        for old in directory.glob("weights-*.safetensors"):
            if old != weights:
                old.unlink()

    def _chunks(
        self, inputs: Inputs, batch_size: int | None, bar: Bar, logits_of: Callable[[Any], Tensor]
    ) -> Iterator[Tensor]:
        seen = 0
        for batch in self._batches(inputs, batch_size):
            with torch.no_grad():
                with fitting(batch), threads.for_passes(self._pass_flops(batch)):
                    logits = logits_of(batch)
                if seen == 0:
                    _check_first(logits)
                if logits.dtype == torch.bfloat16:  # which NumPy has no type for
                    logits = logits.float()
                chunk = torch.log_softmax(logits, dim=-1).cpu()
            wrong = torch.isnan(chunk).any(dim=-1)
            if bool(wrong.any()):
                row, draw = wrong.nonzero()[0].tolist()
                raise ValueError(
                    f"predictions must be finite, got NaN at point {seen + row}, draw {draw}; "
                    "look for NaN or huge numbers in `inputs`"
                )
            seen += len(chunk)
            yield chunk
            bar.advance(len(chunk))


def saved_kind(directory: str | os.PathLike[str]) -> str:
    """The kind of a saved posterior."""
    return str(_listing(directory)["kind"])


def _listing(directory: str | os.PathLike[str]) -> dict[str, Any]:
    """What a saved posterior says about itself."""
    listing = Path(directory) / "posterior.json"
    if not listing.is_file():
        raise FileFormatError(f"{directory} must be a saved posterior, got a folder without posterior.json")
    try:
        content = json.loads(listing.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"cannot read the posterior in {directory}: {error}; save it again") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise FileFormatError(f"{listing} must describe a saved posterior, got something else")
    missing = [key for key in ("version", "kind", "options", "weights") if key not in content]
    if missing:
        raise FileFormatError(f"{listing} must describe a saved posterior, got one without {missing[0]}; save it again")
    if content["version"] != VERSION:
        raise FileFormatError(f"{listing} must be of version {VERSION}, got {content['version']}")
    return content


def _check_first(logits: Tensor) -> None:
    """Raise ValueError unless the first (n, S, C) may be logits of at least two classes."""
    if logits.shape[-1] < 2:
        raise ValueError("predictions must be of at least two classes, got one; look at the last layer of the model")
    check_rows(logits, "logits", [slice(0, len(logits))])


def read_saved(directory: str | os.PathLike[str], kind: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and options of a folder written by ``save``; nothing is unpickled.

    Raises:
        FileFormatError: if the folder is damaged, foreign, or holds a posterior of another kind.
    """
    content = _listing(directory)
    if content["kind"] != kind:
        raise FileFormatError(f"{directory} must hold a posterior of kind {kind!r}, got {content['kind']!r}")
    try:
        options = dict(content["options"])
        weights = Path(directory) / Path(content["weights"]).name
        tensors: dict[str, Tensor] = safetensors.torch.load_file(weights)
        if weights.stem != f"weights-{fingerprint(tensors, kind, json.dumps(options))}":
            raise FileFormatError(f"{weights} must be as it was written, got other contents; save the posterior again")
    except FileFormatError:
        raise
    except Exception as error:  # the readers raise many types for a damaged file
        raise FileFormatError(f"cannot read the posterior in {directory}: {error}; save it again") from error
    return tensors, options


def fingerprint(tensors: Mapping[str, Tensor], *words: object) -> str:
    """Ten hexadecimal digits that change with any word, name, shape or number."""
    digest = hashlib.sha256(repr(words).encode())
    for name, value in sorted(tensors.items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()[:10]


def as_network(network: Any, directory: str | os.PathLike[str]) -> nn.Module:
    """A network, or what a function without arguments builds."""
    found = network() if callable(network) and not isinstance(network, nn.Module) else network
    if not isinstance(found, nn.Module):
        raise ValueError(
            f"`network` must be a network like the one saved in {directory}, or a function that builds one, got "
            f"{found!r}"
        )
    return found


def structure_of(model: nn.Module) -> str:
    """What a network is apart from its weights: the types and options of its modules, by name.

    Two networks with equal weights may differ in an activation or a stride, and then their draws are not the same.
    """
    return "\n".join(
        f"{name}: {type(module).__module__}.{type(module).__qualname__}({module.extra_repr()})"
        for name, module in model.named_modules()
    )


def load_weights(model: nn.Module, state: Mapping[str, Tensor], directory: str | os.PathLike[str]) -> None:
    """Put saved weights into `model`, or raise FileFormatError if they are those of another architecture."""
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        raise FileFormatError(f"the posterior in {directory} is of another network: {error}") from error


def batches_of(inputs: Inputs, batch_size: int, *, structured: bool = False, padding: int = 0) -> Iterator[Any]:
    """Consecutive batches of inputs, (n, ...), in order.

    Args:
        inputs: as `predict` takes them.
        batch_size: inputs in a batch.
        structured: whether batches may be dicts and tuples of tensors.
        padding: the token that sequences in a Dataset are padded with.
    """
    batch_size = check_whole("batch_size", batch_size)
    if isinstance(inputs, Tensor | np.ndarray | Mapping | tuple):
        held = as_batch(inputs)
        if isinstance(held, Tensor) and (held.ndim < 2 or not len(held)):
            raise ValueError(f"`inputs` must be (N, ...) with at least one row, got shape {tuple(held.shape)}")
        batches: Iterable[Batch] = (
            some_rows(held, slice(start, start + batch_size)) for start in range(0, num_rows(held), batch_size)
        )
    elif isinstance(inputs, DataLoader):
        _check_order(inputs)
        batches = map(first_of, inputs)
    elif isinstance(inputs, Dataset):
        ordered = isinstance(inputs, IterableDataset)
        items = iter(inputs) if ordered else (inputs[row] for row in range(len(inputs)))  # type: ignore[arg-type]
        batches = (collated(some, padding) for some in iter(lambda: list(islice(items, batch_size)), []))
    else:
        raise ValueError(
            f"`inputs` must be a tensor, a dict or tuple of tensors, a Dataset or a DataLoader, got "
            f"{type(inputs).__name__}"
        )
    empty = True
    for batch in batches:
        if not (structured or isinstance(batch, Tensor)):
            raise ValueError(f"`inputs` must give tensors for this posterior, got {described(batch)}")
        empty = False
        yield batch
    if empty:
        raise ValueError("`inputs` must hold at least one example, got none")


def _check_order(loader: DataLoader[Any]) -> None:
    """Raise ValueError unless a DataLoader is known to read its data set from the first item to the last."""
    if isinstance(loader.dataset, IterableDataset):
        return
    batches = loader.batch_sampler
    sampler = loader.sampler if type(batches) in (BatchSampler, type(None)) else batches
    inner = batches.sampler if type(batches) is BatchSampler else sampler
    if type(inner) is not SequentialSampler:
        raise ValueError(
            "`inputs` must come in the order of their data set, got a DataLoader with "
            f"{type(inner).__name__}, which may change it; use shuffle=False, or pass the data set itself"
        )


@contextmanager
def fitting(batch: Any) -> Iterator[None]:
    """Turn the errors that torch and scikit-learn raise on a misshapen batch into one clear ValueError."""
    try:
        yield
    except (RuntimeError, IndexError) as error:
        known = isinstance(batch, Tensor | dict | tuple)
        got = described(batch) if known else f"a batch of {described_rows(batch)}"
        raise ValueError(f"`inputs` must fit the model, got {got}: {error}") from error


@contextmanager
def last_hidden(model: nn.Module) -> Iterator[Callable[[Tensor], Tensor]]:
    """Give a function that, after a forward pass with these logits, has the input of the last linear layer that ran.

    A network that classifies every token and then picks one, as GPT-2 does, has the input of that token.
    """
    seen: list[Tensor] = []

    def record(_: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        seen[:] = [args[0], output]

    def hidden(logits: Tensor) -> Tensor:
        inputs, outputs = seen
        if outputs.ndim == 3 and outputs.shape[::2] == logits.shape:
            picked = (outputs == logits.unsqueeze(1)).all(dim=2)
            if bool(picked.any(dim=1).all()):
                return inputs[torch.arange(len(inputs), device=inputs.device), picked.int().argmax(dim=1)]
        return inputs.clone()

    linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
    if not linear:
        raise ValueError("the model must have a linear layer for `embed`, got none; end it with nn.Linear")
    handles = [module.register_forward_hook(record) for module in linear]
    try:
        yield hidden
    finally:
        for handle in handles:
            handle.remove()


def _num_points(inputs: Inputs) -> int | None:
    if isinstance(inputs, DataLoader):
        if isinstance(inputs.dataset, IterableDataset):
            return None
        whole = len(inputs.sampler)  # type: ignore[arg-type]
        size = inputs.batch_size
        return whole - whole % size if inputs.drop_last and size else whole
    if isinstance(inputs, Mapping | tuple):
        return num_rows(as_batch(inputs))
    try:
        return height(inputs)
    except TypeError:
        return None


def _collected(chunks: Iterator[Tensor], total: int | None) -> Tensor:
    """All chunks in one (N, S, C) tensor, without a second copy where N is known."""
    if total is None:
        return torch.cat(list(chunks))
    stored, filled = torch.empty(0), 0
    for chunk in chunks:
        if not filled:
            stored = torch.empty((total, *chunk.shape[1:]), dtype=chunk.dtype)
        stored[filled : filled + len(chunk)] = chunk
        filled += len(chunk)
    _check_count(filled, total)
    return stored


def _check_fits(hidden: Tensor, total: int | None) -> None:
    """Raise ValueError if embeddings like these of all points would not fit in memory, as those of sparse rows may."""
    size, free = hidden[0].nbytes * (total or 0), free_memory()
    if size > free:
        raise ValueError(
            f"embeddings of {total:,} points × {hidden[0].numel():,} features must fit in memory, {as_text(free)} are "
            f"free, got {as_text(size)}; reduce the features, or choose a strategy without embeddings"
        )


def _write_npy(file: BinaryIO, chunks: Iterator[Tensor], total: int) -> None:
    """Write chunk after chunk through the file, not a memory map: mapped pages would count as memory in use."""
    written = 0
    for chunk in chunks:
        numbers = chunk.contiguous().numpy()
        if not written:
            header = {"descr": np.lib.format.dtype_to_descr(numbers.dtype), "fortran_order": False}
            np.lib.format.write_array_header_1_0(file, {**header, "shape": (total, *numbers.shape[1:])})
        file.write(numbers.data)
        written += len(chunk)
    _check_count(written, total)


def _check_count(seen: int, total: int) -> None:
    if seen != total:
        raise ValueError(f"`inputs` must give as many examples as its length says, {total}, got {seen}")

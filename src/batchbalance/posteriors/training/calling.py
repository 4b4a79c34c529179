"""Calling a network with batches that are a tensor, a dict or a tuple of tensors, and reading its logits.

A dict is passed as keyword arguments, a tuple as positional ones; if ``forward`` takes neither, as one argument.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

from batchbalance.arguments.checks import as_tensor, check_dense, unmasked

Batch = Tensor | dict[str, Tensor] | tuple[Tensor, ...]
Rows = Tensor | slice

LABELS = ("labels", "label", "label_ids")  # keys of a dict that are not inputs
AUGMENTATIONS = ("none", "crop-flip")
PADDING = 4  # pixels around an image before it is cropped
PAD_YOURSELF = "use a DataLoader with a `collate_fn` that pads, such as transformers.DataCollatorWithPadding"


def as_batch(given: Any) -> Batch:
    """Return the input of a user or an item of a DataLoader as a batch; labels in a dict are ignored.

    Raises:
        ValueError: if it holds anything but tensors, or tensors of different numbers of rows.
    """
    batch: Any = given
    if isinstance(given, Mapping):
        batch = {key: _as_dense(f"`inputs[{key!r}]`", value) for key, value in given.items() if key not in LABELS}
    elif isinstance(given, list | tuple):
        batch = tuple(_as_dense(f"`inputs[{i}]`", value) for i, value in enumerate(given))
    else:
        batch = _as_dense("`inputs`", given)
    tensors = tensors_in(batch)
    if not tensors or any(value.ndim == 0 or len(value) != len(tensors[0]) for value in tensors):
        raise ValueError(f"`inputs` must be tensors of the same number of rows, got {described(batch)}")
    return batch  # type: ignore[no-any-return]


def tensors_in(batch: Batch) -> list[Tensor]:
    """Return the tensors of a batch."""
    if isinstance(batch, Tensor):
        return [batch]
    return list(batch.values() if isinstance(batch, dict) else batch)


def changed(batch: Batch, change: Callable[[Tensor], Tensor]) -> Batch:
    """Return a batch with each tensor changed."""
    if isinstance(batch, Tensor):
        return change(batch)
    if isinstance(batch, dict):
        return {key: change(value) for key, value in batch.items()}
    return tuple(change(value) for value in batch)


def num_rows(batch: Batch) -> int:
    """Return the number of examples in a batch."""
    return len(tensors_in(batch)[0])


def some_rows(batch: Batch, rows: Rows) -> Batch:
    """Return some examples of a batch."""
    return changed(batch, lambda value: value[rows])


def described(batch: Batch) -> str:
    """Describe shapes and types, for messages."""
    if isinstance(batch, Tensor):
        return f"a batch of shape {tuple(batch.shape)} and {batch.dtype}"
    names = batch if isinstance(batch, dict) else range(len(batch))
    pairs = zip(names, tensors_in(batch), strict=True)
    return "a batch of " + ", ".join(f"{name} {tuple(value.shape)} {value.dtype}" for name, value in pairs)


def arguments(model: nn.Module, batch: Batch) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the positional and keyword arguments to call a network with."""
    if isinstance(batch, Tensor):
        return (batch,), {}
    signature = inspect.signature(model.forward)
    positions, keywords = ((), batch) if isinstance(batch, dict) else (batch, {})
    try:
        signature.bind(*positions, **keywords)
    except TypeError as error:
        if keywords.keys() & signature.parameters.keys():
            raise ValueError(
                f"`inputs` must match the model's arguments, got the keys {', '.join(keywords)}: {error}; omit "
                "the others"
            ) from error
        return (batch,), {}
    return positions, keywords


def logits_in(output: Any) -> Tensor:
    """Return the logits in a network's output: a tensor, its `logits`, or the first entry of a tuple."""
    if isinstance(output, Tensor):
        return output
    found = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    if found is None and isinstance(output, list | tuple) and output:
        found = output[0]
    if not isinstance(found, Tensor):
        held = f" of {', '.join(map(str, output))}" if isinstance(output, Mapping) else ""
        raise ValueError(
            f"the model must return logits as a tensor, under the name `logits`, or first in a tuple, got "
            f"{type(output).__name__}{held}"
        )
    return found


def logits_from(model: nn.Module, batch: Batch) -> Tensor:
    """Return the logits of a network for a batch, (n, C)."""
    positions, keywords = arguments(model, batch)
    return logits_in(model(*positions, **keywords))


def padding_of(model: nn.Module | None) -> int:
    """Return the padding token that a network's `config` names; 0 if it names none."""
    return getattr(getattr(model, "config", None), "pad_token_id", None) or 0


def collated(items: Sequence[Any], padding: int = 0) -> Batch:
    """Combine items of a data set into a batch. Of items that are tuples, the first entry is used.

    Dicts with an `attention_mask` may hold sequences of different lengths: they are padded on the right to the longest
    of this batch, `input_ids` with the token `padding` and others with 0.
    """
    entries = [item[0] if isinstance(item, list | tuple) else item for item in items]
    first = entries[0]
    if isinstance(first, Mapping):
        is_padded = "attention_mask" in first
        return as_batch(
            {
                key: _stacked(key, [entry[key] for entry in entries], padding * (key == "input_ids"), is_padded)
                for key in first
                if key not in LABELS
            }
        )
    if isinstance(first, list | tuple):
        return as_batch([_stacked(str(i), values, 0, False) for i, values in enumerate(zip(*entries, strict=True))])
    try:
        return as_batch(default_collate([unmasked("`inputs`", entry) for entry in entries]))
    except RuntimeError as error:
        raise ValueError(f"`inputs` must hold items of one shape, got {error}; {PAD_YOURSELF}") from error


def _stacked(name: str, values: Sequence[Any], padding: int, is_padded: bool) -> Tensor:
    values = [unmasked(f"`inputs[{name!r}]`", value) for value in values]
    try:
        tensors = [torch.as_tensor(value) for value in values]
    except (TypeError, ValueError, RuntimeError) as error:
        got = type(values[0]).__name__
        raise ValueError(f"`inputs` must hold numbers, got {got} under {name!r}; omit it") from error
    if len({tensor.shape for tensor in tensors}) == 1:
        return torch.stack(tensors)
    if not is_padded or len({tensor.shape[1:] for tensor in tensors}) > 1:
        shapes = " and ".join(str(tuple(shape)) for shape in sorted({tensor.shape for tensor in tensors})[:2])
        raise ValueError(f"`inputs` must hold items of one shape, got {shapes} under {name!r}; {PAD_YOURSELF}")
    return pad_sequence(tensors, batch_first=True, padding_value=padding)


class Examples:
    """Inputs that are read by rows: tensors in memory, or items of a data set that are collated when read.

    Args:
        inputs: a batch of all examples, a Dataset with a length, or a DataLoader, of which only the data set and the
            `collate_fn` are used.
        padding: the token to pad sequences with.
        device: the device of batches; tensors in memory are copied there once.
    """

    def __init__(self, inputs: Any, padding: int = 0, device: str | torch.device = "cpu") -> None:
        self._device = device
        self._held: Batch | None = None
        self._collate: Callable[[Any], Any] = lambda items: collated(items, padding)
        if isinstance(inputs, DataLoader):
            if inputs.batch_sampler is None:
                raise ValueError(
                    "`inputs` must be single examples here, got a DataLoader with batch_size=None, whose items are "
                    "batches; pass the data set of single examples"
                )
            if inputs.collate_fn is not default_collate:
                self._collate = inputs.collate_fn
            inputs = inputs.dataset
        self._items: Any = inputs
        if isinstance(inputs, IterableDataset) or (isinstance(inputs, Dataset) and not hasattr(inputs, "__len__")):
            raise ValueError(f"`inputs` must be examples that are read by row, got {type(inputs).__name__}")
        if isinstance(inputs, Tensor | np.ndarray | Mapping | list | tuple):
            self._held = changed(as_batch(inputs), lambda tensor: placed(tensor, self._device))

    def __len__(self) -> int:
        return len(self._items) if self._held is None else num_rows(self._held)

    def __getitem__(self, rows: Rows) -> Batch:
        """Return a batch of some rows, on the device."""
        if self._held is not None:
            return some_rows(self._held, rows)
        index = torch.arange(len(self))[rows].tolist()
        return changed(
            first_of(self._collate([self._items[row] for row in index])), lambda tensor: placed(tensor, self._device)
        )


def first_of(item: Any) -> Batch:
    """Return the inputs in an item of a DataLoader: the first entry of (inputs, labels, …)."""
    return as_batch(item[0] if isinstance(item, list | tuple) else item)


def placed(inputs: Tensor, device: str | torch.device) -> Tensor:
    """Return inputs on a device, images channels last."""
    return channels_last(inputs.to(device))


def channels_last(inputs: Tensor) -> Tensor:
    """Return images (N, channels, height, width) laid out channels last; anything else unchanged."""
    if inputs.ndim != 4:
        return inputs
    if inputs.shape[1] > 1:
        return inputs.contiguous(memory_format=torch.channels_last)
    # With one channel both layouts are the same in memory, and a convolution chooses by the strides alone.
    height, width = inputs.shape[2:]
    return inputs.contiguous().as_strided(inputs.shape, (height * width, 1, width, 1))


def _as_dense(name: str, value: Any) -> Tensor:
    if isinstance(value, np.ndarray):
        value = as_tensor(np.ascontiguousarray(unmasked(name, value)), name)
    if not isinstance(value, Tensor):
        raise ValueError(f"{name} must be a tensor, got {type(value).__name__}")
    check_dense(name, value)
    return value


def crop_and_flip(images: Batch, *, generator: torch.Generator, padding: int = PADDING) -> Tensor:
    """Pad each image with zeros, crop it at a random position, and mirror it with probability ½.

    Zero is the mean colour if the images are normalised. The random numbers are drawn on the CPU, so that they are the
    same on every device: first the (n, 2) positions, down and right, from 0 to 2·padding, then the (n,) flips.

    Args:
        images: (n, channels, height, width).
        generator: random generator for the positions and the flips.
        padding: pixels on each side.
    """
    if not isinstance(images, Tensor) or images.ndim != 4:
        raise ValueError(
            "`augmentation` must be 'none' unless inputs are images (N, channels, height, width), got "
            f"{described(images)}"
        )
    num, _, height, width = images.shape
    places = torch.randint(2 * padding + 1, (num, 2), generator=generator).to(images.device)
    flipped = torch.randint(2, (num,), generator=generator).bool().to(images.device)
    across = torch.arange(width, device=images.device).expand(num, width)
    across = torch.where(flipped[:, None], across.flip(1), across)
    rows = places[:, :1] + torch.arange(height, device=images.device)  # (n, h) of the padded image
    columns = places[:, 1:] + across  # (n, w)
    padded = torch.nn.functional.pad(images, (padding, padding, padding, padding))
    which = torch.arange(num, device=images.device)
    return padded[which[:, None, None], :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)

"""Inputs of posteriors, in whatever form users have them, as batches in their order."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, SequentialSampler

from batchbalance.arguments.checks import check_whole
from batchbalance.posteriors.rows import described_rows, height
from batchbalance.posteriors.training.calling import Batch, as_batch, collated, described, first_of, num_rows, some_rows

# A tensor or array (N, ...), a Dataset, or a DataLoader; posteriors of networks take dicts and tuples of tensors as
# well, those that wrap an estimator tables.
Inputs = Any


def num_points(inputs: Inputs) -> int | None:
    """How many examples there are; None if only reading them tells."""
    if isinstance(inputs, DataLoader):
        # Without a batch sampler (batch_size=None) an item is a batch made beforehand, of any number of examples.
        if isinstance(inputs.dataset, IterableDataset) or inputs.batch_sampler is None:
            return None
        return len(inputs.sampler)  # type: ignore[arg-type]
    if isinstance(inputs, Mapping | tuple):
        return num_rows(as_batch(inputs))
    try:
        return height(inputs)
    except TypeError:
        return None


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
    batches = loader.batch_sampler
    if getattr(batches, "drop_last", False):
        is_whole = not isinstance(loader.dataset, IterableDataset) and not len(loader.sampler) % batches.batch_size  # type: ignore[arg-type, union-attr]
        if not is_whole:
            raise ValueError(
                "`inputs` must hold every example, got a DataLoader with drop_last=True, which omits the last ones; "
                "use drop_last=False"
            )
    if isinstance(loader.dataset, IterableDataset):
        return
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

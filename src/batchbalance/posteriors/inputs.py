"""Inputs of posteriors, of many types, as batches in order.

Networks take tensors, dicts and tuples of tensors, Datasets and DataLoaders. Estimators take rows: arrays, DataFrames,
sparse matrices and lists of texts, each passed on unchanged. A DataFrame is recognised by its methods, so neither
pandas nor polars is imported here.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import Any

import numpy as np
import torch
from scipy import sparse
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, SequentialSampler

from batchbalance.arguments.checks import check_dense, check_whole, unmasked
from batchbalance.posteriors.training.calling import Batch, as_batch, collated, described, first_of, num_rows, some_rows
from batchbalance.predictions import spans_of

BLOCK = 4096  # inputs read at a time

# A tensor or array (N, ...), a Dataset, or a DataLoader; posteriors of networks also take dicts and tuples of tensors,
# and those that wrap an estimator also take tables.
Inputs = Any


def is_table(inputs: Any) -> bool:
    """Return whether only an estimator can use these rows: a DataFrame, a sparse matrix, texts, mixed columns."""
    if isinstance(inputs, list):
        return bool(inputs) and isinstance(inputs[0], str | dict)
    if isinstance(inputs, np.ndarray):
        return inputs.dtype.kind in "OUST"
    return sparse.issparse(inputs) or hasattr(inputs, "iloc") or hasattr(inputs, "gather_every")  # pandas, polars


def height(inputs: Any) -> int:
    """Return the number of rows; a sparse matrix has no length."""
    return int(inputs.shape[0]) if sparse.issparse(inputs) else len(inputs)


def take(inputs: Any, rows: slice | np.ndarray) -> Any:
    """Return some of the rows, as the same type."""
    if hasattr(inputs, "iloc"):
        return inputs.iloc[rows]
    if isinstance(inputs, list):
        return inputs[rows] if isinstance(rows, slice) else [inputs[row] for row in rows]
    return inputs[rows]


def as_rows(inputs: Any, name: str = "`inputs`") -> Any:
    """Return inputs that `take` can read, with at least one row; tensors become arrays.

    Raises:
        ValueError: if they are something else.
    """
    if isinstance(inputs, Tensor):
        check_dense(name, inputs)
        inputs = inputs.detach().cpu().numpy()
    inputs = unmasked(name, inputs)
    if sparse.issparse(inputs):
        inputs = inputs.tocsr()  # the only format whose rows are cheap to read
    if not (isinstance(inputs, np.ndarray | list) or is_table(inputs)):
        raise ValueError(
            f"{name} must be an array, a DataFrame, a sparse matrix or a list of rows, got {type(inputs).__name__}"
        )
    if not height(inputs):
        raise ValueError(f"{name} must hold at least one row, got none")
    if isinstance(inputs, np.ndarray) and inputs.ndim < 2 and not is_table(inputs):
        raise ValueError(f"{name} must be (N, ...), one row for each point, got shape {inputs.shape}")
    return inputs


class Blocks:
    """Some of the inputs that a tensor of rows indexes, read block by block, so that they need not fit in memory."""

    def __init__(self, inputs: Any, rows: Tensor) -> None:
        self._inputs, self._rows = inputs, rows

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Any]:
        return (self._inputs[block] for block in torch.split(self._rows, BLOCK))


class IndexedRows:
    """The rows of a table, indexed by a tensor as in a `Learner`."""

    def __init__(self, inputs: Any) -> None:
        self.inputs = as_rows(inputs)

    def __len__(self) -> int:
        return height(self.inputs)

    def __getitem__(self, rows: Tensor) -> Any:
        return take(self.inputs, rows.numpy())


def num_points(inputs: Inputs) -> int | None:
    """Return the number of examples; None if it is known only after reading them."""
    if isinstance(inputs, DataLoader):
        # Without a batch sampler (batch_size=None) an item is a ready-made batch of any number of examples.
        if isinstance(inputs.dataset, IterableDataset) or inputs.batch_sampler is None:
            return None
        return len(inputs.sampler)  # type: ignore[arg-type]
    if isinstance(inputs, Mapping | tuple):
        return num_rows(as_batch(inputs))
    try:
        return height(inputs)
    except TypeError:
        return None


def row_batches(inputs: Any, batch_size: int) -> Iterator[Any]:
    """Yield consecutive batches of rows; those of tensors, Datasets and DataLoaders are tensors."""
    if isinstance(inputs, Blocks):
        for block in inputs:
            yield from row_batches(block, batch_size)
        return
    if isinstance(inputs, Tensor | Dataset | DataLoader):
        yield from batches_of(inputs, batch_size)
        return
    given = as_rows(inputs)
    for rows in spans_of(height(given), check_whole("batch_size", batch_size)):
        yield take(given, rows)


def batches_of(inputs: Inputs, batch_size: int, *, structured: bool = False, padding: int = 0) -> Iterator[Any]:
    """Yield consecutive batches of inputs, (n, ...), as tensors or structures of tensors.

    Args:
        inputs: as `predict` takes them.
        batch_size: inputs per batch.
        structured: whether batches may be dicts and tuples of tensors.
        padding: the token that sequences in a Dataset are padded with.
    """
    if isinstance(inputs, Blocks):
        for block in inputs:
            yield from batches_of(block, batch_size, structured=structured, padding=padding)
        return
    batch_size = check_whole("batch_size", batch_size)
    if isinstance(inputs, DataLoader):
        _check_order(inputs)
        batches: Iterable[Batch] = map(first_of, inputs)
    elif isinstance(inputs, Dataset):
        ordered = isinstance(inputs, IterableDataset)
        items = iter(inputs) if ordered else (inputs[row] for row in range(len(inputs)))  # type: ignore[arg-type]
        batches = (collated(some, padding) for some in iter(lambda: list(islice(items, batch_size)), []))
    elif isinstance(inputs, Tensor | np.ndarray | Mapping | tuple):
        held = as_batch(inputs)
        if isinstance(held, Tensor) and (held.ndim < 2 or not len(held)):
            raise ValueError(f"`inputs` must be (N, ...) with at least one row, got shape {tuple(held.shape)}")
        batches = (some_rows(held, rows) for rows in spans_of(num_rows(held), batch_size))
    else:
        raise ValueError(
            f"`inputs` must be a tensor, a dict or tuple of tensors, a Dataset or a DataLoader, got "
            f"{type(inputs).__name__}"
        )
    empty = True
    for batch in batches:
        if not (structured or isinstance(batch, Tensor)):
            raise ValueError(f"`inputs` must yield tensors for this posterior, got {described(batch)}")
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
            "`inputs` must be in the order of their data set, got a DataLoader with "
            f"{type(inner).__name__}, which may change it; use shuffle=False, or pass the data set itself"
        )


@contextmanager
def fitting(batch: Any) -> Iterator[None]:
    """Raise the errors of torch and scikit-learn for a batch of the wrong shape as one clear ValueError."""
    try:
        yield
    except (RuntimeError, IndexError) as error:
        known = isinstance(batch, Tensor | dict | tuple)
        got = described(batch) if known else f"a batch of {described_rows(batch)}"
        raise ValueError(f"`inputs` must fit the model, got {got}: {error}") from error


def described_rows(batch: Any) -> str:
    """Return the size and type of a batch of rows, for messages."""
    shape = getattr(batch, "shape", None)
    if shape is None:
        return f"{len(batch)} rows in a {type(batch).__name__}"
    kind = f" and {batch.dtype}" if hasattr(batch, "dtype") else f" in a {type(batch).__name__}"
    return f"shape {tuple(shape)}{kind}"

"""Rows of what estimators take: arrays, DataFrames, sparse matrices and lists of texts, each left as it is.

A table is known by what it can do, so that pandas is not needed here.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from batchbalance.arguments.checks import check_dense, check_whole, unmasked
from batchbalance.predictions import spans_of

Rows = slice | np.ndarray


def is_table(inputs: Any) -> bool:
    """Whether these are rows that only an estimator can read: a DataFrame, a sparse matrix, texts, mixed columns."""
    if isinstance(inputs, list):
        return bool(inputs) and isinstance(inputs[0], str | dict)
    if isinstance(inputs, np.ndarray):
        return inputs.dtype.kind in "OUST"
    return sparse.issparse(inputs) or hasattr(inputs, "iloc") or hasattr(inputs, "gather_every")  # pandas, polars


def is_rows(inputs: Any) -> bool:
    """Whether rows can be taken from these inputs: tables, arrays and lists."""
    return isinstance(inputs, np.ndarray | list) or is_table(inputs)


def height(inputs: Any) -> int:
    """How many rows there are; a sparse matrix has no length."""
    return int(inputs.shape[0]) if sparse.issparse(inputs) else len(inputs)


def take(inputs: Any, rows: Rows) -> Any:
    """Some of the rows, as the same type."""
    if hasattr(inputs, "iloc"):
        return inputs.iloc[rows]
    if isinstance(inputs, list):
        return inputs[rows] if isinstance(rows, slice) else [inputs[row] for row in rows]
    return inputs[rows]


def as_rows(inputs: Any, name: str = "`inputs`") -> Any:
    """Inputs that `take` can read, with at least one row; tensors become arrays.

    Raises:
        ValueError: if they are something else.
    """
    if isinstance(inputs, Tensor):
        check_dense(name, inputs)
        inputs = inputs.detach().cpu().numpy()
    inputs = unmasked(name, inputs)
    if sparse.issparse(inputs):
        inputs = inputs.tocsr()  # the only kind whose rows are cheap
    if not is_rows(inputs):
        raise ValueError(
            f"{name} must be an array, a DataFrame, a sparse matrix or a list of rows, got {type(inputs).__name__}"
        )
    if not height(inputs):
        raise ValueError(f"{name} must hold at least one row, got none")
    if isinstance(inputs, np.ndarray) and inputs.ndim < 2 and not is_table(inputs):
        raise ValueError(f"{name} must be (N, ...), one row a point, got shape {inputs.shape}")
    return inputs


def row_batches(inputs: Any, batch_size: int) -> Iterator[Any]:
    """Consecutive batches of rows, in order."""
    given = as_rows(inputs)
    for rows in spans_of(height(given), check_whole("batch_size", batch_size)):
        yield take(given, rows)


def described_rows(batch: Any) -> str:
    """What a batch is, for messages."""
    shape = getattr(batch, "shape", None)
    if shape is None:
        return f"{len(batch)} rows in a {type(batch).__name__}"
    kind = f" and {batch.dtype}" if hasattr(batch, "dtype") else f" in a {type(batch).__name__}"
    return f"shape {tuple(shape)}{kind}"


class Table:
    """A table as a `Learner` reads its inputs: rows by a tensor of their numbers."""

    def __init__(self, inputs: Any) -> None:
        self.inputs = as_rows(inputs)

    def __len__(self) -> int:
        return height(self.inputs)

    def __getitem__(self, rows: torch.Tensor) -> Any:
        return take(self.inputs, rows.numpy())

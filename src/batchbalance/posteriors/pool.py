"""A pool that is predicted when it is read: a saved posterior and files of inputs, instead of predictions.

With an executor each worker loads the posterior and predicts its own part of the inputs, once.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from batchbalance.arguments.checks import as_tensor
from batchbalance.errors import FileFormatError
from batchbalance.posteriors.contract import Posterior
from batchbalance.predictions import OnDemand, Predictions, Rows, check_distinct_files, join
from batchbalance.system.files import MappedFile, mapped_array

Loader = Callable[[], Posterior]


@dataclass(frozen=True, eq=False)
class InputFile:
    """Inputs (N, …) in a memory-mapped ``.npy`` file."""

    path: Path
    array: np.ndarray
    file: MappedFile | None

    @classmethod
    def open(cls, path: Path) -> "InputFile":
        """Map a file of inputs into memory."""
        array = mapped_array(path)
        if array.ndim < 2 or not len(array):
            raise FileFormatError(f"{path} must hold inputs (N, …), got shape {array.shape}")
        return cls(path, array, MappedFile.of(array, path))

    def read(self, rows: Rows) -> Tensor:
        """Read some of the inputs into memory."""
        if self.file is not None:
            self.file.check()
        index: Any = rows if isinstance(rows, slice) else torch.as_tensor(rows, dtype=torch.long).numpy()
        return as_tensor(np.array(self.array[index]), "inputs")


@dataclass(frozen=True, eq=False)
class PredictedInputs:
    """Log-probabilities of the inputs in one file, predicted at each call.

    Attributes:
        loader: returns the posterior, here and on workers.
        posterior: the posterior in this process.
        inputs: the file.
        batch_size: inputs per batch.
    """

    loader: Loader
    posterior: Posterior
    inputs: InputFile
    batch_size: int

    def __call__(self, rows: Rows) -> Float[Tensor, "n S C"]:
        """Return the log-probabilities of some points."""
        return self.posterior.predict(self.inputs.read(rows), batch_size=self.batch_size).log_probs()


def predicted_pool(
    loader: Loader, paths: Sequence[str | os.PathLike[str]], *, batch_size: int | None = None
) -> Predictions:
    """Return predictions of a saved posterior on the inputs in some files, computed when they are read.

    Args:
        loader: returns the posterior, such as ``lambda: MCDropout.load(folder, model)``. Workers call it too, so the
            folder must exist on every machine.
        paths: ``.npy`` files of inputs (N, …), in the order in which their points are numbered.
        batch_size: inputs per batch; that of the posterior if omitted.

    Raises:
        FileFormatError: if a file is damaged or given twice, or inputs of two files differ in shape or type.
    """
    check_distinct_files([Path(path) for path in paths])
    files = [InputFile.open(Path(path)) for path in paths]
    first = files[0].array
    for each in files:
        if (each.array.shape[1:], each.array.dtype) != (first.shape[1:], first.dtype):
            raise FileFormatError(
                f"{each.path} must hold inputs of shape {first.shape[1:]} and {first.dtype} like {files[0].path}, got "
                f"{each.array.shape[1:]} and {each.array.dtype}"
            )
    posterior = loader()
    if not isinstance(posterior, Posterior):
        raise TypeError(f"`loader` must return a posterior, got {type(posterior).__name__}")
    batch_size = posterior.batch_size if batch_size is None else batch_size
    shown = posterior.predict(files[0].read(slice(0, 1)))
    shown.check_one_class()
    return join(
        [
            Predictions(
                OnDemand(
                    (len(each.array), shown.num_draws, shown.num_classes),
                    shown.dtype,
                    PredictedInputs(loader, posterior, each, batch_size),
                ),
                shown.draws,
                classes=shown.classes,
            )
            for each in files
        ]
    )

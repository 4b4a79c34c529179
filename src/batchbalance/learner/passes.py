"""Passes of a posterior over inputs that are read block by block."""

from collections.abc import Iterable, Iterator
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from batchbalance.posteriors import Posterior
from batchbalance.predictions import Predictions, stored_predictions

BLOCK = 4096  # inputs read at a time


@runtime_checkable
class Inputs(Protocol):
    """An object that returns the inputs (n, ...) of (n,) rows."""

    def __len__(self) -> int: ...
    def __getitem__(self, rows: Tensor, /) -> Tensor: ...


def predict(posterior: Posterior, inputs: Inputs, rows: Tensor) -> Predictions:
    """Return predictions of some rows, read block by block."""
    parts = (posterior.predict(inputs[block]) for block in torch.split(rows, BLOCK))
    return _joined(posterior, parts, len(rows))


def predict_and_embed(posterior: Posterior, inputs: Inputs, rows: Tensor) -> tuple[Predictions, Tensor]:
    """Return predictions and embeddings of some rows, read block by block."""
    embeddings: list[Tensor] = []

    def parts() -> Iterator[Predictions]:
        for block in torch.split(rows, BLOCK):
            predictions, hidden = posterior.predict_and_embed(inputs[block])
            embeddings.append(hidden)
            yield predictions

    return _joined(posterior, parts(), len(rows)), torch.cat(embeddings)


def _joined(posterior: Posterior, parts: Iterable[Predictions], num_rows: int) -> Predictions:
    """Return the predictions of all parts, without a second copy of them."""
    stored, done = torch.empty(0), 0
    for predictions in parts:
        part = predictions.log_probs()
        if not done:
            stored = part.new_empty((num_rows, *part.shape[1:]))
        stored[done : done + len(part)] = part
        done += len(part)
    return stored_predictions(stored, "log-probs", posterior.draw_ids, posterior.weights, classes=posterior.class_names)


def embed(posterior: Posterior, inputs: Inputs, rows: Tensor, *, every_draw: bool = False) -> Tensor:
    """Return embeddings of some rows, read block by block: their mean over draws, or those of every draw."""
    blocks = torch.split(rows, BLOCK)
    return torch.cat([posterior.embed(inputs[block], every_draw=every_draw) for block in blocks])

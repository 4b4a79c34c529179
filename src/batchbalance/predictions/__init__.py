"""Predictions of a pool: class log-probabilities of its points under posterior draws, from any source."""

from batchbalance.predictions.arrays import (
    Label,
    Values,
    as_nsc,
    check_classes,
    check_rows,
    check_weights,
    looks_like_probs,
    over_answers,
)
from batchbalance.predictions.draws import Draws, mean_over_draws
from batchbalance.predictions.joined import check_distinct_files, join, load_parts
from batchbalance.predictions.notes import note_path, write_note
from batchbalance.predictions.pool import Predictions, stored_predictions
from batchbalance.predictions.sources import CHUNK_NUMBERS, Joined, OnDemand, Rows, Source, Stored, spans_of

__all__ = [
    "CHUNK_NUMBERS",
    "Draws",
    "Joined",
    "Label",
    "OnDemand",
    "Predictions",
    "Rows",
    "Source",
    "Stored",
    "Values",
    "as_nsc",
    "check_classes",
    "check_distinct_files",
    "check_rows",
    "check_weights",
    "join",
    "load_parts",
    "looks_like_probs",
    "mean_over_draws",
    "note_path",
    "over_answers",
    "spans_of",
    "stored_predictions",
    "write_note",
]

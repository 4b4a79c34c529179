"""A pool in several pieces, for example in many files: predictions of the same draws on consecutive points."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from batchbalance.errors import FileFormatError
from batchbalance.predictions.arrays import Values, check_same_classes
from batchbalance.predictions.pool import Predictions
from batchbalance.predictions.sources import Joined
from batchbalance.system.files import check_is_file


def join(pieces: Sequence[Predictions], *, names: Sequence[str] | None = None) -> Predictions:
    """Return one pool from predictions of the same draws on its pieces; nothing is copied.

    Args:
        pieces: the predictions, in the order in which their points are numbered.
        names: the names of the pieces in messages.

    Raises:
        ValueError: if there is no piece.
        DrawMismatchError: if draws, weights or classes differ.
    """
    if not pieces:
        raise ValueError("a pool must have at least one piece, got none")
    known = next((piece for piece in pieces if piece.draw_ids is not None), pieces[0])
    classes = next((piece.classes for piece in pieces if piece.classes is not None), None)
    for number, piece in enumerate(pieces):
        name = f"piece {number}" if names is None else names[number]
        known.check_same_draws(piece, name)
        check_same_classes(classes, piece.classes, name)
    return replace(known, source=Joined(tuple(piece.source for piece in pieces)), classes=classes)


def load_parts(paths: Sequence[str | os.PathLike[str]], values: Values | None = None, axes: str = "nsc") -> Predictions:
    """Read a pool that is stored in several files, each as ``Predictions.load`` does.

    Args:
        paths: the files, in the order in which their points are numbered.
        values: as in ``Predictions.load``.
        axes: as in ``Predictions.load``.

    Raises:
        ValueError: if there is no file.
        FileFormatError: if a file is damaged, or given twice.
        DrawMismatchError: if draws, weights or classes differ.
    """
    check_distinct_files([Path(path) for path in paths])
    return join([Predictions.load(path, values, axes) for path in paths], names=[str(path) for path in paths])


def check_distinct_files(paths: Sequence[Path]) -> None:
    """Raise unless at least one file is given, all exist, and no file is given twice, even under another name."""
    if not paths:
        raise ValueError("a pool must have at least one file, got none")
    seen: dict[tuple[int, int], Path] = {}
    for path in paths:
        check_is_file(path)
        status = path.stat()
        other = seen.setdefault((status.st_dev, status.st_ino), path)
        if other is not path:
            raise FileFormatError(f"the files of a pool must be distinct, got {other} and {path}, the same file")

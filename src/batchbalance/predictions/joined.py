"""A pool in several pieces, for example in many files: predictions of the same draws on consecutive points."""

import os
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path

from batchbalance.errors import FileFormatError
from batchbalance.predictions.arrays import Values
from batchbalance.predictions.pool import Predictions, check_same_classes
from batchbalance.predictions.sources import Joined
from batchbalance.system.files import check_is_file


def join(
    pieces: Sequence[Predictions],
    *,
    ids: Sequence[Sequence[Hashable]] | None = None,
    names: Sequence[str] | None = None,
) -> Predictions:
    """Return one pool from predictions of the same draws on its pieces; nothing is copied.

    Args:
        pieces: the predictions, in the order in which their points are numbered.
        ids: for each piece, the names of its points; no two points may share one.
        names: the names of the pieces in messages.

    Raises:
        ValueError: if there is no piece, or two points have the same id.
        DrawMismatchError: if draws, weights or classes differ.
    """
    if not pieces:
        raise ValueError("a pool must have at least one piece, got none")
    names = [f"piece {number}" for number in range(len(pieces))] if names is None else names
    known = next((piece for piece in pieces if piece.draw_ids is not None), pieces[0])
    for piece, name in zip(pieces, names, strict=True):
        known.check_same_draws(piece, name)
    names_of_points = None if ids is None else _checked_ids(ids, pieces, names)
    classes = next((piece.classes for piece in pieces if piece.classes is not None), None)
    for piece, name in zip(pieces, names, strict=True):
        check_same_classes(classes, piece.classes, name)
    source = Joined(tuple(piece.source for piece in pieces))
    return Predictions(source, known.draws, names_of_points, classes, known.num_labels)


def _checked_ids(
    ids: Sequence[Sequence[Hashable]], pieces: Sequence[Predictions], names: Sequence[str]
) -> tuple[Hashable, ...]:
    if len(ids) != len(pieces):
        raise ValueError(f"`ids` must be given for each of {len(pieces)} pieces, got {len(ids)}")
    holder: dict[Hashable, str] = {}
    for listed, piece, name in zip(ids, pieces, names, strict=True):
        if len(listed) != piece.num_points:
            raise ValueError(f"`ids` of {name} must name its {piece.num_points} points, got {len(listed)}")
        for each in listed:
            if each in holder:
                raise ValueError(f"`ids` must be distinct, got {each!r} in {holder[each]} and in {name}")
            holder[each] = name
    return tuple(holder)


def load_parts(
    paths: Sequence[str | os.PathLike[str]],
    values: Values | None = None,
    axes: str = "nsc",
    *,
    ids: Sequence[Sequence[Hashable]] | None = None,
    check: Callable[[Predictions], float] | None = None,
) -> Predictions:
    """Read a pool that is stored in several files, each as ``Predictions.load`` does.

    Args:
        paths: the files, in the order in which their points are numbered.
        values: as in ``Predictions.load``.
        axes: as in ``Predictions.load``.
        ids: for each file, the names of its points; no two points may share one.
        check: as in ``Predictions.load``.

    Raises:
        ValueError: if there is no file, or two points have the same id.
        FileFormatError: if a file is damaged, or given twice.
        DrawMismatchError: if draws, weights or classes differ.
    """
    check_distinct_files([Path(path) for path in paths])
    pieces = [Predictions.load(path, values, axes, check=check) for path in paths]
    if len(pieces) == 1 and ids is None:
        return pieces[0]
    return join(pieces, ids=ids, names=[str(path) for path in paths])


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

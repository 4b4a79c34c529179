"""Files of rows with labels, and own data as embeddings.

Texts, images by class and tables are embedded by an encoder, or vectors exist already. These inputs are those of a
project: nothing is standardised again, so that a trial trains what a project does.
"""

import hashlib
import warnings
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path, PurePosixPath

import numpy as np

from batchbalance.encoders import DEFAULTS, embed, encoder, open_items, read_ids
from batchbalance.encoders.rows import open_rows
from batchbalance.encoders.store import mapped_embeddings
from batchbalance.errors import FileFormatError
from batchbalance.learner.labels.names import is_blank
from batchbalance.system.files import mapped_array
from batchbalance.system.ids import ids_path

Labelled = tuple[np.ndarray, list[str]]  # inputs, and a label for each
VECTORS, ARRAYS = ".npy", ".npz"
ID = "id"


@dataclass(frozen=True)
class OwnData:
    """How to read a user's own data.

    Attributes:
        label: the column of the labels in a file of rows.
        column: the column of the texts.
        encoder: what turns inputs into embeddings; if omitted, WordLlama for a column of texts, the encoder of tables
            for other rows, and none for images.
        image_size: pixels of the square that an encoder of images looks at.
        labels: the labels of embeddings in a ``.npy`` file: a file of rows with the column `label`, or ``.npy``.
        skip_bad: omit damaged files and empty texts.
        multi_label: an input has any number of labels: a cell holds `a;b`, a JSON list, or `none` for none of them.
    """

    label: str = "label"
    column: str | None = None
    encoder: str | None = None
    image_size: int | None = None
    labels: str | None = None
    skip_bad: bool = False
    multi_label: bool = False

    def encoder_of(self, path: Path) -> str | None:
        """Return the name of the encoder of this data; None for pixels, arrays and vectors."""
        if self.encoder is not None or self.column is not None:
            return self.encoder or DEFAULTS["texts"]
        return None if path.is_dir() or path.suffix in (VECTORS, ARRAYS) else DEFAULTS["rows"]


def read_embedded(
    path: Path, own: OwnData, folder: Path, *, progress: bool = False
) -> tuple[Labelled, Labelled | None]:
    """Return the training part and the test part, if folders `train` and `test` say which is which.

    Inputs without a label are omitted, with a warning.

    Args:
        path: the user's data.
        own: how to read it.
        folder: where embeddings are kept, so that they are computed once.
        progress: show the progress of the encoder.
    """
    if path.suffix == VECTORS:
        vectors: np.ndarray = mapped_embeddings(path)
        return _with_labels(path, vectors, _labels_of_vectors(path, own, len(vectors))), None
    using = encoder(own.encoder_of(path) or DEFAULTS["images"], image_size=own.image_size)
    if path.is_dir():
        items = open_items(path, kind=using.kind)
        known = {item.id: _class_of(path, item.id) for item in items}
    else:
        file = open_rows(path)
        labels = _column(path, own.label)
        columns = [] if own.column is None else [own.column]
        kind = using.kind or ("texts" if columns else "rows")
        dropped = [own.label] if kind == "rows" and not columns else []
        items = open_items(file.path, kind=kind, columns=columns, drop=dropped)
        known = {item.id: label for item, label in zip(items, labels, strict=True)}
    digest = hashlib.sha256(repr((str(path.resolve()), astuple(own))).encode()).hexdigest()[:10]
    output = folder / "embedded" / f"{path.stem}-{digest}{VECTORS}"
    output.parent.mkdir(parents=True, exist_ok=True)
    made = embed(items, using, output=output, skip_bad=own.skip_bad, progress=progress)
    found = [known[each] for each in made.ids]
    if not path.is_dir() or not all((path / part).is_dir() for part in ("train", "test")):
        return _with_labels(path, made.vectors, found), None
    is_test = np.array([each.startswith("test/") for each in made.ids])
    parts = [
        ([label for label, chosen in zip(found, rows, strict=True) if chosen], rows) for rows in (~is_test, is_test)
    ]
    train, test = (_with_labels(path, made.vectors[rows], names) for names, rows in parts)
    return train, test


def _with_labels(path: Path, vectors: np.ndarray, labels: Sequence[str]) -> Labelled:
    """Return the inputs that have a label."""
    names = [str(label).strip() for label in labels]
    known = np.array([not is_blank(name) for name in names], dtype=bool)
    if not known.any():
        raise FileFormatError(f"{path} must have labels, got none; label some of it first")
    if not known.all():
        warnings.warn(f"{path}: {int((~known).sum()):,} inputs have no label and are omitted", stacklevel=3)
    return np.asarray(vectors[known]), [name for name, kept in zip(names, known, strict=True) if kept]


def _class_of(path: Path, name: str) -> str:
    parent = PurePosixPath(name).parent.name
    if not parent:
        raise FileFormatError(f"{path / name} must be in a folder named after its class, got it in {path}; move it")
    return parent


def _column(path: Path, label: str) -> list[str]:
    file = open_rows(path)
    if label not in file.columns:
        raise FileFormatError(
            f"{path} must have a column {label!r} with the labels, got columns {', '.join(file.columns)}; name the "
            "right one with `label`"
        )
    return ["" if row.get(label) is None else str(row[label]) for row in file]


def _labels_of_vectors(path: Path, own: OwnData, num: int) -> list[str]:
    """Return one label for each row of a file of embeddings: by their ids if both files have ids, else in order."""
    if own.labels is None:
        raise ValueError(f"`labels` must name the file with the labels of the embeddings in {path}, got none")
    source = Path(own.labels)
    if not source.is_file():
        raise FileNotFoundError(f"no such file of labels: {source}")
    if source.suffix == VECTORS:
        found = [str(each) for each in mapped_array(source).tolist()]
    else:
        found = _column(source, own.label)
        if ids_path(path).is_file() and ID in open_rows(source).columns:
            by_id = dict(zip(_column(source, ID), found, strict=True))
            return [by_id.get(name, "") for name in read_ids(ids_path(path))]
    if len(found) != num:
        raise FileFormatError(f"{source} must have one label for each of {num:,} rows of {path}, got {len(found):,}")
    return found

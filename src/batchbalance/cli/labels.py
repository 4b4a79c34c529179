"""`batchbalance select --labels`: fit a head on the labels so far, and predict the pool."""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from batchbalance.errors import FileFormatError

if TYPE_CHECKING:
    from batchbalance.posteriors import BayesianHead
    from batchbalance.predictions import Predictions
    from batchbalance.selection import Selection
    from batchbalance.strategies import Strategy

SHOW_PROGRESS = 10**8  # predicted numbers; fewer take only seconds
STORED_SHARE = 0.25  # of free memory; larger predictions are computed when they are read


@dataclass(frozen=True)
class Labels:
    """Labels of some points of a pool, by row.

    Attributes:
        path: the file they were read from.
        of_rows: the label of each row that has one.
    """

    path: Path
    of_rows: dict[int, str] = field(default_factory=dict)

    @property
    def classes(self) -> list[str]:
        """The distinct labels, sorted."""
        return sorted(set(self.of_rows.values()))


def read_labels(path: Path, names: list[str] | None, num_points: int) -> Labels:
    """Read the labels in a file with the columns `id` and `label`; points with a blank label have none.

    Args:
        path: CSV (with commas or semicolons), TSV, JSON lines or Parquet.
        names: the ids of all points; their numbers from 0 if None.
        num_points: N.
    """
    from batchbalance.encoders.rows import open_rows
    from batchbalance.learner.labels.names import is_blank
    from batchbalance.system.spreadsheets import meanings

    rows = open_rows(path)
    missing = next((column for column in ("id", "label") if column not in rows.columns), None)
    if missing is not None:
        raise FileFormatError(f"{path} must have the columns id and label, got {', '.join(rows.columns)}")
    position = {name: row for row, name in enumerate(names or map(str, range(num_points)))}
    found: dict[int, str] = {}
    for cells in rows:
        name, label = (_text(path, column, cells.get(column)) for column in ("id", "label"))
        label = meanings(label.strip())[0]
        written = [each for meaning in meanings(name) for each in (meaning, meaning.strip())]
        row = next((position[each] for each in written if each in position), None)
        if row is None:
            raise FileFormatError(f"{path} must name points of the pool, got {name!r}; {_advice(names, num_points)}")
        if label and is_blank(label):
            raise FileFormatError(
                f"{path} must have a label or an empty cell for {name!r}, got {label!r}, which many tools "
                "use for a missing value; empty the cell, or rename the class"
            )
        if label and found.setdefault(row, label) != label:
            raise FileFormatError(
                f"{path} must have one label for each id, got {found[row]!r} and {label!r} for {name!r}; keep one"
            )
    return Labels(path, found)


@dataclass(frozen=True, eq=False)
class Learned:
    """What a head learned from labels.

    Attributes:
        told: a one-line summary for the user.
        made: functions that compute the parts of the pool which need a model; empty without labels of two classes.
    """

    told: str
    made: dict[str, Callable[[], Any]] = field(default_factory=dict)


def learn(labels: Labels, embeddings: Path | None, seed: int) -> Learned:
    """Fit a head on labels of the embeddings in a file, if there are two classes of them.

    Args:
        labels: the labels of some of the points.
        embeddings: a ``.npy`` file.
        seed: the seed of the head.
    """
    if embeddings is None:
        raise ValueError("--labels needs --embeddings to fit a head on, got none; compute them with batchbalance embed")
    classes = labels.classes
    if len(classes) < 2:
        known = f"all {len(labels.of_rows)} labels are {classes[0]!r}" if classes else "no labels yet"
        return Learned(f"head         none: {known}, so there is nothing to distinguish")
    head = fitted_head(labels, embeddings, seed)
    made: dict[str, Callable[[], Any]] = {"predictions": lambda: predicted(head, embeddings)}
    error = None if head.tuned is None else head.tuned.error
    if error is not None:
        made["validation_error"] = lambda: error
    return Learned(_told(labels, head), made)


def chosen(
    labels: Labels,
    learned: Learned,
    given: dict[str, Any],
    strategy: "Strategy | str",
    batch_size: int,
    *,
    exclude: list[int] | None,
    seed: int,
    device: str | None,
    memory_budget: str | None,
    progress: bool,
) -> "Selection":
    """Choose the next batch as a project does."""
    from batchbalance.learner.engine import next_batch
    from batchbalance.selection.choosing import as_strategy, prepared
    from batchbalance.strategies.pool import Pool

    points = given.pop("embeddings")
    made = {**learned.made, "embeddings": lambda: points}  # the head reads them, even if the strategy does not
    pool = Pool(given, made, num_points=len(points), device=device)
    pool = prepared(pool, batch_size, sorted(labels.of_rows), exclude, seed=seed, progress=progress)
    counts = Counter(labels.of_rows.values())
    numbers = [counts[name] for name in labels.classes]
    return next_batch(pool, as_strategy(strategy), labels.classes, numbers, memory_budget=memory_budget)


def fitted_head(labels: Labels, path: Path, seed: int) -> "BayesianHead":
    """Fit a head to these labels, with features centred on the whole pool."""
    from batchbalance.posteriors import BayesianHead
    from batchbalance.system.files import mapped_array

    rows, array = sorted(labels.of_rows), mapped_array(path)
    if array.ndim < 2 or not len(array):
        raise FileFormatError(f"{path} must hold inputs (N, …), got shape {array.shape}")
    texts = [labels.of_rows[row] for row in rows]
    return BayesianHead(seed=seed).fit(array[rows], texts, unlabelled=array)


def predicted(head: "BayesianHead", path: Path) -> "Predictions":
    """Predict the embeddings in a file: in memory or, if that is large, when the predictions are read."""
    import numpy as np

    from batchbalance.predictions import OnDemand
    from batchbalance.system.files import MappedFile, mapped_array
    from batchbalance.system.memory import free_memory

    array = mapped_array(path)
    file = MappedFile.of(array, path)
    one = head.predict(array[:1])
    shape = (len(array), one.num_draws, one.num_classes)
    if 4 * math.prod(shape) <= STORED_SHARE * free_memory():
        return head.predict(array, progress=math.prod(shape) >= SHOW_PROGRESS)

    def made(rows: Any) -> Any:
        if file is not None:
            file.check()  # it must not have changed
        return head.predict(np.array(array[rows if isinstance(rows, slice) else np.asarray(rows)])).log_probs()

    return replace(one, source=OnDemand(shape, one.dtype, made))


def check_alone(**others: object) -> None:
    """Refuse arguments that cannot be combined with --labels."""
    for name, value in others.items():
        if value:
            spelled = name if name == "predictions" else f"--{name}"
            raise ValueError(f"--labels fits a head that predicts the pool, got {spelled} too; omit one of them")


def _told(labels: Labels, head: "BayesianHead") -> str:
    known = f"head         {len(labels.of_rows):,} labels of {len(labels.classes)} classes"
    if head.tuned is None or head.tuned.error is None:
        return f"{known}; too few to estimate its accuracy by cross-validation"
    accuracy = f"{1 - head.tuned.error:.3f} on {head.tuned.num_held_out:,} of them"
    told = f"{known}; cross-validated accuracy {accuracy}"
    return told if head.tuned.warning is None else f"{told}\nwarning      {head.tuned.warning}"


def _text(path: Path, column: str, cell: Any) -> str:
    if isinstance(cell, list | dict | bytes):
        raise FileFormatError(f"{path} must have a text or a number as `{column}` in each row, got {cell!r}")
    return "" if cell is None else str(cell)


def _advice(names: list[str] | None, num_points: int) -> str:
    if names is None:
        return f"without --ids, ids are the numbers 0 to {num_points - 1}"
    return f"for example, --ids has {names[0]!r}"

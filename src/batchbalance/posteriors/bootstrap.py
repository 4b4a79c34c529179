"""A bootstrap of any classifier: members fitted on resampled rows, each a draw.

Rows are drawn with replacement. A class with fewer rows than in the data is filled up from its own rows. So every
resample has at least as many rows of each class as the data, for example for the folds of an estimator. If rows have
several labels, every label has a row with it and one without.
"""

import random
import re
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from batchbalance.arguments.checks import check_whole, unmasked
from batchbalance.arguments.registry import safe_path
from batchbalance.arguments.sections import MAX_DRAWS
from batchbalance.arguments.seeds import derived_seed
from batchbalance.errors import sentence
from batchbalance.posteriors.inputs import as_rows, height, take
from batchbalance.posteriors.members import Array, Ensemble
from batchbalance.posteriors.training.fitting import label_matrix
from batchbalance.system.progress import progress as shown_progress
from batchbalance.system.threads import one_thread

WORTH_PROCESSES = 6.0  # seconds of fitting from which processes are used; starting them takes about half as long


@dataclass(frozen=True, eq=False)
class Resampling:
    """Labelled rows, and an estimator to fit on resamples of them.

    Attributes:
        estimator: the user's estimator.
        inputs: the rows, of any type that `take` reads.
        labels: (n,) the labels passed to the estimator, or (n, L) of 0 and 1.
        codes: (n,) the number of each row's class; the same as `labels` if these are (n, L).
        seed: random seed; the same seed gives the same members.
        one_job: whether the estimator's own ``n_jobs`` becomes 1.
    """

    estimator: Any
    inputs: Any
    labels: Array
    codes: Array
    seed: int
    one_job: bool = False

    def member(self, draw: int) -> Any:
        """Return the fitted member of a draw: the same in any process, on any number of cores."""
        from threadpoolctl import threadpool_limits

        rows = resampled(self.codes, np.random.default_rng(derived_seed(self.seed, "bootstrap", draw)))
        seed = derived_seed(self.seed, "bootstrap-member", draw) % 2**32
        member = as_new(self.estimator, seed, one_job=self.one_job)
        with seeded(seed), threadpool_limits(1), one_thread():
            member.fit(take(self.inputs, rows), self.labels[rows])
        return member


def bootstrapped(
    estimator: Any, inputs: Any, labels: Any, *, size: Any, seed: Any, jobs: Any = None, progress: bool = False
) -> tuple[Ensemble, str]:
    """Fit members on resamples; return them and a name made of the estimator, the data and the seed.

    The arguments are those of ``Committee.bootstrap``.
    """
    size, jobs = check_whole("size", size, 1, MAX_DRAWS), None if jobs is None else check_whole("jobs", jobs)
    estimator = getattr(estimator, "best_estimator_", estimator)  # of a fitted search
    if isinstance(estimator, type) or not hasattr(estimator, "fit"):
        what = f"the class {estimator.__name__}; pass an instance" if isinstance(estimator, type) else repr(estimator)
        raise ValueError(f"`estimator` must be a classifier with `fit` and `predict_proba`, got {what}")
    inputs = as_rows(inputs, "`X`")
    several = np.ndim(labels) == 2 and np.shape(labels)[1] > 1
    if several:
        matrix = label_matrix("`y`", labels).numpy()
        if len(matrix) != height(inputs):
            raise ValueError(f"`y` must be one row for each of {height(inputs)} rows of `X`, got {len(matrix)}")
        shares = (matrix.sum(axis=0) + 1) / (len(matrix) + 2)
        varying = np.flatnonzero(matrix.min(axis=0) < matrix.max(axis=0))
        checked = codes = matrix[:, varying]
        classes = np.arange(matrix.shape[1])
    else:
        checked = as_labels(labels, height(inputs))
        classes, codes = np.unique(checked, return_inverse=True)
        varying = classes[1:]
    if not len(varying):
        raise ValueError(
            f"`y` must hold at least two classes, got only {checked[0]!s}; label rows of another one first"
        )
    task = Resampling(estimator, inputs, checked, codes, check_whole("seed", seed, 0))
    with shown_progress("fitting members", size, progress) as bar:
        task, found = _fitted(task, size, jobs)
        members = []
        for member in found:
            members.append(member)
            bar.advance()
    if several:
        return Ensemble(members, [varying] * size, classes.tolist(), constant=_apart(shares, varying)), _named(task)
    # Every member saw every class, so a member without `classes_` has a column for each class.
    seen = np.arange(len(classes)) if task.labels is task.codes else classes
    own = [np.asarray(getattr(member, "classes_", seen)) for member in members]
    if task.labels is task.codes:
        own = [classes[codes.astype(int)] for codes in own]
    return Ensemble(members, own, classes.tolist()), _named(task)


def _apart(shares: Array, varying: Array) -> Array:
    """Return the probabilities of the labels that are not fitted, and 0 for those that are."""
    constant: Array = shares.copy()
    constant[varying] = 0
    return constant


def resampled(codes: Array, generator: np.random.Generator) -> Array:
    """Draw n rows with replacement, and fill up each class that has fewer rows than in the data.

    If rows have several labels, codes (n, L), a row with a label, or without it, is added if all of them are missing.
    """
    rows = generator.integers(len(codes), size=len(codes))
    if codes.ndim == 2:
        for column in codes.T:
            for value in {0, 1} - set(column[rows].tolist()):
                rows = np.append(rows, generator.choice(np.flatnonzero(column == value)))
        return rows
    lacking = np.bincount(codes) - np.bincount(codes[rows], minlength=int(codes.max()) + 1)
    more = [generator.choice(np.flatnonzero(codes == code), lacking[code]) for code in np.flatnonzero(lacking > 0)]
    return np.concatenate([rows, *more])


def as_new(estimator: Any, seed: int, *, one_job: bool = False) -> Any:
    """Return an unfitted copy of an estimator, with every random state in it set, as bagging does."""
    from sklearn.base import clone

    new = clone(estimator, safe=False)
    if not hasattr(new, "get_params"):
        return new
    params = new.get_params(deep=True)
    stream = np.random.default_rng(seed)
    own = {name: name.rpartition("__")[2] for name in params}  # without the names of the steps before it
    changes = {name: int(stream.integers(2**31)) for name in sorted(params) if own[name] == "random_state"}
    if one_job:
        changes |= {name: 1 for name, value in params.items() if own[name] == "n_jobs" and value is not None}
    return new.set_params(**changes) if changes else new


def as_labels(labels: Any, num: int) -> Array:
    """Return (n,) labels; raise ValueError unless all are text or all are numbers, and none is missing."""
    if isinstance(labels, Tensor):
        labels = labels.detach().cpu().numpy()
    given = np.array(labels, dtype=object) if isinstance(labels, list | tuple) else np.asarray(unmasked("`y`", labels))
    if given.ndim != 1:
        raise ValueError(f"`y` must be one label for each row, got shape {given.shape}; pass one column")
    if len(given) != num:
        raise ValueError(f"`y` must be one label for each of {num} rows of `X`, got {len(given)}")
    listed = [label.item() if isinstance(label, np.generic | Tensor) else label for label in given.tolist()]
    for row, label in enumerate(listed):
        try:
            missing = label is None or bool(label != label)
        except TypeError:  # comparing pandas.NA is neither true nor false
            missing = True
        if missing:
            raise ValueError(f"`y` must not have missing labels, got {label!r} in row {row}; omit rows without a label")
    kinds = {str if isinstance(label, str) else type(label) for label in listed}
    is_date = given.dtype.kind in "mM"  # entries of dates may become whole numbers
    if is_date or not (kinds == {str} or all(issubclass(kind, int | float) for kind in kinds)):
        got = str(given.dtype) if is_date else " and ".join(sorted(kind.__name__ for kind in kinds))
        raise ValueError(f"`y` must be all text or all numbers, got {got}")
    fraction = next((label for label in listed if isinstance(label, float) and not label.is_integer()), None)
    if fraction is not None:
        raise ValueError(f"`y` must be labels, text or whole numbers, got {fraction}; name the classes")
    return np.array(listed) if given.dtype.kind in "OT" else given


def _fitted(task: Resampling, size: int, jobs: int | None) -> tuple[Resampling, Iterator[Any]]:
    """Return the task adapted to the estimator, and an iterator over the members of all draws."""
    import joblib  # type: ignore[import-untyped]

    workers = joblib.cpu_count() if jobs is None else jobs
    first, task = _first(replace(task, one_job=workers > 1))
    done, draws, seconds = [first], list(range(1, size)), 0.0
    if draws and jobs is None:  # the second member is timed, because the first includes imports
        started = time.perf_counter()
        done.append(task.member(draws.pop(0)))
        seconds = (time.perf_counter() - started) * len(draws)
    workers = min(workers, len(draws))
    if workers <= 1 or (jobs is None and seconds < WORTH_PROCESSES):
        return task, chain(done, map(task.member, draws))
    return task, chain(done, _in_processes(task, draws, workers))


def _in_processes(task: Resampling, draws: list[int], workers: int) -> Iterator[Any]:
    """Fit some members in several processes; in this one if they cannot be sent between processes."""
    from sklearn.utils.parallel import Parallel, delayed  # these pass on scikit-learn's settings

    with safe_path():  # processes start with their first task
        found = Parallel(workers, return_as="generator")(delayed(task.member)(draw) for draw in draws)
    for number, draw in enumerate(draws):
        try:
            member = next(found)
        except Exception as error:  # of the estimator, which is raised again below, or of pickling
            member = task.member(draw)
            warnings.warn(
                f"members are fitted in this process alone, because another one failed: {sentence(error)}; use jobs=1",
                stacklevel=2,
            )
            yield from chain([member], map(task.member, draws[number + 1 :]))
            return
        yield member


def _first(task: Resampling) -> tuple[Any, Resampling]:
    """Fit the first member. Estimators that accept only the labels 0, 1, 2, … get the numbers of the classes."""
    try:
        member = task.member(0)
    except Exception as error:  # the type depends on the library
        if np.array_equal(task.labels, task.codes):
            raise
        task = replace(task, labels=task.codes)
        try:
            member = task.member(0)
        except Exception:
            raise error from None
    if not hasattr(member, "predict_proba"):
        from sklearn.base import RegressorMixin

        kind = type(member).__name__
        remedy = "use voting='soft'" if hasattr(member, "voting") else f"wrap it: CalibratedClassifierCV({kind}(…))"
        remedy = "take a classifier" if isinstance(member, RegressorMixin) else remedy
        raise ValueError(f"`estimator` must have `predict_proba`, got {kind} without it; {remedy}")
    return member, task


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the global generators that estimators without a random state use; restore them afterwards."""
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    with torch.random.fork_rng(devices=[]):
        try:
            random.seed(seed)
            np.random.seed(seed)  # noqa: NPY002
            torch.manual_seed(seed)
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)  # noqa: NPY002


def _named(task: Resampling) -> str:
    """Return ten characters that change with the estimator, the data or the seed."""
    import joblib

    new = as_new(task.estimator, 0, one_job=True)
    data = [joblib.hash(task.inputs), task.labels, task.seed]
    try:
        return str(joblib.hash([new, *data]))[:10]
    except Exception:  # lambdas cannot be hashed; their addresses are removed because they are arbitrary
        params = new.get_params() if hasattr(new, "get_params") else vars(new)
        return str(joblib.hash([re.sub(r" at 0x[0-9a-f]+", "", repr(params)), *data]))[:10]

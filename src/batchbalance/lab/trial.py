"""The benchmark loop: ask and tell with the data set's labels as the oracle, and a durable record for each round.

All randomness is derived from (trial, purpose, round), so a trial that is killed and resumed equals an uninterrupted
one in every field except seconds and peak memory. Splits and initial sets depend on the trial only, so strategies are
paired.
"""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from batchbalance.lab import metrics
from batchbalance.lab.config import RunConfig
from batchbalance.lab.data import Dataset, Splits, prepare
from batchbalance.lab.records import Record, check_records, open_trial, settled, versions
from batchbalance.learner import Learner
from batchbalance.posteriors import Fitted, Posterior
from batchbalance.posteriors.inputs import BLOCK
from batchbalance.posteriors.training.fitting import Labelled
from batchbalance.predictions import Predictions
from batchbalance.selection import Selection
from batchbalance.system.memory import peak_memory, reset_peak_memory

PHASES = ("train", "predict", "select", "evaluate")
Prepare = Callable[[RunConfig, int, Path | None], tuple[Dataset, Splits]]  # as `prepared`


@dataclass(frozen=True)
class Goal:
    """The end of a trial: before the training labels exceed `budget`, or once the validation error is `target_error`.

    Only whole batches are requested, so a run whose budget is raised later equals one that had it from the start.
    """

    budget: int | None = None
    target_error: float | None = None

    def goes_on(self, record: Record, batch_size: int) -> bool:
        """Return whether another batch is due after the model of this record."""
        if self.budget is not None and record["num_labelled"] + batch_size > self.budget:
            return False
        error = record["validation_error"]
        return self.target_error is None or error is None or error > self.target_error


@dataclass(frozen=True)
class Stage:
    """The progress of a trial: phase `phase` of round `round`, and the share of its labels that it has."""

    round: int
    phase: str
    share: float


def run_trial(
    config: RunConfig,
    seed: int,
    runs_dir: Path,
    goal: Goal,
    *,
    data_dir: Path | None = None,
    report: Callable[[Stage], None] | None = None,
    prepare: Prepare | None = None,
) -> list[Record]:
    """Run one trial of a run, starting from its last complete round, and return all its records.

    Args:
        config: the run.
        seed: the trial.
        runs_dir: the folder of run directories.
        goal: when to end.
        data_dir: the folder of published data sets.
        report: called with each phase as it begins.
        prepare: returns the data set and the split; `prepared` if omitted.

    Raises:
        BlockingIOError: if another process runs this trial.
        OSError: if a record cannot be written; the earlier ones are intact.
    """
    with open_trial(config.folder(runs_dir), config.canonical, seed) as journal:
        records = settled(journal, journal.path, seed)
        check_records(records, journal.path)
        last = records[-1] if records and not records[-1]["indices"] else None
        if last is not None and not goal.goes_on(last, config.batch_size):
            return records
        report = report or (lambda _: None)
        report(Stage(0, "load", 0.0))
        trial = Trial(config, seed, goal, (prepare or prepared)(config, seed, data_dir), report)
        if last is not None and last["num_labelled"] + config.batch_size > trial.num_points:
            return records
        if last is not None:
            records.pop()  # repeat that round, this time with a batch
        learner = trial.learner(records)
        while not records or records[-1]["indices"]:
            record = trial.round(learner, len(records))
            journal.append(record)
            records.append(record)
            trial.answer(learner, record["indices"])
        return records


class Trial:
    """The data of one trial and the steps of a round."""

    def __init__(
        self, config: RunConfig, seed: int, goal: Goal, data: tuple[Dataset, Splits], report: Callable[[Stage], None]
    ) -> None:
        self._config, self._seed, self._goal, self._report = config, seed, goal, report
        self._data, self._splits = data
        if goal.target_error is not None and not len(self._splits.validation):
            raise ValueError("`target_error` needs a validation set, got [split] with validation = 0; set it above 0")
        self._rows = torch.cat([self._splits.initial, self._splits.pool])
        self._now = Stage(0, "load", 0.0)

    @property
    def num_points(self) -> int:
        """The number of inputs in the initial set and the pool."""
        return len(self._rows)

    def learner(self, records: list[Record]) -> Learner:
        """Return the learner in its state after these rounds."""
        config, data, splits = self._config, self._data, self._splits
        events = []
        for index, record in enumerate(records):
            events.append({"event": "asked", "round": index, "ids": record["indices"]})
            events.append({"event": "told", "ids": record["indices"], "labels": self._oracle(record["indices"])})
        pool_is_reference = torch.equal(splits.reference, splits.pool)
        learner = Learner(
            TrainingRows(data, self._rows, config.flat_inputs),
            data.num_classes,
            config.posterior_fit(data.num_classes, self._validation),
            ids=self._rows.tolist(),
            strategy=config.chosen_strategy,
            cold_start=config.first_strategy,
            edges=config.edges,
            reference=None if pool_is_reference else TrainingRows(data, splits.reference, config.flat_inputs),
            candidates=config.candidates,
            metric=config.data.metric,
            multi_label=data.is_multi,
            seed=self._seed,
            device=None if config.device == "cpu" else config.device,
            events=events,
            on_phase=self._begin,
        )
        if len(splits.initial):
            self.answer(learner, splits.initial.tolist())
        return learner

    def answer(self, learner: Learner, ids: list[int]) -> None:
        """Give the learner the labels of the data set."""
        learner.tell(ids, self._oracle(ids))

    def round(self, learner: Learner, index: int) -> Record:
        """Train, evaluate, and choose the next batch unless the goal is reached."""
        batch_size, num_initial = self._config.batch_size, len(self._splits.initial)
        labels: list[Any] = list(learner.labels.values())
        end = self.num_points if self._goal.budget is None else min(self._goal.budget, self.num_points)
        self._now = Stage(index, "train", min(1.0, (len(labels) - num_initial) / max(1, end - num_initial)))
        reset_peak_memory()
        fitted = learner.fitted()
        started = time.perf_counter()
        self._begin("evaluate")
        scores = self._test_metrics(fitted)
        evaluate_seconds = time.perf_counter() - started
        num_validation = len(self._splits.validation_rows(len(labels)))
        chance_error = 0.5 if self._data.is_multi else 1 - 1 / self._data.num_classes
        record: Record = {
            "round": index,
            "trial": self._seed,
            "num_labelled": len(labels),
            "num_validation": num_validation,
            "metrics": asdict(scores),
            "validation_error": (chance_error if num_validation else None)
            if fitted is None
            else fitted.validation_error,
            "training": [] if fitted is None else [asdict(kept) for kept in fitted.kept],
        }
        goes_on = self._goal.goes_on(record, batch_size) and len(labels) + batch_size <= self.num_points
        learner.selection = learner.error = None
        record["indices"] = learner.ask(batch_size) if goes_on else []
        if record["validation_error"] is None:
            record["validation_error"] = learner.error
        each = [label for known in labels for label in (known if self._data.is_multi else [known])]
        counts = torch.bincount(torch.tensor(each, dtype=torch.long), minlength=self._data.num_classes)
        record["labels_per_class"] = counts.tolist()
        record |= facts(learner.selection)
        seconds = {**learner.seconds, "evaluate": evaluate_seconds}
        record["versions"] = versions()
        record["seconds"] = {phase: seconds.get(phase, 0.0) for phase in PHASES}
        record["peak_memory"] = peak_memory()
        return record

    def _begin(self, phase: str) -> None:
        self._report(Stage(self._now.round, phase, self._now.share))

    def _oracle(self, ids: list[int]) -> list[Any]:
        found = self._data.train_y[torch.tensor(ids, dtype=torch.long)]
        return [row.nonzero().flatten().tolist() for row in found] if self._data.is_multi else found.tolist()

    def _validation(self, num_labelled: int) -> Labelled | None:
        rows = self._splits.validation_rows(num_labelled)
        if not len(rows):
            return None
        inputs = TrainingRows(self._data, rows, self._config.flat_inputs)
        return inputs[torch.arange(len(rows))], self._data.train_y[rows]

    def _test_metrics(self, fitted: Fitted | None) -> metrics.Metrics | metrics.LabelMetrics:
        """Return the metrics of the mean prediction; without labels, of equal probabilities for all classes."""
        y, num_classes = self._data.test_y, self._data.num_classes
        if fitted is None:
            probs = torch.full((len(y), num_classes), 0.5 if self._data.is_multi else 1 / num_classes)
        else:
            flat = self._config.flat_inputs
            probs = test_probs(self._config.posterior.for_metrics(fitted.posterior), self._data, flat)
        if self._data.is_multi:
            return metrics.label_metrics(probs, y)
        return metrics.test_metrics(Predictions.from_probs(probs, "nc"), y)


@dataclass(frozen=True, eq=False)
class TrainingRows:
    """Some rows of the training part, normalised when they are read."""

    data: Dataset
    rows: Tensor
    flat: bool

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, rows: Tensor) -> Tensor:
        return flattened(self.data.train_inputs(self.rows[rows]), self.flat)


def flattened(inputs: Tensor, flat: bool) -> Tensor:
    """Return inputs as rows of features, if `flat`."""
    return inputs.flatten(1) if flat else inputs


def test_probs(posterior: Posterior, data: Dataset, flat: bool) -> Tensor:
    """Return the mean prediction of every input of the test part: (T, C), or (T, L) of its labels."""
    blocks = torch.split(torch.arange(len(data.test_y)), BLOCK)
    predictions = (posterior.predict(flattened(data.test_inputs(rows), flat)) for rows in blocks)
    return torch.cat([each.label_probs() if data.is_multi else each.mean_probs() for each in predictions])


def prepared(config: RunConfig, seed: int, data_dir: Path | None) -> tuple[Dataset, Splits]:
    """Return the data set and the split of a trial, the same for every strategy."""
    wanted = config.data
    return prepare(
        wanted.name, config.split_sizes, seed=seed, data_dir=data_dir, copies=wanted.copies, noise=wanted.noise,
        partial=wanted.partial, own=wanted.own,
    )  # fmt: skip


class LastPrepared:
    """A cached `prepared` that keeps its last result: trials of one seed differ in their strategies only.

    It is for a process that runs a list of trials, and does not notice changed files.
    """

    def __init__(self) -> None:
        self._key: tuple[Any, ...] | None = None
        self._last: tuple[Dataset, Splits] | None = None

    def __call__(self, config: RunConfig, seed: int, data_dir: Path | None) -> tuple[Dataset, Splits]:
        """Return the data set and the split of a trial."""
        key = config.canonical["data"], config.canonical["split"], seed, data_dir
        if self._last is None or key != self._key:
            self._last = None  # free its memory before the next one is read
            self._key, self._last = key, prepared(config, seed, data_dir)
        return self._last


def facts(selection: Selection | None) -> Record:
    """Return the recorded facts about a selection; None for those it does not have."""
    known = {} if selection is None else selection.as_dict()
    plain = ("threshold", "num_edges", "num_pairs", "random_coverage", "certificate", "continued_from")
    return {
        "strategy": None if selection is None else selection.strategy.name,
        **{name: known.get(name) for name in (*plain, "clustering_rounds")},
        **{name: known[name][-1] if known.get(name) else None for name in ("coverage", "null_coverage")},
        "warnings": known.get("warnings", []),
    }

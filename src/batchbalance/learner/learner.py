"""Ask and tell: which points to label next, for people who label by hand and for the benchmark loop alike.

A learner remembers questions and answers in a journal, so the process that asked need not live until the labels come.
Everything else is worked out again from the journal and the data.
"""

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from batchbalance.balance.edges import EdgeSettings
from batchbalance.checks import as_tensor
from batchbalance.errors import FileFormatError, UnknownNameError
from batchbalance.journal import Entry, Journal, sync_folder
from batchbalance.posteriors import Posterior
from batchbalance.posteriors.fitting import Fit, Fitted
from batchbalance.predictions import Predictions, stored_predictions
from batchbalance.seeds import derived_seed, generator
from batchbalance.selection import Selection, select
from batchbalance.strategies import Random, Strategy, strategy_named

Id = int | str
Label = int | str

JOURNAL = "journal.jsonl"
BLOCK = 4096  # inputs read at a time


@runtime_checkable
class Inputs(Protocol):
    """Something that gives the inputs (n, ...) of (n,) rows."""

    def __len__(self) -> int: ...
    def __getitem__(self, rows: Tensor, /) -> Tensor: ...


@dataclass(frozen=True)
class Known:
    """What the journal says, by rows.

    Attributes:
        labels: the class of each labelled row.
        asked: rows that were asked and have no label yet, in the order they were asked.
        round: how often new points were chosen.
    """

    labels: dict[int, int]
    asked: list[int]
    round: int


class Learner:
    """Chooses the points to label next.

    Args:
        inputs: the unlabelled data (N, ...): a tensor, an array, or an object with a length that gives the inputs of
            a tensor of rows.
        classes: the labels that can be told, or their number C for the labels 0 to C − 1.
        fit: called with inputs, classes (int64) and a seed; gives a `Posterior`, or a `Fitted` with the validation
            error. See `PosteriorFit`.
        directory: where the journal is kept, made if it is not there; None keeps it in memory.
        ids: N distinct names of the points; 0 to N − 1 if left out.
        strategy: a name or a strategy object.
        edges: threshold or ratio, pairs, size of the reference set.
        reference: inputs of the reference set, where draws are compared; the candidates themselves if left out.
        candidates: choose from a random sample of so many points each time; None chooses from all.
        seed: same seed, same data, same answers: same questions.
        device: where to select; the CPU if left out.
        events: what a journal in memory starts with.
        on_phase: called with "train", "predict" and "select" as they begin.

    Attributes:
        selection: what is known about the batch chosen last in this process, or None.
        seconds: how long each phase of it took.
    """

    def __init__(
        self,
        inputs: Any,
        classes: int | Iterable[Any],
        fit: Fit,
        *,
        directory: str | os.PathLike[str] | None = None,
        ids: Iterable[Any] | None = None,
        strategy: str | Strategy = "batch-balance",
        edges: EdgeSettings | None = None,
        reference: Any = None,
        candidates: int | None = None,
        seed: int = 0,
        device: str | None = None,
        events: list[Entry] | None = None,
        on_phase: Callable[[str], None] | None = None,
    ) -> None:
        self._inputs = _as_inputs(inputs)
        self._classes = list(range(classes)) if isinstance(classes, int) else [_plain(label) for label in classes]
        if not self._classes or len(set(self._classes)) < len(self._classes):
            raise ValueError(f"`classes` must be distinct labels, at least one, got {self._classes}")
        self._ids = _check_ids(ids, len(self._inputs))
        self._row_of = {name: row for row, name in enumerate(self._ids)}
        self._fit = fit
        self._strategy = strategy_named(strategy) if isinstance(strategy, str) else strategy
        self._edges = edges or EdgeSettings()
        self._reference = None if reference is None else _as_inputs(reference)
        self._candidates, self._seed, self._device = candidates, seed, device
        self._on_phase = on_phase or (lambda _: None)
        self._cached: tuple[Any, Fitted] | None = None
        self.selection: Selection | None = None
        self.seconds: dict[str, float] = {}
        self._memory = list(events or [])
        self._path: Path | None = None
        if directory is not None:
            Path(directory).mkdir(parents=True, exist_ok=True)
            sync_folder(Path(directory))
            self._path = Path(directory) / JOURNAL
            with self._journal() as journal:
                self._check_header(journal)

    @property
    def labels(self) -> dict[Id, Label]:
        """What was told so far."""
        with self._journal() as journal:
            known = self._known(journal)
        return {self._ids[row]: self._classes[label] for row, label in sorted(known.labels.items())}

    @property
    def open_questions(self) -> list[Id]:
        """What was asked and not told yet, oldest first."""
        with self._journal() as journal:
            return [self._ids[row] for row in self._known(journal).asked]

    def ask(self, n: int) -> list[Id]:
        """The ids of n points to label next.

        Open questions come first, oldest first; only what they lack to n is chosen anew, from points that are neither
        labelled nor asked. So asking again before anything is told gives the same points. Without any label there is
        nothing to learn from, and the points are random.
        """
        if isinstance(n, bool) or not isinstance(n, int) or n < 1:
            raise ValueError(f"`n` must be a whole number of at least 1, got {n!r}")
        with self._journal() as journal:
            known = self._known(journal)
            rows = known.asked[:n]
            if len(rows) < n:
                chosen = self._choose(known, n - len(rows))
                journal.append({"event": "asked", "round": known.round, "ids": [self._ids[row] for row in chosen]})
                rows = rows + chosen
        return [self._ids[row] for row in rows]

    def tell(self, ids: Iterable[Any], labels: Iterable[Any], *, correct: bool = False) -> None:
        """Give labels of points, asked or not, in any order, all of a batch or a part of it.

        Nothing is taken in unless all of it is valid. Telling the same label again changes nothing.

        Args:
            ids: the points.
            labels: one for each.
            correct: let a label differ from one that was told before, and take its place.
        """
        names, told = [_plain(name) for name in ids], [_plain(label) for label in labels]
        if len(names) != len(told):
            raise ValueError(f"`labels` must be one for each of {len(names)} ids, got {len(told)}")
        rows = [self._row(name) for name in names]
        classes = [self._class(label) for label in told]
        with self._journal() as journal:
            answers = dict(self._known(journal).labels)
            for name, row, label in zip(names, rows, classes, strict=True):
                before = answers.setdefault(row, label)
                if before != label and not correct:
                    old, new = self._classes[before], self._classes[label]
                    raise ValueError(
                        f"{name!r} must keep its label {old!r}, got {new!r}; use correct=True to change it"
                    )
                answers[row] = label
            journal.append({"event": "told", "ids": names, "labels": told})

    def fitted(self) -> Fitted | None:
        """The posterior given all labels so far; before any, that of the untrained network, or None without one."""
        with self._journal() as journal:
            known = self._known(journal)
        return self._fitted(known)

    def _choose(self, known: Known, count: int) -> list[int]:
        """Rows to ask next."""
        taken = torch.zeros(len(self._ids), dtype=torch.bool)
        taken[list(known.labels) + known.asked] = True
        rows = (~taken).nonzero()[:, 0]
        if count > len(rows):
            raise ValueError(
                f"`n` must be at most {len(known.asked) + len(rows)}, the open questions and the points never asked, "
                f"got {len(known.asked) + count}"
            )
        if self._candidates is not None and max(self._candidates, count) < len(rows):
            order = torch.randperm(len(rows), generator=generator(self._seed, "candidates", known.round))
            rows = rows[order[: max(self._candidates, count)].sort().values]
        fitted = self._fitted(known)
        strategy = Random() if fitted is None else self._strategy
        seed = derived_seed(self._seed, "select", known.round)
        if fitted is None or isinstance(strategy, Random):
            unread = Predictions.from_probs(torch.ones(len(rows), 1, 1))  # a random batch needs no prediction
            arguments: dict[str, Any] = {"predictions": unread}
        else:
            with self._timed("predict"):
                arguments = self._predicted(fitted, strategy, rows, known)
        with self._timed("select"):
            self.selection = select(batch_size=count, strategy=strategy, seed=seed, device=self._device, **arguments)
        return [int(row) for row in rows[self.selection.indices]]

    def _predicted(self, fitted: Fitted, strategy: Strategy, rows: Tensor, known: Known) -> dict[str, Any]:
        """The arguments of `select` that this strategy uses."""
        posterior, uses, edges = fitted.posterior, strategy.uses, self._edges
        arguments: dict[str, Any] = {"predictions": predict(posterior, self._inputs, rows)}
        if "reference" in uses:
            arguments["max_reference"] = edges.max_reference
            if self._reference is not None:
                order = torch.randperm(len(self._reference), generator=generator(self._seed, "reference"))
                compared = order[: edges.max_reference].sort().values
                arguments["reference"] = predict(posterior, self._reference, compared)
        if "pairs" in uses:
            arguments["pairs"] = edges.pairs
        if "threshold" in uses and edges.threshold is not None:
            arguments["threshold"] = edges.threshold
        elif "validation_error" in uses:
            arguments |= {"ratio": edges.ratio, "validation_error": fitted.validation_error}
        if "embeddings" in uses:
            arguments["embeddings"] = embed(posterior, self._inputs, rows, every_draw=strategy.embeds_every_draw)
        if "labelled_embeddings" in uses:
            arguments["labelled_embeddings"] = embed(posterior, self._inputs, torch.tensor(sorted(known.labels)))
        return arguments

    def _fitted(self, known: Known) -> Fitted | None:
        if not known.labels:
            self.seconds = {}
            untrained = getattr(self._fit, "untrained", None)
            start = torch.zeros(1, dtype=torch.long)
            return untrained(self._inputs[start], derived_seed(self._seed, "fit", known.round)) if untrained else None
        rows = sorted(known.labels)  # in whatever order labels came, the fit is the same
        key = (known.round, rows, [known.labels[row] for row in rows])
        if self._cached is None or self._cached[0] != key:
            self.seconds = {}
            with self._timed("train"):
                seed = derived_seed(self._seed, "fit", known.round)
                result = self._fit(self._inputs[torch.tensor(rows)], torch.tensor(key[2]), seed)
            if not isinstance(result, Posterior | Fitted):
                raise TypeError(f"`fit` must give a Posterior or a Fitted, got {type(result).__name__}")
            self._cached = key, result if isinstance(result, Fitted) else Fitted(result)
        return self._cached[1]

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        self._on_phase(phase)
        started = time.perf_counter()
        yield
        self.seconds[phase] = time.perf_counter() - started

    def _journal(self) -> AbstractContextManager[Any]:
        """The journal, held only for one call, so that other processes can ask and tell in between."""
        return nullcontext(self._memory) if self._path is None else Journal(self._path, wait=True)

    def _check_header(self, journal: Any) -> None:
        """Write what the journal is about into a new one; refuse an old one about other data."""
        digest = hashlib.sha256(json.dumps(self._ids).encode()).hexdigest()[:16]
        header = {"event": "begun", "num_points": len(self._ids), "ids": digest, "classes": self._classes}
        found = next(iter(journal), None)
        if found is None:
            journal.append(header)
        elif found != header:
            wrong = next((key for key in header if found.get(key) != header[key]), "event")
            raise FileFormatError(
                f"{self._path} must be about this data, got other {wrong}: {found.get(wrong)!r} and not "
                f"{header[wrong]!r}; use another directory"
            )

    def _known(self, journal: Any) -> Known:
        labels: dict[int, int] = {}
        asked: dict[int, None] = {}
        rounds = 0
        for event in journal:
            if event["event"] == "asked":
                asked |= dict.fromkeys(self._row(name) for name in event["ids"])
                rounds += 1
            elif event["event"] == "told":
                for name, label in zip(event["ids"], event["labels"], strict=True):
                    labels[self._row(name)] = self._class(label)
        return Known(labels, [row for row in asked if row not in labels], rounds)

    def _row(self, name: Id) -> int:
        if name not in self._row_of:
            raise ValueError(f"`ids` must be ids of this learner's points, got {name!r}")
        return self._row_of[name]

    def _class(self, label: Label) -> int:
        if label not in self._classes:
            raise UnknownNameError("label", str(label), [str(each) for each in self._classes])
        return self._classes.index(label)


def predict(posterior: Posterior, inputs: Inputs, rows: Tensor) -> Predictions:
    """Predictions of some rows, read block by block."""
    stored, done = torch.empty(0), 0
    for block in torch.split(rows, BLOCK):
        part = posterior.predict(inputs[block]).log_probs()
        if not done:
            stored = part.new_empty((len(rows), *part.shape[1:]))
        stored[done : done + len(block)] = part
        done += len(block)
    return stored_predictions(stored, "log-probs", posterior.draw_ids, posterior.weights)


def embed(posterior: Posterior, inputs: Inputs, rows: Tensor, *, every_draw: bool = False) -> Tensor:
    """Embeddings of some rows, read block by block: their mean over draws, or those of every draw."""
    blocks = torch.split(rows, BLOCK)
    return torch.cat([posterior.embed(inputs[block], every_draw=every_draw) for block in blocks])


def _as_inputs(inputs: Any) -> Inputs:
    if isinstance(inputs, Tensor | np.ndarray | list):
        inputs = as_tensor(inputs, "`inputs`")
        if inputs.ndim < 2:
            raise ValueError(f"`inputs` must be (N, ...), one row a point, got shape {tuple(inputs.shape)}")
    if not len(inputs):
        raise ValueError("`inputs` must hold at least one point, got none")
    return inputs  # type: ignore[no-any-return]


def _check_ids(ids: Iterable[Any] | None, num_points: int) -> list[Id]:
    names: list[Id] = list(range(num_points)) if ids is None else [_plain(name) for name in ids]
    if len(names) != num_points or len(set(names)) != num_points:
        raise ValueError(
            f"`ids` must be {num_points} distinct names, one for each input, got {len(names)} with "
            f"{len(set(names))} distinct"
        )
    return names


def _plain(value: Any) -> Any:
    """A Python int or str of what may be a NumPy or torch scalar."""
    plain = value.item() if isinstance(value, np.generic | Tensor) else value
    if isinstance(plain, bool) or not isinstance(plain, int | str):
        raise ValueError(f"ids and labels must be whole numbers or text, got {value!r}")
    return plain

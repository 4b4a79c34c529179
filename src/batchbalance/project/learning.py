"""Training on a project's labels: once for the same labels, in this process or in another."""

import hashlib
import json
import shutil
import tempfile
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast
from zipfile import BadZipFile

import numpy as np
import torch

from batchbalance.errors import sentence
from batchbalance.learner.engine import fit_seed, sample_of
from batchbalance.posteriors import BayesianHead, Fitted, Posterior, load_posterior
from batchbalance.posteriors.training.networks import built, network_named
from batchbalance.project import rounds
from batchbalance.project.audit import FIXED_SET, AuditSample, audit_order, audit_sample
from batchbalance.project.audit import validation_error as audited_error
from batchbalance.project.insight import Insight, insights
from batchbalance.project.label_errors import cross_validated, cross_validated_error
from batchbalance.project.model import Trained, can_refit, class_probs, class_votes, model_fit, trained
from batchbalance.project.planning import set_aside, training_rows
from batchbalance.project.settings import ProjectSettings
from batchbalance.project.state import AUDIT, State
from batchbalance.project.stopping import Round
from batchbalance.project.store import ProjectStore
from batchbalance.system.files import archived_arrays, replacing
from batchbalance.system.progress import progress

FOLDER = "model"


@dataclass(frozen=True)
class Guess:
    """What the model says about an item.

    Attributes:
        id: of the item.
        label: the most probable class.
        probabilities: of each class.
        votes: the share of draws that vote for each class.
    """

    id: str
    label: str
    probabilities: dict[str, float]
    votes: dict[str, float]


class ProjectModel:
    """The model of a project, trained when it is needed, once for the same labels.

    Args:
        folder: of the project; the last model and what every model said are kept in it.
        store: items.
        settings: of the project.
        show: show that it is trained.
    """

    def __init__(self, folder: Path, store: ProjectStore, settings: ProjectSettings, *, show: bool = False) -> None:
        self.folder, self.store, self.settings, self._progress = folder, store, settings, show
        self._last: tuple[str, Trained] | None = None
        self._order: tuple[int, np.ndarray] | None = None
        self._has_told = False

    def training_labels(self, state: State) -> tuple[np.ndarray, np.ndarray]:
        """Return rows and classes to train on: all labels but those of the audit set and of the test set."""
        rows, labels = training_rows(state, self.store), state.labels()
        return rows, np.array([labels[row] for row in rows.tolist()], dtype=np.int64)

    def trained(self, state: State, vectors: np.ndarray) -> Trained | None:
        """Return the model of all labels so far; None before two classes have labels."""
        rows, labels = self.training_labels(state)
        if len(set(labels.tolist())) < 2:
            return None
        key = self._key(rows, labels, len(state.classes))
        if self._last is None or self._last[0] != key:
            found = self._loaded(key, rows, labels, partial(self._network, len(state.classes), vectors.shape[1:]))
            if found is None:
                with progress("training the model", None, self._progress):
                    found = self.train(state, vectors, rows, labels)
                self._save(key, found)
            self._last = key, found
        self._record(state, vectors, self._last[1])
        return self._last[1]

    def required(self, state: State, vectors: np.ndarray) -> Trained:
        """Return the model of all labels so far.

        Raises:
            ValueError: before two classes have labels.
        """
        found = self.trained(state, vectors)
        if found is None:
            raise ValueError("there is no model yet: labels of at least two classes are needed; tell some first")
        return found

    def train(self, state: State, vectors: np.ndarray, rows: np.ndarray, labels: np.ndarray) -> Trained:
        """Return a model of some labels."""
        seed = fit_seed(self.settings.seed, len(rows))
        fit = model_fit(self.settings.model, len(state.classes))
        return trained(fit, vectors, rows, labels, self._unlabelled(), seed)

    def retrain(
        self, state: State, vectors: np.ndarray, like: Trained, rows: np.ndarray, labels: np.ndarray
    ) -> Posterior:
        """Return a model of other labels, with the tuned settings of `like` where that saves time."""
        if can_refit(like.posterior):
            return cast(BayesianHead, like.posterior).refitted(vectors[rows], labels)
        return self.train(state, vectors, rows, labels).posterior

    def _unlabelled(self) -> np.ndarray:
        """Return a sample of rows for models that look at items without labels; never of the audit set."""
        rows = torch.from_numpy(np.flatnonzero(~self.store.is_audit))
        return sample_of(rows, self.settings.seed).numpy()

    def fixed_rows(self, state: State) -> np.ndarray:
        """Return rows on which successive models are compared: the audit set in its order, or a part of all rows.

        Audit items that were told as a random sample come first, because they have labels.
        """
        rows = self._audit_order(state) if self.store.is_audit.any() else self._ordered(range(self.store.num_items))
        is_late = np.array([not state.items[x].sampled_of if x in state.items else True for x in rows.tolist()])
        return rows[np.argsort(is_late, kind="stable")][:FIXED_SET]

    def audit_sample(self, state: State) -> AuditSample:
        """Return the audit items with a label that count so far, and what they are a sample of."""
        labels, views = state.labels(), state.items
        turns = [row for row in views if AUDIT in views[row].reasons]
        sampled = {row: view.sampled_of for row, view in views.items() if view.sampled_of}
        return audit_sample(
            self._audit_order(state),
            [row for row in {*turns, *sampled} if row in labels],
            [*state.tests, *(row for row in {*turns, *sampled} if views[row].answers or views[row].skipped)],
            sampled,
            state.sizes,
        )

    def audit_labels(self, state: State) -> tuple[np.ndarray, np.ndarray]:
        """Return rows and classes of the audit items that count so far."""
        labels, rows = state.labels(), self.audit_sample(state).rows
        return rows, np.array([labels[row] for row in rows.tolist()], dtype=np.int64)

    def _audit_order(self, state: State) -> np.ndarray:
        """Return rows of the audit set in the order in which they are asked."""
        num_items = self.store.num_items
        if self._order is None or self._order[0] != num_items:
            self._order = num_items, self._ordered(np.flatnonzero(self.store.is_audit).tolist())
        rows = self._order[1]
        kept: np.ndarray = rows[set_aside(state, self.store)[rows]]
        return kept

    def _ordered(self, rows: Sequence[int]) -> np.ndarray:
        order = np.argsort(audit_order(self.store.ids(rows), self.settings.seed), kind="stable")
        return np.array(rows, dtype=np.int64)[order]

    def validation_error(self, state: State, vectors: np.ndarray, model: Trained) -> float | None:
        """Return ε: the error on the audit labels if there are 20, else cross-validated."""
        rows, labels = self.audit_labels(state)
        correct = int((class_probs(model.posterior, vectors[rows]).argmax(axis=1) == labels).sum()) if len(rows) else 0
        error, _ = audited_error(correct, len(rows), None)
        return self.cross_validated_error(state, vectors, model) if error is None else error

    def cross_validated_error(self, state: State, vectors: np.ndarray, model: Trained) -> float | None:
        """Return the error on the training labels of models that have not seen them; None if there are too few."""
        probs, judged = self.cross_validated(state, vectors, model)
        return cross_validated_error(probs, model.labels, judged)

    def cross_validated(self, state: State, vectors: np.ndarray, model: Trained) -> tuple[np.ndarray, np.ndarray]:
        """Return class probabilities of training labels by models that have not seen them, and which of them count."""
        path = self.folder / FOLDER / f"{self._key(model.rows, model.labels, len(state.classes))}.npz"
        with suppress(OSError, ValueError, KeyError, BadZipFile, zlib.error):  # damaged or missing: made again
            kept = archived_arrays(path, ("probs", "judged"))
            return kept["probs"], kept["judged"]

        def train_and_predict(train: np.ndarray, test: np.ndarray) -> np.ndarray:
            part = self.retrain(state, vectors, model, model.rows[train], model.labels[train])
            return class_probs(part, vectors[model.rows[test]])

        probs, judged = cross_validated(model.labels, train_and_predict, seed=self.settings.seed)
        with self._keeping(), replacing(path) as temporary, temporary.open("wb") as file:
            np.savez(file, probs=probs, judged=judged)
        return probs, judged

    def guesses(self, state: State, vectors: np.ndarray, rows: Sequence[int]) -> list[Guess] | None:
        """Return the model's predictions for some rows; None before there is a model."""
        model = self.trained(state, vectors)
        if model is None:
            return None
        chosen = vectors[np.asarray(rows, dtype=np.int64)]
        return guesses_of(model, chosen, self.store.ids(rows), state.classes)

    def insights(self, state: State, vectors: np.ndarray, rows: Sequence[int]) -> list[Insight] | None:
        """Return why some rows are worth a label; None before there is a model."""
        model = self.trained(state, vectors)
        if model is None:
            return None
        names, labelled = self.store.ids(rows), self.store.ids(model.rows.tolist())
        return insights(model, vectors, rows, names, state.classes, labelled, self.settings.seed)

    def _record(self, state: State, vectors: np.ndarray, model: Trained) -> None:
        """Store the predictions of a new model for the fixed set."""
        if rounds.has_round(self.folder, state.last_change):
            return
        rows = self.fixed_rows(state)
        predicted = class_probs(model.posterior, vectors[rows]).argmax(axis=1)
        sample, labels = self.audit_sample(state), state.labels()
        audit = sample.rows.tolist()
        said = dict(zip(rows.tolist(), predicted.tolist(), strict=True))
        missing = [row for row in audit if row not in said]
        if missing:
            more = class_probs(model.posterior, vectors[missing]).argmax(axis=1)
            said |= dict(zip(missing, more.tolist(), strict=True))
        correct = sum(said[row] == labels[row] for row in audit)
        tests = list(state.tests)
        tested = class_probs(model.posterior, vectors[tests]).argmax(axis=1) if tests else np.zeros(0, dtype=np.int64)
        right = int((tested == np.array(list(state.tests.values()))).sum()) if tests else 0
        num_sampled = sample.num_first - sum(row < sample.num_first for row in state.chosen())
        about = state.tests_of if tests else num_sampled
        found = Round(len(model.rows), rounds.now(), predicted, correct, len(audit), right, len(tests), about)
        with self._keeping():
            rounds.save_round(self.folder, state.last_change, found, rows)

    def _key(self, rows: np.ndarray, labels: np.ndarray, num_classes: int) -> str:
        """Return a key that changes with everything that the model depends on."""
        digest = hashlib.sha256(rows.tobytes() + labels.tobytes())
        record = self.folder / "embeddings.json"
        made = record.read_text(encoding="utf-8") if record.is_file() else ""
        digest.update(json.dumps([num_classes, self.settings.model, self.settings.seed, made]).encode())
        return digest.hexdigest()[:20]

    def _network(self, num_classes: int, input_shape: tuple[int, ...]) -> Any:
        """Return an untrained network of the kind that the settings name."""
        return built(network_named(self.settings.model["network"]), num_classes, input_shape)

    def _loaded(self, key: str, rows: np.ndarray, labels: np.ndarray, network: Callable[[], Any]) -> Trained | None:
        """Return the model that another process trained on the same labels."""
        folder = self.folder / FOLDER / key
        if not folder.is_dir():
            return None
        try:
            given = network if "network" in self.settings.model else None
            return Trained(Fitted(load_posterior(folder, given)), rows, labels)
        except Exception as error:  # whatever is wrong with a copy, the model is trained anew
            if folder.is_dir():  # else another process has just removed it, for that of newer labels
                self._tell_once("the model is trained again", error)
                shutil.rmtree(folder, ignore_errors=True)
        return None

    def _save(self, key: str, found: Trained) -> None:
        """Store the model for other processes, and remove earlier ones."""
        folder = self.folder / FOLDER
        with self._keeping():
            folder.mkdir(exist_ok=True)
            with tempfile.TemporaryDirectory(dir=folder, prefix=".") as part:
                found.posterior.save(Path(part) / key)
                if not (folder / key).exists():
                    (Path(part) / key).replace(folder / key)
        for other in folder.glob("[!.]*"):
            if other.stem != key:
                shutil.rmtree(other, ignore_errors=True)
                with suppress(OSError):  # a folder that could not be removed
                    other.unlink(missing_ok=True)

    @contextmanager
    def _keeping(self) -> Iterator[None]:
        """Warn if something cannot be stored: some kinds cannot be saved, and some folders cannot be written to."""
        try:
            yield
        except Exception as error:
            self._tell_once("the model cannot be kept, and every command trains it again", error)

    def _tell_once(self, what: str, error: Exception) -> None:
        if not self._has_told:
            self._has_told = True
            warnings.warn(f"{what}: {sentence(error)}", stacklevel=2)


def guesses_of(model: Trained, vectors: np.ndarray, names: Sequence[str], classes: Sequence[str]) -> list[Guess]:
    """Return a model's predictions for some embeddings."""
    probs, votes = class_probs(model.posterior, vectors), class_votes(model.posterior, vectors)
    return [
        Guess(
            name,
            classes[int(p.argmax())],
            dict(zip(classes, map(float, p), strict=True)),
            dict(zip(classes, map(float, v), strict=True)),
        )
        for name, p, v in zip(names, probs, votes, strict=True)
    ]

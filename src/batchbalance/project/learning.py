"""Training on a project's labels, once for the same labels across processes."""

import hashlib
import json
import shutil
import tempfile
import time
import warnings
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor

from batchbalance.arguments.checks import check_whole
from batchbalance.arguments.registry import imported, is_path
from batchbalance.arguments.sections import check_keys, parsed
from batchbalance.errors import UnknownNameError, sentence
from batchbalance.learner.engine import fit_seed, sample_of
from batchbalance.posteriors import (
    POSTERIORS,
    BayesianHead,
    EstimatorFit,
    Posterior,
    PosteriorFit,
    PosteriorOptions,
    load_posterior,
    posterior_options,
)
from batchbalance.posteriors.training.networks import NETWORKS, built, network_named
from batchbalance.predictions import OnDemand, Predictions, Rows
from batchbalance.predictions.draws import Draws
from batchbalance.project.audit import (
    FIXED_SET,
    LEAST_FOR_ERROR,
    AuditSample,
    Threshold,
    accept_threshold,
    audit_order,
    audit_sample,
)
from batchbalance.project.label_errors import cross_validated, cross_validated_error
from batchbalance.project.labelling import NONE, SEPARATOR, Labelling, is_same
from batchbalance.project.mixing import Mixture, mixture_of
from batchbalance.project.settings import ProjectSettings
from batchbalance.project.state import AUDIT, State
from batchbalance.project.stopping import Round, round_path, save_round
from batchbalance.project.store import ProjectStore
from batchbalance.project.suggestions import sources_of
from batchbalance.system.files import archived_arrays, replacing
from batchbalance.system.progress import progress

BLOCK = 4096  # embeddings predicted at a time
FOLDER = "model"


@dataclass(frozen=True, eq=False)
class Trained:
    """A model and what it was trained on.

    Attributes:
        posterior: its draws.
        rows: (L,) rows that it was trained on.
        labels: (L,) their classes, or (L, C) of 0 and 1 if an item may have several.
        labelling: the classes.
        key: a hash of everything that the model depends on.
        mixture: the machine labels that its predictions are combined with; None if there are none, or none help.
    """

    posterior: Posterior
    rows: np.ndarray
    labels: np.ndarray
    labelling: Labelling
    key: str
    mixture: Mixture | None = None

    def probs(self, vectors: np.ndarray, rows: Any = slice(None)) -> np.ndarray:
        """Return (n, C) class probabilities of items for reports, combined with machine labels; of all if omitted."""
        found = class_probs(self.posterior, vectors[rows])
        return found if self.mixture is None or not len(found) else self.mixture.combined(found, rows)


@dataclass(frozen=True)
class Guess:
    """The model's prediction for an item.

    Attributes:
        id: the item's id.
        label: the most probable class; with several labels, the list of those that are more likely than not.
        probabilities: the probability of each class.
        votes: the share of draws that vote for each class.
        confidence: the probability of `label`; several labels are taken as independent.
    """

    id: str
    label: str | list[str]
    probabilities: dict[str, float]
    votes: dict[str, float]
    confidence: float

    @property
    def text(self) -> str:
        """The label as text; several as `a;b`, and `none` for none."""
        return self.label if isinstance(self.label, str) else SEPARATOR.join(self.label) or NONE


class ProjectModel:
    """The model of a project, trained on demand and once for the same labels.

    The last model is kept in the project's folder, and so are the predictions of every model for the fixed set.
    """

    def __init__(self, folder: Path, store: ProjectStore, settings: ProjectSettings, *, show: bool = False) -> None:
        self.folder, self.store, self.settings, self._progress = folder, store, settings, show
        self._last: Trained | None = None
        self._order: tuple[int, np.ndarray] | None = None
        self._has_warned = False

    def training_labels(self, state: State) -> tuple[np.ndarray, np.ndarray]:
        """Return rows and classes to train on: all labels but those of the audit set and of the test set."""
        aside, labels = self.store.set_aside(state), state.labels()
        rows = [row for row in labels if not aside[row] and row not in state.tests]
        return np.array(rows, dtype=np.int64), state.labelling.array(labels[row] for row in rows)

    def trained(self, state: State, vectors: np.ndarray) -> Trained | None:
        """Return the model of all labels so far; None before two classes have labels."""
        (rows, labels), num_classes = self.training_labels(state), len(state.classes)
        if len(np.unique(labels, axis=0)) < 2:
            return None
        record = self.folder / "embeddings.json"
        made = record.read_text(encoding="utf-8") if record.is_file() else ""
        digest = hashlib.sha256(rows.tobytes() + labels.tobytes())
        digest.update(json.dumps([num_classes, self.settings.model, self.settings.seed, made]).encode())
        sources = sources_of(state, self.store.num_items)
        digest.update(json.dumps({name: each.version for name, each in sources.items()}).encode())
        key = digest.hexdigest()[:20]
        if self._last is None or self._last.key != key:
            posterior = self._loaded(key, num_classes, vectors.shape[1:])
            if posterior is None:
                with progress("training the model", None, self._progress):
                    posterior = self.train(vectors, rows, labels, num_classes)
                self._save(key, posterior)
            self._last = Trained(posterior, rows, labels, state.labelling, key)
            if sources:
                unseen = self.cross_validated(vectors, self._last)
                self._last = replace(self._last, mixture=mixture_of(sources, rows, labels, *unseen, self.settings.seed))
        self._record(state, vectors, self._last)
        return self._last

    def required(self, state: State, vectors: np.ndarray) -> Trained:
        """Return the model of all labels so far.

        Raises:
            ValueError: before two classes have labels.
        """
        found = self.trained(state, vectors)
        if found is None:
            raise ValueError("there is no model yet: labels of at least two kinds are needed; add some first")
        return found

    def train(self, vectors: np.ndarray, rows: np.ndarray, labels: np.ndarray, num_classes: int) -> Posterior:
        """Train and return a model. Some kinds also use a sample of items without labels."""
        seed, inputs, classes = fit_seed(self.settings.seed, len(rows)), as_inputs(vectors[rows]), torch.tensor(labels)
        fit = model_fit(self.settings.model, num_classes)
        if isinstance(fit, PosteriorFit):
            others = None
            if fit.uses_unlabelled:
                free = torch.from_numpy(np.flatnonzero(~self.store.is_audit))
                others = as_inputs(vectors[sample_of(free, self.settings.seed).numpy()])
            return fit(inputs, classes, seed, others).posterior
        committee = fit(inputs, classes, seed)
        if committee is None:
            raise ValueError("labels of at least two classes are needed to train, got one class")
        return committee

    def retrain(self, vectors: np.ndarray, like: Trained, rows: np.ndarray, labels: np.ndarray) -> Posterior:
        """Train and return a model of other labels, with the tuned settings of `like` if that saves time."""
        if can_refit(like.posterior):
            return cast(BayesianHead, like.posterior).refitted(vectors[rows], labels)
        return self.train(vectors, rows, labels, len(like.labelling.classes))

    def fixed_rows(self, state: State) -> np.ndarray:
        """Return the rows on which successive models are compared: the audit set in its order, or a sample of all rows.

        Audit items that were labelled as a random sample come first.
        """
        rows = self.audit_order(state) if self.store.is_audit.any() else self._ordered(range(self.store.num_items))
        is_late = np.array([not state.items[x].sampled_of if x in state.items else True for x in rows.tolist()])
        return rows[np.argsort(is_late, kind="stable")][:FIXED_SET]

    def audit_sample(self, state: State) -> AuditSample:
        """Return the labelled audit items that count so far, and the items that they are a sample of."""
        labels, views = state.labels(), state.items
        turns = [row for row in views if AUDIT in views[row].reasons]
        sampled = {row: view.sampled_of for row, view in views.items() if view.sampled_of}
        return audit_sample(
            self.audit_order(state),
            [row for row in {*turns, *sampled} if row in labels],
            [*state.tests, *(row for row in {*turns, *sampled} if views[row].answers or views[row].skipped)],
            sampled,
            state.sizes,
        )

    def audit_labels(self, state: State) -> tuple[np.ndarray, np.ndarray]:
        """Return rows and classes of the audit items that count so far."""
        labels, rows = state.labels(), self.audit_sample(state).rows
        return rows, state.labelling.array(labels[row] for row in rows.tolist())

    def audit_order(self, state: State) -> np.ndarray:
        """Return the rows that measure the model, in the order in which they are asked."""
        num_items = self.store.num_items
        if self._order is None or self._order[0] != num_items:
            self._order = num_items, self._ordered(np.flatnonzero(self.store.is_audit).tolist())
        rows = self._order[1]
        kept: np.ndarray = rows[self.store.set_aside(state)[rows]]
        return kept

    def _ordered(self, rows: Sequence[int]) -> np.ndarray:
        order = np.argsort(audit_order(self.store.ids(rows), self.settings.seed), kind="stable")
        return np.array(rows, dtype=np.int64)[order]

    def validation_error(self, state: State, vectors: np.ndarray, model: Trained) -> float | None:
        """Return ε for the threshold: the error on the audit labels if there are 20, else the cross-validated error.

        None if there are too few labels for either. Of several labels for each item it is the share that is wrong.
        """
        rows, labels = self.audit_labels(state)
        if len(rows) < LEAST_FOR_ERROR:
            return self.cross_validated_error(vectors, model)
        is_right = model.labelling.predicted(model.probs(vectors, rows)) == labels
        return float(1 - int(is_right.sum()) / is_right.size)

    def cross_validated_error(self, vectors: np.ndarray, model: Trained) -> float | None:
        """Return the error on the training labels of models that have not seen them; None if there are too few."""
        probs, judged = self.cross_validated(vectors, model)
        probs = probs if model.mixture is None else model.mixture.combined(probs, model.rows)
        return cross_validated_error(probs, model.labels, judged)

    def cross_validated(self, vectors: np.ndarray, model: Trained) -> tuple[np.ndarray, np.ndarray]:
        """Return class probabilities for training labels by models that have not seen them, and which of them count."""
        path = self.folder / FOLDER / f"{model.key}.npz"
        with suppress(OSError, ValueError, KeyError, BadZipFile, zlib.error):  # recomputed if damaged or missing
            kept = archived_arrays(path, ("probs", "judged"))
            return kept["probs"], kept["judged"]

        def train_and_predict(train: np.ndarray, test: np.ndarray) -> np.ndarray:
            part = self.retrain(vectors, model, model.rows[train], model.labels[train])
            return class_probs(part, vectors[model.rows[test]])

        probs, judged = cross_validated(model.labels, train_and_predict, seed=self.settings.seed)
        with self._warning_if_not_kept(), replacing(path) as temporary, temporary.open("wb") as file:
            np.savez(file, probs=probs, judged=judged)
        return probs, judged

    def accept_threshold(self, state: State, vectors: np.ndarray, model: Trained) -> Threshold:
        """Return the confidence from which guesses are sure: by 20 audit labels, or else cross-validated."""
        (rows, labels), labelling = self.audit_labels(state), model.labelling
        if len(rows) >= LEAST_FOR_ERROR:
            probs, source = model.probs(vectors, rows), "audit labels"
        else:
            probs, judged = self.cross_validated(vectors, model)
            known = np.flatnonzero(judged.reshape(len(judged), -1).all(axis=1))
            probs, labels, source = probs[known], model.labels[known], "labels that the model had not seen"
        if not len(labels):
            return Threshold(None, 0, 0, source)
        return accept_threshold(labelling.confidence(probs), is_same(labelling.predicted(probs), labels), source)

    def _record(self, state: State, vectors: np.ndarray, model: Trained) -> None:
        """Store a new model's predictions for the fixed set, and its numbers of correct audit and test labels."""
        path = round_path(self.folder, state.last_change)
        if path.is_file():
            return
        fixed, sample, labels = self.fixed_rows(state).tolist(), self.audit_sample(state), state.labels()
        audit, labelling = sample.rows.tolist(), model.labelling
        every = list(dict.fromkeys([*fixed, *audit, *state.tests]))
        said = labelling.values(labelling.predicted(model.probs(vectors, every)))
        predicted = dict(zip(every, said, strict=True))
        measured = state.tests or {row: labels[row] for row in audit}
        of, here = labelling.array(measured.values()), labelling.array(predicted[row] for row in measured)
        pairs = ((of & here).sum(axis=1), (of | here).sum(axis=1)) if labelling.is_multi else ()
        num_sampled = sample.num_first - sum(row < sample.num_first for row in state.chosen())
        found = Round(
            len(model.rows),
            round(time.time(), 3),
            labelling.codes(labelling.array(predicted[row] for row in fixed)),
            sum(predicted[row] == labels[row] for row in audit),
            len(audit),
            sum(predicted[row] == label for row, label in state.tests.items()),
            len(state.tests),
            state.tests_of if state.tests else num_sampled,
            *(tuple(each.tolist()) for each in pairs),
        )
        with self._warning_if_not_kept():
            save_round(path, found, fixed)

    def _loaded(self, key: str, num_classes: int, input_shape: tuple[int, ...]) -> Posterior | None:
        """Return the stored model of the same labels, or None."""
        folder, name = self.folder / FOLDER / key, self.settings.model.get("network")
        if not folder.is_dir():
            return None
        try:
            network = None if name is None else lambda: built(network_named(name), num_classes, input_shape)
            return load_posterior(folder, network)
        except Exception as error:  # whatever is wrong with the copy, train again
            if folder.is_dir():  # else another process has just replaced it
                self._warn_once("the model is trained again", error)
                shutil.rmtree(folder, ignore_errors=True)
        return None

    def _save(self, key: str, posterior: Posterior) -> None:
        """Store the model for other processes, and remove earlier ones."""
        folder = self.folder / FOLDER
        with self._warning_if_not_kept():
            folder.mkdir(exist_ok=True)
            with tempfile.TemporaryDirectory(dir=folder, prefix=".") as part:
                posterior.save(Path(part) / key)
                if not (folder / key).exists():
                    (Path(part) / key).replace(folder / key)
        for other in folder.glob("[!.]*"):
            if other.stem != key:
                shutil.rmtree(other, ignore_errors=True)
                with suppress(OSError):  # a folder that could not be removed
                    other.unlink(missing_ok=True)

    @contextmanager
    def _warning_if_not_kept(self) -> Iterator[None]:
        """Warn if something cannot be stored: some models cannot be saved, and some folders are read-only."""
        try:
            yield
        except Exception as error:
            self._warn_once("the model cannot be stored, so every command trains it again", error)

    def _warn_once(self, what: str, error: Exception) -> None:
        if not self._has_warned:
            self._has_warned = True
            warnings.warn(f"{what}: {sentence(error)}", stacklevel=2)


def named_model(name: str) -> dict[str, Any]:
    """Return the settings of a model from one name: a posterior, a network, or an import path."""
    if name in POSTERIORS:
        return {"kind": name}
    if name in NETWORKS:
        return {"network": name}
    if not is_path(name):
        raise UnknownNameError("model", name, [*POSTERIORS, *NETWORKS, "package.module:Name"])
    found = imported("model", name)
    if isinstance(found, type) and issubclass(found, PosteriorOptions):
        return {"kind": name}
    return {"estimator": name} if hasattr(found, "fit") else {"network": name}


def model_fit(table: dict[str, Any], num_classes: int) -> PosteriorFit | EstimatorFit:
    """Return the fit for a table of model settings."""
    given = dict(table)
    kind, network, estimator = (given.pop(key, None) for key in ("kind", "network", "estimator"))
    if estimator is None:
        default = "bayesian-head" if network is None else "mc-dropout"
        options = parsed(lambda: posterior_options(kind or default, **given))
        return PosteriorFit(options, num_classes, network)
    if kind is not None or network is not None:
        raise ValueError("`model` must name an estimator or a kind of posterior, got both; omit one of them")
    check_keys("[model] with an estimator", given, ("size", "options"))
    found = imported("estimator", estimator)
    made = found(**given.get("options", {})) if isinstance(found, type) else found
    return EstimatorFit(made, range(num_classes), check_whole("model.size", given.get("size", 20), 2))


def can_refit(posterior: Posterior) -> bool:
    """Return whether `BayesianHead.refitted` can fit other labels without tuning again."""
    return isinstance(posterior, BayesianHead) and posterior.tuned is not None


def as_inputs(vectors: np.ndarray) -> Tensor:
    """Return a copy of embeddings as a tensor."""
    return torch.from_numpy(np.array(vectors, dtype=np.float32))


def pool_predictions(model: Trained, vectors: np.ndarray) -> Predictions:
    """Return predictions of all items, combined with machine labels, computed when they are read."""
    posterior, mixture = model.posterior, model.mixture
    shown = posterior.predict(as_inputs(vectors[:1]))
    num = shown.num_labels or 1  # the questions of an item

    def make(rows: Rows) -> Tensor:
        if isinstance(rows, slice):
            rows = range(*rows.indices(num * len(vectors)))
        asked = torch.as_tensor(rows, dtype=torch.long)
        items, place = (
            (asked, torch.arange(len(asked))) if num == 1 else torch.unique(asked // num, return_inverse=True)
        )
        found = posterior.predict(as_inputs(vectors[items.numpy()]), batch_size=BLOCK).questions.log_probs()
        if mixture is None or not len(found):
            return found if num == 1 else found[place * num + asked % num]
        by_draw = [mixture.combined(found[:, s].exp().numpy(), asked.numpy()) for s in range(found.shape[1])]
        return torch.from_numpy(np.stack(by_draw, axis=1)).log().to(found)

    n, s, c = shown.source.shape
    draws = Draws(s, shown.draw_ids, shown.weights)
    return Predictions(OnDemand((n * len(vectors), s, c), shown.dtype, make), draws, num_labels=shown.num_labels)


def class_probs(posterior: Posterior, vectors: np.ndarray) -> np.ndarray:
    """Return (n, C) probabilities for reports, of classes or of labels, computed block by block.

    They use a head's most probable weights or, for other posteriors, all draws.
    """
    single = posterior.most_probable if isinstance(posterior, BayesianHead) else posterior
    found = (single.predict(as_inputs(vectors[i : i + BLOCK])) for i in range(0, len(vectors), BLOCK))
    parts = [(each.mean_probs() if each.num_labels is None else each.label_probs()).numpy() for each in found]
    return np.concatenate(parts) if parts else np.zeros((0, 0), dtype=np.float32)


def draw_votes(model: Trained, vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (n, S, C) the votes of each draw, 0 or 1, and (S,) the weights of draws. A draw may vote for several."""
    predictions = model.posterior.predict(as_inputs(vectors))
    hard, num = predictions.questions.hard_labels(), len(model.labelling.classes)
    if predictions.num_labels is None:
        votes = torch.nn.functional.one_hot(hard, num)
    else:
        votes = hard.view(len(vectors), num, -1).transpose(1, 2)
    return votes.numpy(), predictions.draw_weights.numpy()


def guesses_of(model: Trained, vectors: np.ndarray, names: Sequence[str], rows: Any = None) -> list[Guess]:
    """Return predictions and votes for embeddings; items of the project have `rows`, and maybe machine labels."""
    probs, labelling = class_probs(model.posterior, vectors), model.labelling
    if rows and model.mixture is not None:
        probs = model.mixture.combined(probs, rows)
    votes, weights = draw_votes(model, vectors)
    said = labelling.values(labelling.predicted(probs))
    shares = np.einsum("s,nsc->nc", weights, votes.astype(np.float64)).tolist()
    return [
        Guess(
            name,
            labelling.natural(value),
            dict(zip(labelling.classes, map(float, p), strict=True)),
            dict(zip(labelling.classes, voted, strict=True)),
            float(sure),
        )
        for name, value, p, voted, sure in zip(names, said, probs, shares, labelling.confidence(probs), strict=True)
    ]

"""The model of a project: what is trained on its labels, and what it says."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from batchbalance.arguments.checks import check_whole
from batchbalance.arguments.registry import imported, is_path
from batchbalance.arguments.sections import check_keys, parsed
from batchbalance.errors import UnknownNameError
from batchbalance.posteriors import (
    POSTERIORS,
    BayesianHead,
    EstimatorFit,
    Fitted,
    Posterior,
    PosteriorFit,
    PosteriorOptions,
    posterior_options,
)
from batchbalance.posteriors.training.networks import NETWORKS
from batchbalance.predictions import OnDemand, Predictions, Rows
from batchbalance.predictions.draws import Draws

BLOCK = 4096  # embeddings predicted at a time


@dataclass(frozen=True, eq=False)
class Trained:
    """A model and what it was trained on.

    Attributes:
        fitted: its draws.
        rows: (L,) rows that it was trained on.
        labels: (L,) their classes.
    """

    fitted: Fitted
    rows: np.ndarray
    labels: np.ndarray

    @property
    def posterior(self) -> Posterior:
        """The draws of the fitted model."""
        return self.fitted.posterior


def named_model(name: str) -> dict[str, Any]:
    """Return the settings of a model by one name: a posterior, a network, or the path of either or of an estimator."""
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
    """Return the fit of the model that a table of settings names."""
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


def trained(
    fit: PosteriorFit | EstimatorFit,
    vectors: np.ndarray,
    rows: np.ndarray,
    labels: np.ndarray,
    unlabelled: np.ndarray,
    seed: int,
) -> Trained:
    """Train on some rows; those of `unlabelled` are looked at without a label by models that can."""
    classes = torch.from_numpy(np.asarray(labels, dtype=np.int64))
    inputs = as_inputs(vectors[rows])
    if isinstance(fit, PosteriorFit):
        others = as_inputs(vectors[unlabelled]) if fit.uses_unlabelled else None
        return Trained(fit(inputs, classes, seed, others), rows, labels)
    committee = fit(inputs, classes, seed)
    if committee is None:
        raise ValueError("labels of at least two classes are needed to train, got one class")
    return Trained(Fitted(committee), rows, labels)


def reported(posterior: Posterior) -> Posterior:
    """Return the posterior of reported predictions: the most probable weights of a head, else all draws."""
    return posterior.most_probable if isinstance(posterior, BayesianHead) else posterior


def can_refit(posterior: Posterior) -> bool:
    """Return whether `BayesianHead.refitted` gives a model of other labels at once."""
    return isinstance(posterior, BayesianHead) and posterior.tuned is not None


def model_warning(posterior: Posterior) -> str | None:
    """Return why the predictions of a model should not be trusted yet; None if nothing speaks against them."""
    tuned = getattr(posterior, "tuned", None)
    return None if tuned is None else tuned.warning


def as_inputs(vectors: np.ndarray) -> Tensor:
    """Return a copy of embeddings as a tensor."""
    return torch.from_numpy(np.array(vectors, dtype=np.float32))


def pool_predictions(posterior: Posterior, vectors: np.ndarray) -> Predictions:
    """Return predictions of all items, made where they are read."""
    shown = posterior.predict(as_inputs(vectors[:1]))

    def make(rows: Rows) -> Tensor:
        index: Any = rows if isinstance(rows, slice) else torch.as_tensor(rows, dtype=torch.long).numpy()
        return posterior.predict(as_inputs(vectors[index]), batch_size=BLOCK).log_probs()

    shape = (len(vectors), shown.num_draws, shown.num_classes)
    return Predictions(OnDemand(shape, shown.dtype, make), Draws(shown.num_draws, shown.draw_ids, shown.weights))


def class_probs(posterior: Posterior, vectors: np.ndarray) -> np.ndarray:
    """Return (n, C) class probabilities as they are reported, block by block."""
    single = reported(posterior)
    parts = [
        single.predict(as_inputs(vectors[start : start + BLOCK])).mean_probs().numpy()
        for start in range(0, len(vectors), BLOCK)
    ]
    return np.concatenate(parts) if parts else np.zeros((0, 0), dtype=np.float32)


def class_votes(posterior: Posterior, vectors: np.ndarray) -> np.ndarray:
    """Return (n, C) the share of draws that vote for each class."""
    predictions = posterior.predict(as_inputs(vectors))
    votes = torch.nn.functional.one_hot(predictions.hard_labels(), predictions.num_classes)
    return torch.einsum("s,nsc->nc", predictions.draw_weights, votes.double()).numpy()

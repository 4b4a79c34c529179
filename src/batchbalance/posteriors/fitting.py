"""From labels to posterior draws, as a config says: what a learner calls in every round."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from batchbalance.networks import network
from batchbalance.posteriors import BayesianHead, Committee, CyclicalSGMCMC, DeepEnsemble, MCDropout, Posterior
from batchbalance.posteriors.settings import (
    ChainSettings,
    CommitteeSettings,
    EnsembleSettings,
    HeadSettings,
    MCDropoutSettings,
    PosteriorSettings,
)
from batchbalance.seeds import derived_seed
from batchbalance.training import Labelled, ModelFactory, Recipe, evaluate, fit, fresh_model

FEATURE_NETWORKS = ("tabular-mlp",)  # those that take one row of features


@dataclass(frozen=True, eq=False)
class Fitted:
    """A posterior, and the error ε on validation data; None if there are none."""

    posterior: Posterior
    validation_error: float | None = None


# Called with inputs, int64 labels and a seed. A method `untrained(inputs, seed)`, if any, serves before any label.
Fit = Callable[[Tensor, Tensor, int], Posterior | Fitted]


@dataclass(frozen=True)
class PosteriorFit:
    """Fits the posterior that settings describe; a `Fit`.

    Attributes:
        posterior: its kind and options.
        num_classes: C.
        model: the name and the options of the network, for the kinds that have one.
        recipe: how networks are trained.
        validation: inputs and labels for early stopping and for ε, or a function that gives those that may be used
            with so many training labels; None for no validation.
        device: where to train.
    """

    posterior: PosteriorSettings
    num_classes: int
    model: dict[str, Any] | None = None
    recipe: Recipe | None = None
    validation: Labelled | Callable[[int], Labelled | None] | None = None
    device: str = "cpu"

    def __call__(self, inputs: Tensor, labels: Tensor, seed: int) -> Fitted:
        """Draws of a model trained on (N, ...) inputs and (N,) labels.

        ε is the error of the network with dropout off, or of the mean prediction for posteriors without such a network.
        """
        validation = self.validation(len(labels)) if callable(self.validation) else self.validation
        settings = self.posterior
        if isinstance(settings, MCDropoutSettings):
            trained = fit(
                self._factory(inputs),
                inputs,
                labels,
                self.recipe,
                num_classes=self.num_classes,
                validation=validation,
                seed=seed,
                device=self.device,
            )
            return self._dropout_draws(trained.model, settings.num_draws, validation, seed)
        posterior = self._fitted(inputs, labels, validation, seed)
        return Fitted(posterior, None if validation is None else mean_error(posterior, *validation))

    def untrained(self, inputs: Tensor, seed: int) -> Fitted | None:
        """Draws of the network before any training, to choose a first batch by; None for kinds without one network."""
        if not isinstance(self.posterior, MCDropoutSettings):
            return None
        validation = self.validation(0) if callable(self.validation) else self.validation
        model = fresh_model(self._factory(inputs), seed, self.device)
        return self._dropout_draws(model, self.posterior.num_draws, validation, seed)

    def _dropout_draws(self, model: nn.Module, num_draws: int, validation: Labelled | None, seed: int) -> Fitted:
        draws = MCDropout(model, num_draws, derived_seed(seed, "masks"))
        if validation is None:
            return Fitted(draws)
        return Fitted(draws, 1 - evaluate(model, *(part.to(self.device) for part in validation)))

    def _fitted(self, inputs: Tensor, labels: Tensor, validation: Labelled | None, seed: int) -> Posterior:
        settings = self.posterior
        if isinstance(settings, ChainSettings):
            chains = CyclicalSGMCMC.from_schedule(self._factory(inputs), settings.schedule, seed=seed)
            return chains.fit(inputs, labels, num_classes=self.num_classes, device=self.device)
        if isinstance(settings, EnsembleSettings):
            ensemble = DeepEnsemble(self._factory(inputs), settings.size, self.recipe, seed=seed)
            return ensemble.fit(inputs, labels, num_classes=self.num_classes, validation=validation, device=self.device)
        if isinstance(settings, HeadSettings):
            head = BayesianHead(
                settings.method,
                settings.num_draws,
                prior_precision=settings.prior_precision,
                hidden=settings.hidden,
                dropout=settings.dropout,
                recipe=self.recipe,
                seed=seed,
            )
            return head.fit(inputs, labels, num_classes=self.num_classes, validation=validation)
        if isinstance(settings, CommitteeSettings):
            forest = _forest(settings, seed).fit(inputs.numpy(), labels.numpy())
            return Committee.from_sklearn(forest, classes=range(self.num_classes))
        raise TypeError(f"`posterior` must be the settings of a posterior, got {settings!r}")

    def _factory(self, inputs: Tensor) -> ModelFactory:
        if self.model is None:
            raise ValueError(f"`model` must be given for posterior {self.posterior.kind!r}, got none")
        options = {key: value for key, value in self.model.items() if key != "name"}
        return partial(network(self.model["name"]), self.num_classes, tuple(inputs.shape[1:]), **options)


def takes_features(posterior: PosteriorSettings, model: dict[str, Any] | None) -> bool:
    """Whether inputs must be flattened to one row of features each."""
    return model is None or model["name"] in FEATURE_NETWORKS or isinstance(posterior, CommitteeSettings | HeadSettings)


def mean_error(posterior: Posterior, inputs: Tensor, labels: Tensor) -> float:
    """The share of inputs that the mean prediction gets wrong."""
    predicted = posterior.predict(inputs).mean_probs().argmax(dim=1)
    return float((predicted != labels).to(torch.float64).mean())


def _forest(settings: CommitteeSettings, seed: int) -> Any:
    from sklearn.ensemble import ExtraTreesClassifier, RandomForestClassifier

    kind = {"random-forest": RandomForestClassifier, "extra-trees": ExtraTreesClassifier}[settings.classifier]
    return kind(settings.size, max_depth=settings.max_depth, random_state=seed % 2**32, n_jobs=1)

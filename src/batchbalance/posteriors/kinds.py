"""Kinds of posteriors in settings: their options, and how to fit them.

Each kind is in one file: a `Posterior`, and a `PosteriorOptions` whose ``fit`` returns one. Options listed in
``batchbalance.posteriors`` or in an entry point, or named by their path, are available in Python, in TOML files and
in `Learner`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from batchbalance.arguments.sections import Section
from batchbalance.arguments.seeds import derived_seed, generator
from batchbalance.posteriors.contract import Posterior
from batchbalance.posteriors.training.fitting import KeptWeights, Labelled, ModelFactory, Recipe
from batchbalance.posteriors.training.networks import Network, built, network_named
from batchbalance.posteriors.tuning import stratified_folds

FOLDS = 5  # of cross-validation


@dataclass(frozen=True, eq=False)
class Fitted:
    """A posterior and its errors.

    Attributes:
        posterior: the draws.
        validation_error: ε on validation data; None if there are none.
        kept: which weights of each trained network were kept.
        cross_validation: computes ε without validation data; None if that is not possible.
    """

    posterior: Posterior
    validation_error: float | None = None
    kept: tuple[KeptWeights, ...] = ()
    cross_validation: Callable[[], float] | None = None

    @cached_property
    def error(self) -> float | None:
        """The error ε on validation data, else by cross-validation, which fits several times at the first read."""
        if self.validation_error is None and self.cross_validation is not None:
            return self.cross_validation()
        return self.validation_error


# Called with inputs, int64 labels and a seed. A method `untrained(inputs, seed)`, if any, is used before any label.
Fit = Callable[[Tensor, Tensor, int], Posterior | Fitted]


@dataclass(frozen=True, eq=False)
class FitContext:
    """The arguments of a fit besides inputs and labels.

    Attributes:
        num_classes: C, or the number of labels if `labels` are (N, L) of 0 and 1.
        seed: random seed; the same seed gives the same draws.
        network: builds the network, for the kinds that have one.
        network_options: options of the network.
        recipe: how networks are trained; the defaults of `Recipe` if omitted.
        validation: inputs and labels for early stopping and for ε; None for no validation.
        device: where to train.
        unlabelled: (U, ...) inputs of the pool, for the kinds that use them.
    """

    num_classes: int
    seed: int = 0
    network: Network | None = None
    network_options: dict[str, Any] | None = None
    recipe: Recipe | None = None
    validation: Labelled | None = None
    device: str = "cpu"
    unlabelled: Tensor | None = None

    def factory(self, inputs: Tensor) -> ModelFactory:
        """Return a function that builds the network for inputs like these."""
        if self.network is None:
            raise ValueError("`network` must be given for this kind of posterior, got none; name one, or a function")
        shape = tuple(inputs.shape[1:])
        return partial(built, self.network, self.num_classes, shape, **(self.network_options or {}))


class PosteriorOptions(Section, ABC):
    """The options of a kind of posterior. Subclasses declare theirs as fields.

    Attributes:
        kind: its name or path.
    """

    table = "[posterior]"
    has_network: ClassVar[bool] = False  # whether it needs a network
    uses_recipe: ClassVar[bool] = False  # whether networks are trained by a `Recipe`
    flat_inputs: ClassVar[bool] = False  # whether inputs are flattened to one row of features each
    uses_unlabelled: ClassVar[bool] = False  # whether `FitContext.unlabelled` is used

    kind: str

    @abstractmethod
    def fit(self, inputs: Tensor, labels: Tensor, context: FitContext) -> Fitted:
        """Train a model on (N, ...) inputs and (N,) labels and return its draws.

        ε is ``error`` on the validation data.
        """

    def untrained(self, inputs: Tensor, context: FitContext) -> Fitted | None:  # noqa: ARG002
        """Return draws before any training, for choosing a first batch; None for kinds without a single network."""
        return None

    def error(self, posterior: Posterior, labelled: Labelled) -> float:
        """Return the error rate of the draws on labelled inputs, which is ε for validation data.

        For several labels of each input it is the share of wrong ones.
        """
        predictions = posterior.predict(labelled[0])
        of_labels = predictions.num_labels is not None
        predicted = predictions.label_probs() > 0.5 if of_labels else predictions.mean_probs().argmax(dim=1)
        return float((predicted != labelled[1].to(predicted.device)).to(torch.float64).mean())

    def fitted(self, posterior: Posterior, context: FitContext, kept: tuple[KeptWeights, ...] = ()) -> Fitted:
        """Return a posterior and its ε on the validation data, if there are any."""
        error = None if context.validation is None else self.error(posterior, context.validation)
        return Fitted(posterior, error, kept)

    def for_metrics(self, posterior: Posterior) -> Posterior:
        """Return the draws for test metrics: all of them unless overridden."""
        return posterior


class PosteriorFit:
    """Fits the posterior that options describe; a `Fit`.

    Args:
        options: the kind of posterior and its options.
        num_classes: C.
        network: a registered name, a path, or a function that builds the network, for the kinds that have one. It is
            called with `num_classes` and `input_shape` if it takes them.
        network_options: options of the network.
        recipe: how networks are trained.
        validation: inputs and labels for early stopping and for ε, or a function that returns those to use with
            a given number of training labels; None for no validation.
        device: where to train.
    """

    def __init__(
        self,
        options: PosteriorOptions,
        num_classes: int,
        network: str | Network | None = None,
        network_options: dict[str, Any] | None = None,
        recipe: Recipe | None = None,
        validation: Labelled | Callable[[int], Labelled | None] | None = None,
        device: str = "cpu",
    ) -> None:
        if not isinstance(options, PosteriorOptions):
            raise TypeError(f"`options` must be those of a posterior, got {options!r}")
        if options.has_network and network is None:
            raise ValueError(f"`network` must be given for posterior {options.kind!r}, got none")
        self.options, self._validation = options, validation
        builder = network_named(network) if isinstance(network, str) else network
        self._context = FitContext(num_classes, 0, builder, network_options, recipe, None, device)

    @property
    def uses_unlabelled(self) -> bool:
        """Whether a fit uses unlabelled inputs."""
        return self.options.uses_unlabelled

    def __call__(self, inputs: Tensor, labels: Tensor, seed: int, unlabelled: Tensor | None = None) -> Fitted:
        """Train a model on (N, ...) inputs and (N,) labels and return its draws."""
        context = self._given(len(labels), seed, unlabelled)
        fitted = self.options.fit(inputs, labels, context)
        known = context.validation is not None or fitted.cross_validation is not None
        if known or (labels.ndim == 1 and len(labels.unique()) == len(labels)):
            return fitted
        return replace(fitted, cross_validation=partial(cross_validated_error, self.options, inputs, labels, context))

    def untrained(self, inputs: Tensor, seed: int) -> Fitted | None:
        """Return draws before any training; None for kinds without a single network."""
        return self.options.untrained(inputs, self._given(0, seed))

    def _given(self, num_labels: int, seed: int, unlabelled: Tensor | None = None) -> FitContext:
        validation = self._validation(num_labels) if callable(self._validation) else self._validation
        return replace(self._context, seed=seed, validation=validation, unlabelled=unlabelled)


def cross_validated_error(options: PosteriorOptions, inputs: Tensor, labels: Tensor, context: FitContext) -> float:
    """Return ε without validation data: the error on labels that were held out of the fit.

    Each of `FOLDS` folds is held out once. At least one class must have two labels.
    """
    wrong, looked_at = 0.0, 0
    for number, fold in enumerate(stratified_folds(labels, FOLDS, generator(context.seed, "folds"), singles=False)):
        rest = torch.ones(len(labels), dtype=torch.bool)
        rest[fold] = False
        alone = replace(context, seed=derived_seed(context.seed, "fold", number), validation=None)
        posterior = options.fit(inputs[rest], labels[rest], alone).posterior
        wrong += options.error(posterior, (inputs[fold], labels[fold])) * len(fold)
        looked_at += len(fold)
    return wrong / looked_at

"""What a kind of posterior is in settings: its options, and how they turn labels into draws.

A kind lives in one file: a `Posterior`, and a `PosteriorOptions` beside it whose ``fit`` makes one. Listing the
options in ``batchbalance.posteriors`` (or in an entry point, or naming their path) makes them known to Python, to TOML
files and to `Learner` at once.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from batchbalance.networks import Network, built, network_named
from batchbalance.posteriors.contract import Posterior
from batchbalance.sections import Section
from batchbalance.training import Labelled, ModelFactory, Recipe


@dataclass(frozen=True, eq=False)
class Fitted:
    """A posterior, and how often it is wrong.

    Attributes:
        posterior: the draws.
        validation_error: the error on validation data; None if there are none.
        cross_validated_error: the error on training rows that were left out; None for kinds that do not leave any out.
    """

    posterior: Posterior
    validation_error: float | None = None
    cross_validated_error: float | None = None

    @property
    def error(self) -> float | None:
        """ε: the error on validation data if there are any, else the cross-validated one."""
        return self.cross_validated_error if self.validation_error is None else self.validation_error


# Called with inputs, int64 labels and a seed. A method `untrained(inputs, seed)`, if any, serves before any label.
Fit = Callable[[Tensor, Tensor, int], Posterior | Fitted]


@dataclass(frozen=True, eq=False)
class FitContext:
    """What a fit needs beside inputs and labels.

    Attributes:
        num_classes: C.
        seed: same seed, same draws.
        network: builds the network, for the kinds that have one.
        network_options: of the network.
        recipe: how networks are trained; the defaults of `Recipe` if left out.
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
        """Builds the network for inputs like these."""
        if self.network is None:
            raise ValueError("`network` must be given for this kind of posterior, got none; name one, or a function")
        shape = tuple(inputs.shape[1:])
        return partial(built, self.network, self.num_classes, shape, **(self.network_options or {}))


class PosteriorOptions(Section, ABC):
    """The options of a kind of posterior. Subclasses declare theirs as fields.

    Attributes:
        kind: the name or path that it is found by.
    """

    table = "[posterior]"
    has_network: ClassVar[bool] = False  # whether a network is built for it
    flat_inputs: ClassVar[bool] = False  # whether inputs are flattened to one row of features each
    uses_unlabelled: ClassVar[bool] = False  # whether `FitContext.unlabelled` is looked at

    kind: str

    @property
    def uses_recipe(self) -> bool:
        """Whether networks are trained by a `Recipe`."""
        return False

    @abstractmethod
    def fit(self, inputs: Tensor, labels: Tensor, context: FitContext) -> Fitted:
        """Draws of a model trained on (N, ...) inputs and (N,) labels.

        ε is the error of the network with dropout off, or of the mean prediction for kinds without such a network.
        """

    def untrained(self, inputs: Tensor, context: FitContext) -> Fitted | None:  # noqa: ARG002
        """Draws before any training, to choose a first batch by; None for kinds without one network."""
        return None

    def for_metrics(self, posterior: Posterior) -> Posterior:
        """The draws that test metrics are computed with: all of them, unless the options say otherwise."""
        return posterior


@dataclass(frozen=True)
class PosteriorFit:
    """Fits the posterior that options describe; a `Fit`.

    Attributes:
        options: the kind of posterior and its options.
        num_classes: C.
        network: a registered name, a path, or a function that builds the network, for the kinds that have one. It is
            called with `num_classes` and `input_shape` if it takes them.
        network_options: of the network.
        recipe: how networks are trained.
        validation: inputs and labels for early stopping and for ε, or a function that gives those that may be used
            with so many training labels; None for no validation.
        device: where to train.
    """

    options: PosteriorOptions
    num_classes: int
    network: str | Network | None = None
    network_options: dict[str, Any] | None = None
    recipe: Recipe | None = None
    validation: Labelled | Callable[[int], Labelled | None] | None = None
    device: str = "cpu"

    def __post_init__(self) -> None:
        if not isinstance(self.options, PosteriorOptions):
            raise TypeError(f"`options` must be those of a posterior, got {self.options!r}")
        if self.options.has_network and self.network is None:
            raise ValueError(f"`network` must be given for posterior {self.options.kind!r}, got none")

    @property
    def uses_unlabelled(self) -> bool:
        """Whether inputs without labels are of use to a fit."""
        return self.options.uses_unlabelled

    def __call__(self, inputs: Tensor, labels: Tensor, seed: int, unlabelled: Tensor | None = None) -> Fitted:
        """Draws of a model trained on (N, ...) inputs and (N,) labels."""
        return self.options.fit(inputs, labels, self._context(len(labels), seed, unlabelled))

    def untrained(self, inputs: Tensor, seed: int) -> Fitted | None:
        """Draws before any training; None for kinds without one network."""
        return self.options.untrained(inputs, self._context(0, seed))

    def _context(self, num_labels: int, seed: int, unlabelled: Tensor | None = None) -> FitContext:
        return FitContext(
            self.num_classes,
            seed,
            network_named(self.network) if isinstance(self.network, str) else self.network,
            self.network_options,
            self.recipe,
            self.validation(num_labels) if callable(self.validation) else self.validation,
            self.device,
            unlabelled,
        )


def with_error(posterior: Posterior, validation: Labelled | None) -> Fitted:
    """A posterior and the share of validation inputs that its mean prediction gets wrong."""
    if validation is None:
        return Fitted(posterior)
    predicted = posterior.predict(validation[0]).mean_probs().argmax(dim=1)
    return Fitted(posterior, float((predicted != validation[1].to(predicted.device)).to(torch.float64).mean()))

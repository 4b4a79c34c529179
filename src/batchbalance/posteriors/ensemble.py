"""Posteriors of S sets of weights of one architecture, such as deep ensembles."""

import copy
import os
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from batchbalance.arguments.checks import check_whole
from batchbalance.arguments.sections import MAX_DRAWS, NumDraws
from batchbalance.arguments.seeds import derived_seed
from batchbalance.posteriors.contract import Posterior, last_hidden
from batchbalance.posteriors.kinds import FitContext, Fitted, PosteriorOptions
from batchbalance.posteriors.outputs import check_logits, with_outputs
from batchbalance.posteriors.saved import as_network, fingerprint, load_weights, read_saved, structure_of
from batchbalance.posteriors.training.calling import (
    Batch,
    arguments,
    logits_in,
    placed,
)
from batchbalance.posteriors.training.fitting import (
    KeptWeights,
    Labelled,
    ModelFactory,
    Recipe,
    check_finite,
    check_several,
    copied_state,
    fit,
)

State = Mapping[str, Tensor]
Draws = TypeVar("Draws", bound="WeightDraws")


class WeightDraws(Posterior):
    """A posterior of S sets of weights, empty until it is fitted or loaded."""

    takes_structures: ClassVar[bool] = True
    _network: nn.Module  # set by a fit

    def __init__(
        self,
        model_factory: ModelFactory,
        seed: int,
        outputs: str = "logits",
        binary: bool = False,
        multi_label: bool = False,
    ) -> None:
        self._reading: dict[str, Any] = {"outputs": outputs, "binary": binary, "multi_label": multi_label}
        self._values = "label-logits" if multi_label else "log-probs"
        self._model_factory = model_factory
        if binary or outputs != "logits":
            self._model_factory = lambda: with_outputs(model_factory(), **self._reading)
        self._seed = seed
        self._states: tuple[State, ...] = ()

    @classmethod
    def load(cls: type[Draws], directory: str | os.PathLike[str], network: Any = None) -> Draws:
        """Read a saved posterior, given a network of the same architecture or a function that builds one."""
        tensors, options = read_saved(directory, cls.kind)
        states: list[dict[str, Tensor]] = [{} for _ in range(options["num_draws"])]
        for name, value in tensors.items():
            draw, _, key = name.partition("/")
            states[int(draw)][key] = value
        model = copy.deepcopy(as_network(network, directory))
        factory = (lambda: copy.deepcopy(network)) if isinstance(network, nn.Module) else network
        loaded = cls._from_options(factory, options)
        model = with_outputs(model, **loaded._reading)
        for state in states:
            load_weights(model, state, directory)
        loaded._keep(model, states)
        return loaded

    @classmethod
    @abstractmethod
    def _from_options(cls: type[Draws], model_factory: ModelFactory, options: dict[str, Any]) -> Draws:
        """Return an unfitted posterior with the saved options."""

    @abstractmethod
    def _options(self) -> dict[str, Any]:
        """Return the options to save."""

    def _keep(self, model: nn.Module, states: Sequence[State]) -> None:
        """Set all draws at once, so that an interrupted fit leaves the posterior unchanged."""
        for state in states:
            with torch.no_grad():
                model.load_state_dict(state)
            check_finite(model)
        structure = structure_of(model)
        self._draw_ids = tuple(
            f"{fingerprint(state, self.kind, structure)}-{draw}" for draw, state in enumerate(states)
        )
        self._states = tuple({key: placed(value, value.device) for key, value in state.items()} for state in states)
        self._network = model.eval().requires_grad_(False)

    def _state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        options = {**self._options(), **self._reading, "num_draws": self.num_draws}
        states = enumerate(self._states)
        return {f"{draw}/{key}": value for draw, state in states for key, value in state.items()}, options

    def _logits(self, batch: Batch) -> Tensor:
        outputs = list(self._outputs(batch))
        check_logits(outputs[0], multi_label=self._reading["multi_label"])
        return torch.stack(outputs, dim=1)

    def _hidden(self, batch: Batch) -> Tensor:
        return self._hidden_of_draws(batch).mean(dim=1)

    def _hidden_of_draws(self, batch: Batch) -> Tensor:
        self._check_fitted()
        with last_hidden(self._network) as hidden:
            return torch.stack([hidden(logits) for logits in self._outputs(batch)], dim=1)

    def _outputs(self, batch: Batch) -> Iterator[Tensor]:
        """Yield the logits of a batch under each draw."""
        batch = self._placed(batch)
        positions, keywords = arguments(self._network, batch)
        for state in self._states:
            yield logits_in(functional_call(self._network, dict(state), positions, keywords))


class DeepEnsemble(WeightDraws):
    """Networks trained from different initial weights and orders of examples (Lakshminarayanan et al. 2017).

    Args:
        model_factory: builds the network.
        size: S.
        recipe: how each member is trained.
        seed: each member has a seed derived from it.
        outputs: what the network returns: "logits" (or log-probabilities), or "probs" if it ends in a softmax.
        binary: the network returns one output, the logit (or probability) of the second of two classes.
        multi_label: the network returns one output for each of L labels, of which an input may have several.

    Attributes:
        kept: which weights of each member were kept; empty before a fit and for a loaded ensemble.
    """

    kind: ClassVar[str] = "deep-ensemble"

    def __init__(
        self,
        model_factory: ModelFactory,
        size: int = 5,
        recipe: Recipe | None = None,
        *,
        seed: int = 0,
        outputs: str = "logits",
        binary: bool = False,
        multi_label: bool = False,
    ) -> None:
        super().__init__(model_factory, seed, outputs, binary, multi_label)
        self.size = check_whole("size", size, 1, MAX_DRAWS)
        self.recipe = recipe or Recipe()
        self.kept: tuple[KeptWeights, ...] = ()

    def fit(
        self,
        inputs: Any,
        labels: Tensor,
        *,
        num_classes: int,
        validation: Labelled | None = None,
        device: str | torch.device = "cpu",
        progress: bool = False,
    ) -> "DeepEnsemble":
        """Train every member; arguments as in `training.fit`. An interrupted run leaves the posterior unchanged."""
        check_several(labels, self._reading["multi_label"])
        states: list[State] = []
        kept = []
        for member in range(self.size):
            trained = fit(
                self._model_factory,
                inputs,
                labels,
                self.recipe,
                num_classes=num_classes,
                validation=validation,
                seed=derived_seed(self._seed, "member", member),
                device=device,
                progress=progress,
            )
            states.append(copied_state(trained.model))
            kept.append(trained.kept)
        self._keep(trained.model, states)
        self.kept = tuple(kept)
        return self

    @classmethod
    def _from_options(cls, model_factory: ModelFactory, options: dict[str, Any]) -> "DeepEnsemble":
        reading = {key: options[key] for key in ("outputs", "binary", "multi_label")}
        return cls(model_factory, options["num_draws"], Recipe(**options["recipe"]), seed=options["seed"], **reading)

    def _options(self) -> dict[str, Any]:
        return {"recipe": asdict(self.recipe), "seed": self._seed}


class EnsembleOptions(PosteriorOptions):
    """Networks trained from different initial weights.

    Attributes:
        size: S.
    """

    has_network: ClassVar[bool] = True
    uses_recipe: ClassVar[bool] = True

    kind: str = "deep-ensemble"
    size: NumDraws = 5

    def fit(self, inputs: Tensor, labels: Tensor, context: FitContext) -> Fitted:
        """Train every member; ε is the error of the mean prediction."""
        build, several = context.factory(inputs), labels.ndim == 2
        ensemble = DeepEnsemble(build, self.size, context.recipe, seed=context.seed, multi_label=several)
        ensemble.fit(
            inputs, labels, num_classes=context.num_classes, validation=context.validation, device=context.device
        )
        return self.fitted(ensemble, context, ensemble.kept)

"""Draws that are whole networks: one architecture, S sets of weights."""

import copy
import os
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from batchbalance.posteriors.contract import Posterior, last_hidden
from batchbalance.posteriors.outputs import check_logits, with_outputs
from batchbalance.posteriors.saved import as_network, fingerprint, load_weights, read_saved, structure_of
from batchbalance.posteriors.training.calling import (
    Batch,
    arguments,
    changed,
    logits_in,
    num_rows,
    padding_of,
    some_rows,
)
from batchbalance.posteriors.training.fitting import ModelFactory, check_dtype, check_finite, placed
from batchbalance.posteriors.training.networks import flops_of

State = Mapping[str, Tensor]
Draws = TypeVar("Draws", bound="WeightDraws")


class WeightDraws(Posterior):
    """A posterior of S sets of weights, empty until it is fitted or loaded."""

    takes_structures: ClassVar[bool] = True

    def __init__(self, model_factory: ModelFactory, seed: int, outputs: str = "logits", binary: bool = False) -> None:
        self._model_factory: ModelFactory = model_factory
        if outputs != "logits" or binary:
            self._model_factory = lambda: with_outputs(model_factory(), outputs, binary)
        self._reading: dict[str, Any] = {"outputs": outputs, "binary": binary} if outputs != "logits" or binary else {}
        self._seed = seed
        self._flops: float | None = None  # of the network, for one input
        self._model: nn.Module | None = None
        self._states: tuple[State, ...] = ()
        self._draw_ids: tuple[str, ...] = ()

    @property
    def draw_ids(self) -> tuple[str, ...]:
        """Names made of the weights and the number of the draw."""
        if self._model is None:
            raise ValueError(f"{type(self).__name__} must be fitted first, got one without draws; call `fit`")
        return self._draw_ids

    @classmethod
    def load(cls: type[Draws], directory: str | os.PathLike[str], network: Any = None) -> Draws:
        """Read what ``save`` wrote, given a network of the same architecture or a function that builds one."""
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
        """Take the draws, all at once: a fit that is cut short leaves the posterior as it was."""
        for state in states:
            with torch.no_grad():
                model.load_state_dict(state)
            check_finite(model)
        structure = structure_of(model)
        self._draw_ids = tuple(
            f"{fingerprint(state, self.kind, structure)}-{draw}" for draw, state in enumerate(states)
        )
        self._states = tuple({key: placed(value, value.device) for key, value in state.items()} for state in states)
        self._model = model.eval().requires_grad_(False)

    def _state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors = {
            f"{draw}/{key}": value
            for (draw, state), _ in zip(enumerate(self._states), self.draw_ids, strict=True)
            for key, value in state.items()
        }
        return tensors, {**self._options(), **self._reading, "num_draws": self.num_draws}

    @property
    def _padding(self) -> int:
        return padding_of(self._ready())

    def _logits(self, batch: Batch) -> Tensor:
        outputs = list(self._outputs(batch))
        check_logits(outputs[0])
        return torch.stack(outputs, dim=1)

    def _pass_flops(self, batch: Batch) -> float:
        if self._flops is None:
            self._flops = flops_of(self._ready(), self._placed(some_rows(batch, slice(1))))
        return self._flops * num_rows(batch)

    def _hidden(self, batch: Batch) -> Tensor:
        return self._hidden_of_draws(batch).mean(dim=1)

    def _hidden_of_draws(self, batch: Batch) -> Tensor:
        with last_hidden(self._ready()) as hidden:
            return torch.stack([hidden(logits) for logits in self._outputs(batch)], dim=1)

    def _outputs(self, batch: Batch) -> Iterator[Tensor]:
        """Yield the logits of a batch under each draw."""
        model = self._ready()
        positions, keywords = arguments(model, self._placed(batch))
        for state in self._states:
            yield logits_in(functional_call(model, dict(state), positions, keywords))

    def _placed(self, batch: Batch) -> Batch:
        model = self._ready()
        check_dtype(model, batch)
        device = next(model.parameters()).device
        return changed(batch, lambda part: placed(part, device))

    def _ready(self) -> nn.Module:
        if self._model is None:
            raise ValueError(f"{type(self).__name__} must be fitted first, got one without draws; call `fit`")
        return self._model

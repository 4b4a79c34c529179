"""The last layer of a trained network made Bayesian: Laplace's approximation around the weights it has.

A last-layer Laplace approximation (Kristiadi et al. 2020) with a temperature. Everything before the last linear layer
is computed once for all draws.
"""

import copy
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from batchbalance.checks import check_real, check_whole
from batchbalance.posteriors.contract import (
    Posterior,
    as_network,
    fingerprint,
    fitting,
    load_weights,
    read_saved,
    structure_of,
)
from batchbalance.posteriors.linear import LinearDraws, laplace_draws
from batchbalance.posteriors.tuning import Tuned
from batchbalance.threads import for_work
from batchbalance.training import check_labelled

SAVED = ("scale", "best", "draws")


class LastLayer(Posterior):
    """Draws of the last linear layer of a network; ``BayesianHead.from_model`` makes one.

    Args:
        model: the network; it is copied and put in eval mode.
        scale: () what the features and the constant feature 1 are divided by.
        found: the weights of the layer times `scale`, (D + 1, C), the last row is the bias; and draws around them.

    Attributes:
        tuned: precision and temperature, and what the data say about them.
        covariance: "exact", or "kronecker" for large layers.
    """

    kind: ClassVar[str] = "last-layer"

    def __init__(self, model: nn.Module, scale: Tensor, found: LinearDraws) -> None:
        self._model = copy.deepcopy(model).eval()
        self._scale, self._found = scale, found
        self.tuned, self.covariance = found.tuned, found.covariance
        weights = {**self._model.state_dict(), "draws": found.draws}
        digest = fingerprint(weights, self.kind, structure_of(self._model))
        self._ids = tuple(f"{digest}-{draw}" for draw in range(found.draws.shape[1]))

    def __repr__(self) -> str:
        return f"LastLayer({len(self._ids)} draws; {self.tuned}; {self.covariance} covariance)"

    @property
    def draw_ids(self) -> tuple[str, ...]:
        """Names made of the weights and the number of the draw."""
        return self._ids

    @property
    def most_probable(self) -> "LastLayer":
        """The one draw at the weights that the network has."""
        return LastLayer(self._model, self._scale, replace(self._found, draws=self._found.best[:, None]))

    @classmethod
    def of(
        cls,
        model: nn.Module,
        loader: Iterable[Any],
        num_draws: int = 100,
        *,
        prior_precision: float | None = None,
        temperature: float | None = None,
        seed: int = 0,
    ) -> "LastLayer":
        """Draws around the last layer of a network. The arguments are those of ``BayesianHead.from_model``."""
        check_whole("num_draws", num_draws)
        given = {"precision": prior_precision, "temperature": temperature}
        given = {name: None if value is None else check_real(name, value, above=True) for name, value in given.items()}
        copied = copy.deepcopy(model).eval()
        features, labels, layer = _features_of(copied, loader)
        rows = _with_constant(features)
        scale = rows.square().sum(dim=1).mean().sqrt()
        bias = layer.weight.new_zeros(layer.out_features) if layer.bias is None else layer.bias
        centre = torch.cat([layer.weight.T, bias[None]]).detach().to(rows) * scale
        num_classes = centre.shape[1]
        check_labelled("features of `loader`", "its labels", rows, labels, num_classes)
        with for_work(20.0 * rows.numel() * num_classes):
            found = laplace_draws(rows / scale, labels, num_classes, num_draws, seed=seed, centre=centre, **given)
        return cls(copied, scale, found)

    @classmethod
    def loaded(cls, directory: str | os.PathLike[str], network: Any) -> "Posterior":
        """Read what ``save`` wrote."""
        return cls.load(directory, network)

    @classmethod
    def load(cls, directory: str | os.PathLike[str], network: Any) -> "LastLayer":
        """Read what ``save`` wrote; `network` has the same architecture, or is a function that builds one."""
        tensors, options = read_saved(directory, cls.kind)
        model = copy.deepcopy(as_network(network, directory))
        scale, best, draws = (tensors.pop(f"layer/{name}") for name in SAVED)
        load_weights(model, {name.removeprefix("network/"): value for name, value in tensors.items()}, directory)
        return cls(model, scale, LinearDraws(best, draws, Tuned(**options["tuned"]), options["covariance"]))

    def _state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors = {f"network/{name}": value for name, value in self._model.state_dict().items()}
        layer = dict(zip(SAVED, (self._scale, self._found.best, self._found.draws), strict=True))
        tensors |= {f"layer/{name}": value for name, value in layer.items()}
        return tensors, {"tuned": asdict(self.tuned), "covariance": self.covariance}

    def _logits(self, batch: Tensor) -> Tensor:
        rows = _with_constant(self._hidden(batch)) / self._scale
        draws = self._found.draws
        return (rows @ draws.flatten(1)).reshape(len(rows), *draws.shape[1:])

    def _hidden(self, batch: Tensor) -> Tensor:
        with _last_linear(self._model) as seen:
            self._model(batch)
        return seen[0][1].to(self._found.draws)


@contextmanager
def _last_linear(model: nn.Module) -> Iterator[list[tuple[nn.Linear, Tensor, Tensor]]]:
    """Give a list that holds, after a forward pass, the last linear layer that ran, its input and its output."""
    seen: list[tuple[nn.Linear, Tensor, Tensor]] = []

    def record(layer: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        seen[:] = [(layer, args[0], output)]  # type: ignore[list-item]

    handles = [each.register_forward_hook(record) for each in model.modules() if isinstance(each, nn.Linear)]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def _features_of(model: nn.Module, loader: Iterable[Any]) -> tuple[Tensor, Tensor, nn.Linear]:
    """The inputs of the last layer for all of a loader, (N, D), the labels, (N,), and the layer."""
    features, labels, layer = [], [], None
    for item in loader:
        if not isinstance(item, list | tuple) or len(item) != 2:
            raise ValueError(f"`loader` must give batches of inputs and labels, got {type(item).__name__}")
        batch, truth = item
        with torch.no_grad(), fitting(batch), _last_linear(model) as seen:
            logits = model(batch)
        if not seen or seen[0][2].shape != logits.shape or not torch.equal(seen[0][2], logits):
            raise ValueError(
                "`model` must end in a linear layer, got outputs that are none of its own; leave out what follows it"
            )
        layer, hidden, _ = seen[0]
        features.append(hidden.detach().float() if hidden.dtype != torch.float64 else hidden.detach())
        labels.append(torch.as_tensor(truth).to(hidden.device))
    if layer is None:
        raise ValueError("`loader` must hold at least one batch, got none")
    return torch.cat(features), torch.cat(labels), layer


def _with_constant(features: Tensor) -> Tensor:
    return torch.cat([features, features.new_ones(len(features), 1)], dim=1)

"""A Bayesian last layer of a trained network: Laplace's approximation around its weights.

A last-layer Laplace approximation (Kristiadi et al. 2020) with a temperature. Everything before the last linear layer
is computed once for all draws.
"""

import copy
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from batchbalance.arguments.checks import check_real, check_whole
from batchbalance.arguments.sections import MAX_DRAWS
from batchbalance.posteriors.contract import Posterior, last_hidden
from batchbalance.posteriors.inputs import fitting
from batchbalance.posteriors.linear import LinearDraws, laplace_draws, linear_logits
from batchbalance.posteriors.outputs import network_of
from batchbalance.posteriors.saved import as_network, fingerprint, load_weights, read_saved, structure_of
from batchbalance.posteriors.training.calling import LABELS, Batch, first_of, logits_from
from batchbalance.posteriors.training.fitting import check_labelled
from batchbalance.posteriors.tuning import Tuned
from batchbalance.system.threads import for_work

SAVED = ("scale", "best", "draws")


class LastLayer(Posterior):
    """Draws of the last linear layer of a network, created by ``LastLayer.from_model``.

    Args:
        model: the network; it is copied and put in eval mode.
        scale: () the divisor of the features and of the constant feature 1.
        found: the weights of the layer times `scale`, then its bias, (D + 1, C); and draws around them.

    Attributes:
        tuned: precision and temperature, and the held-out errors.
        covariance: "exact", or "kronecker" for large layers.
    """

    kind: ClassVar[str] = "last-layer"
    takes_structures: ClassVar[bool] = True

    def __init__(self, model: nn.Module, scale: Tensor, found: LinearDraws) -> None:
        self._network: nn.Module = copy.deepcopy(model).eval()
        self._scale, self._found = scale, found
        self.tuned, self.covariance = found.tuned, found.covariance
        weights = {**self._network.state_dict(), "draws": found.draws}
        digest = fingerprint(weights, self.kind, structure_of(self._network))
        self._draw_ids = tuple(f"{digest}-{draw}" for draw in range(found.draws.shape[1]))

    def __repr__(self) -> str:
        return f"LastLayer({self.num_draws} draws; {self.tuned}; {self.covariance} covariance)"

    @property
    def most_probable(self) -> "LastLayer":
        """A posterior with one draw, at the weights of the network."""
        return LastLayer(self._network, self._scale, replace(self._found, draws=self._found.best[:, None]))

    @classmethod
    def from_model(
        cls,
        model: nn.Module,
        loader: Iterable[Any],
        num_draws: int = 100,
        *,
        prior_precision: float | None = None,
        temperature: float | None = None,
        seed: int = 0,
    ) -> "LastLayer":
        """Return draws of the last linear layer of a trained network, around its weights.

        Args:
            model: a network that ends in a linear layer whose outputs are logits.
            loader: batches of inputs and labels, or dicts with both, preferably of data that the network was not
                trained on: on its own training data a network is overconfident.
            num_draws: S.
            prior_precision: of the weights, for features of unit length on average; 1/64 if omitted.
            temperature: factor of the covariance; chosen on the data if omitted.
            seed: for the draws and for cross-validation.
        """
        check_whole("num_draws", num_draws, 1, MAX_DRAWS)
        given = {"precision": prior_precision, "temperature": temperature}
        given = {name: None if value is None else check_real(name, value, above=True) for name, value in given.items()}
        copied = copy.deepcopy(network_of(model)).eval()
        features, labels, layer = _features_of(copied, loader)
        scale = (features.double().square().sum(dim=1).mean() + 1).sqrt().to(features)  # includes the constant feature
        bias = layer.weight.new_zeros(layer.out_features) if layer.bias is None else layer.bias
        centre = torch.cat([layer.weight.T.to(scale) * scale, bias[None].to(scale)]).detach()
        num_classes = centre.shape[1]
        check_labelled("features of `loader`", "its labels", features, labels, num_classes)
        given["bias"] = 1 / float(scale)
        with for_work(20.0 * features.numel() * num_classes):
            found = laplace_draws(features / scale, labels, num_classes, num_draws, seed=seed, centre=centre, **given)
        return cls(copied, scale, found)

    @classmethod
    def load(cls, directory: str | os.PathLike[str], network: Any = None) -> "LastLayer":
        """Read a saved posterior; `network` has the same architecture, or is a function that builds one."""
        tensors, options = read_saved(directory, cls.kind)
        model = copy.deepcopy(as_network(network, directory))
        scale, best, draws = (tensors.pop(f"layer/{name}") for name in SAVED)
        load_weights(model, {name.removeprefix("network/"): value for name, value in tensors.items()}, directory)
        return cls(model, scale, LinearDraws(best, draws, Tuned(**options["tuned"]), options["covariance"]))

    def _state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors = {f"network/{name}": value for name, value in self._network.state_dict().items()}
        layer = dict(zip(SAVED, (self._scale, self._found.best, self._found.draws), strict=True))
        tensors |= {f"layer/{name}": value for name, value in layer.items()}
        return tensors, {"tuned": asdict(self.tuned), "covariance": self.covariance}

    def _logits(self, batch: Batch) -> Tensor:
        return linear_logits(self._hidden(batch) / self._scale, self._found.draws)

    def _hidden(self, batch: Batch) -> Tensor:
        with last_hidden(self._network) as hidden:
            logits = logits_from(self._network, self._placed(batch))
        return hidden(logits).to(self._found.draws)


def _features_of(model: nn.Module, loader: Iterable[Any]) -> tuple[Tensor, Tensor, nn.Linear]:
    """Return the inputs of the last layer for all of a loader, (N, D), the labels, (N,), and the layer."""
    features, labels, layer = [], [], None
    for item in loader:
        batch, truth = first_of(item), None
        if isinstance(item, Mapping):
            truth = next((item[key] for key in LABELS if key in item), None)
        elif isinstance(item, list | tuple) and len(item) == 2:
            truth = item[1]
        if truth is None:
            got = type(item).__name__
            raise ValueError(f"`loader` must yield batches of inputs and labels, got {got} without labels")
        with torch.no_grad(), fitting(batch), last_hidden(model) as hidden:
            logits = logits_from(model, batch)
            layer, rows = hidden.layer, hidden(logits)
            ends_there = rows.ndim == 2 and layer.out_features == logits.shape[1]
            if not ends_there or not torch.allclose(layer(rows), logits, rtol=1e-3, atol=1e-4):
                raise ValueError(
                    "`model` must end in a linear layer, got outputs that are not those of its last linear layer; "
                    "remove the layers after it"
                )
        features.append(rows if rows.dtype == torch.float64 else rows.float())
        labels.append(torch.as_tensor(truth).to(rows.device))
    if layer is None:
        raise ValueError("`loader` must hold at least one batch, got none")
    return torch.cat(features), torch.cat(labels), layer

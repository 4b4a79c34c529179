"""Outputs of networks are read as logits, unless the user declares something else.

A network that ends in a softmax, or in one logit for two classes, gets one more layer that turns its outputs into
logits, so that all other code reads only logits.
"""

import warnings

import torch
from torch import Tensor, nn

from batchbalance.errors import UnknownNameError
from batchbalance.posteriors.training.calling import Batch, logits_from
from batchbalance.predictions import looks_like_probs

OUTPUTS = ("logits", "probs")


class TwoLogits(nn.Module):
    """Turns one logit z of the second class into the two logits (0, z), so that softmax gives its sigmoid."""

    def forward(self, outputs: Tensor) -> Tensor:
        """Turn (n, 1) logits into (n, 2)."""
        _check_single(outputs)
        return torch.cat([torch.zeros_like(outputs), outputs], dim=-1)


class TwoProbs(nn.Module):
    """Turns one probability p of the second class into (1 − p, p)."""

    def forward(self, outputs: Tensor) -> Tensor:
        """Turn (n, 1) probabilities into (n, 2)."""
        _check_single(outputs)
        return torch.cat([1 - outputs, outputs], dim=-1)


class LogProbs(nn.Module):
    """Turns probabilities into their logarithms, which are logits too."""

    def forward(self, outputs: Tensor) -> Tensor:
        """Return log-probabilities of the same shape, (n, C)."""
        if not looks_like_probs(outputs):
            raise ValueError(
                "the model must give probabilities, non-negative and summing to 1 in each row, as outputs='probs' "
                f"says, got {outputs.detach()[0].tolist()}; omit `outputs` if these are logits"
            )
        return outputs.log()


class Reading(nn.Sequential):
    """A network that may take dicts and tuples, and layers that turn its outputs into logits."""

    def forward(self, inputs: Batch, /) -> Tensor:
        """Return the logits of a batch, (n, C)."""
        model, *layers = self
        logits = logits_from(model, inputs)
        for layer in layers:
            logits = layer(logits)
        return logits


def with_outputs(model: nn.Module, outputs: str = "logits", binary: bool = False) -> nn.Module:
    """Append layers to the model that turn its outputs into logits.

    Args:
        model: gives (n, C), or (n, 1) if `binary`.
        outputs: "logits" (log-probabilities are logits too) or "probs".
        binary: whether the one output is the logit, or the probability, of the second of two classes.
    """
    if outputs not in OUTPUTS:
        raise UnknownNameError("kind of outputs", str(outputs), OUTPUTS)
    layers: list[nn.Module] = []
    if binary:
        layers.append(TwoLogits() if outputs == "logits" else TwoProbs())
    if outputs == "probs":
        layers.append(LogProbs())
    return Reading(model, *layers) if layers else model


def check_logits(logits: Tensor, context: str = "the model") -> None:
    """Raise ValueError unless these are (n, C) outputs of at least two classes that may be logits."""
    if logits.ndim != 2:
        raise ValueError(f"{context} must give logits (N, C), got shape {tuple(logits.shape)}")
    if logits.shape[1] == 1:
        raise ValueError(
            f"{context} must give at least two classes, got one output; if it is the logit of the second of two "
            "classes, pass binary=True"
        )
    if looks_like_probs(logits):
        raise ValueError(
            f"{context} must give logits, got rows that are non-negative and sum to 1, which would be softmaxed again; "
            "pass outputs='probs', or remove the softmax"
        )
    only = logits[:, 1] if logits.shape[1] == 2 and not bool(logits[:, 0].any()) else logits.new_empty(0)
    if len(only) > 1 and bool(((only >= 0) & (only <= 1)).all()):
        warnings.warn(
            f"the one output of {context} lies between 0 and 1 for all inputs, and is read as a logit: if it is a "
            "probability, pass outputs='probs'",
            stacklevel=3,
        )


def _check_single(outputs: Tensor) -> None:
    if outputs.ndim != 2 or outputs.shape[1] != 1:
        raise ValueError(
            f"the model must give one output (N, 1), as binary=True says, got shape {tuple(outputs.shape)}; "
            "omit `binary` if it gives one for each class"
        )

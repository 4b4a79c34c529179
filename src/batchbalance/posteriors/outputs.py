"""Outputs of networks. They are logits unless the user declares something else.

A network that ends in a softmax, or in one logit for two classes, gets an additional layer that converts its outputs
to logits, so that all other code handles only logits.
"""

import warnings
from typing import Any

import torch
from torch import Tensor, nn

from batchbalance.errors import UnknownNameError
from batchbalance.posteriors.training.calling import Batch, logits_from
from batchbalance.predictions import looks_like_probs

OUTPUTS = ("logits", "probs")


class AsLogits(nn.Module):
    """A layer that converts the outputs of a network to logits.

    One logit z of the second of two classes becomes (0, z), one probability p becomes (1 − p, p), and probabilities
    become their logarithms, which are valid logits. Probabilities of several labels become log-odds.
    """

    def __init__(self, outputs: str, binary: bool, multi_label: bool) -> None:
        super().__init__()
        self.outputs, self.binary, self.multi_label = outputs, binary, multi_label

    def extra_repr(self) -> str:
        """Return the options, which distinguish the draws of two readings."""
        return f"{self.outputs}, binary={self.binary}, multi_label={self.multi_label}"

    def forward(self, outputs: Tensor) -> Tensor:
        """Return (n, C) logits."""
        is_probs = self.outputs == "probs"
        if self.multi_label:
            if bool(((outputs < 0) | (outputs > 1)).any()):
                raise ValueError(
                    "the model must return probabilities in [0, 1] for outputs='probs', got "
                    f"{outputs.detach()[0].tolist()}; omit `outputs` if these are log-odds"
                )
            return outputs.logit(torch.finfo(outputs.dtype).eps)
        if self.binary:
            if outputs.ndim != 2 or outputs.shape[1] != 1:
                raise ValueError(
                    f"the model must return one output (N, 1) for binary=True, got shape {tuple(outputs.shape)}; "
                    "omit `binary` if it returns one for each class"
                )
            first = 1 - outputs if is_probs else torch.zeros_like(outputs)
            outputs = torch.cat([first, outputs], dim=-1)
        if is_probs and not looks_like_probs(outputs):
            raise ValueError(
                "the model must return probabilities, non-negative and summing to 1 in each row, for outputs='probs', "
                f"got {outputs.detach()[0].tolist()}; omit `outputs` if these are logits"
            )
        return outputs.log() if is_probs else outputs


class Reading(nn.Sequential):
    """A network that may take dicts and tuples, and a layer that converts its outputs to logits."""

    def forward(self, inputs: Batch, /) -> Tensor:
        """Return the logits of a batch, (n, C)."""
        model, as_logits = self
        return as_logits(logits_from(model, inputs))  # type: ignore[no-any-return]


def with_outputs(
    model: nn.Module, outputs: str = "logits", binary: bool = False, multi_label: bool = False
) -> nn.Module:
    """Append a layer to the model that converts its outputs to logits, if they are something else.

    Args:
        model: a network that returns (n, C), or (n, 1) if `binary`.
        outputs: "logits" (or log-probabilities) or "probs".
        binary: whether the one output is the logit, or the probability, of the second of two classes.
        multi_label: whether the outputs are log-odds, or probabilities, of L labels of which an input may have several.
    """
    if binary and multi_label:
        raise ValueError("`binary` must not be combined with `multi_label`; omit it: one label needs no other class")
    if outputs not in OUTPUTS:
        raise UnknownNameError("kind of outputs", str(outputs), OUTPUTS)
    needed = binary or outputs != "logits"
    return Reading(model, AsLogits(outputs, binary, multi_label)) if needed else model


def check_logits(logits: Tensor, *, multi_label: bool, context: str = "the model") -> None:
    """Raise ValueError unless these are (n, C) outputs of at least two classes, or of labels, that look like logits."""
    if logits.ndim != 2:
        raise ValueError(f"{context} must return logits (N, C), got shape {tuple(logits.shape)}")
    if logits.shape[1] == 1 and not multi_label:
        raise ValueError(
            f"{context} must return at least two classes, got one output; if it is the logit of the second of two "
            "classes, pass binary=True"
        )
    if looks_like_probs(logits) and not multi_label:
        raise ValueError(
            f"{context} must return logits, got rows that are non-negative and sum to 1, as after a softmax; "
            "pass outputs='probs', or remove the softmax"
        )
    only = logits[:, 1] if logits.shape[1] == 2 and not bool(logits[:, 0].any()) else logits.new_empty(0)
    only = logits if multi_label else only
    if len(only) > 1 and bool(((only >= 0) & (only <= 1)).all()):
        warnings.warn(
            f"every output of {context} is between 0 and 1 for all inputs, and is used as a logit: if it is a "
            "probability, pass outputs='probs'",
            stacklevel=3,
        )


def network_of(model: Any) -> Any:
    """Return the network in a compiled module or a fitted skorch net; any other model unchanged."""
    return getattr(model, "_orig_mod", getattr(model, "module_", model))


def is_multi_label(model: Any) -> bool:
    """Return whether a Hugging Face model was made for items with several labels."""
    return getattr(getattr(model, "config", None), "problem_type", None) == "multi_label_classification"

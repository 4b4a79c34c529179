"""Monte Carlo dropout (Gal and Ghahramani 2016) with draws that are fixed networks.

A draw is a network with one mask for each dropout layer, made from (seed, layer, draw). Other layers are in eval mode,
so batch normalisation uses its running statistics.

Covered: every `nn.Dropout`, `Dropout1d/2d/3d`, `AlphaDropout` and `FeatureAlphaDropout` module, at any depth, those of
`nn.TransformerEncoderLayer` too. Not covered, and off as in eval mode: dropout called as a function, and the dropout
that `nn.MultiheadAttention` and `scaled_dot_product_attention` apply to attention weights, which are no modules.
"""

import copy
import os
from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from batchbalance.posteriors.contract import Posterior, fingerprint, last_hidden, load_weights, read_saved
from batchbalance.posteriors.masks import CHANNELWISE, ELEMENTWISE, Mask
from batchbalance.posteriors.sliced import Chain
from batchbalance.training import check_dtype, check_finite, placed, set_channels_last


class MCDropout(Posterior):
    """Draws of a trained network with dropout.

    Args:
        model: any module with dropout layers that gives logits (N, C); it is copied.
        num_draws: S.
        seed: for the masks. Draw 7 is the same network whatever `num_draws` is.
        fast: run chains of layers as smaller networks (same numbers to about 1e-6); False for the general path.
    """

    kind: ClassVar[str] = "mc-dropout"

    def __init__(self, model: nn.Module, num_draws: int = 100, seed: int = 0, *, fast: bool = True) -> None:
        if isinstance(num_draws, bool) or not isinstance(num_draws, int) or num_draws < 1:
            raise ValueError(f"`num_draws` must be a whole number of at least 1, got {num_draws!r}")
        check_finite(model)
        weights = model.state_dict()
        self._model = copy.deepcopy(model).eval().requires_grad_(False)
        set_channels_last(self._model)
        self._seed = seed
        self._masks = _fix_masks(self._model, seed)
        self._chain = Chain.of(self._model) if fast else None
        rates = [mask.rate for mask in self._masks]
        digest = fingerprint(weights, self.kind, seed, rates)
        self._draw_ids = tuple(f"{digest}-{draw}" for draw in range(num_draws))
        self._checked = False

    @property
    def draw_ids(self) -> tuple[str, ...]:
        """Names made of the weights, the seed and the number of the draw."""
        return self._draw_ids

    @classmethod
    def load(cls, directory: str | os.PathLike[str], model: nn.Module, *, fast: bool = True) -> "MCDropout":
        """Read what ``save`` wrote; `model` is a network of the same architecture, whose weights do not matter."""
        tensors, options = read_saved(directory, cls.kind)
        model = copy.deepcopy(model)
        load_weights(model, tensors, directory)
        return cls(model, options["num_draws"], options["seed"], fast=fast)

    def first(self, num_draws: int) -> "MCDropout":
        """The first `num_draws` draws alone, sharing the weights."""
        if not 1 <= num_draws <= self.num_draws:
            raise ValueError(f"`num_draws` must be from 1 to the {self.num_draws} draws there are, got {num_draws}")
        fewer = copy.copy(self)
        fewer._draw_ids = self._draw_ids[:num_draws]
        return fewer

    def _state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        return self._model.state_dict(), {"num_draws": self.num_draws, "seed": self._seed}

    def _logits(self, batch: Tensor) -> Tensor:
        batch = self._placed(batch)
        if self._chain is not None:
            logits = torch.cat([_stacked(runs) for runs in self._chain.runs(batch, self.num_draws)])
        else:
            logits = _stacked(self._forward(batch, draw) for draw in range(self.num_draws))
        self._check_alone(batch, logits)
        return logits

    def _hidden(self, batch: Tensor) -> Tensor:
        batch = self._placed(batch)
        if self._chain is not None and self._chain.last_linear is not None:
            blocks = self._chain.runs(batch, self.num_draws, self._chain.last_linear)
            return torch.cat([sum(runs) / self.num_draws for runs in blocks])  # type: ignore[misc]
        total = torch.zeros(())
        with last_hidden(self._model) as seen:
            for draw in range(self.num_draws):
                self._forward(batch, draw)
                total = total.to(seen[-1]) + seen[-1]
        return total / self.num_draws

    def _hidden_of_draws(self, batch: Tensor) -> Tensor:
        batch = self._placed(batch)
        if self._chain is not None and self._chain.last_linear is not None:
            blocks = self._chain.runs(batch, self.num_draws, self._chain.last_linear)
            return torch.cat([torch.stack(list(runs), dim=1) for runs in blocks])
        layers = []
        with last_hidden(self._model) as seen:
            for draw in range(self.num_draws):
                self._forward(batch, draw)
                layers.append(seen[-1].clone())
        return torch.stack(layers, dim=1)

    def _forward(self, batch: Tensor, draw: int) -> Tensor:
        for mask in self._masks:
            mask.begin(draw, len(batch))
        return self._model(batch)  # type: ignore[no-any-return]

    def _placed(self, batch: Tensor) -> Tensor:
        check_dtype(self._model, batch)
        parameter = next(self._model.parameters(), None)
        return placed(batch, batch.device if parameter is None else parameter.device)

    def _check_alone(self, batch: Tensor, logits: Tensor) -> None:
        """Once: the first input alone must give what it gives within its batch.

        A model that mixes examples, or is not batch first, would give draws that depend on the chunks.
        """
        if self._checked:
            return
        alone = self._forward(batch[:1], 0)[0]
        if not torch.allclose(alone, logits[0, 0], rtol=1e-2, atol=1e-3, equal_nan=True):
            raise ValueError(
                "the model must treat each input by itself, got other logits for the first input alone than within "
                f"its batch of {len(batch)}; build the model batch first and keep examples apart"
            )
        self._checked = True


def _stacked(runs: Iterator[Tensor]) -> Tensor:
    """(n, S, C) of S outputs (n, C)."""
    outputs = list(runs)
    if outputs[0].ndim != 2:
        raise ValueError(f"the model must give logits (N, C), got shape {tuple(outputs[0].shape)}")
    return torch.stack(outputs, dim=1)


def _fix_masks(model: nn.Module, seed: int) -> list[Mask]:
    """Put a `Mask` in the place of each dropout layer, and switch off the fused paths that would pass them by."""
    masks: dict[nn.Module, Mask] = {}
    for name, module in list(model.named_modules(remove_duplicate=False)):
        if isinstance(module, (*ELEMENTWISE, *CHANNELWISE)) and name:
            parent, _, child = name.rpartition(".")
            mask = masks.setdefault(module, Mask(module, name, seed))
            setattr(model.get_submodule(parent), child, mask)
        elif isinstance(module, nn.TransformerEncoderLayer):
            module.activation_relu_or_gelu = 0
        elif isinstance(module, nn.TransformerEncoder):
            module.use_nested_tensor = False
    if not any(mask.rate > 0 for mask in masks.values()):
        raise ValueError(
            "the model must have dropout layers with a rate above 0, got none; add nn.Dropout, or use DeepEnsemble "
            "(dropout called as a function, and attention dropout, are not modules and do not count)"
        )
    return list(masks.values())

"""A dropout draw as a smaller network (docs/posteriors.md).

A mask zeroes whole units or channels. Under one draw these can be cut out of the weights of the layers before and
after the mask, which leaves smaller products. The layers before the first dropout are the same for all draws and run
once. This works for a chain of layers; layers of unknown types run in full.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from batchbalance.posteriors.masks import Mask, is_drawn, is_plain
from batchbalance.posteriors.mixing import LEAST_DRAWS, Mixing
from batchbalance.posteriors.outputs import Reading
from batchbalance.posteriors.training.networks import Classifier

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
NORMALISATIONS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)  # in the order of CONVOLUTIONS
MAX_POOLS = (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d)
MEAN_POOLS = (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d)
ADAPTIVE_POOLS = (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d)
POOLS = (*MAX_POOLS, *MEAN_POOLS, *ADAPTIVE_POOLS)
RECTIFIERS = (nn.ReLU, nn.LeakyReLU, nn.Identity)  # f(a·x) = a·f(x) for a ≥ 0
SMOOTH = (nn.ReLU6, nn.ELU, nn.CELU, nn.SELU, nn.GELU, nn.SiLU, nn.Mish, nn.Tanh, nn.Softsign, nn.Hardswish)
LEAST_PRODUCTS = 2**22  # per draw; with fewer, running many draws at a time is faster than cutting
STACKED_ROWS = 2**12  # inputs × draws in memory at a time
ZERO_AT_ZERO = (*POOLS, *RECTIFIERS, *SMOOTH)  # these act on each channel separately, and f(0) = 0
BY_CHANNEL = (*ZERO_AT_ZERO, nn.Sigmoid, nn.Softplus, nn.Hardsigmoid, nn.LogSigmoid)


@dataclass(frozen=True)
class _Slice:
    """Activations of the units that a draw keeps.

    Attributes:
        x: (n, kept, ...) activations.
        live: the indices of the units in x among all units; None for all.
        full: the number of all units.
        size: the number of entries of axis 1 that form one unit, more than 1 for a flattened channel.
        scale: a factor that x must still be multiplied by.
        due: the mask that will drop the units that are not in x; None if they are 0 already.
    """

    x: Tensor
    live: Tensor | None = None
    full: int = 0
    size: int = 1
    scale: float = 1.0
    due: Mask | None = None

    def whole(self) -> Tensor:
        """Return all units, with zeros where they were dropped."""
        x = self.x if self.scale == 1 else self.x * self.scale
        if self.live is None:
            return x
        units = x.reshape(len(x), -1, self.size, *x.shape[2:])
        return units.new_zeros(len(x), self.full, *units.shape[2:]).index_copy_(1, self.live, units).flatten(1, 2)

    def by_number(self) -> "_Slice":
        """Return the same slice with each entry of axis 1 as a unit."""
        if self.live is None or self.size == 1:
            return self
        live = self.live[:, None] * self.size + torch.arange(self.size, device=self.live.device)
        return replace(self, live=live.flatten(), full=self.full * self.size, size=1)


class Chain:
    """A network that is one layer after another, with masks among them."""

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        # The later a mask is applied, the more layers run once for all draws, and the closer it is to a layer whose
        # weights can be cut.
        layers = _delayed(layers)
        first = next(i for i, layer in enumerate(layers) if isinstance(layer, Mask))
        self._shared = nn.Sequential(*layers[:first])
        self._layers = _folded(layers[first:])
        self._work: dict[torch.Size, int] = {}
        self._masks = [_mask_after(self._layers, i) for i in range(len(self._layers))]
        self._mixing = Mixing.of(self._layers, self._masks[1] if len(self._layers) > 1 else None)
        behind = self._layers[self._mixing.num_layers :] if self._mixing else []
        self._windows_follow = any(is_plain(layer, (*CONVOLUTIONS, *POOLS)) for layer in behind)
        linear = [i for i, layer in enumerate(self._layers) if isinstance(layer, nn.Linear)]
        self.last_linear = linear[-1] if linear else None
        last = self._layers[linear[-1] :] if linear else []
        plain = bool(last) and not any(isinstance(layer, Mask) for layer in last)
        self.head = nn.Sequential(*last) if plain else None  # the last linear layer and those after it

    @classmethod
    def of(cls, model: nn.Module) -> "Chain | None":
        """Return `model` as a chain; None if it is not one, or if a layer has a mask inside."""
        layers = _flattened(model)
        masks = [layer for layer in layers or () if isinstance(layer, Mask)]
        if layers is None or not masks or len(set(masks)) < len(masks) or any(mask.pathwise for mask in masks):
            return None
        return cls(layers)

    def runs(self, batch: Tensor, num_draws: int, stop: int | None = None) -> Iterator[Iterator[Tensor]]:
        """Yield, for each block of the batch, the output under each draw, or the input of layer `stop`."""
        shared = self._shared(batch).contiguous()
        # Three methods: mix channels of the first convolution (fastest for many draws of a large network), cut units
        # out of the weights, or run the full layers on stacked draws (small networks).
        mixing = self._mixing if num_draws >= LEAST_DRAWS else None
        if mixing is None and self._products(shared) * len(shared) < LEAST_PRODUCTS:
            yield self._stacked(shared, num_draws, stop)
            return
        if mixing is None:
            yield (self._run(_Slice(shared), draw, 0, stop) for draw in range(num_draws))
            return
        for mixed in mixing.outputs(shared, num_draws):
            if self._windows_follow:  # convolutions and pools are much faster channels last
                mixed = ((x.contiguous(memory_format=torch.channels_last), live) for x, live in mixed)
            slices = (_slice(x, live, mixing.num_channels, self._masks[1]) for x, live in mixed)
            yield (self._run(now, draw, mixing.num_layers, stop) for draw, now in enumerate(slices))

    def _products(self, shared: Tensor) -> int:
        """Return the number of products per draw and input if nothing is cut."""
        if shared.shape[1:] not in self._work:
            x, count = shared[:1], 0
            for layer in self._layers:
                x = x if isinstance(layer, Mask) else layer(x)
                weight = getattr(layer, "weight", None)
                count += x.numel() * (weight[0].numel() if isinstance(weight, Tensor) and weight.ndim > 1 else 1)
            self._work[shared.shape[1:]] = count
        return self._work[shared.shape[1:]]

    def _stacked(self, shared: Tensor, num_draws: int, stop: int | None) -> Iterator[Tensor]:
        """Yield the output under each draw, computed for many draws at a time without cutting."""
        size = max(1, STACKED_ROWS // len(shared))
        for draws in torch.arange(num_draws).split(size):
            x = shared.unsqueeze(0)
            for layer in self._layers[:stop]:
                if isinstance(layer, Mask):  # x is (draws, n, ...), or (1, n, ...) before the first mask
                    shape = tuple(x.shape[2:3] if layer.channelwise else x.shape[2:])
                    if layer.rate > 0:
                        kept = torch.stack([layer.keep(draw, shape) for draw in draws.tolist()]).unsqueeze(1)
                        x = layer.applied(x, kept.to(x.device).reshape(*kept.shape, *[1] * (x.ndim - kept.ndim)))
                else:
                    x = layer(x.expand(len(draws), *x.shape[1:]).flatten(0, 1)).unflatten(0, (len(draws), -1))
            yield from x.expand(len(draws), *x.shape[1:])

    def _run(self, now: _Slice, draw: int, first: int, stop: int | None) -> Tensor:
        """Apply layers `first` to `stop` to a slice under a draw.

        Each case keeps an invariant: the activations of the full network are those of the slice times its scale, and 0
        for the units that are not in the slice. A layer that would break it gets all units (`whole`).
        """
        for i, layer in enumerate(self._layers[first:stop], start=first):
            if isinstance(layer, Mask):
                now = _masked(now, layer, draw, cut=_stays_cut(self._layers, i))
            elif is_plain(layer, (nn.Flatten,)) and layer.start_dim == 1 and layer.end_dim in (-1, now.x.ndim - 1):
                # A channel becomes one entry per pixel, but stays one unit.
                now = replace(now, x=now.x.flatten(1), size=now.size * prod(now.x.shape[2:]))
            elif _sliceable(layer, now.x):
                now = _product(now, layer, self._masks[i], draw)
            elif is_plain(layer, RECTIFIERS):  # f(a·x) = a·f(x), so the scale can be applied later
                now = replace(now, x=layer(now.x))
            elif is_plain(layer, ZERO_AT_ZERO) or (is_plain(layer, BY_CHANNEL) and now.due is not None):
                # If f(0) = 0, dropped units stay 0. If not, as for a sigmoid, that does not matter while the mask is
                # due, because it will drop these units anyway.
                now = replace(now, x=layer(now.x * now.scale if now.scale != 1 else now.x), scale=1.0)
            else:
                now = _Slice(layer(now.whole()))
        return now.whole()


def _masked(now: _Slice, mask: Mask, draw: int, *, cut: bool) -> _Slice:
    """Apply the mask of a draw: by cutting units if the next layer can run without them, else by zeros.

    The factor 1 / (1 − rate) of dropout goes into the scale, and later into the weights of a layer.
    """
    if mask.rate == 0:
        return now
    if now.due is mask:  # the previous layer computed only the units that this mask keeps
        return replace(now, scale=now.scale * mask.scale, due=None)
    now = now.by_number()
    x, live = now.x, now.live
    # Alpha dropout sets units to another value than 0, and a mask of single pixels drops parts of a channel. Neither
    # can be done by cutting whole units.
    if mask.alpha or not (mask.channelwise or x.ndim == 2) or not (cut or live is not None):
        x = now.whole()
        shape = tuple(x.shape[1:2] if mask.channelwise else x.shape[1:])
        kept = mask.keep(draw, shape).to(x.device)
        return _Slice(mask.applied(x, kept.reshape(-1, *[1] * (x.ndim - 2)) if mask.channelwise else kept))
    full = now.full if live is not None else x.shape[1]
    kept = mask.keep(draw, (full,)).to(x.device)
    if live is None:
        live = kept.nonzero().squeeze(1)
        x = x.index_select(1, live)
        if x.ndim == 4:  # the next layers are faster channels last, but selecting channels is slower
            x = x.contiguous(memory_format=torch.channels_last)
    elif not bool(kept[live].all()):
        x, live = x[:, kept[live]], live[kept[live]]
    return _Slice(x, live, full, scale=now.scale * mask.scale)


def _slice(x: Tensor, live: Tensor | None, full: int, mask: Mask | None) -> _Slice:
    """Return a slice of the units that a mask will keep; of all units if `live` is None."""
    return _Slice(x) if live is None else _Slice(x, live, full, due=mask)


def _sliceable(layer: nn.Module, x: Tensor) -> bool:
    """Return whether units can be cut out of a layer's weights: a linear layer, or a convolution without groups."""
    if is_plain(layer, (nn.Linear,)):
        return x.ndim == 2
    if not isinstance(layer, CONVOLUTIONS) or not is_plain(layer, CONVOLUTIONS):
        return False
    return layer.groups == 1 and x.ndim == layer.weight.ndim


def _product(now: _Slice, layer: nn.Module, mask: Mask | None, draw: int) -> _Slice:
    """Run a linear layer or convolution on the live units before it, for the live units after it.

    Rows of the weight are cut if the next mask drops their output, columns if the last mask dropped their input. A
    layer cannot run without units, so if a mask drops all of them, nothing is cut on that side.
    """
    weight: Tensor = layer.weight  # type: ignore[assignment]
    bias: Tensor | None = layer.bias  # type: ignore[assignment]
    full, live = len(weight), None
    if mask is not None:
        live = mask.keep(draw, (full,)).to(weight.device).nonzero().squeeze(1)
        if len(live):
            weight = weight.index_select(0, live)
            bias = None if bias is None else bias.index_select(0, live)
        else:  # all units dropped: compute them all, and let the mask drop them
            live = None
    x, scale = now.x, now.scale
    # The scale multiplies the weights or the product, which are at most as large as the activations.
    if now.live is not None and len(now.live):
        units = weight if now.size == 1 else weight.unflatten(1, (-1, now.size))
        weight = units.index_select(1, now.live)
        weight = weight if now.size == 1 else weight.flatten(1)
    elif now.live is not None:
        x, scale = now.whole(), 1.0
    if isinstance(layer, nn.Linear):
        product = x @ weight.T * scale if bias is None else torch.addmm(bias, x, weight.T, alpha=scale)
        return _slice(product, live, full, mask)
    weight = weight if scale == 1 else weight * scale
    return _slice(layer._conv_forward(x, weight, bias), live, full, mask)  # type: ignore[operator]


def _flattened(module: nn.Module) -> list[nn.Module] | None:
    """Return the layers of a module in order, with nested chains unpacked; None if it is not a chain.

    A module with hooks, with a custom forward, or with dropout inside another kind of module is not a chain: its
    layers alone do not determine its output.
    """
    if module._forward_hooks or module._forward_pre_hooks:
        return None
    original = "forward" not in vars(module)
    chained = type(module).forward in (nn.Sequential.forward, Reading.forward)
    if isinstance(module, nn.Sequential) and chained and original:
        parts: list[nn.Module] = list(module)
    elif type(module) is Classifier and original and "embed" not in vars(module):
        parts = [module.features, module.head]
    else:
        inside = any(is_drawn(part) for part in module.modules())
        return None if inside and not isinstance(module, Mask) else [module]
    layers: list[nn.Module] = []
    for part in parts:
        flat = _flattened(part)
        if flat is None:
            return None
        layers += flat
    return layers


def _delayed(layers: Sequence[nn.Module]) -> list[nn.Module]:
    """Move each mask after the layers it commutes with: rectifiers, and also pools if it drops whole channels."""
    ordered = list(layers)
    for i in range(len(ordered) - 2, -1, -1):
        mask = ordered[i]
        if not isinstance(mask, Mask) or mask.alpha:
            continue
        passed = (*RECTIFIERS, *POOLS) if mask.channelwise else RECTIFIERS
        while i + 1 < len(ordered) and is_plain(ordered[i + 1], passed):
            ordered[i], ordered[i + 1] = ordered[i + 1], ordered[i]
            i += 1
    return ordered


def _folded(layers: Sequence[Any]) -> list[nn.Module]:
    """Merge batch normalisations into the convolutions before them, and put max pools before ReLUs.

    A max pool and a ReLU commute. With the pool first there is less work, and `Mixing` can include the pool.
    """
    folded: list[Any] = []
    for layer in layers:
        before = folded[-1] if folded else layer
        kind = NORMALISATIONS[CONVOLUTIONS.index(type(before))] if is_plain(before, CONVOLUTIONS) else None
        # With running statistics, batch normalisation only scales and shifts channels.
        if kind and is_plain(layer, (kind,)) and layer.running_mean is not None and not layer.training:
            folded[-1] = nn.utils.fuse_conv_bn_eval(before, layer)
        else:
            folded.append(layer)
    for i in range(len(folded) - 1):
        if is_plain(folded[i], (nn.ReLU,)) and is_plain(folded[i + 1], MAX_POOLS):
            folded[i], folded[i + 1] = folded[i + 1], folded[i]
    return folded


def _mask_after(layers: Sequence[nn.Module], at: int) -> Mask | None:
    """Return the mask that drops outputs of layer `at`, if all layers between act on each channel separately."""
    layer = layers[at]
    if not is_plain(layer, (nn.Linear, *CONVOLUTIONS)):
        return None
    for after in layers[at + 1 :]:
        if isinstance(after, Mask):
            fits = is_plain(layer, CONVOLUTIONS) == after.channelwise and _stays_cut(layers, layers.index(after))
            return after if fits and not after.alpha and after.rate > 0 else None
        if not is_plain(after, BY_CHANNEL):
            return None
    return None


def _stays_cut(layers: Sequence[nn.Module], mask: int) -> bool:
    """Return whether the layer after a mask can run on the kept units alone; otherwise cutting gains nothing."""
    return mask + 1 < len(layers) and (
        isinstance(layers[mask + 1], Mask)
        or is_plain(layers[mask + 1], (nn.Flatten, nn.Linear, *CONVOLUTIONS, *ZERO_AT_ZERO))
    )

"""The convolution behind the first dropout, for all draws at once.

A draw only weighs the input channels of that convolution, so that its output is a weighted sum of one convolution for
each input channel, and these are the same for all draws. With a k × k kernel that dropout cuts to the share q of its
inputs and r of its outputs, a draw takes 1 product where it took q·r·k². A max pool that follows is done on the way.
"""

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor, nn

from batchbalance.posteriors.masks import Mask

LEAST_SAVING = 3.0  # products of the cut-down convolution for each one here, from which on this is faster
LEAST_DRAWS = 64  # below, preparing the channels costs more than it saves
BLOCK_NUMBERS = 2**20  # numbers of all draws that are made at a time: as many as a core's cache holds
STORED_NUMBERS = 2**24  # numbers of all draws that are held at a time, after the pool


class Mixing:
    """A mask, a convolution and perhaps a max pool, the first layers of a chain.

    Args:
        mask: of whole channels.
        convolution: in two dimensions, without groups.
        pool: cuts the image into tiles, or None.
    """

    def __init__(self, mask: Mask, convolution: nn.Conv2d, pool: nn.MaxPool2d | None) -> None:
        self._mask, self._convolution = mask, convolution
        self._tile = 1 if pool is None else _pair(pool.kernel_size)[0]
        self.num_layers = 2 if pool is None else 3
        weight = convolution.weight
        self._kernels = weight.transpose(0, 1).reshape(-1, 1, *weight.shape[2:])  # one for each pair of channels

    @classmethod
    def of(cls, layers: Sequence[nn.Module], next_mask: Mask | None) -> "Mixing | None":
        """The first of these layers as one, or None if they are others or if that would save nothing.

        Args:
            layers: the first is the first mask of the network.
            next_mask: the one that drops channels of the convolution's output.
        """
        if len(layers) < 2 or not isinstance(layers[0], Mask) or not isinstance(layers[1], nn.Conv2d):
            return None
        mask, convolution = layers[0], layers[1]
        plain = convolution.groups == 1 and convolution.padding_mode == "zeros" and convolution.padding != "same"
        if mask.alpha or not mask.channelwise or not 0 < mask.rate < 1 or not plain:
            return None
        height, width = convolution.kernel_size
        kept = (1 - mask.rate) * (1 if next_mask is None else 1 - next_mask.rate)
        if kept * height * width < LEAST_SAVING:
            return None
        pool = layers[2] if len(layers) > 2 else None
        return cls(mask, convolution, pool if isinstance(pool, nn.MaxPool2d) and _tiles(pool) else None)

    def num_inputs(self, shared: Tensor, num_draws: int) -> int:
        """For how many inputs at a time the outputs of all draws are held."""
        return max(1, STORED_NUMBERS // (num_draws * prod(self._pooled(shared))))

    def outputs(self, shared: Tensor, num_draws: int) -> Tensor:
        """What the layers give for (n, channels, h, w) under every draw, (S, n, outputs, h', w')."""
        masks = [self._mask.keep(draw, (shared.shape[1],)) for draw in range(num_draws)]
        weights = torch.stack(masks).to(shared) * self._mask.scale
        pooled = self._pooled(shared)
        places = self._tile**2
        outputs = shared.new_empty(num_draws, len(shared), prod(pooled))
        size = max(1, BLOCK_NUMBERS // (max(num_draws, len(weights.T)) * places * prod(pooled)))
        room = shared.new_empty(num_draws, min(size, len(shared)) * places * prod(pooled))
        for inputs, into in zip(torch.split(shared, size), torch.split(outputs, size, dim=1), strict=True):
            columns = self._columns(inputs, pooled)
            mixed = torch.mm(weights, columns, out=room[:, : columns.shape[1]])
            first, *others = mixed.view(num_draws, len(inputs), places, -1).unbind(2)
            for other in others:
                first = torch.maximum(first, other, out=into)
            if not others:
                into.copy_(first)
        outputs = outputs.view(num_draws, len(shared), *pooled)
        bias = self._convolution.bias
        return outputs if bias is None else outputs.add_(bias[:, None, None])

    def _pooled(self, shared: Tensor) -> tuple[int, int, int]:
        """The shape of one output."""
        channels, height, width = self._convolution(shared[:1]).shape[1:]
        return channels, height // self._tile, width // self._tile

    def _columns(self, inputs: Tensor, pooled: tuple[int, int, int]) -> Tensor:
        """The outputs that each input channel makes alone, (channels, n · places · outputs).

        The places of a tile lie apart, so that the largest of them is taken over whole rows.
        """
        layer, tile = self._convolution, self._tile
        channels, height, width = pooled
        alone = nn.functional.conv2d(
            inputs, self._kernels, None, layer.stride, layer.padding, layer.dilation, groups=layer.in_channels
        )
        alone = alone[:, :, : height * tile, : width * tile]
        alone = alone.reshape(len(inputs), layer.in_channels, channels, height, tile, width, tile)
        return alone.permute(1, 0, 4, 6, 2, 3, 5).reshape(layer.in_channels, -1)


def _tiles(pool: nn.MaxPool2d) -> bool:
    """Whether the windows are squares that touch and do not overlap."""
    size = _pair(pool.kernel_size)
    plain = _pair(pool.padding) == (0, 0) and _pair(pool.dilation) == (1, 1)
    return plain and size[0] == size[1] and _pair(pool.stride) == size and not (pool.ceil_mode or pool.return_indices)


def _pair(size: int | tuple[int, ...]) -> tuple[int, ...]:
    return (size, size) if isinstance(size, int) else tuple(size)

"""The convolution after the first dropout, for all draws at once.

A draw only weights the input channels of that convolution. So its output is a weighted sum of the convolutions of the
single input channels, which are the same for all draws. With a k × k kernel and a share q of kept inputs, a draw takes
1 product instead of q·k². A max pool and a ReLU that follow are included, and output channels that a draw drops later
are not computed.

The inputs of a block are always the last axis. Then the output of one draw is contiguous, and a linear layer can use
it without a copy.
"""

from collections.abc import Iterator, Sequence
from math import ceil, prod
from typing import Any, cast

import torch
from torch import Tensor, nn

from batchbalance.posteriors.masks import Mask, is_plain

LEAST_SAVING = 6.0  # q·k² from which this is faster than cutting the convolution
LEAST_DRAWS = 16  # with fewer draws, preparing the channels costs more than it saves
BLOCK_NUMBERS = 2**22  # outputs of single input channels in memory at a time, as many as fit a core's cache
STORED_NUMBERS = 2**24  # numbers of all draws in memory at a time, after the pool


class Mixing:
    """A mask, a convolution and optionally a max pool and a ReLU, the first layers of a chain.

    Args:
        mask: a mask of whole channels.
        convolution: a two-dimensional convolution without groups.
        pool: a max pool over square tiles that do not overlap, or None.
        rectified: whether a ReLU follows.
        next_mask: the mask that drops output channels of the convolution, or None.
    """

    def __init__(
        self, mask: Mask, convolution: nn.Conv2d, pool: nn.MaxPool2d | None, rectified: bool, next_mask: Mask | None
    ) -> None:
        self._mask, self._convolution, self._next_mask = mask, convolution, next_mask
        self._tile = 1 if pool is None else _pair(pool.kernel_size)[0]
        self._rectified = rectified
        self.num_layers = 2 + (pool is not None) + rectified
        self.num_channels = convolution.out_channels
        self._kernels = convolution.weight.transpose(0, 1).flatten(2)  # (inputs, outputs, k²)

    @classmethod
    def of(cls, layers: Sequence[nn.Module], next_mask: Mask | None) -> "Mixing | None":
        """Combine the first of these layers; return None if they are of other types or nothing would be saved.

        Args:
            layers: layers that start with the first mask of the network.
            next_mask: the mask that drops output channels of the convolution.
        """
        if len(layers) < 2 or not isinstance(layers[0], Mask) or not is_plain(layers[1], (nn.Conv2d,)):
            return None
        mask, convolution, *behind = cast("list[Any]", layers)
        plain = convolution.groups == 1 and convolution.padding_mode == "zeros" and convolution.padding != "same"
        if mask.alpha or not mask.channelwise or not 0 < mask.rate < 1 or not plain:
            return None
        if (1 - mask.rate) * prod(convolution.kernel_size) < LEAST_SAVING:
            return None
        pool = behind.pop(0) if behind and is_plain(behind[0], (nn.MaxPool2d,)) and _tiles(behind[0]) else None
        rectified = bool(behind) and is_plain(behind[0], (nn.ReLU,))
        return cls(mask, convolution, pool, rectified, next_mask)

    def outputs(self, shared: Tensor, num_draws: int) -> Iterator[Iterator[tuple[Tensor, Tensor | None]]]:
        """Yield, for each block of (n, channels, h, w), the outputs under each draw.

        An output is (block, kept, h', w') and the indices of its channels, None for all. The next block overwrites it.
        """
        height, width = self._convolution(shared[:1]).shape[2:]
        kept, pooled = self._kept(num_draws), (height // self._tile, width // self._tile)
        fills = int(kept.sum()) * prod(pooled) / STORED_NUMBERS, self._numbers_alone(pooled[1]) / BLOCK_NUMBERS
        buffers = Buffers(shared)
        # A block must satisfy two limits: the results of all draws fit in memory, and one row of the outputs of single
        # input channels fits in the cache.
        for block in shared.chunk(ceil(len(shared) * max(fills))):
            stored = self._stored(block, kept, pooled, buffers).permute(3, 0, 1, 2)
            parts = stored.split(kept.sum(dim=1).tolist(), dim=1)
            yield (
                (outputs, None if bool(channels.all()) else channels.nonzero().squeeze(1).to(outputs.device))
                for channels, outputs in zip(kept, parts, strict=True)
            )

    def _kept(self, num_draws: int) -> Tensor:
        """Return which output channels each draw needs, (S, outputs); all of them if it keeps none."""
        if self._next_mask is None:
            return torch.ones(num_draws, self.num_channels, dtype=torch.bool)
        kept = torch.stack([self._next_mask.keep(draw, (self.num_channels,)) for draw in range(num_draws)])
        return kept | ~kept.any(dim=1, keepdim=True)

    def _stored(self, shared: Tensor, kept: Tensor, pooled: tuple[int, int], buffers: "Buffers") -> Tensor:
        """Return the kept output channels of all draws, one draw after the other, (all kept, h', w', n)."""
        masks = [self._mask.keep(draw, (shared.shape[1],)) for draw in range(len(kept))]
        weights = torch.stack(masks).to(shared) * self._mask.scale
        rows = (kept.flatten().cumsum(0) - 1).view_as(kept)  # the position of a draw's channel in `store`
        draws = [channel.nonzero().squeeze(1) for channel in kept.T]
        mixes = [weights[some.to(shared.device)] for some in draws]
        places = [rows[some, channel].to(shared.device) for channel, some in enumerate(draws)]
        bias = self._convolution.bias
        # For each output channel, (draws that keep it, inputs) @ (inputs, pixels) sums the convolutions of the single
        # input channels with the weights of each draw. The max pool commutes with the bias and the ReLU. It comes first
        # because then there are fewer numbers to change.
        store = buffers("store", int(kept.sum()), *pooled, len(shared))
        for first, patches in self._patches(shared, pooled, buffers):
            alone = torch.bmm(self._kernels, patches, out=buffers("alone", *self._kernels.shape[:2], patches.shape[2]))
            into = store[:, first : first + alone.shape[2] // (self._tile**2 * pooled[1] * len(shared))]
            for channel, (mix, place) in enumerate(zip(mixes, places, strict=True)):
                mixed = torch.mm(mix, alone[:, channel], out=buffers("mixed", len(mix), alone.shape[2]))
                best = buffers("best", len(mix), mixed.shape[1] // self._tile**2)
                torch.amax(mixed.unflatten(1, (self._tile**2, -1)), dim=1, out=best)
                if bias is not None:
                    best += bias[channel]
                if self._rectified:
                    best.relu_()
                into.index_copy_(0, place, best.view(-1, *into.shape[1:]))
        return store

    def _numbers_alone(self, width: int) -> int:
        """Return the size of the outputs of all single input channels for one output row."""
        return self._kernels.shape[0] * self._kernels.shape[1] * self._tile**2 * width

    def _patches(self, shared: Tensor, pooled: tuple[int, int], buffers: "Buffers") -> Iterator[tuple[int, Tensor]]:
        """Yield the patches of each input channel for a few output rows at a time, and the first of these rows.

        The shape is (channels, k², pixels of a tile · rows · w' · n). The pixels of a tile come first, so that the
        maximum over a tile is a maximum over long contiguous rows.
        """
        layer, tile = self._convolution, self._tile
        vertical, horizontal = _pair(layer.padding)
        inputs_last = shared.permute(1, 2, 3, 0)
        padded = nn.functional.pad(inputs_last, (0, 0, horizontal, horizontal, vertical, vertical)).contiguous()
        channel, below, beside, _ = padded.stride()
        down, right = below * layer.stride[0], beside * layer.stride[1]
        taps = (below * layer.dilation[0], beside * layer.dilation[1])
        height, width = pooled
        size = max(1, BLOCK_NUMBERS // (self._numbers_alone(width) * len(shared)))
        for first in range(0, height, size):
            # A view without a copy. Its axes are channel, position in the kernel (2), position in the tile (2), output
            # row and column, input. Neighbouring windows overlap in memory, which only strides can express.
            seen = padded.as_strided(
                (len(padded), *layer.kernel_size, tile, tile, min(size, height - first), width, len(shared)),
                (channel, *taps, down, right, down * tile, right * tile, 1),
                first * down * tile,
            )
            yield first, buffers("patches", *seen.shape).copy_(seen).flatten(3).flatten(1, 2)


class Buffers:
    """Reused memory: allocating it each time would take about as long as the products."""

    def __init__(self, like: Tensor) -> None:
        self._like = like
        self._flat: dict[str, Tensor] = {}

    def __call__(self, name: str, *shape: int) -> Tensor:
        """Return a tensor of this shape, with the old contents of the buffer of this name."""
        size = prod(shape)
        if name not in self._flat or self._flat[name].numel() < size:
            self._flat[name] = self._like.new_empty(size)
        return self._flat[name][:size].view(shape)


def _tiles(pool: nn.MaxPool2d) -> bool:
    """Return whether the windows are adjacent squares that do not overlap."""
    size = _pair(pool.kernel_size)
    plain = _pair(pool.padding) == (0, 0) and _pair(pool.dilation) == (1, 1)
    return plain and size[0] == size[1] and _pair(pool.stride) == size and not (pool.ceil_mode or pool.return_indices)


def _pair(size: int | str | tuple[int, ...]) -> tuple[int, ...]:
    if isinstance(size, str):  # padding "valid"
        return 0, 0
    return (size, size) if isinstance(size, int) else tuple(size)

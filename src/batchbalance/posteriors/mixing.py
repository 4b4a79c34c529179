"""The convolution behind the first dropout, for all draws at once.

A draw only weighs the input channels of that convolution, so that its output is a weighted sum of one convolution for
each input channel, and these are the same for all draws. With a k × k kernel that dropout cuts to the share q of its
inputs, a draw takes 1 product where it took q·k². A max pool that follows is done on the way, and output channels that
a draw drops later are omitted.
"""

from collections.abc import Iterator, Sequence
from math import prod

import torch
from torch import Tensor, nn

from batchbalance.posteriors.masks import Mask

LEAST_SAVING = 6.0  # products of the cut-down convolution for each one here, from which on this is faster
LEAST_DRAWS = 16  # below, preparing the channels costs more than it saves
BLOCK_NUMBERS = 2**22  # numbers that input channels make alone at a time: as many as a core's cache holds
STORED_NUMBERS = 2**24  # numbers of all draws that are held at a time, after the pool


class Mixing:
    """A mask, a convolution and perhaps a max pool, the first layers of a chain.

    Args:
        mask: of whole channels.
        convolution: in two dimensions, without groups.
        pool: cuts the image into tiles, or None.
        next_mask: drops channels of the convolution's output, or None.
    """

    def __init__(self, mask: Mask, convolution: nn.Conv2d, pool: nn.MaxPool2d | None, next_mask: Mask | None) -> None:
        self._mask, self._convolution, self._next_mask = mask, convolution, next_mask
        self._tile = 1 if pool is None else _pair(pool.kernel_size)[0]
        self.num_layers = 2 if pool is None else 3
        self.num_channels = convolution.out_channels
        self._kernels = convolution.weight.transpose(0, 1).flatten(2)  # (inputs, outputs, k²)

    @classmethod
    def of(cls, layers: Sequence[nn.Module], next_mask: Mask | None) -> "Mixing | None":
        """The first of these layers as one, or None if they are others or if that would save nothing.

        Args:
            layers: the first is the first mask of the network.
            next_mask: the one that drops channels of the convolution's output.
        """
        if (
            len(layers) < 2
            or not isinstance(layers[0], Mask)
            or type(layers[1]) is not nn.Conv2d
            or "forward" in vars(layers[1])
        ):
            return None
        mask, convolution = layers[0], layers[1]
        plain = convolution.groups == 1 and convolution.padding_mode == "zeros" and convolution.padding != "same"
        if mask.alpha or not mask.channelwise or not 0 < mask.rate < 1 or not plain:
            return None
        if (1 - mask.rate) * prod(convolution.kernel_size) < LEAST_SAVING:
            return None
        pool = layers[2] if len(layers) > 2 else None
        return cls(
            mask,
            convolution,
            pool if type(pool) is nn.MaxPool2d and "forward" not in vars(pool) and _tiles(pool) else None,
            next_mask,
        )

    def num_inputs(self, shared: Tensor, num_draws: int) -> int:
        """For how many inputs at a time the outputs of all draws are held."""
        return max(1, STORED_NUMBERS // (int(self._kept(num_draws).sum()) * prod(self._pooled(shared))))

    def outputs(self, shared: Tensor, num_draws: int) -> Iterator[tuple[Tensor, Tensor | None]]:
        """What the layers give for (n, channels, h, w) under each draw: (n, kept, h', w'), and which channels.

        The second is None for all channels.
        """
        kept, pooled = self._kept(num_draws), self._pooled(shared)
        store = self._stored(shared, kept.to(shared.device), pooled)
        rows = kept.T.flatten().cumsum(0).reshape(kept.T.shape).T - 1  # where the channel of a draw is stored
        for draw in range(num_draws):
            live = kept[draw].nonzero().squeeze(1)
            outputs = store.index_select(0, rows[draw, live].to(shared.device))
            whole = len(live) == self.num_channels
            yield outputs.transpose(0, 1).unflatten(2, pooled), None if whole else live.to(shared.device)

    def _kept(self, num_draws: int) -> Tensor:
        """Which output channels each draw needs, (S, outputs); all of them where it would keep none."""
        if self._next_mask is None:
            return torch.ones(num_draws, self.num_channels, dtype=torch.bool)
        kept = torch.stack([self._next_mask.keep(draw, (self.num_channels,)) for draw in range(num_draws)])
        return kept | ~kept.any(dim=1, keepdim=True)

    def _stored(self, shared: Tensor, kept: Tensor, pooled: tuple[int, int]) -> Tensor:
        """The outputs of all draws, (all kept, n, h' · w'): one output channel after the other, each for its draws.

        `alone` holds what each input channel makes by itself, for all draws the same. One product of the draws' masks
        with it gives an output channel of every draw that keeps the channel.
        """
        masks = [self._mask.keep(draw, (shared.shape[1],)) for draw in range(len(kept))]
        weights = torch.stack(masks).to(shared) * self._mask.scale
        of_channel = [weights[draws] for draws in kept.T]
        counts = [len(weights) for weights in of_channel]
        places = self._tile**2
        bias = self._convolution.bias
        store = shared.new_empty(sum(counts), len(shared), prod(pooled))
        pairs = self._kernels.shape[:2]
        width = prod(pairs) * places * prod(pooled)
        size = max(1, BLOCK_NUMBERS // width)
        room = shared.new_empty(size * width)
        for inputs, into in zip(torch.split(shared, size), torch.split(store, size, dim=1), strict=True):
            patches = self._patches(inputs, pooled)
            alone = torch.bmm(self._kernels, patches, out=room[: len(inputs) * width].view(*pairs, -1))
            for channel, part in enumerate(torch.split(into, counts)):
                mixed = torch.mm(of_channel[channel], alone[:, channel])
                first, *others = mixed.view(counts[channel], places, *part.shape[1:]).unbind(1)
                for other in others:
                    first = torch.maximum(first, other, out=first)
                torch.add(first, 0 if bias is None else bias[channel], out=part)
        return store

    def _pooled(self, shared: Tensor) -> tuple[int, int]:
        """Height and width of an output."""
        height, width = self._convolution(shared[:1]).shape[2:]
        return height // self._tile, width // self._tile

    def _patches(self, inputs: Tensor, pooled: tuple[int, int]) -> Tensor:
        """What the kernel sees of each input channel, (channels, k², places · n · h' · w').

        The places of a tile lie apart, so that the largest of them is taken over whole rows.
        """
        layer, tile = self._convolution, self._tile
        vertical, horizontal = _pair(layer.padding)
        padded = nn.functional.pad(inputs, (horizontal, horizontal, vertical, vertical)).contiguous()
        step = padded.stride()
        down, right = (a * b for a, b in zip(step[2:], layer.stride, strict=True))
        taps = (step[2] * layer.dilation[0], step[3] * layer.dilation[1])
        seen = padded.as_strided(
            (layer.in_channels, *layer.kernel_size, tile, tile, len(inputs), *pooled),
            (step[1], *taps, down, right, step[0], down * tile, right * tile),
        )
        return seen.reshape(layer.in_channels, prod(layer.kernel_size), -1)


def _tiles(pool: nn.MaxPool2d) -> bool:
    """Whether the windows are squares that touch and do not overlap."""
    size = _pair(pool.kernel_size)
    plain = _pair(pool.padding) == (0, 0) and _pair(pool.dilation) == (1, 1)
    return plain and size[0] == size[1] and _pair(pool.stride) == size and not (pool.ceil_mode or pool.return_indices)


def _pair(size: int | str | tuple[int, ...]) -> tuple[int, ...]:
    if isinstance(size, str):  # of a padding: "valid"
        return 0, 0
    return (size, size) if isinstance(size, int) else tuple(size)

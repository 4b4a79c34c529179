"""Dropout whose mask belongs to a draw: one mask for a draw and a layer, whatever the inputs."""

from itertools import product

from torch import Tensor, empty, nn, rand

from batchbalance.seeds import generator

ELEMENTWISE = (nn.Dropout, nn.AlphaDropout)
CHANNELWISE = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.FeatureAlphaDropout)
ALPHA = (nn.AlphaDropout, nn.FeatureAlphaDropout)

# AlphaDropout moves dropped units to the value that SELU gives to minus infinity.
SELU_FLOOR = -1.7580993408473766
FIRST_BLOCK = 16  # places of an axis in the first block; each next one has as many as all before it
CACHED_NUMBERS = 2**24  # masks of a layer that are kept rather than made again, in booleans


def is_plain(layer: nn.Module, kinds: tuple[type[nn.Module], ...]) -> bool:
    """Whether a layer is exactly one of these, does what its type does, and nothing else.

    A subclass, a patched ``forward`` or a hook may do anything; such a layer runs in full.
    """
    hooked = layer._forward_hooks or layer._forward_pre_hooks
    return type(layer) in kinds and "forward" not in vars(layer) and not hooked


class Keep:
    """Which units of a layer each draw keeps: the same for every input, and for every length that it is padded to.

    The last axis of (length, units) and the first of (heads, length, length) are fixed; the others may differ from
    batch to batch, and a unit is kept or not whatever the size is. A layer that runs twice in one forward pass has a
    mask for each of its calls.
    """

    def __init__(self, name: str, seed: int) -> None:
        self.name = name
        self._seed = seed
        self._cache: dict[tuple[int, int], Tensor] = {}
        self._cached_numbers = 0
        self._fixed: dict[int, tuple[int, ...]] = {}

    def __call__(self, rate: float, draw: int, shape: tuple[int, ...], call: int = 0) -> Tensor:
        """Which units of one input are kept under a draw, booleans of `shape`."""
        fixed = (len(shape), shape[0] if len(shape) > 2 else shape[-1])
        if self._fixed.setdefault(call, fixed) != fixed:
            known = f"{self._fixed[call][0]} axes and {self._fixed[call][1]} units"
            raise ValueError(
                f"`inputs` must have one shape, or differ in length only, got {shape} instead of {known} at dropout "
                f"layer {self.name!r}; pad inputs to one size, and let the batch be the first axis"
            )
        cached = self._cache.get((draw, call))
        if cached is not None and all(a >= b for a, b in zip(cached.shape, shape, strict=True)):
            return cached if cached.shape == shape else cached[tuple(map(slice, shape))]
        purpose = f"mask/{self.name}" + (f"/{call}" if call else "")
        kept = self._numbers(purpose, draw, shape) >= rate
        grown = kept.numel() - (0 if cached is None else cached.numel())
        if self._cached_numbers + grown <= CACHED_NUMBERS:
            self._cached_numbers += grown
            self._cache[draw, call] = kept
        return kept

    def _numbers(self, purpose: str, draw: int, shape: tuple[int, ...]) -> Tensor:
        """Uniform numbers, each of which is a function of its place."""
        if len(shape) < 3:  # one row after the other, so that more rows change none
            return rand(shape, generator=generator(self._seed, purpose, draw))
        numbers = empty(shape)
        for corner in product(*(range(_level(size - 1) + 1) for size in shape[1:])):
            spans = [slice(FIRST_BLOCK << (level - 1) if level else 0, FIRST_BLOCK << level) for level in corner]
            block = (shape[0], *(span.stop - span.start for span in spans))
            part = numbers[(slice(None), *spans)]
            stream = generator(self._seed, f"{purpose}/block/{'/'.join(map(str, corner))}", draw)
            part.copy_(rand(block, generator=stream)[tuple(map(slice, part.shape))])
        return numbers


def _level(place: int) -> int:
    """Which block a place of an axis is in: 0 below `FIRST_BLOCK`, and one more each time that twice as many fit."""
    return (place // FIRST_BLOCK).bit_length()


class InnerDropout:
    """Stands in for the ``forward`` of a module that drops something inside."""


def is_drawn(module: nn.Module) -> bool:
    """Whether a module by itself depends on the draw."""
    return isinstance(module, Mask) or isinstance(vars(module).get("forward"), InnerDropout)


class Mask(nn.Module):
    """Stands in for a dropout layer and keeps the same units for every input of a draw.

    Attributes:
        rate: the probability to drop a unit; `p` as in the layer, for modules that read it.
        channelwise: whether whole channels are dropped (axis 1), else single units.
        alpha: whether dropped units go to the floor of SELU rather than to 0.
        calls: how often it dropped something in this forward pass.
    """

    def __init__(self, layer: nn.Module, name: str, seed: int) -> None:
        super().__init__()
        self.rate = self.p = float(layer.p)  # type: ignore[arg-type]
        self.channelwise = isinstance(layer, CHANNELWISE)
        self.alpha = isinstance(layer, ALPHA)
        self._keep = Keep(name, seed)
        self._draw = self.calls = 0
        self._batch = 1

    @property
    def name(self) -> str:
        """Of the layer."""
        return self._keep.name

    @property
    def scale(self) -> float:
        """What the kept units are multiplied by."""
        return 1 / (1 - self.rate) if self.rate < 1 else 0.0

    def begin(self, draw: int, batch: int) -> None:
        """Prepare for one forward pass of `batch` inputs under a draw."""
        self._draw, self._batch, self.calls = draw, batch, 0

    def keep(self, draw: int, shape: tuple[int, ...], call: int = 0) -> Tensor:
        """Which units of one input are kept under a draw, booleans of `shape`."""
        return self._keep(self.rate, draw, shape, call)

    def forward(self, inputs: Tensor) -> Tensor:
        """`inputs` with the current draw's mask applied."""
        if self.rate == 0:
            return inputs
        if inputs.ndim < 2 or len(inputs) % self._batch:
            raise ValueError(
                f"dropout layer {self._keep.name!r} must see the batch of {self._batch} as its first axis, got "
                f"{tuple(inputs.shape)}; build the model batch first"
            )
        kept = self.next(tuple(inputs.shape[1:2] if self.channelwise else inputs.shape[1:])).to(inputs.device)
        return self.applied(inputs, kept.reshape(-1, *[1] * (inputs.ndim - 2)) if self.channelwise else kept)

    def next(self, shape: tuple[int, ...]) -> Tensor:
        """Which units are kept under the current draw in the next call of this forward pass."""
        self.calls += 1
        return self.keep(self._draw, shape, self.calls - 1)

    def applied(self, inputs: Tensor, kept: Tensor) -> Tensor:
        """`inputs` where `kept`, scaled; elsewhere 0, or the floor for alpha dropout."""
        if not self.alpha:
            return inputs * (kept.to(inputs.dtype) * self.scale)
        if self.rate == 1:
            return inputs * 0
        slope = ((1 - self.rate) * (1 + self.rate * SELU_FLOOR**2)) ** -0.5
        shift = -slope * SELU_FLOOR * self.rate
        moved: Tensor = inputs.where(kept, inputs.new_tensor(SELU_FLOOR)) * slope + shift
        return moved

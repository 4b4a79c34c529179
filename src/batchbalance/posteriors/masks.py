"""Dropout whose mask belongs to a draw: one mask for a draw and a layer, whatever the inputs."""

from itertools import product

from torch import Tensor, empty, nn, rand, stack

from batchbalance.arguments.seeds import generator

ELEMENTWISE = (nn.Dropout, nn.AlphaDropout)
CHANNELWISE = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.FeatureAlphaDropout)
ALPHA = (nn.AlphaDropout, nn.FeatureAlphaDropout)

# AlphaDropout moves dropped units to the value that SELU gives to minus infinity.
SELU_FLOOR = -1.7580993408473766
FIRST_BLOCK = 16  # places of an axis in the first block; each next one has as many as all before it
CACHED_NUMBERS = 2**24  # masks of a layer that are kept rather than made again, in booleans
CACHED_FACTORS = 2**20  # numbers that a layer keeps ready to multiply with, for small layers


def is_plain(layer: nn.Module, kinds: tuple[type[nn.Module], ...]) -> bool:
    """Return whether a layer is exactly of one of these types, unpatched and without hooks.

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
        """Return which units of one input are kept under a draw, booleans of `shape`."""
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
        """Return uniform numbers, each of which depends only on its position."""
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
    """Return the block that a position of an axis is in: 0 below `FIRST_BLOCK`, then one more for each doubling."""
    return (place // FIRST_BLOCK).bit_length()


class InnerDropout:
    """Stands in for the ``forward`` of a module that drops something inside."""


def is_drawn(module: nn.Module) -> bool:
    """Return whether a module by itself depends on the draw."""
    return isinstance(module, Mask) or isinstance(vars(module).get("forward"), InnerDropout)


def is_path(module: nn.Module) -> bool:
    """Return whether a module drops whole residual branches (stochastic depth).

    They are known by name and by the rate that they hold, so that none of these packages is needed.
    """
    name, held = type(module).__name__, vars(module)
    return (name.endswith("DropPath") and "drop_prob" in held) or (name == "StochasticDepth" and "p" in held)


class _Pass:
    """Where a forward pass is. A plain object, because a module takes a microsecond to set an attribute."""

    __slots__ = ("batch", "calls", "draw", "num_draws")

    def __init__(self) -> None:
        self.draw = self.calls = 0
        self.batch = self.num_draws = 1


class Mask(nn.Module):
    """Stands in for a dropout layer and keeps the same units for every input of a draw.

    Attributes:
        rate: the probability to drop a unit; `p` as in the layer, for modules that read it.
        channelwise: whether whole channels are dropped (axis 1), else single units.
        pathwise: whether all that comes in is dropped or kept: the branch of a network under a draw.
        alpha: whether dropped units go to the floor of SELU rather than to 0.
        scale: what the kept units are multiplied by.
    """

    def __init__(self, layer: nn.Module, name: str, seed: int) -> None:
        super().__init__()
        held = vars(layer)
        self.rate = self.p = float(held.get("p", held.get("drop_prob")) or 0.0)
        self.channelwise = isinstance(layer, CHANNELWISE)
        self.pathwise = is_path(layer)
        self.alpha = isinstance(layer, ALPHA)
        self.scale = 1.0 if not held.get("scale_by_keep", True) else 1 / (1 - self.rate) if self.rate < 1 else 0.0
        self._keep = Keep(name, seed)
        self._now = _Pass()
        self._factors: dict[tuple[int, int], tuple[tuple[int, ...], Tensor]] = {}
        self._num_factors = 0

    @property
    def name(self) -> str:
        """Of the layer."""
        return self._keep.name

    @property
    def calls(self) -> int:
        """How often it dropped something in this forward pass."""
        return self._now.calls

    def begin(self, draw: int, batch: int, num_draws: int = 1) -> None:
        """Prepare for a pass of `batch` inputs under a draw, or of so many for each of several draws in turn."""
        now = self._now
        now.draw, now.batch, now.num_draws, now.calls = draw, batch, num_draws, 0

    def keep(self, draw: int, shape: tuple[int, ...], call: int = 0) -> Tensor:
        """Return which units of one input are kept under a draw, booleans of `shape`."""
        return self._keep(self.rate, draw, shape, call)

    def forward(self, inputs: Tensor) -> Tensor:
        """Apply the mask of the current draw to `inputs`."""
        if self.rate == 0:
            return inputs
        now, size = self._now, inputs.shape
        if len(size) < 2 or size[0] % (now.batch * now.num_draws):
            raise ValueError(
                f"dropout layer {self._keep.name!r} must see the batch of {now.batch} as its first axis, got "
                f"{tuple(size)}; build the model batch first"
            )
        shape = (1,) if self.pathwise else tuple(size[1:2] if self.channelwise else size[1:])
        if now.num_draws > 1:
            kept = self.next(shape).to(inputs.device).unsqueeze(1)
            kept = kept.reshape(*kept.shape, *[1] * (len(size) + 1 - kept.ndim))
            return self.applied(inputs.unflatten(0, (now.num_draws, -1)), kept).flatten(0, 1)
        key = now.draw, now.calls
        known = self._factors.get(key)
        if known is not None and known[0] == size[1:] and known[1].dtype == inputs.dtype:
            now.calls += 1
            return inputs * known[1]
        kept = self.next(shape).to(inputs.device)
        if self.channelwise:
            kept = kept.reshape(-1, *[1] * (len(size) - 2))
        if self.alpha:
            return self.applied(inputs, kept)
        factor = kept.to(inputs.dtype) * self.scale
        if known is None and self._num_factors + factor.numel() <= CACHED_FACTORS:
            self._num_factors += factor.numel()
            self._factors[key] = size[1:], factor
        return inputs * factor

    def next(self, shape: tuple[int, ...]) -> Tensor:
        """Return which units are kept in the next call of this pass: under its draw, or (draws, …) under several."""
        now = self._now
        now.calls += 1
        if now.num_draws == 1:
            return self.keep(now.draw, shape, now.calls - 1)
        draws = range(now.draw, now.draw + now.num_draws)
        return stack([self.keep(draw, shape, now.calls - 1) for draw in draws])

    def applied(self, inputs: Tensor, kept: Tensor) -> Tensor:
        """Return `inputs` scaled where `kept`; elsewhere 0, or the floor of SELU for alpha dropout."""
        if not self.alpha:
            return inputs * (kept.to(inputs.dtype) * self.scale)
        if self.rate == 1:
            return inputs * 0
        slope = ((1 - self.rate) * (1 + self.rate * SELU_FLOOR**2)) ** -0.5
        shift = -slope * SELU_FLOOR * self.rate
        moved: Tensor = inputs.where(kept, inputs.new_tensor(SELU_FLOOR)) * slope + shift
        return moved

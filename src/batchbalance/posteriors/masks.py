"""Dropout whose mask belongs to a draw: one mask for a draw and a layer, whatever the inputs."""

from torch import Tensor, nn, rand

from batchbalance.seeds import generator

ELEMENTWISE = (nn.Dropout, nn.AlphaDropout)
CHANNELWISE = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.FeatureAlphaDropout)
ALPHA = (nn.AlphaDropout, nn.FeatureAlphaDropout)

# AlphaDropout moves dropped units to the value that SELU gives to minus infinity.
SELU_FLOOR = -1.7580993408473766
CACHED_NUMBERS = 2**24  # masks of a layer that are kept rather than made again, in booleans


def is_plain(layer: nn.Module, kinds: tuple[type[nn.Module], ...]) -> bool:
    """Whether a layer is exactly one of these, does what its type does, and nothing else.

    A subclass, a patched ``forward`` or a hook may do anything; such a layer runs in full.
    """
    hooked = layer._forward_hooks or layer._forward_pre_hooks
    return type(layer) in kinds and "forward" not in vars(layer) and not hooked


class Mask(nn.Module):
    """Stands in for a dropout layer and keeps the same units for every input of a draw.

    A layer that runs twice in one forward pass has a mask for each of its calls.

    Attributes:
        rate: the probability to drop a unit.
        channelwise: whether whole channels are dropped (axis 1), else single units.
        alpha: whether dropped units go to the floor of SELU rather than to 0.
    """

    def __init__(self, layer: nn.Module, name: str, seed: int) -> None:
        super().__init__()
        self.rate = float(layer.p)  # type: ignore[arg-type]
        self.channelwise = isinstance(layer, CHANNELWISE)
        self.alpha = isinstance(layer, ALPHA)
        self._name, self._seed = name, seed
        self._cache: dict[tuple[int, int], Tensor] = {}
        self._cached_numbers = 0
        self._shapes: dict[int, tuple[int, ...]] = {}
        self._draw = self._calls = 0
        self._batch = 1

    @property
    def scale(self) -> float:
        """What the kept units are multiplied by."""
        return 1 / (1 - self.rate) if self.rate < 1 else 0.0

    def begin(self, draw: int, batch: int) -> None:
        """Prepare for one forward pass of `batch` inputs under a draw."""
        self._draw, self._batch, self._calls = draw, batch, 0

    def keep(self, draw: int, shape: tuple[int, ...], call: int = 0) -> Tensor:
        """Which units of one input are kept under a draw, booleans of `shape`."""
        if self._shapes.setdefault(call, shape) != shape:
            raise ValueError(
                f"`inputs` must have one shape, got {shape} instead of {self._shapes[call]} at dropout layer "
                f"{self._name!r}; pad inputs to one size, and let the batch be the first axis"
            )
        if (draw, call) in self._cache:
            return self._cache[draw, call]
        purpose = f"mask/{self._name}" + (f"/{call}" if call else "")
        kept = rand(shape, generator=generator(self._seed, purpose, draw)) >= self.rate
        if self._cached_numbers + kept.numel() <= CACHED_NUMBERS:
            self._cached_numbers += kept.numel()
            self._cache[draw, call] = kept
        return kept

    def forward(self, inputs: Tensor) -> Tensor:
        """`inputs` with the current draw's mask applied."""
        if self.rate == 0:
            return inputs
        if inputs.ndim < 2 or len(inputs) % self._batch:
            raise ValueError(
                f"dropout layer {self._name!r} must see the batch of {self._batch} as its first axis, got "
                f"{tuple(inputs.shape)}; build the model batch first"
            )
        shape = tuple(inputs.shape[1:2] if self.channelwise else inputs.shape[1:])
        kept = self.keep(self._draw, shape, self._calls).to(inputs.device)
        self._calls += 1
        return self.applied(inputs, kept.reshape(-1, *[1] * (inputs.ndim - 2)) if self.channelwise else kept)

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

"""Dropout with one mask for each draw and layer, the same for all inputs.

A `Mask` replaces a dropout module. Dropout inside other modules needs more: an attention module runs with its dropout
on, and each operation that draws random zeros is replaced by the mask of the draw. That works for
`nn.MultiheadAttention`, and for modules of Hugging Face, timm and others whose class name contains "Attention". A
recurrent network runs layer by layer, with masks between layers. A warning names any other dropout that is run.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils.rnn import PackedSequence
from torch.utils._python_dispatch import TorchDispatchMode

from batchbalance.arguments.seeds import generator

ELEMENTWISE = (nn.Dropout, nn.AlphaDropout)
CHANNELWISE = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.FeatureAlphaDropout)
ALPHA = (nn.AlphaDropout, nn.FeatureAlphaDropout)

# AlphaDropout sets dropped units to the limit of SELU at minus infinity.
SELU_FLOOR = -1.7580993408473766
FIRST_BLOCK = 16  # positions of an axis in the first block; each further block has as many as all before it
CACHED_NUMBERS = 2**24  # booleans of the cached masks of a layer
CACHED_FACTORS = 2**20  # numbers of the cached factors of a small layer
RECURRENT = (nn.LSTM, nn.GRU, nn.RNN)
BERNOULLI = torch.ops.aten.bernoulli_.float
NATIVE_DROPOUT = torch.ops.aten.native_dropout.default
ZEROS = ("bernoulli", "native_dropout", "rand", "uniform_", "rand_like")  # operations that dropout uses
NAMED = (nn.modules.dropout._DropoutNd, nn.RNNBase)  # a warning names these when the masks are made

Running = list[tuple[str, nn.Module]]


def is_plain(layer: nn.Module, kinds: tuple[type[nn.Module], ...]) -> bool:
    """Return whether a layer is exactly of one of these types, unpatched and without hooks.

    A subclass, a patched ``forward`` or a hook may change the result, so such a layer runs in full.
    """
    hooked = layer._forward_hooks or layer._forward_pre_hooks
    return type(layer) in kinds and "forward" not in vars(layer) and not hooked


class Keep:
    """The units of a layer that each draw keeps: the same for every input, and for every padded length.

    The last axis of (length, units) and the first of (heads, length, length) are fixed. The others may differ from
    batch to batch, which does not change the units that are kept. A layer that runs twice in one forward pass has a
    mask for each call.
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
                f"`inputs` must have one shape, or differ only in length, got {shape} instead of {known} at dropout "
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
        if len(shape) < 3:  # row by row, so that additional rows do not change earlier ones
            return torch.rand(shape, generator=generator(self._seed, purpose, draw))
        numbers = torch.empty(shape)
        # An axis is divided into blocks: one of `FIRST_BLOCK` positions, then one more for each doubling of its length.
        # Each block has its own random stream, so the numbers stay the same when an axis grows.
        for corner in product(*(range(((size - 1) // FIRST_BLOCK).bit_length() + 1) for size in shape[1:])):
            spans = [slice(FIRST_BLOCK << (level - 1) if level else 0, FIRST_BLOCK << level) for level in corner]
            block = (shape[0], *(span.stop - span.start for span in spans))
            part = numbers[(slice(None), *spans)]
            stream = generator(self._seed, f"{purpose}/block/{'/'.join(map(str, corner))}", draw)
            part.copy_(torch.rand(block, generator=stream)[tuple(map(slice, part.shape))])
        return numbers


def is_drawn(module: nn.Module) -> bool:
    """Return whether a module itself depends on the draw, apart from the modules in it."""
    return isinstance(module, Mask) or isinstance(vars(module).get("forward"), AttentionDropout | RecurrentDropout)


def is_path(module: nn.Module) -> bool:
    """Return whether a module drops whole residual branches (stochastic depth).

    They are recognised by class name and by their rate, so that none of these packages is imported.
    """
    name, held = type(module).__name__, vars(module)
    return (name.endswith("DropPath") and "drop_prob" in held) or (name == "StochasticDepth" and "p" in held)


class _Pass:
    """The state of a forward pass. A plain object, because setting an attribute of a module takes a microsecond."""

    __slots__ = ("batch", "calls", "draw", "num_draws")

    def __init__(self) -> None:
        self.draw = self.calls = 0
        self.batch = self.num_draws = 1


class Mask(nn.Module):
    """A replacement for a dropout layer that keeps the same units for every input of a draw.

    Attributes:
        name: the name of the layer.
        rate: the probability of dropping a unit; also `p` as in the layer, for modules that read it.
        channelwise: whether whole channels (axis 1) are dropped instead of single units.
        pathwise: whether the whole input, a residual branch, is dropped or kept.
        alpha: whether dropped units are set to the minimum of SELU instead of 0.
        scale: the factor of the kept units.
    """

    def __init__(self, layer: nn.Module, name: str, seed: int) -> None:
        super().__init__()
        held = vars(layer)
        self.rate = self.p = float(held.get("p", held.get("drop_prob")) or 0.0)
        self.channelwise = isinstance(layer, CHANNELWISE)
        self.pathwise = is_path(layer)
        self.alpha = isinstance(layer, ALPHA)
        self.scale = 1.0 if not held.get("scale_by_keep", True) else 1 / (1 - self.rate) if self.rate < 1 else 0.0
        self.name, self._keep = name, Keep(name, seed)
        self._now = _Pass()
        self._factors: dict[tuple[int, int], tuple[tuple[int, ...], Tensor]] = {}
        self._num_factors = 0

    @property
    def calls(self) -> int:
        """The number of calls that dropped something in this forward pass."""
        return self._now.calls

    def begin(self, draw: int, batch: int, num_draws: int = 1) -> None:
        """Prepare for a pass of `batch` inputs under a draw, or under each of several draws in turn."""
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
                f"dropout layer {self.name!r} must see the batch of {now.batch} as its first axis, got "
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
        return torch.stack([self.keep(draw, shape, now.calls - 1) for draw in draws])

    def applied(self, inputs: Tensor, kept: Tensor) -> Tensor:
        """Return `inputs` scaled where `kept`; elsewhere 0, or the minimum of SELU for alpha dropout."""
        if not self.alpha:
            return inputs * (kept.to(inputs.dtype) * self.scale)
        if self.rate == 1:
            return inputs * 0
        slope = ((1 - self.rate) * (1 + self.rate * SELU_FLOOR**2)) ** -0.5
        shift = -slope * SELU_FLOOR * self.rate
        moved: Tensor = inputs.where(kept, inputs.new_tensor(SELU_FLOOR)) * slope + shift
        return moved


class AttentionDropout:
    """A replacement for the ``forward`` of an attention module.

    Attributes:
        name: the name of the module.
        rate: the largest rate among the attributes of the module; it may use others.
        calls: the number of calls that dropped something in this forward pass.
    """

    def __init__(self, module: nn.Module, name: str, seed: int) -> None:
        self._module, self._forward = module, module.forward
        self.name, self._keep = name, Keep(name, seed)
        rates = [value for key, value in vars(module).items() if "drop" in key and isinstance(value, float)]
        self.rate = max(rates, default=0.0)
        self._draws = range(1)
        self.calls = 0
        self._batch = 1
        self._off = False

    @staticmethod
    def fits(module: nn.Module) -> bool:
        """Return whether a module is attention and has no other attention module inside."""
        return not any("Attention" in type(part).__name__ for part in list(module.modules())[1:]) and (
            module.dropout > 0 if isinstance(module, nn.MultiheadAttention) else "Attention" in type(module).__name__
        )

    def begin(self, draw: int, batch: int, num_draws: int = 1) -> None:
        """Prepare for a pass of `batch` inputs under a draw, or under each of several draws in turn."""
        self._draws, self._batch, self.calls = range(draw, draw + num_draws), batch, 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module under the current draw."""
        if self._off:
            return self._forward(*args, **kwargs)
        self._module.training = True
        try:
            # Fused kernels draw their random numbers internally, where `Drawing` cannot replace them.
            with sdpa_kernel(SDPBackend.MATH), Drawing(self._next):
                return self._forward(*args, **kwargs)
        except UnknownAxesError as error:
            warnings.warn(f"dropout stays off, as in eval mode, in {self.name!r}: {error}", stacklevel=2)
            self._off, self.calls = True, 0
        finally:
            self._module.training = False
        return self._forward(*args, **kwargs)

    def _next(self, rate: float, noise: Tensor) -> Tensor:
        """Return which entries are kept, for dropout noise of this shape."""
        times, rest = divmod(len(noise), self._batch * len(self._draws))
        if rest or noise.ndim < 3:
            raise UnknownAxesError(f"its weights {tuple(noise.shape)} are not those of a batch of {self._batch}")
        self.calls += 1
        inner = tuple(noise.shape[1:]) if noise.ndim > 3 else (times, *noise.shape[1:])
        kept = torch.stack([self._keep(rate, draw, inner, self.calls - 1) for draw in self._draws]).to(noise.device)
        copies = self._batch * (times if noise.ndim > 3 else 1)
        return kept.unsqueeze(1).expand(-1, copies, *inner).reshape(noise.shape)


class UnknownAxesError(Exception):
    """Attention weights whose batch axis cannot be identified."""


class DispatchMode(TorchDispatchMode):
    """A mode that intercepts every torch operation while a block runs."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: True would import torch's compiler and slow down every operation."""
        return False


class Drawing(DispatchMode):
    """A mode that returns masks where dropout draws random zeros."""

    def __init__(self, kept: Callable[[float, Tensor], Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._kept = kept

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is BERNOULLI:  # the noise of dropout on a CPU
            share = args[1] if len(args) > 1 else 0.5
            return args[0].copy_(self._kept(1 - share, args[0]))
        if function is NATIVE_DROPOUT:  # on other devices
            inputs, rate = args[:2]
            kept = self._kept(rate, inputs)
            return inputs * kept / (1 - rate), kept
        return function(*args, **(kwargs or {}))


class RecurrentDropout:
    """A replacement for the ``forward`` of an LSTM, GRU or RNN of several layers with dropout between them."""

    def __init__(self, module: Any, name: str, seed: int) -> None:
        self.mask = Mask(nn.Dropout(module.dropout), name, seed)
        self._batch_first = module.batch_first
        self._layers = [_single(module, layer) for layer in range(module.num_layers)]
        self._directions = 2 if module.bidirectional else 1

    @staticmethod
    def fits(module: Any) -> bool:
        """Return whether a module is such a network."""
        return is_plain(module, RECURRENT) and bool(module.dropout > 0) and module.num_layers > 1

    def __call__(self, input: Any, hx: Any = None) -> Any:  # noqa: A002
        """Return the outputs of the last layer, and the last states of all layers."""
        states = []
        for index, layer in enumerate(self._layers):
            first = index * self._directions
            span = slice(first, first + self._directions)
            start = tuple(part[span] for part in hx) if isinstance(hx, tuple) else None if hx is None else hx[span]
            input, state = layer(self._dropped(input) if index else input, start)  # noqa: A001
            states.append(state)
        if isinstance(states[0], tuple):
            return input, tuple(torch.cat(parts) for parts in zip(*states, strict=True))
        return input, torch.cat(states)

    def _dropped(self, outputs: Any) -> Any:
        """Apply the mask, which has one entry for each step and unit, to the outputs of a layer."""
        if isinstance(outputs, PackedSequence):
            steps = torch.arange(len(outputs.batch_sizes)).repeat_interleave(outputs.batch_sizes)
            kept = self.mask.next((len(outputs.batch_sizes), outputs.data.shape[1]))[steps]
            return outputs._replace(data=self.mask.applied(outputs.data, kept.to(outputs.data.device)))
        steps_axis = 1 if self._batch_first else 0
        kept = self.mask.next((outputs.shape[steps_axis], outputs.shape[2])).to(outputs.device)
        return self.mask.applied(outputs, kept if self._batch_first else kept.unsqueeze(1))


def _single(module: Any, layer: int) -> nn.Module:
    """Return one layer of a recurrent network as a separate module that shares the weights."""
    own = {"proj_size": module.proj_size} if isinstance(module, nn.LSTM) else {}
    if isinstance(module, nn.RNN):
        own = {"nonlinearity": module.nonlinearity}
    width = (module.proj_size or module.hidden_size) * (2 if module.bidirectional else 1)
    single = type(module)(
        width if layer else module.input_size,
        module.hidden_size,
        bias=module.bias,
        batch_first=module.batch_first,
        bidirectional=module.bidirectional,
        device="meta",
        **own,
    )
    for name, _ in list(single.named_parameters()):
        setattr(single, name, getattr(module, name.replace("_l0", f"_l{layer}")))
    return single.eval()  # type: ignore[no-any-return]


def training_noise(model: nn.Module, run: Callable[[], Any]) -> list[str]:
    """Return the names of the modules that draw random zeros in training mode and have no mask.

    They are found by a forward pass in training mode. Modules with running statistics stay in eval mode, and buffers
    are restored. If the network fails in training mode, the list is empty.
    """
    seen: dict[str, None] = {}

    class Watching(DispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = function._schema.name.removeprefix("aten::")
            if name.rstrip("_") in ZEROS or name in ZEROS:
                inner = running[-1][1] if running else model
                if not (is_drawn(inner) or isinstance(inner, NAMED)):
                    seen[_named(running)] = None
            return function(*args, **(kwargs or {}))

    modes = {module: module.training for module in model.modules()}
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    devices = {buffer.device for buffer, _ in buffers} | {each.device for each in model.parameters()}
    cuda = [device for device in devices if device.type == "cuda"]
    for module in modes:
        module.training = not isinstance(module, nn.modules.batchnorm._NormBase | Mask)
    try:
        # Fused attention kernels draw their random numbers internally, where `Watching` cannot see them.
        fixed = torch.random.fork_rng(devices=cuda), sdpa_kernel(SDPBackend.MATH)
        with fixed[0], fixed[1], _running(model) as running, Watching(), suppress(Exception):  # type: ignore[no-untyped-call]
            run()  # may fail in training mode, for example without labels
    finally:
        for module, mode in modes.items():
            module.training = mode
        for buffer, before in buffers:
            buffer.copy_(before)
    return list(seen)


@contextmanager
def _running(model: nn.Module) -> Iterator[Running]:
    """Yield a list of the modules that are currently running, the innermost last."""
    running: Running = []
    handles = []

    def leave(*_: Any) -> None:
        running.pop()

    for name, module in model.named_modules():
        handles.append(module.register_forward_pre_hook(lambda m, _, name=name: running.append((name, m))))
        handles.append(module.register_forward_hook(leave))
    try:
        yield running
    finally:
        for handle in handles:
            handle.remove()


def _named(running: Running) -> str:
    """Return the name of the innermost module, for messages."""
    return f"module {running[-1][0]!r}" if running and running[-1][0] else "the model itself"

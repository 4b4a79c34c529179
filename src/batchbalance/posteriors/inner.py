"""Dropout that is not a module: on attention weights, and between the layers of a recurrent network.

An attention module runs with its dropout on, and where it asks for random zeros it gets the mask of the draw. That
works for `nn.MultiheadAttention`, and for the modules of Hugging Face, timm and others whose class is named so. A
recurrent network runs layer by layer, with a mask between two layers.
"""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils.rnn import PackedSequence
from torch.utils._python_dispatch import TorchDispatchMode

from batchbalance.posteriors.masks import InnerDropout, Keep, Mask, is_plain

RECURRENT = (nn.LSTM, nn.GRU, nn.RNN)
BERNOULLI = torch.ops.aten.bernoulli_.float
NATIVE_DROPOUT = torch.ops.aten.native_dropout.default


class AttentionDropout(InnerDropout):
    """Stands in for the ``forward`` of an attention module.

    Attributes:
        rate: the largest rate that the module holds as a number; it may take others from elsewhere.
        calls: how often it dropped something in this forward pass.
    """

    def __init__(self, module: nn.Module, name: str, seed: int) -> None:
        self._module, self._forward = module, module.forward
        self._keep = Keep(name, seed)
        rates = [value for key, value in vars(module).items() if "drop" in key and isinstance(value, float)]
        self.rate = max(rates, default=0.0)
        self._draws = range(1)
        self.calls = 0
        self._batch = 1
        self._off = False

    @property
    def name(self) -> str:
        """Of the module."""
        return self._keep.name

    @staticmethod
    def fits(module: nn.Module) -> bool:
        """Return whether a module is attention, and holds no other module that is."""
        return not any("Attention" in type(part).__name__ for part in list(module.modules())[1:]) and (
            module.dropout > 0 if isinstance(module, nn.MultiheadAttention) else "Attention" in type(module).__name__
        )

    def begin(self, draw: int, batch: int, num_draws: int = 1) -> None:
        """Prepare for a pass of `batch` inputs under a draw, or of so many for each of several draws in turn."""
        self._draws, self._batch, self.calls = range(draw, draw + num_draws), batch, 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module under the current draw."""
        if self._off:
            return self._forward(*args, **kwargs)
        self._module.training = True
        try:
            # Fused kernels make their random numbers inside.
            with sdpa_kernel(SDPBackend.MATH), Drawing(self._next):
                return self._forward(*args, **kwargs)
        except UnknownAxesError as error:
            warnings.warn(f"dropout stays off, as in eval mode, in {self._keep.name!r}: {error}", stacklevel=2)
            self._off, self.calls = True, 0
        finally:
            self._module.training = False
        return self._forward(*args, **kwargs)

    def _next(self, rate: float, noise: Tensor) -> Tensor:
        """Return which entries are kept where dropout would draw noise of this shape."""
        times, rest = divmod(len(noise), self._batch * len(self._draws))
        if rest or noise.ndim < 3:
            raise UnknownAxesError(f"its weights {tuple(noise.shape)} are not those of a batch of {self._batch}")
        self.calls += 1
        inner = tuple(noise.shape[1:]) if noise.ndim > 3 else (times, *noise.shape[1:])
        kept = torch.stack([self._keep(rate, draw, inner, self.calls - 1) for draw in self._draws]).to(noise.device)
        copies = self._batch * (times if noise.ndim > 3 else 1)
        return kept.unsqueeze(1).expand(-1, copies, *inner).reshape(noise.shape)


class UnknownAxesError(Exception):
    """Weights of an attention whose examples cannot be distinguished."""


class Drawing(TorchDispatchMode):
    """Gives masks where dropout asks for random zeros."""

    def __init__(self, kept: Callable[[float, Tensor], Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._kept = kept

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: True would import torch's compiler, which is slow, and slow down every operation."""
        return False

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is BERNOULLI:  # the noise of dropout on a CPU
            share = args[1] if len(args) > 1 else 0.5
            return args[0].copy_(self._kept(1 - share, args[0]))
        if function is NATIVE_DROPOUT:  # on other devices
            inputs, rate = args[:2]
            kept = self._kept(rate, inputs)
            return inputs * kept / (1 - rate), kept
        return function(*args, **(kwargs or {}))


class RecurrentDropout(InnerDropout):
    """Stands in for the ``forward`` of an LSTM, GRU or RNN of several layers with dropout between them."""

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
    """Return one layer of a recurrent network as a module of its own that shares the weights."""
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

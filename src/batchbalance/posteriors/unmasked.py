"""Dropout that MC dropout does not draw: found while a network runs, so that it can be named."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from batchbalance.posteriors.masks import Mask, is_drawn

FUNCTIONS = {  # dropout that is not a module
    getattr(nn.functional, name)
    for name in ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")
}
ZEROS = ("bernoulli", "native_dropout", "rand", "uniform_", "rand_like")  # operations that dropout is made of
NAMED = (nn.modules.dropout._DropoutNd, nn.RNNBase)  # which a warning names when the masks are made

Running = list[tuple[str, nn.Module]]


def _enter(running: Running, name: str, module: nn.Module, *_: Any) -> None:
    running.append((name, module))


def _leave(running: Running, *_: Any) -> None:
    running.pop()


@contextmanager
def unmasked_dropout(model: nn.Module) -> Iterator[list[str]]:
    """Give a list that names the modules in which dropout is called as a function while the block runs."""
    seen: list[str] = []

    class Watching(TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            rate = kwargs.get("dropout_p", 0.0) if function is nn.functional.scaled_dot_product_attention else None
            if function in FUNCTIONS:
                rate = kwargs.get("p", args[1] if len(args) > 1 else 0.5)
            if rate and not (running and is_drawn(running[-1][1])):
                seen.append(_named(running))
            return function(*args, **kwargs)

    with _running(model) as running, Watching():
        yield seen


def training_noise(model: nn.Module, run: Callable[[], Any]) -> list[str]:
    """Name the modules that draw random zeros in training mode, where no mask takes their place.

    A forward pass in training mode tells; modules with running statistics stay in eval mode, buffers are put back, and
    a network that fails in training mode names nothing.
    """
    seen: dict[str, None] = {}

    class Watching(TorchDispatchMode):
        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            """Return False: True would import torch's compiler, which is slow."""
            return False

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
        # Fused kernels of attention make their random numbers inside.
        fixed = torch.random.fork_rng(devices=cuda), sdpa_kernel(SDPBackend.MATH)
        with fixed[0], fixed[1], _running(model) as running, Watching(), suppress(Exception):  # type: ignore[no-untyped-call]
            run()  # which may want labels in training mode, or anything else
    finally:
        for module, mode in modes.items():
            module.training = mode
        for buffer, before in buffers:
            buffer.copy_(before)
    return list(seen)


@contextmanager
def _running(model: nn.Module) -> Iterator[Running]:
    """Give the list of modules that run at a moment, the innermost last."""
    running: Running = []
    handles = []
    for name, module in model.named_modules():
        handles.append(module.register_forward_pre_hook(partial(_enter, running, name)))
        handles.append(module.register_forward_hook(partial(_leave, running)))
    try:
        yield running
    finally:
        for handle in handles:
            handle.remove()


def _named(running: Running) -> str:
    return f"module {running[-1][0]!r}" if running and running[-1][0] else "the model itself"

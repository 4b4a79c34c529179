"""Replay of the modules before the first dropout, whose outputs are the same under every draw.

The outputs of modules that finish before the first mask are recorded under the first draw of a batch and returned
under the others. A module is replayed only if running it would give the same output: it is called with the same
tensor objects as before, unchanged, and its weights and buffers are unchanged too. Each draw gets a clone of the
output, because a network may write into it.

If little work precedes the first dropout, the lookup costs more than it saves. So the first `TIMED` draws of the
first batch are alternately replayed and run in full; both give bitwise equal numbers. The faster method is used from
then on, also for the rest of that batch. A batch at least twice as large is measured again.
"""

import copy
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules import module as all_modules

from batchbalance.posteriors.masks import Mask

TIMED = 10  # measured draws of a batch; every second one is replayed
PLAIN = (bool, int, float, str, type(None), torch.dtype, torch.device)

Key = tuple[int, int]  # number of the module, and number of its call in a forward pass


class UnknownValueError(Exception):
    """A value that can neither be compared nor copied."""


@dataclass(frozen=True, eq=False)
class Held:
    """A tensor at a point in time: the object and its version.

    torch increments the version with every write, so equal versions of one object mean equal numbers. Clones of outputs
    are different objects under each draw; they are equal if they come from the same `place` of the same output.
    """

    tensor: Tensor
    version: int
    place: tuple[Any, ...] | None = None


class Record(NamedTuple):
    """A call of a module: its inputs and its weights and buffers, as `Held`, and its output."""

    inputs: Any
    state: list[Held]
    output: Any


class Replay:
    """Modules whose outputs are recorded under the first draw of a batch; their ``forward`` is replaced.

    Args:
        modules: the modules to replay.
        drops: the modules that depend on the draw; `calls` of each counts its masks in a forward pass.
    """

    def __init__(self, modules: Sequence[nn.Module], drops: Sequence[Any]) -> None:
        self._drops = drops
        self._records: dict[Key, Record] = {}
        self._handed: dict[int, Held] = {}
        self._calls: dict[int, int] = {}
        self._is_running = self._is_first = False
        self._is_faster, self._measured_rows = True, 0
        self._seconds: dict[bool, list[float]] | None = None  # by whether a draw was replayed, while measuring
        for number, module in enumerate(modules):
            module.forward = _Replayed(self, number, module, module.forward)

    @contextmanager
    def batch(self, num_rows: int) -> Iterator[None]:
        """Record outputs for one batch, whose inputs must be the same objects under every draw."""
        self._seconds = {True: [], False: []} if self._is_due(num_rows) else None
        try:
            yield
            self._measured_rows = max(self._measured_rows, num_rows)
        finally:
            self._is_running = False
            self._records.clear()
            self._handed.clear()

    def _is_due(self, num_rows: int) -> bool:
        """Return whether a batch is measured: the first one, and any at least twice as large as the last measured."""
        return num_rows >= 2 * self._measured_rows

    def draw(self, number: int, run: Callable[[], Tensor]) -> Tensor:
        """Return the output of one forward pass, under the first, second, … draw of a batch."""
        self._is_first = number == 0
        replays = number % 2 == 1 if self._seconds is not None else self._is_faster
        self._is_running = replays or (self._is_first and self._seconds is not None)
        self._handed.clear()
        self._calls.clear()
        start = time.perf_counter()
        found = run()
        if self._seconds is not None:
            self._seconds[replays].append(time.perf_counter() - start)
            if self._seconds[True]:
                # The minimum is least affected by other processes.
                self._is_faster = min(self._seconds[True]) < min(self._seconds[False])
            if number + 1 >= TIMED:
                self._seconds = None
        return found

    def call(self, module: "_Replayed", inputs: tuple[Any, Any]) -> Any:
        """Return the output of a module: the recorded one, or that of a new call."""
        if not self._is_running:
            return module.run(inputs)
        key = module.number, self._calls.get(module.number, 0)
        self._calls[module.number] = key[1] + 1
        record = self._records.get(key)
        if record is None and not self._is_first:
            return module.run(inputs)
        try:
            held, state = self._held(inputs), module.state()
        except UnknownValueError:
            return module.run(inputs)
        if record is None:
            record = Record(held, state, module.run(inputs))
            if not self._is_safe(record):
                return record.output
            self._records[key] = record
        elif not (_same(record.inputs, held) and _same(record.state, state)):
            return module.run(inputs)
        return self._clone(record.output, (key,))

    def _is_safe(self, record: Record) -> bool:
        """Return whether a call came before the first mask, changed nothing, and returned newly allocated memory.

        An output that shares memory with an input or a weight is a view. Later writes into that memory change the view,
        but would not change a clone.
        """
        if any(drop.calls for drop in self._drops):
            return False
        try:
            made = [tensor.untyped_storage().data_ptr() for tensor in _tensors(record.output)]
        except UnknownValueError:
            return False
        before = [*_tensors(record.inputs), *record.state]
        others = {held.tensor.untyped_storage().data_ptr() for held in before}
        unchanged = all(held.tensor._version == held.version for held in before)
        return unchanged and len(set(made)) == len(made) and not others & set(made)

    def _clone(self, value: Any, place: tuple[Any, ...]) -> Any:
        """Return an output with clones of its tensors, which are recognised when they are inputs of another module."""
        if isinstance(value, Tensor):
            clone = value.clone()
            self._handed[id(clone)] = Held(clone, clone._version, place)
            return clone
        if isinstance(value, Mapping):
            copied: Any = copy.copy(value)
            for key in value:
                copied[key] = self._clone(value[key], (*place, key))
            return copied
        if isinstance(value, list | tuple):
            parts = [self._clone(part, (*place, i)) for i, part in enumerate(value)]
            return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
        return value

    def _held(self, value: Any) -> Any:
        """Return inputs with a `Held` in place of each tensor."""
        if isinstance(value, Tensor):
            known = self._handed.get(id(value))
            return known if known is not None and known.version == value._version else _held_now(value)
        if isinstance(value, Mapping):
            return {key: self._held(part) for key, part in value.items()}
        if isinstance(value, list | tuple):
            return [self._held(part) for part in value]
        if not isinstance(value, PLAIN):
            raise UnknownValueError
        return value


class _Replayed:
    """A replacement for the ``forward`` of a module."""

    def __init__(self, replay: Replay, number: int, module: nn.Module, forward: Callable[..., Any]) -> None:
        self.number = number
        self._replay, self._forward = replay, forward
        self._held = [held for part in module.modules() for held in (part._parameters, part._buffers) if held]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._replay.call(self, (args, kwargs))

    def run(self, inputs: tuple[Any, Any]) -> Any:
        """Call the module."""
        return self._forward(*inputs[0], **inputs[1])

    def state(self) -> list[Held]:
        """Return the module's weights and buffers with their current versions."""
        return [_held_now(tensor) for held in self._held for tensor in held.values() if tensor is not None]


def replayable(model: nn.Module, drops: Sequence[Any], run: Callable[[], Any]) -> list[nn.Module]:
    """Return the outermost modules that finish before the first mask and may be replayed.

    A module with hooks, on itself or inside, runs in full. If there are global hooks, all modules run in full.
    """
    if all_modules._global_forward_hooks or all_modules._global_forward_pre_hooks:
        return []
    free = []
    for module in model.modules():
        parts = list(module.modules())
        hooked = any(part._forward_hooks or part._forward_pre_hooks for part in parts)
        scripted = any(isinstance(part, torch.jit.ScriptModule) for part in parts)
        if module is not model and not (hooked or scripted or isinstance(module, Mask)):
            free.append(module)
    found: dict[nn.Module, None] = {}

    def leave(module: nn.Module, *_: Any) -> None:
        if not any(drop.calls for drop in drops):
            for part in module.modules():
                found.pop(part, None)
            found[module] = None

    handles = [module.register_forward_hook(leave) for module in free]
    try:
        run()
    finally:
        for handle in handles:
            handle.remove()
    return list(found)


def _held_now(tensor: Tensor) -> Held:
    """Return a tensor with its current version."""
    if tensor.is_inference():  # has no version
        raise UnknownValueError
    return Held(tensor, tensor._version)


def _same(one: Any, other: Any) -> bool:
    """Return whether two nested values hold the same tensors, unchanged, and equal other values."""
    if isinstance(one, Held):
        if not isinstance(other, Held) or one.place is not None or other.place is not None:
            return isinstance(other, Held) and one.place == other.place
        return one.tensor is other.tensor and one.version == other.version
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and all(_same(one[k], other[k]) for k in one)
    if isinstance(one, list):
        return isinstance(other, list) and len(one) == len(other) and all(map(_same, one, other))
    return type(one) is type(other) and bool(one == other)


def _tensors(value: Any) -> list[Any]:
    """Return all tensors, or `Held` objects, in a nested value."""
    if isinstance(value, Tensor | Held):
        return [value]
    if isinstance(value, list | tuple | Mapping):
        parts = value.values() if isinstance(value, Mapping) else value
        return [tensor for part in parts for tensor in _tensors(part)]
    if not isinstance(value, PLAIN):
        raise UnknownValueError
    return []

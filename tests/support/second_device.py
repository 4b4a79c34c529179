"""A second device, pretended: tensors that say they are on it, keep their numbers on the CPU, and meet no others.

On a machine with one device a forgotten `.to(device)` shows nowhere. Here it is an error, as it is on a GPU: tensors of
two devices in one operation, and indices on the second device into a tensor on the CPU.
"""

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

NAME = "lazy"  # a device type that torch lets be named without hardware
COPIES = {"aten::copy_", "aten::_to_copy"}  # the operations that go from one device to the other
INDEXING = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"}  # takes indices of the CPU
MATMUL = {torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__, torch.Tensor.__rmatmul__}


class Far(torch.Tensor):
    """A tensor on the second device; `near` holds its numbers."""

    @staticmethod
    def __new__(cls, near):
        far = torch.Tensor._make_wrapper_subclass(
            cls, near.size(), strides=near.stride(), storage_offset=near.storage_offset(), dtype=near.dtype, device=NAME
        )
        far.near = near
        return far

    def tolist(self):
        return self.near.tolist()

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function in MATMUL:  # reshapes in place, which a wrapper does not follow
            check_devices("matmul", args)
            return Far(function(*tree_map(near, args)))
        with torch._C.DisableTorchFunctionSubclass():  # which would call what comes back far
            return function(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        return computed(function, args, kwargs or {})


class SecondDevice(TorchDispatchMode):
    """While this is entered, tensors can be made on the second device and moved to it."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return computed(function, args, kwargs or {})


def near(value):
    return value.near if isinstance(value, Far) else value


def check_devices(name, args):
    tensors = [each for each in tree_leaves(args) if isinstance(each, torch.Tensor)]
    any_far = any(isinstance(each, Far) for each in tensors)
    if name in INDEXING:
        tensors = tensors[:1]
    if any_far and any(not isinstance(each, Far) and each.dim() for each in tensors):
        raise RuntimeError(f"{name}: tensors must be on one device, got two")
    return any_far


def computed(function, args, kwargs):
    name = function._schema.name
    is_far = isinstance(args[0], Far) if name in COPIES else check_devices(name, (args, kwargs))
    if kwargs.get("device") is not None:
        is_far = torch.device(kwargs["device"]).type == NAME
        kwargs = {**kwargs, "device": torch.device("cpu")}
    result = function(*tree_map(near, args), **tree_map(near, kwargs))
    if name.endswith("_"):
        return args[0]
    return tree_map(lambda each: Far(each) if is_far and isinstance(each, torch.Tensor) else each, result)

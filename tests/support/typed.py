"""The type checker of `make types`: beartype, which here also notes what was called.

Of jaxtyping's functions for each function it is given two: one with the arguments alone, one with the result too.
"""

import functools
import sys
import typing

from beartype import beartype
from jaxtyping import AbstractArray

WITH_SHAPES = set()
CALLED = set()


def checked(function):
    """`function` with its types checked at every call."""
    name = (function.__module__, function.__qualname__)
    if any(has_shape(each) for each in function.__annotations__.values()):
        WITH_SHAPES.add(name)
    inner = beartype(function)

    @functools.wraps(inner)
    def noted(*args, **kwargs):
        CALLED.add(name)
        return inner(*args, **kwargs)

    return noted


def has_shape(annotation):
    """Whether a shape stands anywhere in an annotation."""
    is_shape = isinstance(annotation, type) and issubclass(annotation, AbstractArray)
    return is_shape or any(has_shape(each) for each in typing.get_args(annotation))


def not_called():
    """Functions with shapes that were never called, except those of protocols, which are empty, and those for Ray."""
    missing = sorted(WITH_SHAPES - CALLED)
    return [".".join(name) for name in missing if not is_abstract(*name) and ".cluster." not in name[0]]


def is_abstract(module, qualname):
    """Whether a function only says what others must have."""
    place, _, last = qualname.rpartition(".")
    owner = functools.reduce(getattr, filter(None, place.split(".")), sys.modules[module])
    return getattr(owner, "_is_protocol", False) or getattr(getattr(owner, last, None), "__isabstractmethod__", False)

"""Encoders by name."""

from collections.abc import Callable
from typing import Any

from batchbalance.arguments.registry import imported
from batchbalance.encoders.contract import Encoder, Kind, as_encoder
from batchbalance.encoders.tables import TableEncoder
from batchbalance.encoders.texts import SentenceTransformers, Tfidf, WordLlama
from batchbalance.encoders.vision import EfficientNetLite0, Pixels, Timm
from batchbalance.errors import UnknownNameError

Factory = Callable[..., Encoder]

# Name, or what stands before the colon of a model's name: the encoder, and the options that it takes.
PLAIN: dict[str, tuple[Factory, tuple[str, ...]]] = {
    "efficientnet-lite0": (EfficientNetLite0, ("image_size", "device")),
    "pixels": (Pixels, ("image_size",)),
    "wordllama": (WordLlama, ()),
    "tfidf": (Tfidf, ()),
    "table": (TableEncoder, ()),
}
FAMILIES: dict[str, tuple[Factory, tuple[str, ...]]] = {
    "timm": (Timm, ("image_size", "device")),
    "sentence-transformers": (SentenceTransformers, ("device",)),
}
DEFAULTS: dict[Kind, str] = {"images": "efficientnet-lite0", "texts": "wordllama", "rows": "table"}
KNOWN = (*PLAIN, *(f"{family}:MODEL" for family in FAMILIES), "PACKAGE.MODULE:FUNCTION")


def encoder(name: str, *, image_size: int | None = None, device: str | None = None) -> Encoder:
    """Return the encoder with this name.

    Args:
        name: "efficientnet-lite0", "pixels", "wordllama", "tfidf", "table", "timm:MODEL",
            "sentence-transformers:MODEL", or "package.module:function" for a function `f(batch) -> (n, D)`, a class
            of encoders or an encoder.
        image_size: pixels of the square that an encoder of images looks at.
        device: where to compute, as "cuda"; the CPU if omitted.

    Raises:
        UnknownNameError: if there is no encoder of that name.
        MissingExtraError: if a package is missing.
        OSError: if a model cannot be downloaded.
        ValueError: if the encoder does not take an option.
    """
    family, colon, rest = name.partition(":")
    arguments: list[str] = []
    if name in PLAIN:
        factory, takes = PLAIN[name]
    elif colon and rest:
        factory, takes = FAMILIES.get(family, (own, ()))
        arguments = [rest if family in FAMILIES else name]
    else:
        raise UnknownNameError("encoder", name, KNOWN)
    options: dict[str, Any] = {"image_size": image_size, "device": device}
    given = {key: value for key, value in options.items() if value is not None}
    for key in given:
        if key not in takes:
            raise ValueError(f"`{key}` is not used by encoder {name!r}; leave it out")
    return factory(*arguments, **given)


def own(path: str) -> Encoder:
    """Return the user's encoder "package.module:function"; modules in the current folder are found too."""
    return as_encoder(imported("encoder", path), path)

"""Posteriors in folders: a listing in JSON, and tensors in safetensors; nothing is unpickled."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from batchbalance.errors import FileFormatError
from batchbalance.system.files import replacing
from batchbalance.system.sealed import tensors_digest

FORMAT = "batchbalance posterior"
VERSION = 1


def write_saved(
    directory: str | os.PathLike[str], kind: str, tensors: Mapping[str, Tensor], options: Mapping[str, Any]
) -> None:
    """Write a posterior into a folder; an interrupted write leaves an older one usable."""
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    listing = directory / "posterior.json"
    if any(directory.iterdir()) and not listing.is_file():
        raise FileFormatError(f"{directory} must be empty or hold a saved posterior; choose another folder")
    digest = fingerprint(tensors, kind, json.dumps(options))
    weights = directory / f"weights-{digest}.safetensors"
    with replacing(weights) as temporary:
        contiguous = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
        safetensors.torch.save_file(contiguous, temporary)
    content = {"format": FORMAT, "version": VERSION, "kind": kind, "weights": weights.name, "options": options}
    with replacing(listing) as temporary:
        temporary.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    for old in directory.glob("weights-*.safetensors"):
        if old != weights:
            old.unlink()


def read_listing(directory: str | os.PathLike[str]) -> dict[str, Any]:
    """Read and check the JSON file of a saved posterior."""
    listing = Path(directory) / "posterior.json"
    if not listing.is_file():
        raise FileFormatError(f"{directory} must be a saved posterior, got a folder without posterior.json")
    try:
        content = json.loads(listing.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"cannot read the posterior in {directory}: {error}; save it again") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise FileFormatError(f"{listing} must describe a saved posterior, got something else")
    missing = [key for key in ("version", "kind", "options", "weights") if key not in content]
    if missing:
        raise FileFormatError(f"{listing} must describe a saved posterior, got one without {missing[0]}; save it again")
    if content["version"] != VERSION:
        raise FileFormatError(f"{listing} must be of version {VERSION}, got {content['version']}")
    return content


def read_saved(directory: str | os.PathLike[str], kind: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and options of a folder written by ``save``; nothing is unpickled.

    Raises:
        FileFormatError: if the folder is damaged, not a saved posterior, or holds a posterior of another kind.
    """
    content = read_listing(directory)
    if content["kind"] != kind:
        raise FileFormatError(f"{directory} must hold a posterior of kind {kind!r}, got {content['kind']!r}")
    try:
        options = dict(content["options"])
        weights = Path(directory) / Path(content["weights"]).name
        tensors: dict[str, Tensor] = safetensors.torch.load_file(weights)
        if weights.stem != f"weights-{fingerprint(tensors, kind, json.dumps(options))}":
            raise FileFormatError(f"{weights} is damaged: it does not match its checksum; save the posterior again")
    except FileFormatError:
        raise
    except Exception as error:  # a damaged file raises many types of errors
        raise FileFormatError(f"cannot read the posterior in {directory}: {error}; save it again") from error
    return tensors, options


def fingerprint(tensors: Mapping[str, Tensor], *words: object) -> str:
    """Return ten hexadecimal digits of a hash of the words, names, shapes and numbers."""
    return tensors_digest(tensors, *words)[:10]


def as_network(network: Any, directory: str | os.PathLike[str]) -> nn.Module:
    """Return a network, or the one that a function without arguments builds; the global random state is restored."""
    found = network
    if callable(network) and not isinstance(network, nn.Module):
        with torch.random.fork_rng(devices=[]):
            found = network()
    if not isinstance(found, nn.Module):
        raise ValueError(
            f"`network` must be a network like the one saved in {directory}, or a function that builds one, got "
            f"{found!r}"
        )
    return found


def refuse_network(network: Any, kind: str) -> None:
    """Raise ValueError if a network is given to load a posterior that needs none."""
    if network is not None:
        raise ValueError(f"`network` is not used by posteriors of kind {kind!r}; omit it")


def structure_of(model: nn.Module) -> str:
    """Describe a network without its weights: the types and options of its modules, by name.

    Two networks with equal weights may differ in an activation or a stride, and then their draws are not the same.
    """
    return "\n".join(
        f"{name}: {type(module).__module__}.{type(module).__qualname__}({module.extra_repr()})"
        for name, module in model.named_modules()
    )


def load_weights(model: nn.Module, state: Mapping[str, Tensor], directory: str | os.PathLike[str]) -> None:
    """Load saved weights into `model`; raise FileFormatError if they are of another architecture."""
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        raise FileFormatError(f"the posterior in {directory} is of another network: {error}") from error

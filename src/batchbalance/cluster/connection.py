"""Connecting to a Ray cluster; one that does not answer is an error within seconds."""

import logging
import os
import socket
from typing import Any

from batchbalance.errors import MissingExtraError

CONNECT_SECONDS = 5.0
MAX_LOSSES = 3  # workers that may die, one after the other, before their work is given up


def connected_ray(address: str) -> Any:
    """The module ``ray``, connected.

    Args:
        address: "host:port" of a running cluster; "auto" for one that runs on this machine, or the one that the
            variable RAY_ADDRESS names; "local" to start one on this machine; "any" for "auto" if there is one, else
            "local".

    Raises:
        MissingExtraError: if Ray is not installed.
        ConnectionError: if the cluster does not answer.
    """
    try:
        import ray
    except ImportError as error:
        raise MissingExtraError("Ray", "ray") from error
    if ray.is_initialized():
        return ray
    if address in ("any", "auto"):
        address = os.environ.get("RAY_ADDRESS") or address
    if address not in ("any", "auto", "local"):
        _check_answer(address)
    try:
        _init(ray, "auto" if address == "any" else address)
    except ConnectionError as error:
        if address != "any":
            where = "runs on this machine" if address == "auto" else f"answers at {address}"
            raise ConnectionError(f"no Ray cluster {where}; start one with: ray start --head") from error
        _init(ray, "local")
    return ray


def _init(ray: Any, address: str) -> None:
    started_here = {"include_dashboard": False} if address == "local" else {}
    ray.init(address=address, log_to_driver=False, logging_level=logging.WARNING, **started_here)


def _check_answer(address: str) -> None:
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        raise ValueError(f"`address` must look like host:port, or be 'auto' or 'local', got {address!r}")
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise ConnectionError(
            f"no Ray cluster answers at {address}: {error}; start one with: ray start --head"
        ) from error

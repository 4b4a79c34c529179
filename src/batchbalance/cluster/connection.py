"""Connecting to a Ray cluster; one that does not answer is an error within seconds."""

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from batchbalance.arguments.registry import safe_path
from batchbalance.errors import MissingExtraError

CONNECT_SECONDS = 5.0
LOOPBACK_VARIABLE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
HTTP2_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])  # and settings, all as they are
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
    from ray.job_config import JobConfig

    # Ray would put the working directory first on the path of its workers, unless it takes the job for a client's.
    job = JobConfig(_client_job=True)
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.WARNING, "job_config": job}
    if address != "local":
        ray.init(address=address, **options)
        return
    with _loopback_only(), safe_path():
        ray.init(address=address, include_dashboard=False, **options)


@contextmanager
def _loopback_only() -> Iterator[None]:
    """Let a cluster that starts in this block listen on 127.0.0.1 alone, which no option of Ray 2.60 does on Linux.

    It is what Ray does on Windows and macOS, where this variable and constant say that there are no other machines.
    """
    from ray._private import ray_constants

    had, known = os.environ.get(LOOPBACK_VARIABLE), ray_constants.ENABLE_RAY_CLUSTER
    os.environ[LOOPBACK_VARIABLE], ray_constants.ENABLE_RAY_CLUSTER = "0", False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = known
        if had is None:
            del os.environ[LOOPBACK_VARIABLE]
        else:
            os.environ[LOOPBACK_VARIABLE] = had


def _check_answer(address: str) -> None:
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        raise ValueError(f"`address` must look like host:port, or be 'auto' or 'local', got {address!r}")
    try:
        with socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS) as connection:
            # Ray speaks gRPC, whose server begins with its settings, a frame of type 4. With anything else `ray.init`
            # would try for minutes. Under TLS only Ray itself can tell.
            if os.environ.get("RAY_USE_TLS", "0") in ("", "0"):
                connection.sendall(HTTP2_HELLO)
                if connection.recv(9, socket.MSG_WAITALL)[3:4] != b"\x04":
                    raise ConnectionError("something other than Ray answers")
    except (OSError, OverflowError) as error:
        raise ConnectionError(
            f"no Ray cluster answers at {address}: {error}; start one with: ray start --head"
        ) from error

"""Connecting to a Ray cluster. A cluster that does not answer is an error within seconds."""

import logging
import os
import socket
import sys
from typing import Any

import psutil

from batchbalance.arguments.registry import safe_path
from batchbalance.errors import MissingExtraError

CONNECT_SECONDS = 5.0
LOOPBACK_VARIABLE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
HTTP2_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])  # and settings, all as they are
MAX_LOSSES = 3  # workers that may die, one after the other, before their work is given up


def connected_ray(address: str) -> Any:
    """Return the module ``ray``, connected to a cluster.

    Args:
        address: "host:port" of a running cluster; "auto" for one that runs on this machine, or the one that the
            variable RAY_ADDRESS names; "local" to start one on this machine; "any" for "auto" if there is one, else
            "local".

    Raises:
        MissingExtraError: if Ray is not installed.
        ConnectionError: if the cluster does not answer, or if one that is started here would listen to other machines.
    """
    if "ray" in sys.modules and sys.modules["ray"].is_initialized():
        return sys.modules["ray"]
    if address in ("any", "auto"):
        address = os.environ.get("RAY_ADDRESS") or address
    if address == "any":
        address = "auto" if _runs_here() else "local"
    if address == "local":
        _listen_on_loopback()
    elif address != "auto":
        _check_answer(address)
    try:
        import ray
        from ray.job_config import JobConfig
    except ImportError as error:
        raise MissingExtraError("Ray", "ray") from error
    # Ray puts the working directory first on the path of its workers, unless it takes the job for a client's.
    job = JobConfig(_client_job=True)
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.WARNING, "job_config": job}
    if address == "local":
        with safe_path():
            ray.init(address=address, include_dashboard=False, **options)
        return ray
    try:
        ray.init(address=address, **options)
    except ConnectionError as error:
        where = "runs on this machine" if address == "auto" else f"answers at {address}"
        raise ConnectionError(f"no Ray cluster {where}; start one with: ray start --head") from error
    return ray


def _runs_here() -> bool:
    """Return whether a Ray cluster runs on this machine, without importing Ray."""
    return any(process.info["name"] in ("gcs_server", "raylet") for process in psutil.process_iter(["name"]))


def _listen_on_loopback() -> None:
    """Make a cluster that this process starts listen on 127.0.0.1 alone, as Ray does on Windows and macOS.

    Ray 2.60 has no option for this on Linux. It reads the variable once, when it is imported.
    """
    if "ray" in sys.modules and os.environ.get(LOOPBACK_VARIABLE) != "0":
        raise ConnectionError(
            "Ray was imported before the cluster is started, which would listen on all network interfaces; create the "
            f"executor before `import ray`, set {LOOPBACK_VARIABLE}=0, or call `ray.init` yourself"
        )
    os.environ[LOOPBACK_VARIABLE] = "0"  # the processes of the cluster read it too


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

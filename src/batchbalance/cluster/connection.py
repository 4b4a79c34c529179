"""Connecting to a Ray cluster. If it does not answer, an error is raised within seconds."""

import logging
import os
import socket
import sys
import threading
from contextlib import nullcontext, suppress
from typing import Any

import psutil

from batchbalance.arguments.registry import safe_path
from batchbalance.errors import MissingExtraError

CONNECT_SECONDS = 5.0
LOOPBACK_VARIABLE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
HTTP2_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])  # with an empty settings frame
MAX_LOSSES = 3  # times that a worker may be lost before an error is raised


def connected_ray(address: str) -> Any:
    """Return the module ``ray``, connected to a cluster.

    Args:
        address: "host:port" of a running cluster; "auto" for one that runs on this machine, or the one that the
            variable RAY_ADDRESS names; "local" to start one on this machine; "any" for "auto" if there is one, else
            "local".

    Raises:
        MissingExtraError: if Ray is not installed.
        ConnectionError: if the cluster does not answer, or if one started here would be open to other machines.
    """
    if "ray" in sys.modules and sys.modules["ray"].is_initialized():
        return sys.modules["ray"]
    if address in ("any", "auto"):
        address = os.environ.get("RAY_ADDRESS") or address
    if address == "any":
        address = "auto" if _runs_here() else "local"
    if address == "local":
        _stay_on_loopback()
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
        options["include_dashboard"] = False
    try:
        with safe_path() if address == "local" else nullcontext():
            ray.init(address=address, **options)
    except ConnectionError as error:
        if "AuthenticationError" in repr(error.__cause__):
            raise ConnectionError(
                f"the Ray cluster at {address} needs a token that this process did not send; set RAY_AUTH_MODE=token "
                "here if the token of the cluster is on this machine"
            ) from error
        where = "runs on this machine" if address == "auto" else f"answers at {address}"
        raise ConnectionError(f"no Ray cluster {where}; start one with: ray start --head") from error
    if not address.startswith("ray://") and hasattr(socket, "AF_UNIX"):
        threading.Thread(target=_report_end, args=(ray,), daemon=True).start()
    return ray


def _runs_here() -> bool:
    """Return whether a Ray cluster runs on this machine, without importing Ray."""
    return any(process.info["name"] in ("gcs_server", "raylet") for process in psutil.process_iter(["name"]))


def _report_end(ray: Any) -> None:
    """Report that Ray's process on this machine has died: Ray then ends programs that use it, often silently."""
    own = ray.get_runtime_context().get_node_id()
    name = next(node["RayletSocketName"] for node in ray.nodes() if node["NodeID"] == own)
    with suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
        connection.connect(name)
        connection.recv(1)  # returns when the connection ends, because nothing is ever sent
    if ray.is_initialized():
        told = "Ray's process on this machine has died, and Ray ends programs that use it; start the cluster again"
        sys.stderr.write(told + "\n")


def _stay_on_loopback() -> None:
    """Make Ray use only 127.0.0.1, as it does on Windows and macOS.

    Ray 2.60 has no option for this on Linux. It reads the variable once, when it is imported.
    """
    if "ray" in sys.modules and os.environ.get(LOOPBACK_VARIABLE) != "0":
        raise ConnectionError(
            "Ray was imported before the cluster on 127.0.0.1 is started or joined, and would use all network "
            f"interfaces; create the executor before `import ray`, set {LOOPBACK_VARIABLE}=0, or call `ray.init` "
            "yourself"
        )
    os.environ[LOOPBACK_VARIABLE] = "0"  # the processes of the cluster read it too


def _check_answer(address: str) -> None:
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        raise ValueError(f"`address` must look like host:port, or be 'auto' or 'local', got {address!r}")
    try:
        with socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS) as connection:
            # Ray uses gRPC, whose server starts with a settings frame (type 4). With any other server `ray.init` would
            # retry for minutes. With TLS this cannot be checked here.
            if os.environ.get("RAY_USE_TLS", "0") in ("", "0"):
                connection.sendall(HTTP2_HELLO)
                if connection.recv(9, socket.MSG_WAITALL)[3:4] != b"\x04":
                    raise ConnectionError("something other than Ray answers")
    except (OSError, OverflowError) as error:
        raise ConnectionError(
            f"no Ray cluster answers at {address}: {error}; start one with: ray start --head"
        ) from error
    if host in ("127.0.0.1", "localhost") and not _answers_elsewhere(int(port)):
        _stay_on_loopback()


def _answers_elsewhere(port: int) -> bool:
    """Return whether a port of this machine answers at its network address, which Ray takes for 127.0.0.1."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as route:
            route.connect(("8.8.8.8", 1))  # sends nothing, but finds the network address
            own = route.getsockname()[0]
        socket.create_connection((own, port), timeout=CONNECT_SECONDS).close()
    except OSError:
        return False
    return True

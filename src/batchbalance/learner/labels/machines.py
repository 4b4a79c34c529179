"""Detection of network file systems, and a lock that keeps a file on one for one machine at a time."""

import os
import socket
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

NETWORK_TYPES = (
    "nfs", "nfs4", "cifs", "smb", "smb2", "smb3", "smbfs", "afpfs", "afs", "9p", "ncpfs", "fuse.sshfs", "lustre",
    "ceph", "fuse.ceph", "glusterfs", "fuse.glusterfs", "davfs", "fuse.davfs", "webdav",
)  # fmt: skip


def is_on_network(folder: Path) -> bool:
    """Return whether a folder is on a network file system, as far as the system reports it."""
    real = folder.resolve()
    with suppress(OSError):
        parts = psutil.disk_partitions(all=True)
        holding = [part for part in parts if real.is_relative_to(part.mountpoint)]
        if holding:
            nearest = max(holding, key=lambda part: len(Path(part.mountpoint).parts))
            return nearest.fstype.lower() in NETWORK_TYPES or "remote" in nearest.opts.split(",")
    return str(real).startswith("\\\\")


def only_this_machine(owner: Any, path: Path) -> None:
    """Lock a file for this machine as long as `owner` exists; several processes of one machine may hold the lock.

    Raises:
        BlockingIOError: if another machine holds it.
    """
    here = socket.gethostname()
    for mark in path.parent.glob(f".{path.name}.*.open"):
        host, _, process = mark.name.removeprefix(f".{path.name}.").removesuffix(".open").rpartition(".")
        if host != here:
            raise BlockingIOError(
                f"{path} is in use on the machine {host!r}, and on a network file system only one machine at a "
                f"time may use it; close it there, or delete {mark} if nothing runs there"
            )
        if process.isdecimal() and not psutil.pid_exists(int(process)):
            mark.unlink(missing_ok=True)
    mine = path.with_name(f".{path.name}.{here}.{os.getpid()}.open")
    mine.touch()
    weakref.finalize(owner, mine.unlink, missing_ok=True)

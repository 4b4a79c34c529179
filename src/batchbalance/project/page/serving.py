"""Starting and ending the server."""

import ipaddress
import os
import socket
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import psutil

from batchbalance.errors import MissingExtraError
from batchbalance.project.state import Who

LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class Serving:
    """How to serve.

    Attributes:
        host: the address to listen on; "0.0.0.0" and "::" are all of this machine's.
        port: 0 for a free one.
        people: everybody who labels; None alone for somebody without a name.
        allowed_hosts: other names that this server goes by, such as that of a proxy.
        certificate: a file for TLS.
        key: the file of its key, if it is not in the same.
    """

    host: str = "127.0.0.1"
    port: int = 0
    people: tuple[Who, ...] = (None,)
    allowed_hosts: tuple[str, ...] = field(default=())
    certificate: Path | None = None
    key: Path | None = None

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach it."""
        if self.host == "localhost":
            return True
        with suppress(ValueError):
            return ipaddress.ip_address(self.host).is_loopback
        return False

    @property
    def is_everywhere(self) -> bool:
        """Whether it listens at all addresses of this machine."""
        with suppress(ValueError):
            return ipaddress.ip_address(self.host).is_unspecified
        return False


def bound_socket(serving: Serving) -> socket.socket:
    """Return a socket that listens; its port is known before anything is served.

    Raises:
        OSError: if the address or the port cannot be had.
    """
    with ExitStack() as stack:
        try:
            found = socket.getaddrinfo(serving.host, serving.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            family, kind, protocol, _, where = found[0]
            made = stack.enter_context(socket.socket(family, kind, protocol))
            if os.name == "posix":  # elsewhere it lets two servers have one port
                made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind(where)
        except (OSError, UnicodeError) as error:  # a name that cannot be one is a UnicodeError
            host = ascii(serving.host)[1:-1]
            reason = getattr(error, "strerror", None) or "not a name of a machine"
            raise OSError(
                f"cannot listen on {host}, port {serving.port}: {reason}; try another --port, or --port 0 for a free "
                "one"
            ) from error
        stack.pop_all()
    return made


def own_names(serving: Serving) -> list[str]:
    """Return the names and addresses that requests may be for."""
    names = [*LOOPBACK, *serving.allowed_hosts]
    if serving.is_everywhere:
        names += [socket.gethostname(), socket.getfqdn(), *own_addresses()]
    elif serving.host not in names:
        names.append(serving.host)
    return names


def own_addresses() -> list[str]:
    """Return the addresses of this machine in its networks, IPv4 first."""
    found = [each.address.partition("%")[0] for card in psutil.net_if_addrs().values() for each in card
             if each.family in (socket.AF_INET, socket.AF_INET6)]  # fmt: skip
    away = [each for each in found if not ipaddress.ip_address(each).is_loopback]
    return sorted(away, key=lambda each: (":" in each, ipaddress.ip_address(each).is_link_local))


def address(serving: Serving, port: int, token: str) -> str:
    """Return what to open in a browser."""
    host = serving.host
    if serving.is_everywhere:
        host = next(iter(own_addresses()), "127.0.0.1")
    named = f"[{host}]" if ":" in host else host
    scheme = "http" if serving.certificate is None else "https"
    return f"{scheme}://{named}:{port}/?token={quote(token)}"


def serve(
    folder: Path, serving: Serving, ready: Callable[[dict[Who, str]], None], *, allow_imports: bool = False
) -> None:
    """Serve the page of a project until it is interrupted.

    Args:
        folder: of the project.
        serving: how.
        ready: called with the address for each person once the port is known.
        allow_imports: import code that `project.toml` names by path.

    Raises:
        MissingExtraError: if Starlette or uvicorn is not installed.
    """
    try:
        from batchbalance.project.page.app import make_app
        from batchbalance.project.page.connections import run_server
        from batchbalance.project.page.guard import Guard, Sessions, cookie_name, kept_secret, token_of
        from batchbalance.project.page.page import Page
    except ImportError as error:
        raise MissingExtraError("labelling in the browser", "label") from error
    from batchbalance.project import Project
    from batchbalance.project.page.chooser import ProcessChooser

    with ExitStack() as stack:
        project = Project.open(folder, allow_imports=allow_imports, progress=True)
        stack.callback(project.close)
        secret = kept_secret(folder)
        listening = stack.enter_context(bound_socket(serving))
        port = int(listening.getsockname()[1])
        tokens = {token_of(secret, who): who for who in serving.people}
        chooser = ProcessChooser(folder, allow_imports=allow_imports)
        stack.callback(chooser.close)
        page = Page(project, chooser, serving.people)
        sessions = Sessions(tokens, cookie_name(page.name, port), is_secure=serving.certificate is not None)
        app = Guard(make_app(page), sessions, own_names(serving))
        addresses = {who: address(serving, port, token) for token, who in tokens.items()}
        run_server(app, serving, listening, lambda: ready(addresses))


def checked_people(names: Sequence[str]) -> tuple[Who, ...]:
    """Return the names of people, which must be distinct; None alone if there are none."""
    from batchbalance.project.answers import check_name

    people = tuple(check_name(name) for name in names)
    if len(set(people)) < len(people):
        raise ValueError(f"`annotators` must be distinct, got {', '.join(names)}")
    return people or (None,)

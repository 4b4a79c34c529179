"""Connections to a server of ours: how many, and for how long each may wait.

uvicorn's own limits begin with a request: a connection that never sends one stays for good, and so does one that never
takes its answer. Here a request must have come, and an answer must have been taken, within a time; and where there are
too many connections, the one that has waited longest for a request goes.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from socket import socket
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from batchbalance.project.page.serving import Serving

SECONDS_TO_END = 3
BACKLOG = 128  # connections taken at a time


@dataclass(frozen=True)
class Limits:
    """What connections may take.

    Attributes:
        connections: how many there may be; a browser opens up to six.
        request_seconds: until a request is there, its body included.
        answer_seconds: until its answer was taken.
    """

    connections: int = 256
    request_seconds: float = 30.0
    answer_seconds: float = 300.0


class BoundedProtocol(H11Protocol):
    """A connection that ends by itself."""

    limits = Limits()
    _timer: asyncio.TimerHandle | None = None
    _is_asked = False  # whether a whole request is there that is not answered yet
    _since = 0.0

    def connection_made(self, transport: Any) -> None:
        """Wait for a request; where there are too many connections, end the one that has waited longest."""
        super().connection_made(transport)
        self._wait()
        if len(self.connections) > self.limits.connections:
            waiting = [each for each in self.connections if isinstance(each, BoundedProtocol) and not each._is_asked]
            oldest = min(waiting, key=lambda each: each._since)
            self.connections.discard(oldest)  # now, since others may come before it has ended
            oldest.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Take in a part of a request."""
        super().data_received(data)
        if not self._is_asked and self._has_request():  # else the time goes on, however little comes at a time
            self._wait()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """End waiting."""
        super().connection_lost(exc)
        if self._timer is not None:
            self._timer.cancel()

    def _wait(self) -> None:
        """Begin to wait for a request, or for its answer to be taken."""
        self._is_asked = self._has_request()
        self._since = time.monotonic()
        self._end_after(self.limits.answer_seconds if self._is_asked else self.limits.request_seconds)

    def _has_request(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete and not self.cycle.more_body

    def _end_after(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_later(seconds, self._end)

    def _end(self) -> None:
        left = self._since + self.limits.answer_seconds - time.monotonic()
        if left > 0 and self.transport.get_write_buffer_size():  # the last answer is still on its way
            self._end_after(left)
        else:
            self.transport.abort()


def run_server(app: ASGIApp, serving: Serving, listening: socket, ready: Callable[[], None]) -> None:
    """Serve an application until it is interrupted.

    Args:
        app: with its guard.
        serving: how.
        listening: a bound socket.
        ready: called before the first request.
    """
    config = uvicorn.Config(
        app, log_level="error", access_log=False, server_header=False, lifespan="off", ws="none", loop="asyncio",
        http=BoundedProtocol, backlog=BACKLOG, timeout_graceful_shutdown=SECONDS_TO_END,
        ssl_certfile=serving.certificate, ssl_keyfile=serving.key,
    )  # fmt: skip
    try:
        config.load()
    except OSError as error:  # of which ssl.SSLError is one; OpenSSL asks for a password, and fails without a terminal
        raise ValueError(
            f"`certfile` must be a certificate and its key, or a certificate whose key is in `keyfile`, both in PEM, "
            f"readable, and without a password unless you can type it, got "
            f"{' and '.join(str(each) for each in (serving.certificate, serving.key) if each)}"
        ) from error
    listening.listen(BACKLOG)  # an address that is printed can be opened at once
    ready()
    with suppress(KeyboardInterrupt):
        uvicorn.Server(config).run(sockets=[listening])

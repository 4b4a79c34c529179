"""Connections of a real server on this machine: slow clients, silent ones, many of them, and too large requests."""

import asyncio
import socket
import tempfile
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import uvicorn

from batchbalance.project.page.app import make_app
from batchbalance.project.page.connections import BoundedProtocol, Limits, run_server
from batchbalance.project.page.guard import MOST_BYTES, Guard, Sessions
from batchbalance.project.page.page import Page
from batchbalance.project.page.serving import Serving, bound_socket
from page_fakes import FakeChooser, PageProject

HEAD = "{} HTTP/1.1\r\nHost: 127.0.0.1\r\nCookie: c-t=t\r\n{}\r\n"
FACTS = HEAD.format("GET /api/facts?as=t", "").encode()
UNDO = "POST /api/undo?as=t"
JSON = "Content-Type: application/json\r\n"


@contextmanager
def served(limits, app=None):
    """The port of a server in a thread."""

    class Protocol(BoundedProtocol):
        pass

    Protocol.limits = limits
    with tempfile.TemporaryDirectory() as folder:
        page = make_app(Page(PageProject.make(Path(folder), {None: ["a"]}), FakeChooser(), [None]))
    guard = Guard(app or page, Sessions({"t": None}, "c"), ["127.0.0.1"])
    config = uvicorn.Config(guard, port=0, log_level="error", lifespan="off", ws="none", loop="asyncio", http=Protocol)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        yield server.servers[0].sockets[0].getsockname()[1], server
    finally:
        server.should_exit = server.force_exit = True
        thread.join()


def connected(port):
    made = socket.create_connection(("127.0.0.1", port))
    made.settimeout(20)
    return made


def status(connection, request):
    """Send a request; the status of its answer."""
    connection.sendall(request)
    return int(connection.recv(65536).split()[1])


def is_ended(connection):
    """Wait until the server has ended a connection."""
    try:
        while connection.recv(65536):
            pass
    except ConnectionError:
        pass
    return True


@pytest.mark.slow
@pytest.mark.parametrize("begun", [b"", b"GET", FACTS[:-2], HEAD.format(UNDO, JSON + "Content-Length: 9\r\n").encode()])
def test_a_request_that_does_not_come_ends_its_connection(begun):
    with served(Limits(request_seconds=0.5)) as (port, _), connected(port) as silent:
        silent.sendall(begun)
        assert is_ended(silent)


@pytest.mark.slow
def test_a_trickle_does_not_hold_a_connection():
    with served(Limits(request_seconds=0.6)) as (port, _), connected(port) as slow:
        assert status(slow, FACTS) == 200
        begin = time.monotonic()
        try:
            for letter in FACTS * 100:
                slow.sendall(bytes([letter]))
                time.sleep(0.05)
        except ConnectionError:
            pass
        assert time.monotonic() - begin < 5


@pytest.mark.slow
def test_an_answer_that_is_not_taken_ends_its_connection():
    async def large(_scope, _receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(100):
            await send({"type": "http.response.body", "body": bytes(2**20), "more_body": True})

    with served(Limits(request_seconds=0.3, answer_seconds=0.8), large) as (port, server), connected(port) as deaf:
        deaf.sendall(FACTS)
        time.sleep(0.2)
        assert len(server.server_state.connections) == 1
        until = time.monotonic() + 20
        while server.server_state.connections:
            assert time.monotonic() < until
            time.sleep(0.05)


@pytest.mark.slow
def test_work_that_takes_longer_than_a_request_may_is_done():
    async def thinking(_scope, _receive, send):
        await asyncio.sleep(0.8)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    with served(Limits(request_seconds=0.2), thinking) as (port, _), connected(port) as patient:
        assert status(patient, FACTS) == 200


@pytest.mark.slow
def test_of_too_many_connections_the_one_that_waited_longest_goes():
    with served(Limits(connections=20)) as (port, server):
        silent = [connected(port) for _ in range(60)]
        try:
            for _ in range(3):
                with connected(port) as mine:
                    assert status(mine, FACTS) == 200
            assert len(server.server_state.connections) <= 20
            assert is_ended(silent[0])
            assert status(silent[-1], FACTS) == 200
        finally:
            for each in silent:
                each.close()


@pytest.mark.slow
def test_a_request_that_is_too_large_is_answered_without_reading_it():
    with served(Limits()) as (port, _):
        with connected(port) as sender:
            assert status(sender, HEAD.format(UNDO, JSON + "Content-Length: 600000000\r\n").encode()) == 413
            assert is_ended(sender)
        with connected(port) as sender:  # one that does not say how much will come
            sender.sendall(HEAD.format(UNDO, JSON + "Transfer-Encoding: chunked\r\n").encode())
            part, count = b"10000\r\n" + b" " * 65536 + b"\r\n", 0
            try:
                while count < 10_000:
                    sender.sendall(part)
                    count += 1
            except ConnectionError:
                pass
            assert count * 65536 < 20 * MOST_BYTES
        with connected(port) as sender:  # a head without an end
            with suppress(ConnectionError):
                sender.sendall(b"GET / HTTP/1.1\r\n" + b"X: " + b"x" * 2**22)
            assert is_ended(sender)


def test_an_address_can_be_opened_as_soon_as_it_is_told():
    class Enough(Exception):  # noqa: N818
        pass

    def ready():
        connected(listening.getsockname()[1]).close()
        raise Enough

    with bound_socket(Serving()) as listening, pytest.raises(Enough):
        run_server(make_app, Serving(), listening, ready)

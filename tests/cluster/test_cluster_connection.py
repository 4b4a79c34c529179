import ast
import os
import socket
import subprocess
import sys
import threading
import time

import pytest

from batchbalance.cluster import RayExecutor, connection
from batchbalance.cluster.connection import LOOPBACK_VARIABLE, connected_ray

ray = pytest.importorskip("ray", reason="the extra 'ray' is not installed")


@pytest.fixture(autouse=True)
def started(monkeypatch):
    """The addresses that Ray was asked for; no cluster runs on this machine."""
    asked = []

    def init(address, **options):
        asked.append((address, options.get("include_dashboard")))
        if address == "auto":
            raise ConnectionError("none")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(connection, "_runs_here", lambda: False)
    monkeypatch.setattr(connection, "_report_end", lambda _: None)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv(LOOPBACK_VARIABLE, "0")
    return asked


def test_any_is_a_running_cluster_or_a_new_one(started, monkeypatch):
    connected_ray("any")
    connected_ray("local")
    assert started == [("local", False), ("local", False)]
    monkeypatch.setattr(connection, "_runs_here", lambda: True)
    with pytest.raises(ConnectionError, match="no Ray cluster runs on this machine"):
        connected_ray("any")
    with pytest.raises(ConnectionError, match="no Ray cluster runs on this machine; start one with: ray start --head"):
        connected_ray("auto")
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:9")
    for address in ("any", "auto"):
        with pytest.raises(ConnectionError, match=r"no Ray cluster answers at 127\.0\.0\.1:9"):
            connected_ray(address)


def test_a_local_cluster_never_listens_to_other_machines(started, monkeypatch):
    """Ray reads the variable when it is imported, and was imported above."""
    monkeypatch.delenv(LOOPBACK_VARIABLE)
    with pytest.raises(ConnectionError, match="create the executor before `import ray`"):
        connected_ray("local")
    assert started == []


def test_an_unreachable_cluster_is_an_error_in_seconds(started):
    began = time.monotonic()
    with pytest.raises(ConnectionError, match=r"no Ray cluster answers at 127\.0\.0\.1:9"):
        RayExecutor("127.0.0.1:9")
    assert time.monotonic() - began < 30
    for address in ("nowhere", "host:port"):
        with pytest.raises(ValueError, match="must look like host:port"):
            RayExecutor(address)
    with pytest.raises(ValueError, match="`num_shards` must be a whole number of at least 1, got 0"):
        RayExecutor(num_shards=0)
    assert started == []


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"+PONG\r\n", b"", None])
def test_a_port_where_something_else_answers_is_refused(started, monkeypatch, answer):
    """A web server, Redis, one that hangs up, and one that is silent; Ray is never asked."""
    monkeypatch.setattr("batchbalance.cluster.connection.CONNECT_SECONDS", 0.3)
    monkeypatch.delenv("RAY_USE_TLS", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def speak():
            connection, _ = listening.accept()
            if answer is None:
                time.sleep(0.6)
            else:
                connection.recv(100)
                connection.sendall(answer)
            connection.close()

        thread = threading.Thread(target=speak)
        thread.start()
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        said = "timed out" if answer is None else "something other than Ray answers"
        with pytest.raises(ConnectionError, match=f"no Ray cluster answers at {address}: {said}; start one"):
            RayExecutor(address)
        thread.join()
    assert started == []


def test_a_cluster_on_loopback_alone_is_joined_there(started, monkeypatch):
    """Ray would take the network address in place of 127.0.0.1, and try for more than a minute."""
    monkeypatch.setattr(connection, "HTTP2_HELLO", b"\0\0\0\4\0\0\0\0\0")  # an echo is the answer of a gRPC server
    monkeypatch.delenv("RAY_USE_TLS", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"

        def echo():
            for _ in range(3):
                with listening.accept()[0] as answered:
                    answered.sendall(answered.recv(100))

        thread = threading.Thread(target=echo)
        thread.start()
        connected_ray(address)
        assert started.pop()[0] == address
        monkeypatch.delenv(LOOPBACK_VARIABLE)
        with pytest.raises(ConnectionError, match="create the executor before `import ray`"):
            connected_ray(address)
        monkeypatch.setattr(connection, "_answers_elsewhere", lambda _: True)
        connected_ray(address)
        assert LOOPBACK_VARIABLE not in os.environ
        thread.join()


def test_a_cluster_that_wants_a_token_says_so(monkeypatch):
    def init(**_):
        raise ConnectionError("Failed to connect") from RuntimeError("ray.exceptions.AuthenticationError: no token")

    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(ConnectionError, match="needs a token that this process did not send; set RAY_AUTH_MODE=token"):
        connected_ray("auto")


LISTENING = """
import os, psutil
from batchbalance.cluster.connection import connected_ray
ray = connected_ray("local")
ray.get(ray.remote(lambda: 1).remote())
mine = {os.getpid()} | {child.pid for child in psutil.Process().children(recursive=True)}
listening = [c for c in psutil.net_connections("tcp") if c.status == psutil.CONN_LISTEN and c.pid in mine]
assert len(listening) > 2, listening
assert os.getcwd() not in ray.get(ray.remote(lambda: __import__("sys").path).remote())
print(sorted({c.laddr.ip for c in listening}), flush=True)
waiting = ray.remote(lambda: __import__("time").sleep(2)).remote()
[child.kill() for child in psutil.Process().children() if child.name() == "raylet"]
__import__("time").sleep(2)
os._exit(0)
"""


def test_a_cluster_that_is_started_here_listens_on_this_machine_alone(tmp_path, monkeypatch):
    (tmp_path / "torch.py").write_text("raise RuntimeError('this must not run')")
    command = [sys.executable, "-P", "-c", LISTENING]
    monkeypatch.delenv(LOOPBACK_VARIABLE)
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert "Ray's process on this machine has died" in result.stderr
    (found,) = (line for line in result.stdout.splitlines() if line.startswith("['"))
    assert {name.removeprefix("::ffff:") for name in ast.literal_eval(found)} == {"127.0.0.1"}

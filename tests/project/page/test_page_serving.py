import socket
import sys

import pytest
from typer.testing import CliRunner

from batchbalance.cli import app
from batchbalance.cli import label as command
from batchbalance.project.page import serving
from batchbalance.project.page.connections import run_server
from batchbalance.project.page.serving import Serving, address, bound_socket, checked_people, own_addresses, own_names
from made_projects import make


def told(*arguments):
    """What the command says on standard error; it must exit with 2 and without a traceback."""
    result = CliRunner().invoke(app, ["label", *map(str, arguments)])
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    return result.stderr


def test_what_is_local_and_what_is_everywhere():
    assert [Serving(host).is_local for host in ("127.0.0.1", "localhost", "::1", "127.0.0.9")] == [True] * 4
    assert [Serving(host).is_local for host in ("0.0.0.0", "::", "192.0.2.1", "example.org")] == [False] * 4
    assert [Serving(host).is_everywhere for host in ("0.0.0.0", "::", "127.0.0.1", "example.org")] == [
        True,
        True,
        False,
        False,
    ]


def test_the_names_that_requests_may_be_for(monkeypatch):
    monkeypatch.setattr(serving, "own_addresses", lambda: ["192.0.2.7"])
    assert own_names(Serving()) == ["127.0.0.1", "localhost", "::1"]
    assert own_names(Serving("192.0.2.1", allowed_hosts=("proxy.example",)))[3:] == ["proxy.example", "192.0.2.1"]
    assert {"192.0.2.7", socket.gethostname()} < set(own_names(Serving("0.0.0.0")))


def test_addresses(monkeypatch, tmp_path):
    monkeypatch.setattr(serving, "own_addresses", lambda: ["192.0.2.7"])
    assert address(Serving(), 80, "t") == "http://127.0.0.1:80/?token=t"
    assert address(Serving("::1", certificate=tmp_path), 80, "t") == "https://[::1]:80/?token=t"
    assert address(Serving("0.0.0.0"), 80, "t") == "http://192.0.2.7:80/?token=t"


def test_own_addresses_are_of_networks():
    assert not {"127.0.0.1", "::1"} & set(own_addresses())


def test_a_free_port_is_found_and_a_taken_one_is_told():
    with bound_socket(Serving()) as first:
        first.listen()
        port = first.getsockname()[1]
        assert port > 0
        with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1, port {port}: .*; try another --port"):
            bound_socket(Serving(port=port))


def test_people():
    assert checked_people([]) == (None,)
    assert checked_people(["first ", "second"]) == ("first", "second")
    with pytest.raises(ValueError, match="`annotators` must be distinct"):
        checked_people(["a", "a "])


def test_mistakes_on_the_command_line(tmp_path):
    assert "no project in" in told(tmp_path)
    make(tmp_path / "x", num=10)
    project = tmp_path / "x" / "p"
    assert "--annotators must be distinct" in told(project, "--annotators", "a,a")
    assert "--annotators must be names separated by commas, got ','" in told(project, "--annotators", ",")
    assert "no such file" in told(project, "--certfile", tmp_path / "none.pem")
    assert "--keyfile must be given together with --certfile" in told(project, "--keyfile", project / "project.toml")
    assert "cannot listen on 192.0.2.1, port 0" in told(project, "--host", "192.0.2.1", "--port", "0")
    junk = told(project, "--port", "0", "--no-open", "--certfile", project / "project.toml")
    assert "--certfile must be a certificate and its key, or a certificate whose key is in --keyfile" in junk
    (project / ".page-secret").chmod(0o644)
    if sys.platform != "win32":
        assert "must be readable by its owner only" in told(project, "--port", "0")


def test_without_the_extra_its_name_is_told(tmp_path, monkeypatch):
    make(tmp_path / "x", num=10)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "batchbalance.project.page.connections", raising=False)
    assert "pip install 'batchbalance[label]'" in told(tmp_path / "x" / "p")


def test_links_are_lines_of_their_own_and_others_are_warned_of(monkeypatch, tmp_path):
    opened = []

    def serve(_folder, how, ready, *, allow_imports):
        assert not allow_imports
        ready({who: f"http://x/?token={who}" for who in how.people})

    monkeypatch.setattr(serving, "serve", serve)
    monkeypatch.setattr(command.webbrowser, "open", opened.append)
    alone = CliRunner().invoke(app, ["label", str(tmp_path), "--no-open"])
    assert (alone.exit_code, alone.stdout) == (0, "http://x/?token=None\n")
    assert "other machines" not in alone.stderr
    assert opened == []
    monkeypatch.setattr(
        command.threading, "Timer", lambda _, do, arguments: type("T", (), {"start": lambda _: do(*arguments)})()
    )
    many = CliRunner().invoke(app, ["label", str(tmp_path), "--host", "0.0.0.0", "--annotators", "ann,bob"])
    assert many.stdout.splitlines() == ["ann:", "http://x/?token=ann", "bob:", "http://x/?token=bob"]
    assert "other machines can reach this server, and its traffic is not encrypted" in many.stderr
    assert opened == ["http://x/?token=ann"]


@pytest.mark.parametrize("host", ["x" * 300, "..", "\ud800", "a\nb", "localhost:80"])
def test_a_host_that_cannot_be_one_is_refused_in_one_line(host):
    with pytest.raises(OSError, match=r"^cannot listen on [ -~]+, port 0: .*; try another --port") as caught:
        bound_socket(Serving(host))
    assert "\n" not in str(caught.value)


def test_a_key_whose_password_nobody_can_type_is_one_sentence(monkeypatch, tmp_path):
    def fails(_):
        raise OSError(22, "Invalid argument")  # what OpenSSL gives for an encrypted key without a terminal

    monkeypatch.setattr("uvicorn.Config.load", fails)
    with pytest.raises(ValueError, match="in PEM, readable, and without a password unless you can type it, got"):
        run_server(None, Serving(certificate=tmp_path / "c.pem", key=tmp_path / "k.pem"), None, lambda: None)

"""Start a Label Studio server on this machine, run two rounds of labelling on it, and stop it by its id.

    python tests/support/labelstudio_server.py --label-studio .venv-labelstudio/bin/label-studio --data .labelstudio

The data directory is kept between runs, because the first start takes minutes.
"""

import argparse
import json
import os
import re
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import requests

from batchbalance.project.bridge.client import Server
from labelstudio_rounds import first_round, make_pictures, make_project, pictures, second_round
from recorded_labelstudio import recording

EMAIL = "annotator@example.com"
FIRST_START = 1800  # seconds that a first start may take
STOP = 60


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def say(text):
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


class RealServer:
    """A process of Label Studio on 127.0.0.1."""

    def __init__(self, command, data):
        self.command, self.data = Path(command).resolve(), Path(data).resolve()
        self.data.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.secrets = self.data / "annotator.json"
        self.process = None

    def kept(self):
        """The password and the token of the annotator, in a file that nobody else can read."""
        return json.loads(self.secrets.read_text()) if self.secrets.exists() else {}

    def keep(self, **values):
        content = json.dumps(self.kept() | values)
        with os.fdopen(os.open(self.secrets, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(content)

    def start(self):
        began = time.monotonic()
        password = self.kept().get("password") or secrets.token_urlsafe(16)
        self.keep(password=password)
        environment = os.environ | {
            "LABEL_STUDIO_BASE_DATA_DIR": str(self.data),
            "LABEL_STUDIO_USERNAME": EMAIL,
            "LABEL_STUDIO_PASSWORD": password,
            "COLLECT_ANALYTICS": "false",
            "LATEST_VERSION_CHECK": "false",
        }
        environment.pop("PYTHONPATH", None)
        words = ["start", "--data-dir", self.data, "--no-browser", "--internal-host", "127.0.0.1", "--port", self.port]
        with (self.data / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                [self.command, *map(str, words), "--host", self.url], env=environment,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        while True:
            if self.process.poll() is not None:
                raise RuntimeError(f"Label Studio ended with {self.process.returncode}; see {self.data / 'server.log'}")
            try:
                requests.get(f"{self.url}/api/version", timeout=30).raise_for_status()
                break
            except requests.RequestException:
                if time.monotonic() - began > FIRST_START:
                    raise
                time.sleep(1)
        say(f"Label Studio is process {self.process.pid} at {self.url}, up in {time.monotonic() - began:.0f} s")

    def stop(self):
        """Stop this process, by its id."""
        process, self.process = self.process, None
        process.terminate()
        try:
            process.wait(STOP)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(STOP)
        say(f"stopped process {process.pid}")

    def token(self):
        """A personal access token, made by logging in as a person would."""
        if "token" in self.kept():
            return self.kept()["token"]
        browser = requests.Session()
        page = browser.get(f"{self.url}/user/login/", timeout=120).text
        field = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', page)[1]
        values = {"email": EMAIL, "password": self.kept()["password"], "csrfmiddlewaretoken": field}
        browser.post(f"{self.url}/user/login/", data=values, timeout=120).raise_for_status()
        headers = {"X-CSRFToken": browser.cookies["csrftoken"], "Referer": self.url}
        made = browser.post(f"{self.url}/api/token/", headers=headers, timeout=120)
        made.raise_for_status()
        self.keep(token=made.json()["token"])
        return made.json()["token"]


def downloaded(server, place):
    """What a browser would get at an address."""
    return server._send("GET", place, headers={"Authorization": server._access}).content


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--label-studio", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--record", help="Write the exchanges with the server to this file.")
    given = parser.parse_args()
    real = RealServer(given.label_studio, given.data)
    real.start()

    starting = threading.Thread(target=real.start)

    def restart():
        """Stop the server, and start it while we wait for it as for any server that is away."""
        real.stop()
        starting.start()

    try:
        with tempfile.TemporaryDirectory() as folder:
            project = make_project(Path(folder))
            server = Server(real.url, real.token())
            say(f"version {server.get('/api/version')['release']}")
            with recording(server, given.record):
                linked = first_round(project, server, restart, say)
                second_round(project, linked, server, say)
            pictures(make_pictures(Path(folder)), server, lambda place: downloaded(server, place), say)
            project.close()
    finally:
        if starting.is_alive():
            starting.join()
        real.stop()
    say("the order served was ours in both rounds")


if __name__ == "__main__":
    main()

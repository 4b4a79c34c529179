"""A real browser for tests, servers to look at, and how a person labels."""

import json
import os
import re
import shutil
import signal
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import uvicorn

from batchbalance.project.page.app import make_app
from batchbalance.project.page.guard import Guard, Sessions
from batchbalance.project.page.page import Page

PATIENCE = 60_000  # milliseconds; another process imports torch before it answers
COMMAND = "import sys; from batchbalance.cli import main; sys.argv[0] = 'batchbalance'; main()"


def chromium(own):
    """The system's browser, or playwright's `own`. Without one tests are skipped, but not where CI promises one."""
    names = ("chromium", "chromium-browser", "google-chrome")
    found = next((path for path in (*map(shutil.which, names), own) if path and Path(path).is_file()), None)
    if found is None:
        reason = "there is no chromium on this machine; `apt-get install chromium` brings one"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return found


class Server:
    """`batchbalance label` in a process of its own, on a real project."""

    def __init__(self, parent, folder, *options, port=0):
        self._child = parent.start(COMMAND, "label", folder, "--no-open", "--port", port, *options)
        self.links = []
        wanted = 1 + options[-1].count(",") if options else 1  # the names of people come last
        while len(self.links) < wanted:
            line = self._child.stdout.readline()
            assert line, self._child.stderr.read()
            if line.startswith("http"):
                self.links.append(line.strip())
        self.port = int(re.search(r":(\d+)/", self.links[0])[1])

    def kill(self):
        """End it between any two instructions."""
        self._child.kill()
        self._child.wait()

    def interrupt(self):
        """Ctrl-C, as far as a process of Windows can be sent one; the exit code."""
        if sys.platform == "win32":
            return 0
        self._child.send_signal(signal.SIGINT)
        return self._child.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self._child.poll() is None:
            self._child.kill()
        self._child.__exit__(None, None, None)


@contextmanager
def served(project, chooser, people=(None,), clock=time.monotonic, hosts=("127.0.0.1",)):
    """The address of a server in a thread, for a small project."""
    sessions = Sessions({f"{who}-token": who for who in people}, "cookie")
    app = Guard(make_app(Page(project, chooser, list(people), clock)), sessions, list(hosts))
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", lifespan="off", ws="none"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}/?token={people[0]}-token"
    finally:
        server.should_exit = True
        thread.join()


class Person:
    """Somebody at a browser of their own."""

    def __init__(self, context, link):
        self.page = context.new_page()
        self.said = []  # by the console, and errors
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.goto(link)

    def item(self):
        """The id of what is on the stage, once something is."""
        return self.page.wait_for_selector("#stage[data-item]", timeout=PATIENCE).get_attribute("data-item")

    def press(self, key, *, changes=True):
        """Press a key; wait for another item unless it `changes` none."""
        before = self.item()
        self.page.keyboard.press(key)
        if changes:
            self.page.wait_for_function(
                "id => ![undefined, id].includes(document.querySelector('#stage').dataset.item)",
                arg=before,
                timeout=PATIENCE,
            )
        return before

    def wait(self, expression):
        self.page.wait_for_function(f"() => {expression}", timeout=PATIENCE)

    def see(self, text):
        """Wait until a text is on the page."""
        self.page.get_by_text(text).first.wait_for(timeout=PATIENCE)

    def fetch(self, path, body=None):
        """The status of a request that the page's own script could send."""
        options = {"method": "GET"}
        if body is not None:
            headers = {"Content-Type": "application/json"}
            options = {"method": "POST", "headers": headers, "body": json.dumps(body)}
        mark = self.page.evaluate("new URLSearchParams(location.search).get('as')")
        path += f"{'&' if '?' in path else '?'}as={mark}"
        return self.page.evaluate("async ([path, options]) => (await fetch(path, options)).status", [path, options])

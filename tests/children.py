"""Processes for tests. Importing torch takes seconds, so that one process imports the package and the others are copies
of it, made when a test asks for one. A test that is about importing, or about fresh memory, starts Python itself.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import traceback
from contextlib import suppress
from pathlib import Path

MODULES = ["batchbalance.cli.run", "batchbalance.lab.processes", "batchbalance.learner", "batchbalance.project",
           "sklearn.ensemble"]  # fmt: skip


class Child:
    """A process that runs some Python code, used as a `subprocess.Popen`; leaving its block kills it."""

    def __init__(self, parent, code, arguments, cwd):
        self._parent = parent
        self.returncode = None
        out, their_out = os.pipe()
        err, their_err = os.pipe()
        self.pid = parent.ask({"code": code, "arguments": arguments, "cwd": cwd}, [their_out, their_err])
        os.close(their_out)
        os.close(their_err)
        self.stdout, self.stderr = os.fdopen(out, encoding="utf-8"), os.fdopen(err, encoding="utf-8")

    def wait(self, options=0):
        """Its exit code, or minus the signal that ended it. No other process starts meanwhile."""
        if self.returncode is None:
            self.returncode = self._parent.ask({"pid": self.pid, "options": options})
        return self.returncode

    def poll(self):
        """As `wait`, or None if it still runs."""
        return self.wait(os.WNOHANG)

    def send_signal(self, number):
        os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.returncode is None:
            with suppress(ProcessLookupError):
                self.kill()
            self.wait()
        self.stdout.close()
        self.stderr.close()


class Parent:
    """The process that has everything imported. Where copying one is not safe, each process starts anew."""

    def __init__(self):
        self._process = None
        if sys.platform == "linux":
            self._connection, theirs = socket.socketpair()
            with theirs:
                command = [sys.executable, __file__, str(theirs.fileno())]
                self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()])

    def ask(self, order, handles=()):
        """The answer of the process to an order."""
        socket.send_fds(self._connection, [json.dumps(order).encode() + b"\n"], handles)
        return json.loads(self._connection.recv(100))

    def start(self, code, *arguments, cwd=None):
        """A process that runs some code, with arguments in sys.argv[1:]."""
        arguments = [str(each) for each in arguments]
        if self._process is None:
            command = [sys.executable, "-c", code, *arguments]
            return subprocess.Popen(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        return Child(self, code, arguments, None if cwd is None else str(cwd))

    def run(self, code, *arguments, cwd=None):
        """(exit code, what it wrote to stdout, and to stderr) of a process that writes little to stderr."""
        with self.start(code, *arguments, cwd=cwd) as child:
            out, err = child.stdout.read(), child.stderr.read()
            return child.wait(), out, err

    def close(self):
        if self._process is not None:
            self._connection.close()
            self._process.wait()


def serve(connection):
    """Make copies of this process until the tests end."""
    while True:
        data, handles, _, _ = socket.recv_fds(connection, 2**16, 2)
        if not data:
            return
        while not data.endswith(b"\n"):
            data += connection.recv(2**16)
        order = json.loads(data)
        if "pid" in order:
            ended, status = os.waitpid(order["pid"], order["options"])
            answer = os.waitstatus_to_exitcode(status) if ended else None
        else:
            answer = os.fork()
            if answer == 0:
                connection.close()
                become(order, *handles)
            for handle in handles:
                os.close(handle)
        connection.send(json.dumps(answer).encode())


def become(order, out, err):
    """Be the process that was ordered, as `python -c code` would be; a group of its own, as a shell's jobs are."""
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.dup2(out, 1)
    os.dup2(err, 2)
    os.close(out)
    os.close(err)
    if order["cwd"] is not None:
        os.chdir(order["cwd"])
    sys.argv = ["-c", *order["arguments"]]
    code = 0
    try:
        exec(compile(order["code"], "<string>", "exec"), {"__name__": "__main__"})
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the tests end us
    for module in MODULES:
        __import__(module)
    with socket.socket(fileno=int(sys.argv[1])) as their_connection:
        serve(their_connection)

"""Processes for tests. Importing torch takes seconds, so that one process imports the package and the others are copies
of it, made when a test asks for one, or a command in a shell (`copied_command.py`). A test that is about importing, or
about fresh memory, starts Python itself.
"""

import atexit
import gc
import json
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from contextlib import suppress
from pathlib import Path

MODULES = ["batchbalance.project.bridge", "batchbalance.cli.run", "batchbalance.encoders", "batchbalance.lab.processes",
           "batchbalance.lab.report", "batchbalance.learner", "batchbalance.project", "rich.table", "scipy.stats",
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
            self._folder = tempfile.mkdtemp()  # nobody else can reach what is in it
            self._connection, theirs = socket.socketpair()
            with theirs, socket.socket(socket.AF_UNIX) as door:
                door.bind(self._door)
                door.listen()
                handles = [theirs.fileno(), door.fileno()]
                self._process = subprocess.Popen([sys.executable, __file__, *map(str, handles)], pass_fds=handles)

    @property
    def _door(self):
        return f"{self._folder}/door"

    @property
    def command(self):
        """What a shell runs instead of `batchbalance`."""
        if self._process is None:
            return [sys.executable, "-m", "batchbalance.cli"]
        return [sys.executable, "-S", "-E", str(Path(__file__).with_name("copied_command.py")), self._door]

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

    def run_command(self, command, **_):
        """As `subprocess.run` of ``[python, "-c", code, …]`` that captures what it writes."""
        return subprocess.CompletedProcess(command, *self.run(*command[command.index("-c") + 1 :]))

    def close(self):
        if self._process is not None:
            self._connection.close()
            self._process.wait()
            shutil.rmtree(self._folder)


def serve(connection, door):
    """Make copies of this process until the tests end: for them, and for commands that come through the door."""
    commands = set()
    with selectors.DefaultSelector() as waiting:
        waiting.register(connection, selectors.EVENT_READ)
        waiting.register(door, selectors.EVENT_READ)
        while True:
            ready = [key.fileobj for key, _ in waiting.select()]
            commands = {pid for pid in commands if os.waitpid(pid, os.WNOHANG)[0] == 0}
            if door in ready:
                theirs, _ = door.accept()
                with theirs:
                    commands.add(copied(*received(theirs), [connection, door], theirs))
            if connection in ready:
                order, handles = received(connection)
                if order is None:
                    return
                if "pid" in order:
                    ended, status = os.waitpid(order["pid"], order["options"])
                    answer = os.waitstatus_to_exitcode(status) if ended else None
                else:
                    answer = copied(order, handles, [connection, door])
                connection.send(json.dumps(answer).encode())


def received(connection):
    """An order and the files that came with it; None if there are no more."""
    data, handles, _, _ = socket.recv_fds(connection, 2**16, 3)
    while data and not data.endswith(b"\n"):
        data += connection.recv(2**16)
    return json.loads(data) if data else None, handles


def copied(order, handles, ours, theirs=None):
    """The pid of a copy that does what was ordered; to `theirs`, if given, it says its pid and then its exit code."""
    pid = os.fork()
    if pid == 0:
        for each in ours:
            each.close()
        if theirs is not None:
            theirs.send(f"{os.getpid()}\n".encode())
        code = become(order, handles)
        if theirs is not None:
            with suppress(OSError):  # nobody waits for it any more
                theirs.send(f"{code}\n".encode())
        os._exit(code)
    for handle in handles:
        os.close(handle)
    return pid


def become(order, handles):
    """Be the process that was ordered, as `python -c code` would be; a group of its own, as a shell's jobs are.

    Args:
        order: what was ordered.
        handles: its stdout and stderr, with its stdin before them if it has one.

    Returns:
        Its exit code.
    """
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for handle, number in zip(handles, range(3 - len(handles), 3), strict=True):
        os.dup2(handle, number)
        os.close(handle)
    if "environment" in order:
        os.environ.clear()
        os.environ.update(order["environment"])
        sys.modules["torch"].set_num_threads(int(os.environ.get("OMP_NUM_THREADS", 1)))
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
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    return code


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the tests end us
    gc.disable()
    for module in MODULES:
        __import__(module)
    gc.freeze()  # it stays; a collection in a copy would touch, and so copy, all of it
    gc.enable()
    with socket.socket(fileno=int(sys.argv[1])) as their_connection, socket.socket(fileno=int(sys.argv[2])) as our_door:
        serve(their_connection, our_door)

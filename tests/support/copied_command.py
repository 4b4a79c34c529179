"""The command `batchbalance` as a copy of a process that has imported the package: ``python copied_command.py ADDRESS
ARGUMENT…``. It has the folder, the variables and the files of this process, which waits for it and ends as it does.
"""

import json
import os
import signal
import socket
import sys
from pathlib import Path

CODE = "import sys; from batchbalance.cli import main; sys.argv[0] = 'batchbalance'; main()"

with socket.socket(socket.AF_UNIX) as connection:
    connection.connect(sys.argv[1])
    order = {"code": CODE, "arguments": sys.argv[2:], "cwd": str(Path.cwd()), "environment": dict(os.environ)}
    socket.send_fds(connection, [json.dumps(order).encode() + b"\n"], [0, 1, 2])
    answers = connection.makefile(encoding="utf-8")
    pid = int(answers.readline())
    signal.signal(signal.SIGTERM, lambda number, _: os.kill(pid, number))
    sys.exit(int(answers.readline() or 1))  # one that is killed answers nothing

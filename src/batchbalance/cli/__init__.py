"""The `batchbalance` command; one file per group of commands, registered by being imported here."""

import gc
import io
import sys
from contextlib import suppress

from batchbalance.cli import (
    compare,
    demo,
    embed,
    experiments,
    export,
    find,
    label,
    labelstudio,
    project,
    project_changes,
    report,
    run,
    select,
    suggest,
)
from batchbalance.cli.app import app

__all__ = [
    "app", "compare", "demo", "embed", "experiments", "export", "find", "label", "labelstudio", "main", "project",
    "project_changes", "report", "run", "select", "suggest",
]  # fmt: skip


def main() -> None:
    """Run the command.

    Imports create little garbage but many objects, so garbage collection takes a fifth of a command's start. Commands
    therefore import with collection off, and call `imports_done` afterwards.

    A character that the terminal or a pipe cannot encode, such as τ on Windows, is written as an escape.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            with suppress(OSError):  # the stream's file was replaced
                stream.reconfigure(errors="backslashreplace")
    gc.disable()
    app()

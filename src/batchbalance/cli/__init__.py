"""The `batchbalance` command; one file per group of commands, registered by being imported here."""

import gc

from batchbalance.cli import embed, experiments, label, labelstudio, project, project_changes, report, run, select
from batchbalance.cli.app import app

__all__ = [
    "app", "embed", "experiments", "label", "labelstudio", "main", "project", "project_changes", "report", "run",
    "select",
]  # fmt: skip


def main() -> None:
    """Run the command.

    Imports make hardly any garbage, but so many objects that looking for it takes a fifth of a command's start.
    So commands import with collection off, and call `imports_done` afterwards.
    """
    gc.disable()
    app()

"""The `batchbalance` command; one file per group of commands, registered by being imported here."""

import sys

from batchbalance.cli import bench, experiments, report, run, select
from batchbalance.cli.app import app, complain

__all__ = ["app", "bench", "experiments", "main", "report", "run", "select"]


def main() -> None:
    """Run the command."""
    try:
        app()
    except KeyboardInterrupt:
        complain("stopped", "nothing was written")
        sys.exit(130)

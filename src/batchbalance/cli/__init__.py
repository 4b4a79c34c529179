"""The `batchbalance` command; one file per group of commands, registered by being imported here."""

from batchbalance.cli import bench, experiments, report, run, select
from batchbalance.cli.app import app

__all__ = ["app", "bench", "experiments", "main", "report", "run", "select"]


def main() -> None:
    """Run the command."""
    app()

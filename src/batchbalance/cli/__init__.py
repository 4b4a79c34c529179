"""The `batchbalance` command; one file per group of commands, registered by being imported here."""

from batchbalance.cli import experiments, report, run, select
from batchbalance.cli.app import app

__all__ = ["app", "experiments", "main", "report", "run", "select"]


def main() -> None:
    """Run the command."""
    app()

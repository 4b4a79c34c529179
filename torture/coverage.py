"""`python -m torture.coverage --projects 2000`: how often the audit's intervals hold, in so many simulated projects."""

import math
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from batchbalance.project.audit import ALPHA
from batchbalance.system.progress import progress
from torture.looks import Seen, missed, simulated


def summary(projects: list[list[Seen]]) -> tuple[str, bool]:
    """The table, and whether coverage is at least 95 % and misses at most 5 %, within two standard errors."""
    lines = [
        "| look | projects | interval for one look holds | interval of the look holds |",
        "| ---: | ---: | ---: | ---: |",
    ]
    fine = True
    for number in sorted({look.number for looks in projects for look in looks}):
        at = [look for looks in projects for look in looks if look.number == number]
        shares = [sum(each) / len(at) for each in ([x.holds for x in at], [x.holds_always for x in at])]
        fine &= shares[0] >= 1 - ALPHA - 2 * math.sqrt(ALPHA * (1 - ALPHA) / len(at))
        lines.append(f"| {number} | {len(at):,} | {100 * shares[0]:.1f} % | {100 * shares[1]:.1f} % |")
    share = sum(map(missed, projects)) / len(projects)
    fine &= share <= ALPHA + 2 * math.sqrt(ALPHA * (1 - ALPHA) / len(projects))
    lines.append(f"\nA miss at any look: {100 * share:.1f} % of {len(projects):,} projects.")
    return "\n".join(lines), bool(fine)


def run(num_projects: int, seed: int, show: bool = False) -> list[list[Seen]]:
    """Projects, one after another."""
    found: list[list[Seen]] = []
    with progress("simulating projects", num_projects, show) as bar:
        for number in range(num_projects):
            with tempfile.TemporaryDirectory(prefix="looks-") as folder:
                found.append(simulated(Path(folder), seed + number))
            bar.advance(note=f"{sum(map(missed, found))} with a look that misses")
    return found


def main(
    projects: Annotated[int, typer.Option(min=1, help="How many.")] = 2000,
    seed: Annotated[int, typer.Option(min=0, help="Of the first.")] = 0,
) -> None:
    """Simulate projects and count intervals that miss; exit code 1 if more do than the interval promises."""
    table, fine = summary(run(projects, seed, show=True))
    typer.echo(table)
    sys.exit(0 if fine else 1)


if __name__ == "__main__":
    typer.run(main)

"""`python -m torture.rates --projects 200`: how often `status` claims what is not so, in so many simulated projects."""

import math
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from batchbalance.progress import progress
from batchbalance.project.audit import ALPHA
from torture.claims import NOISE, says_a_difference, suspected


def main(
    projects: Annotated[int, typer.Option(min=1, help="How many.")] = 200,
    seed: Annotated[int, typer.Option(min=0, help="Of the first.")] = 0,
) -> None:
    """Simulate projects and count false verdicts; exit code 1 if there are more than 5 % and two standard errors."""
    num, totals = 0, {0.0: np.zeros(4), NOISE: np.zeros(4)}
    with progress("simulating projects", projects, True) as bar:
        for number in range(projects):
            with tempfile.TemporaryDirectory(prefix="claims-") as folder:
                num += says_a_difference(Path(folder), seed + number)
            for noise, total in totals.items():
                with tempfile.TemporaryDirectory(prefix="claims-") as folder:
                    listed = suspected(Path(folder), seed + number, noise)
                total += (listed[0] > 0, *listed)
            bar.advance(note=f"{num} with a false verdict")
    typer.echo(f"Both arms random: a difference is claimed in {100 * num / projects:.1f} % of {projects:,} projects.")
    for noise, (listing, found, right, expected) in totals.items():
        typer.echo(
            f"{100 * noise:g} % wrong labels: {listing:.0f} of {projects:,} projects list suspects, {found:.0f} in "
            f"all; {right:.0f} of them are wrong, {expected:.0f} were expected."
        )
    sys.exit(0 if num / projects <= ALPHA + 2 * math.sqrt(ALPHA * (1 - ALPHA) / projects) else 1)


if __name__ == "__main__":
    typer.run(main)

"""`python -m torture.rates --projects 200`: how often `status` claims what is not so, in so many simulated projects."""

import math
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import typer

from batchbalance.project.arm import LEVEL
from batchbalance.project.audit import ALPHA
from batchbalance.system.progress import progress
from torture.accepted import Exports, exports
from torture.claims import DATA, NOISE, p_of_random, suspected

MOST_TOO_HIGH = 0.1  # by which the expected share of wrong labels among suspects may exceed what is found


def main(
    projects: Annotated[int, typer.Option(min=1, help="How many.")] = 200,
    seed: Annotated[int, typer.Option(min=0, help="Of the first.")] = 0,
    only: Annotated[Literal["arms", "suspects", "accepted"] | None, typer.Option(help="One of the parts.")] = None,
) -> None:
    """Simulate projects and count false claims.

    Exit code 1 if there are more false verdicts or broken promises than 5 % and two standard errors, or if the
    suspected labels are wrong less often than was said by more than ten points.
    """
    parts = {"arms": arms, "suspects": suspects, "accepted": accepted}
    holds = [part(projects, seed) for name, part in parts.items() if only in (None, name)]
    sys.exit(0 if all(holds) else 1)


def arms(projects: int, seed: int) -> bool:
    """Count verdicts in projects whose strategy is random; whether they are as rare as they should be."""
    found = list[float]()
    with progress("simulating projects with a random strategy", projects, True) as bar:
        for number in range(seed, seed + projects):
            with tempfile.TemporaryDirectory(prefix="claims-") as folder:
                found.append(p_of_random(Path(folder), number))
            bar.advance(note=f"{sum(p <= LEVEL for p in found)} with a false verdict")
    num = sum(p <= LEVEL for p in found)
    typer.echo(f"Both arms random: a difference is claimed in {num} of {projects:,} projects.")
    at = ", ".join(f"p is at most {most:g} in {sum(p <= most for p in found)}" for most in (0.05, 0.1, 0.25, 0.5))
    typer.echo(f"Of their p-values: {at}.")
    return is_rare(num, projects)


def is_rare(num: int, projects: int) -> bool:
    """Whether an error of at most 5 % explains what was counted, up to two standard errors."""
    return num / projects <= ALPHA + 2 * math.sqrt(ALPHA * (1 - ALPHA) / projects)


def accepted(projects: int, seed: int) -> bool:
    """Count projects that ever accept machine labels of which too many are wrong; whether they are rare."""
    found = list[Exports]()
    with progress("simulating exports", projects, True) as bar:
        for number in range(seed, seed + projects):
            found.append(exports(number))
            bar.advance(note=f"{sum(each.is_broken for each in found)} broke the promise")
    num, accepting = sum(each.is_broken for each in found), [each for each in found if each.num_accepting]
    most = sum(each.most_accepted for each in accepting) / max(1, len(accepting))
    typer.echo(
        f"Machine labels were accepted in {len(accepting):,} of {projects:,} projects, {100 * most:.0f} % at most."
    )
    typer.echo(f"In {num:,} of them, at any of their exports, more were wrong than promised.")
    return is_rare(num, projects)


def suspects(projects: int, seed: int) -> bool:
    """Count suspected labels in projects with and without wrong ones; whether as many are wrong as was said."""
    totals = {(data, noise): np.zeros(4) for data in DATA for noise in (0.0, NOISE)}
    with progress("simulating projects with suspected labels", projects, True) as bar:
        for number in range(seed, seed + projects):
            for (data, noise), total in totals.items():
                with tempfile.TemporaryDirectory(prefix="claims-") as folder:
                    listed = suspected(Path(folder), number, noise, data)
                total += (listed[0] > 0, *listed)
            bar.advance()
    for (data, noise), (listing, found, right, expected) in totals.items():
        typer.echo(
            f"{data}, {100 * noise:g} % wrong labels: {listing:.0f} of {projects:,} projects list suspects, "
            f"{found:.0f} in all; {right:.0f} of them are wrong, {expected:.0f} were expected."
        )
    _, found, right, expected = np.sum(list(totals.values()), axis=0)
    return bool(expected - right <= MOST_TOO_HIGH * found)


if __name__ == "__main__":
    typer.run(main)

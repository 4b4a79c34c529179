"""`python -m torture --minutes 60 --seed 0`: exit code 1 on any loss, silent difference or traceback."""

import sys
import tempfile
import time
from pathlib import Path
from random import Random
from typing import Annotated

import typer

from batchbalance.errors import UnknownNameError
from torture import CAMPAIGNS
from torture.campaign import FAILURES, Campaign, Tally

OUTCOMES = ("intact", "refused", *FAILURES)


def main(
    minutes: Annotated[float, typer.Option(min=0, help="How long to go on.")] = 60.0,
    seed: Annotated[int, typer.Option(min=0, help="Same seed, same attempts.")] = 0,
    only: Annotated[list[str] | None, typer.Option(help="A campaign; repeatable. Default: all.")] = None,
    at_least: Annotated[int, typer.Option(min=1, help="Attempts of each campaign, however long they take.")] = 1,
) -> None:
    """Kill, damage and fuzz; print what was tried and what was found."""
    names = [each.name for each in CAMPAIGNS]
    for name in only or []:
        if name not in names:
            raise typer.BadParameter(str(UnknownNameError("campaign", name, names)))
    chosen = [each for each in CAMPAIGNS if not only or each.name in only]
    seconds = 60 * minutes / sum(each.share for each in chosen)
    tallies = {each.name: run(each, seconds * each.share, seed, at_least) for each in chosen}
    typer.echo(table(chosen, tallies))
    failures = [(name, finding) for name, tally in tallies.items() for finding in tally.failures]
    for name, finding in failures[:20]:
        typer.echo(f"\n{name}, {finding.outcome}: {finding.what}")
    sys.exit(1 if failures else 0)


def run(campaign: Campaign, seconds: float, seed: int, at_least: int) -> Tally:
    """Attempts of one campaign until its time is over."""
    tally, end, number = Tally(), time.monotonic() + seconds, 0
    while number < at_least or time.monotonic() < end:
        with tempfile.TemporaryDirectory(prefix="torture-") as folder:
            tally.add(campaign.attempt(Path(folder), Random(f"{campaign.name}/{seed}/{number}")))
        number += 1
    typer.echo(f"{campaign.name}: {tally.num_tried} tried, {len(tally.failures)} failures", err=True)
    return tally


def table(campaigns: list[Campaign], tallies: dict[str, Tally]) -> str:
    """Counts as Markdown."""
    lines = [
        "| campaign | promise | tried | " + " | ".join(OUTCOMES) + " |",
        "| --- | --- |" + " ---: |" * (1 + len(OUTCOMES)),
    ]
    for each in campaigns:
        tally = tallies[each.name]
        counts = " | ".join(f"{tally.counts[outcome]:,}" for outcome in OUTCOMES)
        lines.append(f"| {each.name} | {each.promise} | {tally.num_tried:,} | {counts} |")
    return "\n".join(lines)


if __name__ == "__main__":
    typer.run(main)

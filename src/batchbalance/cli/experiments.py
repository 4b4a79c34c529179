"""`batchbalance experiments`."""

from typing import Annotated

import typer
from rich.text import Text

from batchbalance.cli.app import app, imports_done, out, reported_errors


@app.command("experiments")
def experiments_command(
    name: Annotated[str | None, typer.Argument(help="Show only this one, with its laptop preset.")] = None,
) -> None:
    """List the figures and tables of the paper that can be run by name."""
    with reported_errors():
        from batchbalance.lab.paper.experiments import PRESETS, experiment, experiment_names

        imports_done()
        for each in experiment_names() if name is None else [name]:
            found = experiment(each)
            out.print(Text.assemble((each, "bold"), f": {found.title} ({found.shows})"), soft_wrap=True)
            out.print(Text(f"    batchbalance run {each} --preset {'|'.join(PRESETS)}"), soft_wrap=True)
            if name is not None and found.script is not None:
                out.print(Text(f"    released code: {found.script}"), soft_wrap=True)
            if name is not None:
                out.print(Text(f"    laptop: {found.reduced}"), soft_wrap=True)
                out.print(Text(f"    cost of laptop: {found.cost}"), soft_wrap=True)

"""`batchbalance experiments` and `batchbalance analyse`."""

import time
from pathlib import Path
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
            verb = "run" if found.analysis is None else "analyse"
            out.print(Text.assemble((each, "bold"), f": {found.title} ({found.shows})"), soft_wrap=True)
            out.print(Text(f"    batchbalance {verb} {each} --preset {'|'.join(PRESETS)}"), soft_wrap=True)
            if name is not None and found.script is not None:
                out.print(Text(f"    released code: {found.script}"), soft_wrap=True)
            if name is not None:
                out.print(Text(f"    laptop: {found.reduced}"), soft_wrap=True)
                out.print(Text(f"    cost of laptop: {found.cost}"), soft_wrap=True)


@app.command("analyse")
def analyse_command(
    name: Annotated[str, typer.Argument(help="The name of an analysis; see 'batchbalance experiments'.")],
    preset: Annotated[str, typer.Option(help="paper, laptop or smoke.")] = "laptop",
    output: Annotated[Path, typer.Option(help="The folder for the figure and its numbers.")] = Path("analyses"),
    data_dir: Annotated[
        Path | None,
        typer.Option(help="The folder of published data sets; default: BATCHBALANCE_DATA, or else a cache folder."),
    ] = None,
    threads: Annotated[int, typer.Option(min=1, help="Threads to compute with.")] = 1,
    seed: Annotated[int, typer.Option(min=0, help="Same seed, same numbers, except for times.")] = 0,
    changes: Annotated[
        list[str] | None, typer.Option("--set", help="Change a setting, such as options.repeats=3; repeatable.")
    ] = None,
) -> None:
    """Make one of the paper's figures that are not learning curves."""
    with reported_errors():
        import torch

        from batchbalance.lab.paper.analyses import analyse

        imports_done()
        torch.set_num_threads(threads)
        started = time.perf_counter()
        written = analyse(name, preset, output, changes=changes or [], seed=seed, data_dir=data_dir)
        for path in written:
            out.print(Text(f"written to {path}"), soft_wrap=True)
        out.print(Text(f"{name} ({preset}) took {time.perf_counter() - started:.1f} s"), soft_wrap=True)

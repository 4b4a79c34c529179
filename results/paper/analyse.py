"""Compute and draw the paper's figures that are not learning curves, and one of ours.

    python results/paper/analyse.py saturation --preset smoke
    python results/paper/analyse.py posterior-map --data-dir DATA --set options.perplexity=20

Each analysis has two functions: one computes plain numbers, the other draws a figure from these numbers only. Its
settings are a TOML file in `analyses/settings`, in the form of the experiments of `batchbalance run`.
"""

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from analyses import draws, line_example, run_time, single_batch
from analyses.trained import Setup
from rich.text import Text

from batchbalance.arguments.sections import Section, parsed
from batchbalance.cli.app import out, reported_errors
from batchbalance.errors import UnknownNameError
from batchbalance.lab.config import changed
from batchbalance.lab.paper.experiments import read_experiment
from batchbalance.lab.report.figures import rendered, require_matplotlib
from batchbalance.system.files import replacing

SETTINGS = Path(__file__).parent / "analyses" / "settings"
FIGURE_KINDS = ("png", "svg")


@dataclass(frozen=True)
class Analysis:
    """The options of an analysis, the function that computes its numbers, and the one that draws them."""

    options: type[Section]
    compute: Callable[[Any, Setup], dict[str, Any]]
    draw: Callable[[dict[str, Any]], Any]


ANALYSES = {
    "posterior-map": Analysis(draws.PosteriorMapOptions, draws.compute_map, draws.draw_map),
    "score-variation": Analysis(draws.VariationOptions, draws.compute_variation, draws.draw_variation),
    "delta-against-k": Analysis(draws.DeltaOptions, draws.compute_delta, draws.draw_delta),
    "saturation": Analysis(draws.SaturationOptions, draws.compute_saturation, draws.draw_saturation),
    "single-batch": Analysis(single_batch.SingleBatchOptions, single_batch.compute, single_batch.draw),
    "run-time": Analysis(run_time.RunTimeOptions, run_time.compute, run_time.draw),
    "appendix-example": Analysis(line_example.LineExampleOptions, line_example.compute, line_example.draw),
}


def analyse(
    name: str,
    preset: str,
    folder: Path,
    *,
    changes: Iterable[str] = (),
    seed: int = 0,
    data_dir: Path | None = None,
) -> list[Path]:
    """Run an analysis and write its numbers and its figure.

    Args:
        name: one of `ANALYSES`.
        preset: "paper", "laptop" or "smoke".
        folder: where to write; created if it does not exist.
        changes: settings that take precedence over the file's, such as "options.repeats=3".
        seed: the same seed gives the same numbers, except for times.
        data_dir: where published data sets are.

    Returns:
        The files written: the numbers with all settings as JSON, and the figure as PNG and SVG.
    """
    require_matplotlib()
    if name not in ANALYSES:
        raise UnknownNameError("analysis", name, ANALYSES)
    analysis = ANALYSES[name]
    settings = changed(read_experiment(SETTINGS / f"{name}.toml").settings(preset), changes)
    tables = {key: value for key, value in settings.items() if key != "options"}
    options = parsed(lambda: analysis.options(**settings.get("options", {})))
    numbers = analysis.compute(options, Setup(tables, seed, data_dir))
    text = json.dumps({"analysis": name, "preset": preset, "seed": seed, "settings": settings, "numbers": numbers})
    figure = analysis.draw(numbers)
    folder.mkdir(parents=True, exist_ok=True)
    contents = {"json": text.encode() + b"\n", **{kind: rendered(figure, kind) for kind in FIGURE_KINDS}}
    written = []
    for kind, content in contents.items():
        path = folder / f"{name}-{preset}.{kind}"
        with replacing(path) as temporary:
            temporary.write_bytes(content)
        written.append(path)
    return written


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


@app.command()
def main(
    name: Annotated[str, typer.Argument(help=", ".join(ANALYSES))],
    preset: Annotated[str, typer.Option(help="paper, laptop or smoke.")] = "laptop",
    output: Annotated[Path, typer.Option(help="The folder for the figure and its numbers.")] = Path("analyses"),
    data_dir: Annotated[Path | None, typer.Option(help="The folder of published data sets.")] = None,
    threads: Annotated[int, typer.Option(min=1, help="Threads to compute with.")] = 1,
    seed: Annotated[int, typer.Option(min=0, help="Same seed, same numbers, except for times.")] = 0,
    changes: Annotated[
        list[str] | None, typer.Option("--set", help="Change a setting, such as options.repeats=3; repeatable.")
    ] = None,
) -> None:
    """Compute and draw one of the paper's figures that are not learning curves."""
    with reported_errors():
        torch.set_num_threads(threads)
        started = time.perf_counter()
        for path in analyse(name, preset, output, changes=changes or [], seed=seed, data_dir=data_dir):
            out.print(Text(f"written to {path}"), soft_wrap=True)
        out.print(Text(f"{name} ({preset}) took {time.perf_counter() - started:.1f} s"), soft_wrap=True)


if __name__ == "__main__":
    app()

"""The paper's figures that are not learning curves, and one of ours: ``analyse`` computes, draws and writes them.

Each analysis has two functions: one computes plain numbers, the other draws a figure from these numbers only. Their
settings are TOML files next to those of the experiments.
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from batchbalance.arguments.sections import Section, parsed
from batchbalance.errors import UnknownNameError
from batchbalance.lab.config import changed
from batchbalance.lab.paper import draws, line_example, run_time, single_batch
from batchbalance.lab.paper.experiments import experiment, experiment_names
from batchbalance.lab.paper.trained import Setup
from batchbalance.lab.report.figures import rendered, require_matplotlib
from batchbalance.system.files import replacing

__all__ = ["ANALYSES", "Analysis", "analyse", "analysis_names"]

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


def analysis_names() -> list[str]:
    """Return the names of all experiments that are analyses, sorted."""
    return [name for name in experiment_names() if experiment(name).analysis is not None]


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
        name: one of `analysis_names`.
        preset: "paper", "laptop" or "smoke".
        folder: where to write; created if it does not exist.
        changes: settings that take precedence over the file's, such as "options.repeats=3".
        seed: the same seed gives the same numbers, except for times.
        data_dir: where published data sets are.

    Returns:
        The files written: the numbers with all settings as JSON, and the figure as PNG and SVG.
    """
    require_matplotlib()
    names = analysis_names()
    if name not in names and name in experiment_names():
        raise ValueError(f"{name!r} is not an analysis; run it with: batchbalance run {name}")
    if name not in names:
        raise UnknownNameError("analysis", name, names)
    given = experiment(name)
    settings = changed(given.settings(preset), changes)
    analysis = ANALYSES[given.analysis or name]
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

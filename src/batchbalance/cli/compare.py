"""`batchbalance compare`: test whether choosing helps on your own data."""

import hashlib
import os
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from batchbalance.cli.app import app, complain, imports_done, reported_errors
from batchbalance.cli.project import say
from batchbalance.cli.report import show
from batchbalance.cli.run import follow

if TYPE_CHECKING:
    from batchbalance.lab.config import Comparison
    from batchbalance.lab.data import Dataset, OwnData
    from batchbalance.lab.report import Report

STRATEGIES = ("auto", "random", "margin")
ROUNDS = 10
BATCH_SIZE = 20  # as in a project; half the classes if there are many
POOL_SHARE = 2  # points of the pool per label, at least


@app.command("compare")
def compare_command(
    data: Annotated[
        Path,
        typer.Argument(
            metavar="DATA",
            help="Labelled data: texts or a table (CSV, TSV, JSONL, Parquet), a folder of images for each "
            "class, embeddings (.npy), or .npz with x and y.",
        ),
    ],
    label: Annotated[str, typer.Option(help="The column of the labels.")] = "label",
    column: Annotated[
        str | None,
        typer.Option(help="The column of the texts; default 'text' if there is one, else the data are a table."),
    ] = None,
    labels: Annotated[
        Path | None, typer.Option(help="For embeddings: a file of rows with the labels, or a .npy file.")
    ] = None,
    encoder: Annotated[str | None, typer.Option(help="The encoder; names as in 'batchbalance embed'.")] = None,
    image_size: Annotated[int | None, typer.Option(help="Side in pixels of the square an image is scaled to.")] = None,
    strategy: Annotated[
        list[str] | None, typer.Option(help="Another strategy besides auto, random and margin; repeatable.")
    ] = None,
    trials: Annotated[int, typer.Option(min=2, help="Paired trials, each with its own test set.")] = 10,
    budget: Annotated[int | None, typer.Option(min=2, help="Labels at the end; default 10 batches.")] = None,
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Labels in a batch; default 20, or half the classes if these are more.")
    ] = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Skip damaged files and empty texts.")] = False,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Trials to run in parallel; default: the number of cores.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="The folder to write to, default compare-NAME; the same command resumes.")
    ] = None,
) -> None:
    """Test whether choosing helps on your labelled data: compare the default with random and margin.

    Each trial hides the labels, requests them batch by batch, trains a project's model, and measures it on a fifth of
    the data.
    """
    with reported_errors(compare_command):
        from batchbalance.lab.data import OwnData, load
        from batchbalance.lab.report import overview, write_report
        from batchbalance.lab.report.figures import require_matplotlib
        from batchbalance.lab.report.notes import verdict

        require_matplotlib()
        imports_done()
        folder = Path(f"compare-{data.name.partition('.')[0] or 'data'}") if output is None else output
        own = OwnData(
            label, *kind_of(data, column, encoder), image_size, None if labels is None else str(labels), skip_bad
        )
        found = load(path_name(data), data_dir=folder, own=own, progress=True)
        comparison = planned(found, own, [*STRATEGIES, *(strategy or [])], trials, budget, batch_size)
        num = comparison.budget or 0
        say(f"{len(found.train_y) + len(found.test_y):,} labelled inputs, {found.num_classes} classes")
        say(
            f"{trials} trials of {', '.join(comparison.strategies)}: {num} labels in batches of {comparison.batch_size}"
        )
        report = run_comparison(comparison, folder, digest_of(found), jobs or num_cores())
        page = write_report(report, folder / "report")
        show(overview(report))
        say(verdict(report))
        say(f"report written to {page.resolve()}")


def path_name(data: Path) -> str:
    """Return a path that cannot be mistaken for the name of a data set."""
    return str(data) if len(data.parts) > 1 else f"./{data}"


def kind_of(data: Path, column: str | None, encoder: str | None) -> tuple[str | None, str | None]:
    """Return the column of the texts and the encoder, with a project's defaults if omitted."""
    from batchbalance.encoders import DEFAULTS
    from batchbalance.encoders.items import TEXT_COLUMN
    from batchbalance.encoders.rows import open_rows

    if not data.exists():
        raise FileNotFoundError(f"no such data: {data} is neither a file nor a folder")
    if encoder is None and column is None:
        if data.is_dir():
            encoder = DEFAULTS["images"]
        elif data.suffix not in (".npy", ".npz"):
            has_texts = TEXT_COLUMN in open_rows(data).columns
            column, encoder = (TEXT_COLUMN, None) if has_texts else (None, DEFAULTS["rows"])
    return column, encoder


def planned(
    data: "Dataset", own: "OwnData", strategies: list[str], trials: int, budget: int | None, batch_size: int | None
) -> "Comparison":
    """Return a comparison from a cold start with the model of a project."""
    from batchbalance.lab.config import comparison_of

    most = len(data.train_y) // POOL_SHARE
    size = batch_size or max(1, min(max(BATCH_SIZE, data.num_classes // 2), most // ROUNDS))
    if budget is not None and batch_size is None:
        size = max(1, budget // -(-budget // size))  # as many rounds, in batches that add up
    end = min(ROUNDS * size, most) if budget is None else budget
    if end % size:
        complain("note", f"trials end at {end // size * size} labels, not at {end}: whole batches of {size}")
    if not size < end <= len(data.train_y):
        raise ValueError(
            f"`budget` must be more than a batch of {size} and at most {len(data.train_y):,}, the inputs outside the "
            f"test set, got {end}"
        )
    return comparison_of({
        "data": {"name": data.name, **asdict(own)},
        "split": {"initial_per_class": 0, "validation": 0, "reference": "pool"},
        "posterior": {"kind": "bayesian-head"},
        "strategies": list(dict.fromkeys(strategies)),
        "batch_size": size,
        "budget": end // size * size,
        "trials": trials,
    })  # fmt: skip


def run_comparison(comparison: "Comparison", folder: Path, digest: str, jobs: int, stream: Any = None) -> "Report":
    """Run the missing trials of a comparison, and return its report.

    Records are in a folder named after the `digest` of the data, so trials never continue with changed data. Progress
    is shown on `stream`; standard error if omitted.
    """
    from batchbalance.lab.processes import run_tasks, tasks_of
    from batchbalance.lab.records import read_runs
    from batchbalance.lab.report import compare

    runs_dir, runs = folder / "runs" / digest, comparison.runs()
    tasks = tasks_of(comparison, runs_dir, folder)
    started = time.perf_counter()
    try:
        failed = follow(tasks, run_tasks(tasks, jobs), stream)
    except KeyboardInterrupt:
        complain("stopped", "complete rounds are kept; the same command continues from there")
        raise typer.Exit(130) from None
    if failed:
        raise typer.Exit(2)
    say(f"{len(tasks)} trials took {time.perf_counter() - started:.0f} s")
    found = read_runs([run.folder(runs_dir) for run in runs])
    wanted = range(comparison.trials)  # an earlier call may have run more
    return compare([replace(run, trials={i: run.trials[i] for i in wanted}) for run in found])


def digest_of(data: "Dataset") -> str:
    """Return a hash of the inputs and labels."""
    digest = hashlib.sha256("\0".join(data.class_names).encode())
    for part in (data.train_x, data.train_y, data.test_x, data.test_y):
        digest.update(part.contiguous().numpy().tobytes())
    return digest.hexdigest()[:10]


def num_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

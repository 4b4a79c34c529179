"""The suite that decides what `auto` is: all strategies on nine data sets, from a cold start where that is possible.

    python results/suite/suite.py run --data-dir DATA   # goes on where it stopped; --dry-run tells the core-hours
    python results/suite/suite.py show                  # tables and figure from the records

Each ``.toml`` file beside this one is a comparison that `batchbalance run` and `report` know too. The embeddings come
first: ``python results/suite/embeddings.py --data-dir DATA``. Run both from the root of the repository. ``--folder
results/cover`` takes the comparisons of another folder, with tables and records there.
"""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text
from tables import figure, page

from batchbalance.cli.app import out, reported_errors
from batchbalance.cli.run import follow
from batchbalance.lab.config import Comparison, read_comparison
from batchbalance.lab.processes import Task, run_tasks
from batchbalance.lab.records import read_runs
from batchbalance.lab.report.comparisons import Report, compare
from batchbalance.lab.trial import Goal

OWN = Path(__file__).parent
sys.path.append(str(OWN.parent))

from packing import pack, unpack  # noqa: E402

FIGURES = OWN.parents[1] / "docs" / "images" / "results"
RECORDS = "records.tar.xz"
SECONDS = "seconds.json"  # of a trial of each strategy, measured, for `--dry-run`

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None, help=__doc__)
Folder = Annotated[Path, typer.Option(help="Where the comparisons are, and their records and tables.")]
RunsDir = Annotated[
    Path | None,
    typer.Option(help="Where run directories are made or resumed; results/runs/FOLDER if omitted.", show_default=False),
]


@app.command()
def run(
    data_dir: Annotated[Path, typer.Option(help="Where published data sets are.")],
    folder: Folder = OWN,
    runs_dir: RunsDir = None,
    only: Annotated[list[str] | None, typer.Option(help="A comparison, as digits-b10; repeat it for more.")] = None,
    trials: Annotated[int | None, typer.Option(min=1, help="Instead of the number in each file.")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Trials at a time; no number depends on it.")] = 1,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only tell how long it will take.")] = False,
) -> None:
    """Run what is missing: the first trial of everything, then the second, so that what is there can be compared."""
    with reported_errors():
        found, runs_dir = comparisons(folder, only), runs_dir or runs_of(folder)
        if dry_run:
            show_hours(folder, found, runs_dir, trials)
            return
        tasks = [
            Task(config, seed, runs_dir / name, Goal(comparison.budget), data_dir)
            for seed in range(max(trials or comparison.trials for comparison in found.values()))
            for name, comparison in found.items()
            if seed < (trials or comparison.trials)
            for config in comparison.runs()
        ]
        failed = follow(tasks, run_tasks(tasks, jobs))
        if failed:
            raise typer.Exit(2)


@app.command()
def show(folder: Folder = OWN, runs_dir: RunsDir = None) -> None:
    """Write the tables, the figure and the seconds of a trial; unpacks the kept records if there are no others."""
    with reported_errors():
        found, runs_dir = comparisons(folder), runs_dir or runs_of(folder)
        if not runs_dir.is_dir():
            unpack(folder / RECORDS, runs_dir)
        reports = {name: report for name in found if (report := report_of(runs_dir / name)) is not None}
        seconds = {name: seconds_of(report) for name, report in reports.items()}
        (folder / SECONDS).write_text(json.dumps(seconds, indent=1) + "\n", encoding="utf-8")
        tables, drawn = folder / "tables.md", FIGURES / f"{folder.resolve().name}.png"
        tables.write_text(page(reports, folder.resolve().name), encoding="utf-8")
        drawn.write_bytes(figure(reports))
        out.print(Text(f"written: {tables} and {drawn}"), soft_wrap=True)


@app.command()
def keep(folder: Folder = OWN, runs_dir: RunsDir = None) -> None:
    """Pack the records, to be committed."""
    with reported_errors():
        found, runs_dir = comparisons(folder), runs_dir or runs_of(folder)
        pack(runs_dir, folder / RECORDS, list(found))


def comparisons(folder: Path = OWN, only: list[str] | None = None) -> dict[str, Comparison]:
    """The files of a folder, by data set and batch size."""
    names = only or sorted((path.stem for path in folder.glob("*.toml")), key=set_and_size)
    if not names:
        raise FileNotFoundError(f"`folder` must hold comparisons, as digits-b10.toml, got none in {folder}")
    return {name: read_comparison(folder / f"{name}.toml") for name in names}


def set_and_size(name: str) -> tuple[str, int]:
    """The data set and the batch size that digits-b10 stands for; any other name is a data set."""
    data, _, size = name.rpartition("-b")
    return (data, int(size)) if size.isdecimal() else (name, 0)


def runs_of(folder: Path) -> Path:
    """Where the runs of a folder are if nothing else is said."""
    return Path("results/runs") / folder.resolve().name


def report_of(folder: Path) -> Report | None:
    """What the records of a comparison show; None if there are none yet."""
    runs = read_runs([folder]) if folder.is_dir() else []
    return compare(runs) if runs else None


def seconds_of(report: Report) -> dict[str, float]:
    """How long a trial of each strategy takes, in the median."""
    found = {}
    for entry in report.runs:
        longest = max(map(len, entry.trials.values()))
        whole = [records for records in entry.trials.values() if len(records) == longest]
        totals = sorted(sum(sum(record["seconds"].values()) for record in records) for records in whole)
        found[entry.label] = round(totals[len(totals) // 2], 1)
    return found


def show_hours(folder: Path, found: dict[str, Comparison], runs_dir: Path, trials: int | None) -> None:
    """How many core-hours are left, by what a trial took before."""
    seconds = folder / SECONDS
    known: dict[str, dict[str, float]] = json.loads(seconds.read_text(encoding="utf-8")) if seconds.is_file() else {}
    total, whole = 0.0, 0.0
    for name, comparison in found.items():
        goal, num = Goal(comparison.budget), trials or comparison.trials
        left = 0.0
        for config in comparison.runs():
            each = known.get(name, {}).get(config.label, 0.0)
            left += each * (num - num_complete(config.folder(runs_dir / name), goal, comparison.batch_size, num))
            whole += each * num
        total += left
        unknown = "" if name in known else ", and nothing is known of it"
        out.print(
            Text(f"{name}: {num} trials of {len(comparison.strategies)} strategies, {left / 3600:.2f} h left{unknown}")
        )
    out.print(Text(f"{total / 3600:.1f} core-hours left of {whole / 3600:.1f}"))


def num_complete(folder: Path, goal: Goal, batch_size: int, num_trials: int) -> int:
    """How many trials of a run are at their end."""
    ends: list[Any] = []
    for entry in read_runs([folder]) if folder.is_dir() else []:
        ends += [records[-1] for seed, records in entry.trials.items() if seed < num_trials and records]
    return sum(not goal.goes_on(record, batch_size) for record in ends)


if __name__ == "__main__":
    app()

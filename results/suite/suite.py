"""The suite that decides what `auto` is: strategies on pools like those of users, from a cold start.

    python results/suite/suite.py run --data-dir DATA   # goes on where it stopped; --dry-run tells the core-hours
    python results/suite/suite.py show                  # tables and figure from the records
    python results/suite/suite.py enter mypackage.module:Mine --data-dir DATA   # your strategy on the same splits

Each ``.toml`` file beside this one is a comparison that `batchbalance run` and `report` know too; PLAN.md says how they
were chosen. The embeddings come first: ``python results/suite/embeddings.py --data-dir DATA``. Run all of it from the
root of the repository. ``--folder results/first-suite`` takes the comparisons of another folder, with tables and
records there.
"""

import json
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text
from tables import against_entry, entry_row, figure, in_short, page, short

from batchbalance.cli.app import out, reported_errors
from batchbalance.cli.run import follow
from batchbalance.lab.config import Comparison, RunConfig, read_comparison
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
SETS, ORACLE = OWN / "sets.json", OWN / "oracle.json"  # written by embeddings.py and oracle.py
FEWER = {"typiclust", "coreset", "bait", "refine", "power-balance", "falcun", "drop-query"}  # half of the trials

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
    arm: Annotated[list[str] | None, typer.Option(help="A strategy, as in the tables; repeat it for more.")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Trials at a time; no number depends on it.")] = 1,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only tell how long it will take.")] = False,
) -> None:
    """Run what is missing: the first trial of everything, then the second, so that what is there can be compared."""
    with reported_errors():
        found, runs_dir = comparisons(folder, only), runs_dir or runs_of(folder)
        if dry_run:
            show_hours(folder, found, runs_dir, trials)
            return
        check_embeddings(found)
        tasks = [
            Task(config, seed, runs_dir / name, Goal(comparison.budget), data_dir)
            for seed in range(max(trials or comparison.trials for comparison in found.values()))
            for name, comparison in found.items()
            for config in comparison.runs()
            if seed < num_trials(config, trials or comparison.trials) and (not arm or short(config.label) in arm)
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
        sets = json.loads(SETS.read_text(encoding="utf-8")) if SETS.is_file() else {}
        oracle = json.loads(ORACLE.read_text(encoding="utf-8")) if ORACLE.is_file() else {}
        tables.write_text(page(reports, folder.resolve().name, sets, oracle), encoding="utf-8")
        drawn.write_bytes(figure(reports))
        for line in in_short(reports):
            out.print(Text(line), soft_wrap=True)
        out.print(Text(f"written: {tables} and {drawn}"), soft_wrap=True)


@app.command()
def enter(
    strategy: Annotated[str, typer.Argument(help="Your strategy: a name, or mypackage.module:Mine.")],
    data_dir: Annotated[Path, typer.Option(help="Where published data sets are.")],
    folder: Folder = OWN,
    runs_dir: RunsDir = None,
    only: Annotated[list[str] | None, typer.Option(help="A comparison, as trec-b10; repeat it for more.")] = None,
    trials: Annotated[int | None, typer.Option(min=1, help="Instead of the number in each file.")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Trials at a time; no number depends on it.")] = 1,
) -> None:
    """Run your strategy on the splits of the published records, and print it against them, paired."""
    with reported_errors():
        published, chosen = runs_dir or runs_of(folder), comparisons(folder, only)
        check_embeddings(chosen)
        if not published.is_dir():
            unpack(folder / RECORDS, published)
        entries = published.with_name(f"{published.name}-entries")
        mine = {name: comparison.model_copy(update={"strategies": [strategy]}) for name, comparison in chosen.items()}
        tasks = [
            Task(config, seed, entries / name, Goal(comparison.budget), data_dir)
            for name, comparison in mine.items()
            for seed in range(trials or comparison.trials)
            for config in comparison.runs()
        ]
        if follow(tasks, run_tasks(tasks, jobs)):
            raise typer.Exit(2)
        reports = {}
        for name, comparison in mine.items():
            labels = {config.label for config in comparison.runs()}
            own = read_runs([config.folder(entries / name) for config in comparison.runs()])
            others = [run for run in read_runs([published / name]) if run.label not in labels]
            reports[name] = compare([*own, *others], metric=metric_of(name), control=own[0].label)
        out.print(Text(against_entry(reports, strategy)), soft_wrap=True)
        commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
        row = entry_row(reports, strategy, commit.stdout.strip(), date.today().isoformat())
        out.print(Text(f"\nrow for docs/results.md:\n{row}"), soft_wrap=True)


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


def check_embeddings(found: dict[str, Comparison]) -> None:
    """Refuse to run without the embeddings that the comparisons name."""
    files = {Path(comparison.data.name) for comparison in found.values()}
    missing = sorted(path.stem for path in files if path.suffix == ".npz" and not path.is_file())
    if missing:
        only = " ".join(f"--only {name}" for name in missing)
        raise FileNotFoundError(
            f"the embeddings of {', '.join(missing)} are missing; from the root of the repository, run "
            f"`python results/suite/embeddings.py --data-dir DATA {only}`"
        )


def runs_of(folder: Path) -> Path:
    """Where the runs of a folder are if nothing else is said."""
    return Path("results/runs") / folder.resolve().name


def num_trials(config: RunConfig, trials: int) -> int:
    """How many trials of a comparison's a strategy has: some rivals have half, as PLAN.md says."""
    return -(-trials // 2) if config.strategy["name"] in FEWER else trials


def report_of(folder: Path) -> Report | None:
    """What the records of a comparison show; None if there are none yet."""
    runs = read_runs([folder]) if folder.is_dir() else []
    return compare(runs, metric=metric_of(folder.name)) if runs else None


def metric_of(name: str) -> str:
    """What a comparison is scored by: macro F1 where classes are rare."""
    return "macro_f1" if "-rare" in name or "-tail" in name else "accuracy"


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
        goal, left = Goal(comparison.budget), 0.0
        for config in comparison.runs():
            num = num_trials(config, trials or comparison.trials)
            each = known.get(name, {}).get(config.label, 0.0)
            left += each * (num - num_complete(config.folder(runs_dir / name), goal, comparison.batch_size, num))
            whole += each * num
        total += left
        unknown = "" if name in known else ", and nothing is known of it"
        counted = f"{trials or comparison.trials} trials of {len(comparison.strategies)} strategies"
        out.print(Text(f"{name}: {counted}, {left / 3600:.2f} h left{unknown}"))
    out.print(Text(f"{total / 3600:.1f} core-hours left of {whole / 3600:.1f}"))


def num_complete(folder: Path, goal: Goal, batch_size: int, num_trials: int) -> int:
    """How many trials of a run are at their end."""
    ends: list[Any] = []
    for entry in read_runs([folder]) if folder.is_dir() else []:
        ends += [records[-1] for seed, records in entry.trials.items() if seed < num_trials and records]
    return sum(not goal.goes_on(record, batch_size) for record in ends)


if __name__ == "__main__":
    app()

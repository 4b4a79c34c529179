"""Every claim of the paper: what it says, what is run here, what came out.

    python results/paper/reproduce.py run --data-dir DATA   # goes on where it stopped; --dry-run tells the core-hours
    python results/paper/reproduce.py keep                  # packs the records, to be committed
    python results/paper/reproduce.py page                  # writes docs/reproduction.md from the records

`claims.toml` holds the rows that are run and the claims that they answer, each with what should come out by the paper,
written down before the run. One process, one thread. Run all of it from the root of the repository.
"""

import json
import signal
import sys
import tarfile
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from analyse import analyse
from page import page as written
from rich.text import Text

from batchbalance.cli.app import out, reported_errors
from batchbalance.lab.config import Comparison, read_comparison
from batchbalance.lab.paper.experiments import experiment
from batchbalance.lab.processes import News, Task, run_task
from batchbalance.lab.records import settled, trial_path
from batchbalance.lab.trial import Goal, LastPrepared
from batchbalance.system.journal import read_journal

OWN = Path(__file__).parent
sys.path.append(str(OWN.parent))

from packing import pack, unpack  # noqa: E402

RUNS = Path("results/runs/paper")
PAGE = Path("docs/reproduction.md")
RECORDS = OWN / "records.tar.xz"
SPENT = "spent.jsonl"  # in the folder of a row: processor time of each piece of work

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None, help=__doc__)
RunsDir = Annotated[Path, typer.Option(help="Where runs are made or resumed.")]


@dataclass(frozen=True)
class Row:
    """Something to run: a config beside this file, an experiment of the package, or an analysis.

    Attributes:
        name: of its folder.
        size: what was run, in words.
        minutes: of one trial of all strategies, on one core.
        trials: seeds 0 to trials − 1.
        config: a TOML file in this folder.
        experiment: the name of an experiment, run under `preset` with `changes`.
        analysis: the name of an analysis, likewise.
        preset: of an experiment or analysis.
        part: the only part of the experiment that is run; all if omitted.
        equal_draws: as in `Experiment.comparisons`.
        changes: settings that take precedence over the preset's.
        earlier: an archive of results/ with trials of some of its strategies, which are not run again.
    """

    name: str
    size: str
    minutes: float
    trials: int
    config: str | None = None
    experiment: str | None = None
    analysis: str | None = None
    preset: str = "paper"
    part: str | None = None
    equal_draws: bool | None = None
    changes: list[str] = field(default_factory=list)
    earlier: str | None = None

    def comparisons(self) -> dict[str, Comparison]:
        """The comparisons of this row, by the name of the part; none if it is an analysis."""
        if self.config is not None:
            return {"": read_comparison(OWN / self.config)}
        if self.experiment is None:
            return {}
        found = experiment(self.experiment).comparisons(self.preset, self.changes, equal_draws=self.equal_draws)
        return found if self.part is None else {"": found[self.part]}

    def tasks(self, seed: int, runs_dir: Path, data_dir: Path | None) -> list[Task]:
        """One trial of every strategy."""
        return [
            Task(config, seed, runs_dir / self.name / part, Goal(comparison.budget, comparison.target_error), data_dir)
            for part, comparison in self.comparisons().items()
            for config in comparison.runs()
        ]

    def numbers(self, seed: int, runs_dir: Path) -> Path:
        """Where the numbers of an analysis are written."""
        return runs_dir / self.name / str(seed) / f"{self.analysis}-{self.preset}.json"

    def unpack_earlier(self, runs_dir: Path) -> None:
        """Put the trials that were run earlier into the folder of this row, unless it is there."""
        folder = runs_dir / self.name
        if self.earlier is None or folder.is_dir():
            return
        with tarfile.open(OWN.parent / self.earlier) as archive:
            for member in archive:
                if member.isfile():
                    member.name = "/".join(member.name.split("/")[-2:])  # the run directory and the file
                    archive.extract(member, folder, filter="data")

    def is_complete(self, seed: int, runs_dir: Path) -> bool:
        """Whether one trial of all strategies has been run to its end."""
        if self.analysis is not None:
            return self.numbers(seed, runs_dir).is_file()
        for task in self.tasks(seed, runs_dir, None):
            path = trial_path(task.config.folder(task.runs_dir), seed)
            records = settled(read_journal(path), path, seed) if path.is_file() else []
            if not records or task.goal.goes_on(records[-1], task.config.batch_size):
                return False
        return True


def content() -> dict[str, Any]:
    """The tables of claims.toml."""
    return tomllib.loads((OWN / "claims.toml").read_text(encoding="utf-8"))


def rows() -> dict[str, Row]:
    """The rows by name."""
    return {name: Row(name, **table) for name, table in content()["rows"].items()}


def names_in_order() -> list[str]:
    """The names of the rows in the order in which they are run."""
    return [name for group in content()["order"] for name in group]


def schedule() -> list[tuple[Row, int]]:
    """Rows and seeds in the order in which they are run: in a group, the first trial of each row, then the second."""
    known = rows()
    return [
        (known[name], seed)
        for group in content()["order"]
        for seed in range(max(known[name].trials for name in group))
        for name in group
        if seed < known[name].trials
    ]


@app.command()
def run(
    data_dir: Annotated[Path | None, typer.Option(help="Where published data sets are.")] = None,
    runs_dir: RunsDir = RUNS,
    only: Annotated[list[str] | None, typer.Option(help="A row; repeat it for more.")] = None,
    trials: Annotated[int | None, typer.Option(min=1, help="Run at most this many trials of each row.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only tell the core-hours of each row.")] = False,
) -> None:
    """Run what is missing, in order; records are durable round by round, so it may be ended at any time."""
    with reported_errors():
        unpack_kept(runs_dir)
        if dry_run:
            show_hours(runs_dir)
            return
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        torch.set_num_threads(1)
        prepare = LastPrepared()
        for row, seed in schedule():
            row.unpack_earlier(runs_dir)
            wanted = (not only or row.name in only) and (trials is None or seed < trials)
            if not wanted or row.is_complete(seed, runs_dir):
                continue
            if row.analysis is not None:
                with timed(row, seed, row.analysis, runs_dir):
                    run_analysis(row, seed, runs_dir, data_dir)
            for index, task in enumerate(row.tasks(seed, runs_dir, data_dir)):
                with timed(row, seed, task.config.label, runs_dir):
                    run_task(index, task, tell, prepare)


@app.command()
def keep(runs_dir: RunsDir = RUNS) -> None:
    """Pack the records, to be committed."""
    with reported_errors():
        pack(runs_dir, RECORDS, list(rows()))


@app.command()
def page(runs_dir: RunsDir = RUNS) -> None:
    """Write docs/reproduction.md; unpacks the kept records if there are no others."""
    with reported_errors():
        unpack_kept(runs_dir)
        known = rows()
        for row in known.values():
            row.unpack_earlier(runs_dir)
        spent = {}
        for name in names_in_order():
            complete = sum(known[name].is_complete(seed, runs_dir) for seed in range(known[name].trials))
            spent[name] = complete, sum(spent_hours(known[name], runs_dir).values())
        PAGE.write_text(written(content()["claims"], known, runs_dir, spent), encoding="utf-8")
        out.print(Text(f"written: {PAGE}"))


def unpack_kept(runs_dir: Path) -> None:
    """Unpack the kept records, unless there are others: a run goes on from there."""
    if not runs_dir.is_dir() and RECORDS.is_file():
        unpack(RECORDS, runs_dir)


@contextmanager
def timed(row: Row, seed: int, label: str, runs_dir: Path) -> Iterator[None]:
    """Note the seconds of processor time that a piece of work took, also if it is ended before its end."""
    out.print(Text(f"{time.strftime('%H:%M:%S')} {row.name}, trial {seed}: {label}"), soft_wrap=True)
    started = time.process_time()
    try:
        yield
    finally:
        spent = {"row": row.name, "trial": seed, "what": label, "seconds": round(time.process_time() - started, 1)}
        (runs_dir / row.name).mkdir(parents=True, exist_ok=True)
        with (runs_dir / row.name / SPENT).open("a", encoding="utf-8") as file:
            file.write(json.dumps(spent) + "\n")


def run_analysis(row: Row, seed: int, runs_dir: Path, data_dir: Path | None) -> None:
    """Run an analysis and keep its numbers."""
    folder = row.numbers(seed, runs_dir).parent
    for path in analyse(row.analysis or "", row.preset, folder, changes=row.changes, seed=seed, data_dir=data_dir):
        if path.suffix != ".json":
            path.unlink()


def tell(news: News) -> None:
    """Print what matters of a trial."""
    if news.kind in ("failed", "warning"):
        out.print(Text(f"{news.kind}: {news.text}"), soft_wrap=True)


def spent_hours(row: Row, runs_dir: Path) -> dict[int, float]:
    """The core-hours that each trial of a row took so far."""
    path, found = runs_dir / row.name / SPENT, dict.fromkeys(range(row.trials), 0.0)
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else []:
        each = json.loads(line)
        found[each["trial"]] += each["seconds"] / 3600
    return found


def show_hours(runs_dir: Path) -> None:
    """Print the core-hours of each row: those spent, and those left by what complete trials took."""
    known, total = rows(), 0.0
    for name in names_in_order():
        row, spent = known[name], spent_hours(known[name], runs_dir)
        whole = [hours for seed, hours in spent.items() if row.is_complete(seed, runs_dir)]
        each = sum(whole) / len(whole) if whole else row.minutes / 60
        left = max(0.0, each * row.trials - sum(spent.values())) if len(whole) < row.trials else 0.0
        total += left
        counted = f"{len(whole)} of {row.trials} trials"
        out.print(Text(f"{name}: {counted}, {sum(spent.values()):.2f} h spent, {left:.2f} h left"))
    out.print(Text(f"{total:.1f} core-hours left"))


if __name__ == "__main__":
    app()

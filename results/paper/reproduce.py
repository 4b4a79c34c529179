"""Every claim of the paper: what it says, what is run here, what came out.

    python results/paper/reproduce.py run --data-dir DATA   # goes on where it stopped; --dry-run tells the core-hours
    python results/paper/reproduce.py keep                  # packs the records, to be committed
    python results/paper/reproduce.py page                  # writes docs/reproduction.md from the records

`claims.toml` holds the rows that are run and the claims that they answer, each with what should come out by the paper,
written down before the run. One process, one thread. Run all of it from the root of the repository.
"""

import json
import tarfile
import time
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.text import Text

from batchbalance.cli.app import out, reported_errors
from batchbalance.journal import read_journal
from batchbalance.lab.config import Comparison, read_comparison
from batchbalance.lab.paper.analyses import analyse
from batchbalance.lab.paper.experiments import experiment
from batchbalance.lab.processes import News, Task, run_task
from batchbalance.lab.records import settled, trial_path
from batchbalance.lab.trial import Goal, LastPrepared

OWN = Path(__file__).parent
RUNS = Path("results/runs/paper")
RECORDS = OWN / "records.tar.gz"
SECONDS = "seconds.json"  # beside the numbers of an analysis: what it took

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

    def seconds(self, seed: int, runs_dir: Path) -> tuple[float, bool]:
        """The seconds spent on one trial of all strategies so far, and whether it is complete."""
        if self.analysis is not None:
            path = self.numbers(seed, runs_dir)
            found = path.parent / SECONDS
            return (json.loads(found.read_text(encoding="utf-8")), True) if path.is_file() else (0.0, False)
        total, complete = 0.0, True
        for task in self.tasks(seed, runs_dir, None):
            path = trial_path(task.config.folder(task.runs_dir), seed)
            records = settled(read_journal(path), path, seed) if path.is_file() else []
            total += sum(sum(record["seconds"].values()) for record in records)
            complete &= bool(records) and not task.goal.goes_on(records[-1], task.config.batch_size)
        return total, complete


def content() -> dict[str, Any]:
    """The tables of claims.toml."""
    return tomllib.loads((OWN / "claims.toml").read_text(encoding="utf-8"))


def rows() -> dict[str, Row]:
    """The rows by name."""
    return {name: Row(name, **table) for name, table in content()["rows"].items()}


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
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only tell the core-hours of each row.")] = False,
) -> None:
    """Run what is missing, in order; records are durable round by round, so it may be ended at any time."""
    with reported_errors():
        if dry_run:
            show_hours(runs_dir)
            return
        torch.set_num_threads(1)
        prepare = LastPrepared()
        for row, seed in schedule():
            if (only and row.name not in only) or row.seconds(seed, runs_dir)[1]:
                continue
            if row.analysis is not None:
                say(f"{row.name}, seed {seed}")
                run_analysis(row, seed, runs_dir, data_dir)
            for index, task in enumerate(row.tasks(seed, runs_dir, data_dir)):
                say(f"{row.name}: {task.label}")
                run_task(index, task, tell, prepare)


@app.command()
def keep(runs_dir: RunsDir = RUNS) -> None:
    """Pack the records, to be committed."""
    with reported_errors(), tarfile.open(RECORDS, "w:gz") as archive:
        for path in sorted(path for name in rows() for path in (runs_dir / name).rglob("[!.]*.json*")):  # no locks
            archive.add(path, path.relative_to(runs_dir))


def run_analysis(row: Row, seed: int, runs_dir: Path, data_dir: Path | None) -> None:
    """Run an analysis and note what it took."""
    started = time.process_time()
    path = row.numbers(seed, runs_dir)
    path.parent.mkdir(parents=True, exist_ok=True)
    for figure in analyse(
        row.analysis or "", row.preset, path.parent, changes=row.changes, seed=seed, data_dir=data_dir
    ):
        if figure.suffix != ".json":
            figure.unlink()
    (path.parent / SECONDS).write_text(json.dumps(round(time.process_time() - started, 1)), encoding="utf-8")


def say(text: str) -> None:
    """Print a line with the time."""
    out.print(Text(f"{time.strftime('%H:%M:%S')} {text}"), soft_wrap=True)


def tell(news: News) -> None:
    """Print what matters of a trial."""
    if news.kind in ("failed", "warning"):
        say(f"{news.kind}: {news.text}")


def show_hours(runs_dir: Path) -> None:
    """Print the core-hours of each row: those spent, and those left by what complete trials took."""
    left_of_all = 0.0
    for name in [name for group in content()["order"] for name in group]:
        row = rows()[name]
        found = [row.seconds(seed, runs_dir) for seed in range(row.trials)]
        whole = [seconds for seconds, complete in found if complete]
        each = sum(whole) / len(whole) if whole else 60 * row.minutes
        left = max(0.0, each * (row.trials - len(whole)) - sum(s for s, complete in found if not complete)) / 3600
        spent = sum(seconds for seconds, _ in found) / 3600
        left_of_all += left
        out.print(Text(f"{name}: {len(whole)} of {row.trials} trials, {spent:.2f} h spent, {left:.2f} h left"))
    out.print(Text(f"{left_of_all:.1f} core-hours left"))


if __name__ == "__main__":
    app()

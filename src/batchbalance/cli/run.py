"""`batchbalance run`."""

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from batchbalance.cli.app import Ray, RayCommand, app, complain, imports_done, out, reported_errors
from batchbalance.system.journal import read_journal
from batchbalance.system.progress import Jobs

if TYPE_CHECKING:
    from batchbalance.lab.processes import News, Task

DOING = {"load": "loading data", "train": "training", "evaluate": "evaluating", "predict": "predicting",
         "select": "selecting"}  # fmt: skip


@app.command("run", cls=RayCommand)
def run_command(
    config: Annotated[
        str, typer.Argument(help="A TOML file that describes a comparison, or a name from 'batchbalance experiments'.")
    ],
    preset: Annotated[
        str | None,
        typer.Option(
            help="For a name: paper, released (the paper's released code), laptop (the default) or smoke.",
            show_default=False,
        ),
    ] = None,
    equal_draws: Annotated[
        bool | None,
        typer.Option(
            "--equal-draws/--paper-draws",
            help="For a name: give all strategies the same 2K draws, or those without edges K, as in the paper. "
            "Default: as in the paper with --preset paper and released, else equal.",
            show_default=False,
        ),
    ] = None,
    runs_dir: Annotated[Path, typer.Option(help="Where run directories are created or resumed.")] = Path("runs"),
    data_dir: Annotated[
        Path | None,
        typer.Option(help="The folder of published data sets; default: BATCHBALANCE_DATA, or else a cache folder."),
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Trials to run in parallel; results do not depend on it.")] = 1,
    trials: Annotated[
        int | None, typer.Option(min=1, help="Trials to run, with seeds 0 to N − 1, instead of the file's number.")
    ] = None,
    budget: Annotated[
        int | None, typer.Option(min=1, help="Training labels at the end, instead of the file's number.")
    ] = None,
    changes: Annotated[
        list[str] | None, typer.Option("--set", help="Change a setting, such as posterior.num_draws=20; repeatable.")
    ] = None,
    allow_imports: Annotated[
        bool,
        typer.Option("--allow-imports", help="Import code that the file names, such as mypackage.module:MyStrategy."),
    ] = False,
    ray: Ray = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list what would run.")] = False,
) -> None:
    """Run an active-learning comparison, or resume an interrupted one."""
    with reported_errors():
        from batchbalance.arguments.checks import check_device
        from batchbalance.lab.config import read_comparison
        from batchbalance.lab.paper.experiments import experiment
        from batchbalance.lab.processes import run_tasks, tasks_of

        imports_done()
        if ray is not None and jobs != 1:
            raise ValueError(f"--jobs must not be given with --ray, where the cluster's CPUs decide, got {jobs}")
        ends = {"trials": trials, "budget": budget}
        changes = [*(changes or []), *(f"{key}={number}" for key, number in ends.items() if number is not None)]
        # A path, rather than the name of an experiment.
        is_file = config.endswith(".toml") or "/" in config or "\\" in config or Path(config).is_file()
        if is_file:
            if preset is not None or equal_draws is not None:
                raise ValueError(
                    f"--preset, --equal-draws and --paper-draws are for names of experiments, got the file {config!r}"
                )
            comparisons = {runs_dir: read_comparison(Path(config), changes, allow_imports=allow_imports)}
        else:
            preset = preset or "laptop"
            parts = experiment(config).comparisons(preset, changes, equal_draws=equal_draws)
            runs_dir = runs_dir / f"{config}-{preset}"
            comparisons = {runs_dir / part: comparison for part, comparison in parts.items()}
        tasks = [task for folder, each in comparisons.items() for task in tasks_of(each, folder, data_dir)]
        if dry_run:
            show_plan(tasks)
            return
        if ray is None:
            for device in {task.config.device for task in tasks}:
                check_device("device", device)
        if ray is None or not is_file:  # files named in a config may exist on the cluster only
            check_data(tasks)
        started = time.perf_counter()
        try:
            if ray is None:
                news = run_tasks(tasks, jobs)
            else:
                from batchbalance.cluster.trials import run_tasks_on_ray

                news = run_tasks_on_ray(tasks, ray)
            failed = follow(tasks, news)
        except KeyboardInterrupt:
            complain("stopped", "complete rounds are kept; the same command continues from there")
            raise typer.Exit(130) from None
        failed += lost_records(tasks, failed)
        seconds = time.perf_counter() - started
        out.print(Text(f"{len(tasks) - len(failed)} of {len(tasks)} trials are complete after {seconds:.0f} s"))
        again = f"; the same command runs the {len(failed)} failed ones again" if failed else ""
        advice = f"their records are in {runs_dir}; next: batchbalance report {runs_dir}{again}"
        if len(failed) == len(tasks):
            advice = "no trial is complete; fix the errors above and run the same command again"
        out.print(Text(advice), soft_wrap=True)
    if failed:
        raise typer.Exit(2)


def check_data(tasks: list["Task"]) -> None:
    """Report missing data once rather than in every trial; warn if whole batches do not add up to the budget."""
    from batchbalance.lab.data import default_sizes, load

    for wanted, data_dir in {(task.config.data, task.data_dir) for task in tasks}:
        found = load(wanted.name, data_dir=data_dir, partial=wanted.partial, own=wanted.own, progress=True)
        config, goal = next((task.config, task.goal) for task in tasks if task.config.data == wanted)
        start = config.split_sizes(default_sizes(found)).num_initial(found.num_classes)
        rest = 0 if goal.budget is None else max(0, goal.budget - start) % config.batch_size
        if rest and goal.budget is not None:
            complain(
                "note",
                f"trials end at {goal.budget - rest} labels, not at {goal.budget}: {start} initial labels, then "
                f"whole batches of {config.batch_size}",
            )


def show_plan(tasks: list["Task"]) -> None:
    """Print one line for each trial, with its number of complete rounds."""
    from batchbalance.lab.records import settled, trial_path

    known: dict[int, tuple[str, Path]] = {}  # cached, because hashing the settings of a run is slow
    for task in tasks:
        if id(task.config) not in known:
            known[id(task.config)] = task.config.label, task.config.folder(task.runs_dir)
        label, folder = known[id(task.config)]
        path = trial_path(folder, task.seed)
        done = len(settled(read_journal(path), path, task.seed)) if path.is_file() else 0
        out.print(Text(f"{label}, trial {task.seed}: {done} rounds in {folder}"), soft_wrap=True)


def lost_records(tasks: list["Task"], failed: list[int]) -> list[int]:
    """Report and return trials that succeeded but whose records are missing, for example deleted meanwhile."""
    from batchbalance.lab.records import trial_path

    lost = []
    for index, task in enumerate(tasks):
        path = trial_path(task.config.folder(task.runs_dir), task.seed)
        if index not in failed and not (path.is_file() and read_journal(path)):
            lost.append(index)
            complain("error", f"{task.label}: its records in {path} were removed while it ran; start it again")
    return lost


def follow(tasks: list["Task"], all_news: Iterator["News"], stream: Any = None) -> list[int]:
    """Show the progress of the tasks and return those that failed. A common error is printed once."""
    failed, warned, causes = [], set(), Counter[str]()
    shown = Jobs([task.label for task in tasks], stream)
    for news in all_news:
        label = tasks[news.task].label
        if news.kind == "failed":
            failed.append(news.task)
            causes[news.text] += 1
            if causes[news.text] == 1:
                complain("error", f"{label}: {news.text}")
        elif news.kind == "warning" and news.text not in warned:
            warned.add(news.text)
            complain("warning", f"{label}: {news.text}")
        if news.is_last:
            shown.end(news.task, news.kind)
        elif news.step is not None:
            shown.advance(news.task, news.step.share, f"round {news.step.round}: {DOING[news.step.phase]}")
    for text, count in causes.items():
        if count > 1:
            complain("error", f"{count - 1} more trials failed in the same way: {text.splitlines()[-1]}")
    return failed

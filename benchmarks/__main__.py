"""`python -m benchmarks`: time the library on this machine."""

from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from batchbalance.cli.app import out, reported_errors
from benchmarks import Growth, Line, Measured, Report, plot_growth, run_benchmark

WIDTH = 200  # a table that is cut off tells nothing; a narrower terminal wraps it


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


@app.command()
def bench_command(
    quick: Annotated[bool, typer.Option("--quick", help="Smaller sizes.")] = False,
    only: Annotated[list[str] | None, typer.Option(help="A case, or growth; repeatable. Default: all.")] = None,
    repeats: Annotated[int | None, typer.Option(help="Runs of each side. Default: 5, or 3 if quick.")] = None,
    threads: Annotated[int | None, typer.Option(help="Threads of torch. Default: its own choice.")] = None,
    seed: Annotated[int, typer.Option(help="Of all inputs.")] = 0,
    peers: Annotated[
        Path | None, typer.Option(help="Environment with the other libraries. Default: .venv-bench.")
    ] = None,
    memory: Annotated[
        bool | None, typer.Option("--memory/--no-memory", help="Measure peak memory too. Default: unless quick.")
    ] = None,
    output: Annotated[Path | None, typer.Option(help="Write all numbers to this .json file.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the growth curves into this .png, .svg or .pdf.")] = None,
) -> None:
    """Time this library against plain forms, other libraries and its own limit, on this machine."""
    with reported_errors():
        _check_outputs(output, plot, only)
        if threads is not None:
            if threads < 1:
                raise ValueError(f"--threads must be at least 1, got {threads}")
            torch.set_num_threads(threads)
        report = run_benchmark(
            quick=quick, only=only, repeats=repeats, seed=seed, peers=peers, memory=memory, show_progress=True
        )
        if output is not None:
            report.write(output)
        if plot is not None:
            plot_growth(report.growth, plot)
        show(report)
        for path in (output, plot):
            if path is not None:
                out.print(Text(f"written to {path}"), soft_wrap=True)


def _check_outputs(output: Path | None, plot: Path | None, only: list[str] | None) -> None:
    """Refuse, before any work, what could not be written."""
    for option, path, endings in (("--output", output, (".json",)), ("--plot", plot, (".png", ".svg", ".pdf"))):
        if path is None:
            continue
        if path.suffix not in endings:
            raise ValueError(f"{option} must end in {' or '.join(endings)}, got {str(path)!r}")
        if path.is_dir() or not path.parent.is_dir():
            raise OSError(f"cannot write {path}: {path.parent} must be a folder")
    if plot is not None and only and "growth" not in only:
        raise ValueError("--plot draws growth curves, got --only without growth; add --only growth")


def show(report: Report) -> None:
    """The environment, a line for each comparison, and the growth exponents."""
    facts = report.environment
    versions = ", ".join(f"{name} {version}" for name, version in {**facts["versions"], **facts["peers"]}.items())
    out.print(
        Text(f"{facts['machine']}, {facts['cores']} cores, {facts['threads']} threads, {facts['system']}"),
        soft_wrap=True,
    )
    out.print(
        Text(f"Python {facts['python']}, {versions}; seed {facts['seed']}, medians of up to {facts['repeats']} runs"),
        soft_wrap=True,
    )
    out.print()
    if report.lines:
        Console(width=WIDTH).print(_table(report.lines))
        notes = {line.other.scaled: None for line in report.lines if line.other is not None and line.other.scaled}
        for note in notes:
            out.print(Text(f"~ measured on {note}"), soft_wrap=True)
        for reason in {f"{line.case}: {line.absent}": None for line in report.lines if line.absent}:
            out.print(Text(f"absent in {reason}"), soft_wrap=True)
    for curve in report.growth:
        out.print(Text(growth_line(curve)), soft_wrap=True)


def _table(lines: tuple[Line, ...]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("case", "size"):
        table.add_column(name, no_wrap=True)
    for name in ("ours", "seconds", "MiB", "other", "seconds", "MiB", "times as long", "target"):
        table.add_column(name, justify="left" if name in ("ours", "other") else "right", no_wrap=True)
    table.add_column("agreement", no_wrap=True)
    for line in lines:
        ratio = "" if line.ratio is None else f"{line.ratio:,.2f}" if line.ratio < 100 else f"{line.ratio:,.0f}"
        target = (
            ""
            if line.target is None
            else f"{line.target:,.4g} {'' if line.met is None else 'met' if line.met else 'missed'}"
        )
        size = " ".join(f"{letter} {value:,}" for letter, value in line.size.items())
        other = ("absent", "", "") if line.absent else _cells(line.other)
        table.add_row(line.case, size, *_cells(line.ours), *other, ratio, target.strip(), line.agreement)
    return table


def _cells(side: Measured | None) -> tuple[str, str, str]:
    if side is None:
        return "", "", ""
    peak = "" if side.peak_mib is None else f"{side.peak_mib:,.0f}"
    return side.name, f"{'~' if side.scaled else ''}{side.seconds:,.4g}", peak


def growth_line(curve: Growth) -> str:
    """One line on a growth curve."""
    seconds = ", ".join(f"{value:,}: {taken:.3g} s" for value, taken in zip(curve.values, curve.seconds, strict=True))
    exponent = "not fitted" if curve.exponent is None else f"exponent {curve.exponent:.2f}"
    verdict = "" if curve.met is None else ", met" if curve.met else ", missed"
    return f"growth in {curve.letter}: {exponent} (wanted at most {curve.limit:g}{verdict}); {seconds}"


if __name__ == "__main__":
    app()

"""`batchbalance report`."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer
from rich.table import Table
from rich.text import Text

from batchbalance.cli.app import app, complain, imports_done, out, reported_errors

if TYPE_CHECKING:
    from batchbalance.lab.report import ReportTable
    from batchbalance.lab.report.curves import Drawn


@app.command("report")
def report_command(
    runs: Annotated[list[Path], typer.Argument(help="Run directories, or folders of them.")],
    output: Annotated[Path, typer.Option(help="The folder to write to.")] = Path("report"),
    only: Annotated[
        list[str] | None, typer.Option(help="Show only the run with this label, as in the table; repeatable.")
    ] = None,
    control: Annotated[
        str | None, typer.Option(help="The label of the run to compare with; default: the run of random.")
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(
            help="The metric of tables and tests; curves are drawn for all. Default: accuracy; macro_f1 of labels."
        ),
    ] = None,
    at: Annotated[str | None, typer.Option(help="Label counts to show, such as 50,100.")] = None,
    target: Annotated[
        float | None, typer.Option(help="The value to reach; default: the final value of the control's worst trial.")
    ] = None,
    curves: Annotated[
        str, typer.Option(help="Statistic of the curves: means with 95 % intervals, or medians with quartiles.")
    ] = "means",
    every: Annotated[
        bool, typer.Option("--all", help="Include runs with earlier settings of an edited config.")
    ] = False,
) -> None:
    """Turn runs into plots and tables: an HTML page, Markdown, CSV, PNG and SVG."""
    with reported_errors(report_command):
        from batchbalance.lab.records import newest_settings, only_labelled, read_runs
        from batchbalance.lab.report import compare, notes, overview, write_report
        from batchbalance.lab.report.figures import require_matplotlib

        require_matplotlib()
        imports_done()
        found = read_runs(runs)
        shown, earlier = (found, []) if only or every else newest_settings(found, runs)
        report = compare(
            only_labelled(found, only) if only else shown,
            metric=metric,
            control=control,
            at=None if at is None else parse_counts(at),
            target=target,
            curves=cast("Drawn", curves),
        )
        report = replace(report, earlier=tuple(run.label for run in earlier))
        page = write_report(report, output, progress=sys.stderr.isatty())
        show(overview(report))
        for note in notes(report):
            complain("note", note)
        out.print(Text(f"report written to {page.resolve()}"), soft_wrap=True)


def parse_counts(text: str) -> list[int]:
    """Parse "50,100" as [50, 100]."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise ValueError(f"--at must be label counts such as 50,100, got {text!r}")
    return [int(part) for part in parts]


def show(table: "ReportTable") -> None:
    """Print a table of a report on the terminal."""
    shown = Table(box=None, pad_edge=False, header_style="bold", caption=table.text, caption_justify="left")
    shown.add_column(table.header[0], overflow="fold")
    for name in table.header[1:]:
        shown.add_column(name, justify="right", no_wrap=True)
    for row in table.rows:
        shown.add_row(*map(Text, row))
    out.print(shown)

"""`batchbalance find`: find items similar to others or to a text."""

from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from batchbalance.cli.app import app, out, reported_errors
from batchbalance.cli.project import As, Folder, Imports, opened, say, short


@app.command("find")
def find_command(
    folder: Folder,
    like: Annotated[list[str] | None, typer.Option(help="The id of an example item; repeatable.")] = None,
    more: Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="More ids for --like.")] = None,
    text: Annotated[str | None, typer.Option(help="Text to look for, in a project of texts.")] = None,
    n: Annotated[int, typer.Option("-n", help="How many items.")] = 20,
    ask: Annotated[bool, typer.Option("--ask", help="Ask these items next.")] = False,
    annotator: As = None,
    allow_imports: Imports = False,
) -> None:
    """Find unlabelled items similar to others or to a text."""
    with reported_errors(find_command):
        if more and not like:
            raise ValueError(f"`like` must come before ids, got {more[0]!r} without it; use --like {more[0]}")
        project = opened(folder, allow_imports=allow_imports)
        found = project.find([*(like or []), *(more or [])], text=text, n=n, annotator=annotator)
        if not found:
            say("nothing found: no item is left to ask")
            return
        table = Table(show_edge=False, box=None, pad_edge=False)
        for name in ("id", "distance", "item"):
            table.add_column(name, overflow="fold")
        for each, shown in zip(found, project.shown(each.id for each in found), strict=True):
            fields = ", ".join(f"{name} {value}" for name, value in shown.fields)
            content = shown.text or fields or ("" if shown.image is None else shown.image.name)
            table.add_row(Text(each.id), f"{each.distance:.3f}", Text(short(content)))
        out.print(table)
        if ask:
            queued = project.queue([each.id for each in found], annotator)
            name = "" if annotator is None else f" --as {annotator}"
            say(f"{len(queued):,} questions; next: batchbalance ask {folder}{name}, which shows them first")

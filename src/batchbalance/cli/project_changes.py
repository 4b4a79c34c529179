"""`batchbalance skip`, `flag`, `comment`, `correct`, `undo`, `add-items`, `add-class` and `rename-class`."""

from pathlib import Path
from typing import Annotated

import typer

from batchbalance.cli.app import app, reported_errors
from batchbalance.cli.project import As, Folder, opened, say, tell_notes

Ids = Annotated[list[str], typer.Argument(metavar="ID...", help="The items.")]


@app.command("skip")
def skip_command(folder: Folder, ids: Ids, annotator: As = None) -> None:
    """Pass items over that cannot be labelled; 'ask --again' brings them back."""
    with reported_errors(skip_command):
        opened(folder).skip(ids, annotator)
        say(f"{len(ids)} skipped")


@app.command("flag")
def flag_command(
    folder: Folder,
    ids: Ids,
    note: Annotated[str, typer.Option(help="What is wrong with them.")] = "",
    annotator: As = None,
) -> None:
    """Mark items that something is wrong with; they are exported with the note."""
    with reported_errors(flag_command):
        opened(folder).flag(ids, note, annotator)
        say(f"{len(ids)} flagged")


@app.command("comment")
def comment_command(
    folder: Folder, ids: Ids, text: Annotated[str, typer.Option(help="What to write.")], annotator: As = None
) -> None:
    """Write something about items."""
    with reported_errors(comment_command):
        opened(folder).comment(ids, text, annotator)
        say(f"{len(ids)} commented")


@app.command("correct")
def correct_command(
    folder: Folder,
    name: Annotated[str, typer.Argument(metavar="ID", help="The item.")],
    label: Annotated[str, typer.Argument(metavar="LABEL", help="What it should have been.")],
    annotator: As = None,
) -> None:
    """Change a label that was told; with --as, the one of that person."""
    with reported_errors(correct_command):
        told = opened(folder).correct(name, label, annotator)
        say(f"{name!r} is {label!r}" + ("" if told.corrected else ", as it was"))


@app.command("undo")
def undo_command(
    folder: Folder,
    n: Annotated[int, typer.Option("-n", help="How many.")] = 1,
    annotator: As = None,
) -> None:
    """Undo the last labels, skips, flags and comments, one at a time; with --as, those of that person."""
    with reported_errors(undo_command):
        for each in opened(folder).undo(annotator, n, anyone=annotator is None):
            what = f" {each.value!r}" if each.value else ""
            say(f"undone: {each.id!r} was {each.kind}{what}")


@app.command("add-items")
def add_items_command(
    folder: Folder,
    source: Annotated[Path, typer.Argument(metavar="NEW", help="More data like those of the project.")],
    ids: Annotated[Path | None, typer.Option(help="For embeddings: a file of ids, one a line.")] = None,
    cost: Annotated[str | None, typer.Option(help="The column of costs, or a CSV file of ids and costs.")] = None,
) -> None:
    """Add items to a project; its labels stay as they are."""
    with reported_errors(add_items_command):
        project = opened(folder)
        before = len(project.notes)
        count = project.add_items(source, ids=ids, cost=cost)
        tell_notes(project.notes[before:])
        say(f"{count:,} items added, {len(project):,} in all")


@app.command("add-class")
def add_class_command(folder: Folder, name: Annotated[str, typer.Argument(help="The new class.")]) -> None:
    """Add a class; earlier labels stay."""
    with reported_errors(add_class_command):
        project = opened(folder)
        project.add_class(name)
        say(f"classes: {', '.join(project.classes)}")


@app.command("rename-class")
def rename_class_command(
    folder: Folder,
    old: Annotated[str, typer.Argument(help="The class as it is called now.")],
    new: Annotated[str, typer.Argument(help="What it is to be called.")],
) -> None:
    """Give a class another name; its labels stay with it."""
    with reported_errors(rename_class_command):
        project = opened(folder)
        project.rename_class(old, new)
        say(f"classes: {', '.join(project.classes)}")

"""`batchbalance skip`, `flag`, `comment`, `correct`, `undo`, `add-items`, `add-class` and `rename-class`."""

from pathlib import Path
from typing import Annotated

import typer

from batchbalance.cli.app import app, reported_errors
from batchbalance.cli.project import As, Folder, opened, say, tell_notes

Ids = Annotated[list[str], typer.Argument(metavar="ID...", help="The ids of the items.")]


@app.command("skip")
def skip_command(folder: Folder, ids: Ids, annotator: As = None) -> None:
    """Skip items that cannot be labelled; 'ask --again' asks them again."""
    with reported_errors(skip_command):
        opened(folder).skip(ids, annotator)
        say(f"{len(ids)} skipped")


@app.command("flag")
def flag_command(
    folder: Folder,
    ids: Ids,
    note: Annotated[str, typer.Option(help="The problem.")] = "",
    annotator: As = None,
) -> None:
    """Flag items that have a problem; flags and notes are exported."""
    with reported_errors(flag_command):
        opened(folder).flag(ids, note, annotator)
        say(f"{len(ids)} flagged")


@app.command("comment")
def comment_command(
    folder: Folder, ids: Ids, text: Annotated[str, typer.Option(help="The comment.")], annotator: As = None
) -> None:
    """Add a comment to items."""
    with reported_errors(comment_command):
        opened(folder).comment(ids, text, annotator)
        say(f"{len(ids)} commented")


@app.command("correct")
def correct_command(
    folder: Folder,
    name: Annotated[str, typer.Argument(metavar="ID", help="The item.")],
    label: Annotated[str, typer.Argument(metavar="LABEL", help="The correct label.")],
    annotator: As = None,
) -> None:
    """Change a label; with --as, that person's label."""
    with reported_errors(correct_command):
        told = opened(folder).correct(name, label, annotator)
        say(f"{name!r} is {label!r}" + ("" if told.corrected else ", as it was"))


@app.command("undo")
def undo_command(
    folder: Folder,
    n: Annotated[int, typer.Option("-n", help="How many to undo.")] = 1,
    annotator: As = None,
) -> None:
    """Undo the last label, skip, flag or comment; with --as, that person's."""
    with reported_errors(undo_command):
        for each in opened(folder).undo(annotator, n, anyone=annotator is None):
            what = f" {each.value!r}" if each.value else ""
            say(f"undone: {each.id!r} was {each.kind}{what}")


@app.command("add-items")
def add_items_command(
    folder: Folder,
    source: Annotated[Path, typer.Argument(metavar="NEW", help="More data of the same kind as the project's.")],
    ids: Annotated[Path | None, typer.Option(help="For embeddings: a file of ids, one per line.")] = None,
) -> None:
    """Add items to a project; its labels do not change."""
    with reported_errors(add_items_command):
        project = opened(folder)
        before = len(project.notes)
        count = project.add_items(source, ids=ids)
        tell_notes(project.notes[before:])
        say(f"{count:,} items added, {len(project):,} in all")


@app.command("add-class")
def add_class_command(folder: Folder, name: Annotated[str, typer.Argument(help="The new class.")]) -> None:
    """Add a class; earlier labels are kept."""
    with reported_errors(add_class_command):
        project = opened(folder)
        project.add_class(name)
        if project.settings.multi_label and project.labels:
            say(f"{len(project.labels):,} items labelled so far count as without {name!r}; correct those that have it")
        say(f"classes: {', '.join(project.classes)}")


@app.command("rename-class")
def rename_class_command(
    folder: Folder,
    old: Annotated[str, typer.Argument(help="Its current name.")],
    new: Annotated[str, typer.Argument(help="Its new name.")],
) -> None:
    """Rename a class; its labels are kept."""
    with reported_errors(rename_class_command):
        project = opened(folder)
        project.rename_class(old, new)
        say(f"classes: {', '.join(project.classes)}")

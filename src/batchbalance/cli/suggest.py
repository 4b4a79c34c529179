"""`batchbalance suggest`: labels by machines, for a project."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from batchbalance.cli.app import app, complain, reported_errors
from batchbalance.cli.project import Folder, opened, say, tell_notes

if TYPE_CHECKING:
    from batchbalance.project import Batch, Project


@app.command("suggest")
def suggest_command(
    folder: Folder,
    labels: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="CSV, TSV, JSONL or Parquet with the columns id and label, and optionally confidence; or with id and "
            "a column of probabilities for each class.",
        ),
    ],
    by: Annotated[
        str, typer.Option(metavar="NAME", help="The source, such as gpt; a newer file replaces its older one.")
    ],
) -> None:
    """Add labels that a machine suggests: a language model, rules or an old model."""
    with reported_errors(suggest_command):
        take_suggestions(opened(folder), labels, by)
        say(f"next: batchbalance status {folder} (how good are they?), or batchbalance ask {folder}")


def take_suggestions(project: "Project", path: Path, by: str) -> None:
    """Add suggestions to a project, and print a summary."""
    found = project.suggest(path, by)
    say(f"{found.num_items:,} suggestions by {found.source}{'' if found.is_new else ', as before'}")
    tell_notes(found.notes)


def reviewed(project: "Project", source: str, n: int | None, annotator: str | None) -> "Batch":
    """Ask the suggestions of a source that are most likely wrong, and print them."""
    found = project.review(source, project.settings.batch_size if n is None else n, annotator)
    project.queue([each.id for each in found], annotator)
    for each in found:
        guess = f", the model says {each.guess!r}" if each.guess else ""
        complain(
            "review", f"{each.id}: {source} says {each.suggestion!r}{guess}; wrong with probability {each.wrong:.2f}"
        )
    return project.batch(annotator)

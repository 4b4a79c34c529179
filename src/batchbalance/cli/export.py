"""`batchbalance export` and `predict`: the labels of a project, and predictions for new data."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from batchbalance.cli.app import app, out, reported_errors
from batchbalance.cli.project import Folder, Imports, check_not_its_own, opened, say


@app.command("export")
def export_command(
    folder: Folder,
    output: Annotated[Path | None, typer.Option(help="The file to write.")] = None,
    form: Annotated[
        str, typer.Option("--format", help="csv, jsonl (also for doccano and Prodigy) or label-studio.")
    ] = "csv",
    predictions: Annotated[
        bool, typer.Option("--predictions", help="Write all items, with the model's prediction and its probability.")
    ] = False,
    every: Annotated[
        bool, typer.Option("--all", help="For csv: also items without a label that were asked, skipped or flagged.")
    ] = False,
    only_open: Annotated[
        bool,
        typer.Option("--open", help="Write only unanswered questions, in their order; not for csv."),
    ] = False,
    suspects: Annotated[
        Path | None, typer.Option(help="A CSV file for labels that are probably wrong, with suggestions.")
    ] = None,
    source: Annotated[
        str | None,
        typer.Option("--accept", metavar="SOURCE", help="Add labels by a machine, or 'model'."),
    ] = None,
    at_least: Annotated[
        float, typer.Option(help="With --accept: the share of them that must be right, with 95 % confidence.")
    ] = 0.95,
    image_url: Annotated[
        str | None,
        typer.Option(
            help="The address of the folder of images for other tools; if omitted, the file embeds the images."
        ),
    ] = None,
    allow_imports: Imports = False,
) -> None:
    """Write the labels to a CSV file, or items and labels to a file for another labelling tool."""
    with reported_errors(export_command):
        from batchbalance.project.bridge import write_export

        if output is None and suspects is None:
            raise ValueError("one of --output and --suspects must be given, got neither; name the file to write")
        for path in (output, suspects):
            if path is not None:
                check_not_its_own(folder, path)
        project = opened(folder, allow_imports=allow_imports)
        if suspects is not None:
            say(f"{project.export_suspects(suspects):,} labels that are probably wrong written to {suspects}")
        if output is None:
            return
        accepted = None if source is None else project.accept(source, at_least)
        options: dict[str, Any] = {
            "predictions": predictions,
            "only_open": only_open,
            "every": every,
            "image_url": image_url,
        }
        count = write_export(project, output, form, **options, accepted=accepted)
        if accepted is not None:
            say(accepted.sentence())
        say(f"{count:,} items written to {output}")


@app.command("predict")
def predict_command(
    folder: Folder,
    source: Annotated[Path, typer.Argument(metavar="NEW", help="New data of the same kind as the project's.")],
    output: Annotated[
        Path | None, typer.Option(help="The CSV file to write; if omitted, predictions are printed.")
    ] = None,
    ids: Annotated[Path | None, typer.Option(help="For embeddings: a file of ids, one per line.")] = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Skip damaged files and empty texts.")] = False,
    allow_imports: Imports = False,
) -> None:
    """Predict the labels of new data."""
    with reported_errors(predict_command):
        if output is not None:
            check_not_its_own(folder, output)
        project = opened(folder, allow_imports=allow_imports)
        guesses = project.predict(source, ids=ids, skip_bad=skip_bad)
        rows = [(each.id, each.text, f"{each.confidence:.4f}") for each in guesses]
        columns = ("id", "prediction", "probability")
        if output is not None:
            from batchbalance.project.answers import write_sheet

            write_sheet(output, columns, rows)
            say(f"{len(rows):,} predictions written to {output}")
            return
        table: Any = Table(*columns, box=None, pad_edge=False)
        for row in rows:
            table.add_row(*map(Text, row))
        out.print(table)

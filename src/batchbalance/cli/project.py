"""`batchbalance init`, `ask`, `tell` and `status`: a project in a folder."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from batchbalance.cli.app import app, complain, imports_done, out, reported_errors
from batchbalance.errors import FileFormatError, sentence

if TYPE_CHECKING:
    from batchbalance.project import Batch, Project

CELL = 80  # characters of a text on the screen

Folder = Annotated[Path, typer.Argument(metavar="PROJECT", help="The project's folder.")]
As = Annotated[str | None, typer.Option("--as", metavar="NAME", help="Who labels; omit it if you work alone.")]
Imports = Annotated[
    bool, typer.Option("--allow-imports", help="Import code that project.toml names as package.module:Name.")
]


def opened(folder: Path, *, allow_imports: bool = False) -> "Project":
    """Open the project in a folder, and print its notes."""
    from batchbalance.project import Project

    imports_done()
    project = Project.open(folder, allow_imports=allow_imports, progress=True)
    tell_notes(project.notes)
    return project


def check_not_its_own(folder: Path, output: Path) -> None:
    """Refuse to overwrite a project's own files."""
    from batchbalance.project.opening import OWN_FILES

    if output.resolve().parent == folder.resolve() and output.name in OWN_FILES:
        raise ValueError(f"`output` must not be one of the project's own files, got {output}; choose another name")


def tell_notes(notes: Sequence[str]) -> None:
    """Print notes on standard error, one per line."""
    for note in notes:
        complain("note", note)


def say(text: str) -> None:
    """Print one line on standard output without markup."""
    out.print(Text(text), soft_wrap=True)


@app.command("init")
def init_command(
    folder: Annotated[Path, typer.Argument(metavar="PROJECT", help="The folder to create.")],
    classes: Annotated[str | None, typer.Option(help="The classes, such as cat,dog,neither.")] = None,
    multi_label: Annotated[
        bool, typer.Option("--multi-label", help="An item may have several of the classes, or none of them.")
    ] = False,
    classes_file: Annotated[Path | None, typer.Option(help="A file of the classes, one per line.")] = None,
    classes_from: Annotated[
        str | None, typer.Option(help="The column whose values are the classes; default: that of --labels-from.")
    ] = None,
    labels_from: Annotated[
        str | None,
        typer.Option(metavar="COLUMN|FILE", help="Existing labels: a column of the data, or a file as for 'tell'."),
    ] = None,
    sample: Annotated[
        str | None, typer.Option(help="With --labels-from: how these items were chosen, random or chosen; see 'tell'.")
    ] = None,
    suggestions: Annotated[
        list[Path] | None,
        typer.Option(help="Labels by a machine, as for 'suggest', in the name of the file; repeatable."),
    ] = None,
    images: Annotated[Path | None, typer.Option(help="A folder of images.")] = None,
    texts: Annotated[
        Path | None, typer.Option(help="Texts: a CSV, TSV, JSONL, Parquet or .txt file, or a folder of .txt files.")
    ] = None,
    table: Annotated[
        Path | None, typer.Option(help="A table, one item in each row: CSV, TSV, JSONL or Parquet.")
    ] = None,
    embeddings: Annotated[
        Path | None, typer.Option(help="Embeddings, one item in each row: .npy; ids from e.ids.txt beside e.npy.")
    ] = None,
    column: Annotated[
        list[str] | None, typer.Option(help="The column of the texts, default 'text'; for a table, a column to use.")
    ] = None,
    id_column: Annotated[
        str | None, typer.Option("--id", help="The column of the ids; default 'id', or else the row number from 0.")
    ] = None,
    ids: Annotated[Path | None, typer.Option(help="With --embeddings: a file of ids, one per line.")] = None,
    drop: Annotated[list[str] | None, typer.Option(help="A column of a table to ignore, such as the label.")] = None,
    test: Annotated[
        Path | None,
        typer.Option(help="A CSV file of ids and labels to measure accuracy on; never asked or trained on."),
    ] = None,
    encoder: Annotated[str | None, typer.Option(help="The encoder; names as in 'batchbalance embed'.")] = None,
    image_size: Annotated[int | None, typer.Option(help="Side in pixels of the square an image is scaled to.")] = None,
    model: Annotated[
        str | None,
        typer.Option(help="The model, default bayesian-head: a posterior, a network or an estimator's path."),
    ] = None,
    strategy: Annotated[
        str | None, typer.Option(help="The strategy, default auto; see 'batchbalance strategies'.")
    ] = None,
    seek: Annotated[
        list[str] | None,
        typer.Option(help="Rare classes to look for, such as fraud; repeatable, or separated by commas."),
    ] = None,
    seek_share: Annotated[
        float | None, typer.Option(help="With --seek: the share of a batch that looks for them; default 0.5.")
    ] = None,
    batch_size: Annotated[int | None, typer.Option(help="Items in a batch; default 20.")] = None,
    audit: Annotated[
        float | None, typer.Option(help="Share of items set aside to measure accuracy on; default 0.1, 0 for none.")
    ] = None,
    random_arm: Annotated[
        float | None, typer.Option(help="Share of labels chosen at random for comparison, such as 0.2; default 0.")
    ] = None,
    annotators_per_item: Annotated[int | None, typer.Option(help="How many people label each item; default 1.")] = None,
    target_accuracy: Annotated[
        float | None, typer.Option(help="Advise to stop once accuracy reaches this, such as 0.9.")
    ] = None,
    target_f1: Annotated[
        float | None, typer.Option(help="With --multi-label: advise to stop once micro F1 reaches this.")
    ] = None,
    budget: Annotated[float | None, typer.Option(help="Advise to stop after this many labels.")] = None,
    instructions: Annotated[str | None, typer.Option(help="Instructions for the people who label.")] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed and answers give the same questions.")] = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Skip damaged files and empty texts.")] = False,
) -> None:
    """Create a project from your items and the names of the classes."""
    with reported_errors(init_command):
        from batchbalance.cli.brought import brought, class_names, id_note, values_in
        from batchbalance.cli.suggest import take_suggestions
        from batchbalance.project import Project
        from batchbalance.project.settings import NAMES

        imports_done()
        source = texts or table
        labels = None if labels_from is None else brought(source, labels_from, id_column)
        named = classes_from or (labels_from if isinstance(labels, dict) else None)
        names = class_names(classes, classes_file, None if named is None else values_in(source, named), multi_label)
        used = [each for each in (classes_from, labels_from) if table is not None and each is not None]
        try:
            project = Project.create(
                folder,
                images=images,
                texts=texts,
                table=table,
                embeddings=embeddings,
                column=column,
                id=id_column,
                ids=ids,
                drop=[*(drop or []), *(each for each in dict.fromkeys(used) if not Path(each).is_file())],
                test=test,
                skip_bad=skip_bad,
                classes=names,
                progress=True,
                encoder=encoder,
                image_size=image_size,
                model=model,
                strategy=strategy,
                seek=None if seek is None else [name for each in seek for name in each.split(",") if name.strip()],
                seek_share=seek_share,
                batch_size=batch_size,
                audit=audit,
                random_arm=random_arm,
                annotators_per_item=annotators_per_item,
                target_accuracy=target_accuracy,
                target_f1=target_f1,
                budget=budget,
                instructions=instructions,
                seed=seed,
                multi_label=multi_label or None,
            )
        except KeyboardInterrupt:
            complain("stopped", f"what is done is kept; 'batchbalance ask {folder}' continues from there")
            raise typer.Exit(130) from None
        tell_notes(project.notes)
        say(f"{folder}: {len(project):,} {NAMES[project.settings.data.kind]}, classes {', '.join(project.classes)}")
        if source is not None:
            say(id_note(source, id_column, column or ["text"]))
        if labels is not None:
            take_in(project, labels, sample=sample)
        for path in suggestions or ():
            take_suggestions(project, path, path.stem)
        say(f"next: batchbalance label {folder} (in the browser), or batchbalance ask {folder} (in a file)")


@app.command("ask")
def ask_command(
    folder: Folder,
    n: Annotated[int | None, typer.Option("-n", help="How many items; default: the project's batch size.")] = None,
    annotator: As = None,
    again: Annotated[bool, typer.Option("--again", help="Ask skipped items again.")] = False,
    memory_budget: Annotated[
        str | None,
        typer.Option(help="Memory to use besides the embeddings, such as 2GiB; caches use at most 1 GiB by default."),
    ] = None,
    review: Annotated[
        str | None, typer.Option(metavar="SOURCE", help="Ask the suggestions of a source that are most likely wrong.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the items as JSON; write no files.")] = False,
    allow_imports: Imports = False,
) -> None:
    """Choose the items to label next; write batch.csv to fill in and batch.html to look at."""
    with reported_errors(ask_command):
        project = opened(folder, allow_imports=allow_imports)
        sheet, page = batch_paths(folder, annotator)
        if not as_json:
            check_told(project, sheet, annotator)
        before = len(project.notes)
        if review is None:
            batch = project.ask(n, annotator, again, memory_budget=memory_budget)
        else:
            from batchbalance.cli.suggest import reviewed

            batch = reviewed(project, review, n, annotator)
        tell_notes((*project.notes[before:], *batch.notes))
        if as_json:
            cells = (dict(zip(batch.columns, batch.cells(i), strict=True)) for i in range(len(batch.ids)))
            rows = [{"id": name, **each} for name, each in zip(batch.ids, cells, strict=True)]
            typer.echo(json.dumps(rows, indent=2, ensure_ascii=False))
            return
        batch.to_csv(sheet)
        batch.to_html(page, folder.resolve().name, sheet.name)
        show_batch(batch)
        name = "" if annotator is None else f" --as {annotator}"
        say(f"fill in the column label of {sheet}, then: batchbalance tell {folder} {sheet}{name}")
        say(f"to look at them: {page}")


def batch_paths(folder: Path, annotator: str | None) -> tuple[Path, Path]:
    """Return the paths of a person's batch.csv and batch.html."""
    if annotator is None:
        return folder / "batch.csv", folder / "batch.html"
    safe = "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in annotator)
    return folder / f"batch-{safe}.csv", folder / f"batch-{safe}.html"


def check_told(project: "Project", sheet: Path, annotator: str | None) -> None:
    """Refuse to overwrite answers that were filled in and not imported with `tell`."""
    from batchbalance.project.answers import read_answers

    if not sheet.exists():
        return
    advice = f"import it first with: batchbalance tell {project.folder} {sheet}; or move it away"
    try:
        answers = read_answers(sheet)
        views = [project.view(each.id) for each in answers]
        pairs = [(x, view.answers.get(x.annotator or annotator)) for x, view in zip(answers, views, strict=True)]
        untold = [x for x, value in pairs if value is None or not project.labelling.is_read(x.label or "", value)]
    except (FileFormatError, ValueError) as error:
        raise FileExistsError(f"{sheet} exists and cannot be read as answers ({error}); {advice}") from error
    if untold:
        raise FileExistsError(f"{sheet} has {len(untold)} labels that were not imported; {advice}")


def show_batch(batch: "Batch") -> None:
    """Print the items."""
    table = Table(show_edge=False, box=None, pad_edge=False)
    for name in ("id", *batch.columns):
        table.add_column(name, overflow="fold")
    for i, name in enumerate(batch.ids):
        table.add_row(*(Text(short(cell)) for cell in (name, *batch.cells(i))))
    out.print(table)


def short(cell: str) -> str:
    """Shorten a cell to one line of the screen."""
    line = " ".join(cell.split())
    return line if len(line) <= CELL else f"{line[: CELL - 1]}…"


@app.command("tell")
def tell_command(
    folder: Folder,
    answers: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="A CSV file with columns id and label; or .json or .jsonl of Label Studio, doccano, Prodigy.",
        ),
    ],
    annotator: As = None,
    id_column: Annotated[str | None, typer.Option("--id", help="The column of the ids; default 'id'.")] = None,
    label_column: Annotated[
        str | None,
        typer.Option("--label", help="The column of the labels, or the name of the choices in Label Studio."),
    ] = None,
    sample: Annotated[
        str | None,
        typer.Option(
            help="For your own labels: 'random' if the items are a random sample of all (some measure the model "
            "at once), 'chosen' if not (all of them train)."
        ),
    ] = None,
    allow_imports: Imports = False,
) -> None:
    """Import labels: batch.csv, filled in completely or in part, or a file of another tool."""
    with reported_errors(tell_command):
        project = opened(folder, allow_imports=allow_imports)
        take_in(project, answers, annotator, id_column=id_column, label_column=label_column, sample=sample)
        left = len(project.open_questions(annotator))
        say(f"{len(project.labels):,} labels in all, {left:,} open questions{f' for {annotator}' if annotator else ''}")
        try:
            project.train()  # so that `ask` and `status` need not train
        except KeyboardInterrupt:
            complain("stopped", "the labels are saved; the model is trained when needed")
            raise typer.Exit(130) from None
        say(f"next: batchbalance status {folder} (how good is the model?), or batchbalance ask {folder}")


def take_in(
    project: "Project",
    answers: "Path | dict[str, str]",
    annotator: str | None = None,
    *,
    id_column: str | None = None,
    label_column: str | None = None,
    sample: str | None = None,
) -> None:
    """Add labels to a project from a file or by id, and print a summary."""
    from batchbalance.project.bridge import tell_file

    if isinstance(answers, dict):
        told = project.tell(answers, annotator, sample=sample)
    else:
        told = tell_file(project, answers, annotator, id_column=id_column, label_column=label_column, sample=sample)
    skipped = f", {told.skipped:,} skipped" if told.skipped else ""
    say(f"{told.labelled:,} labelled, {told.corrected:,} corrected, {told.unchanged:,} known already{skipped}")
    tell_notes([told.sentence()] if told.sentence() else [])


@app.command("status")
def status_command(
    folder: Folder,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Only check the database and the embeddings for damage.")
    ] = False,
    allow_imports: Imports = False,
) -> None:
    """Show labels, accuracy with its interval, open questions and advice on stopping; write status.html."""
    with reported_errors(status_command):
        project = opened(folder, allow_imports=allow_imports)
        if check:
            found = project.check()
            if found:
                raise FileFormatError(f"{folder} is damaged: {found[0]}; restore it from a copy")
            say(f"{folder}: {len(project.events()):,} events and the embeddings match their hashes")
            say("SQLite finds no damage")
            return
        from batchbalance.project.pages import status_page
        from batchbalance.system.files import replacing

        status = project.status()
        page = folder / "status.html"
        try:
            with replacing(page) as temporary:
                temporary.write_text(status_page(status), encoding="utf-8")
            charts = f"with charts: {page}"
        except OSError as error:  # a read-only project
            charts = f"without charts: {sentence(error)}"
        if as_json:
            typer.echo(json.dumps(status.as_dict(), indent=2))
            return
        table = Table(show_header=False, box=None, pad_edge=False)
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for name, text in status.rows():
            table.add_row(Text(name), Text(text))
        out.print(table)
        say(charts)

"""`batchbalance embed`."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from batchbalance.cli.app import app, complain, imports_done, out, reported_errors
from batchbalance.system.ids import ids_path

if TYPE_CHECKING:
    from batchbalance.encoders import Embeddings

SKIPPED_SHOWN = 20


@app.command("embed")
def embed_command(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER_OR_FILE",
            help="A folder of images or .txt files, or a CSV, TSV, JSONL, Parquet or .txt file.",
        ),
    ],
    output: Annotated[Path, typer.Option(help="The .npy file to write; an unfinished one is resumed.")],
    encoder_name: Annotated[
        str | None,
        typer.Option(
            "--encoder",
            help="efficientnet-lite0 (default for images), wordllama (for texts), table (for other rows), tfidf, "
            "pixels (for tiny images), timm:MODEL, sentence-transformers:MODEL, or your own package.module:function.",
        ),
    ] = None,
    ids_output: Annotated[
        Path | None, typer.Option(help="The file to write the ids to; default e.ids.txt beside e.npy.")
    ] = None,
    column: Annotated[
        list[str] | None, typer.Option(help="The column of the texts, default 'text'; for a table, a column to use.")
    ] = None,
    id_column: Annotated[
        str | None, typer.Option("--id", help="The column of the ids; default 'id', or else the row number from 0.")
    ] = None,
    drop: Annotated[list[str] | None, typer.Option(help="A column of a table to ignore, such as the label.")] = None,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Skip damaged files and empty texts, and list them.")
    ] = False,
    batch_size: Annotated[int | None, typer.Option(help="Batch size; default 64 for images, else 1024.")] = None,
    image_size: Annotated[
        int | None, typer.Option(help="Side in pixels of the square an image is scaled to; default: the encoder's own.")
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="The device to compute on, such as cuda; default: the CPU.")
    ] = None,
) -> None:
    """Turn images, texts or a table into embeddings, one row of numbers for each."""
    with reported_errors(embed_command):
        from batchbalance.encoders import DEFAULTS, embed, encoder, open_items

        imports_done()
        started = time.perf_counter()
        using = None if encoder_name is None else encoder(encoder_name, image_size=image_size, device=device)
        items = open_items(
            source,
            kind=None if using is None else using.kind,
            columns=column or [],
            id_column=id_column,
            drop=drop or [],
        )
        using = using or encoder(DEFAULTS[items.kind], image_size=image_size, device=device)
        for note in items.notes:
            complain("note", note)
        try:
            made = embed(
                items,
                using,
                output=output,
                ids_output=ids_output,
                skip_bad=skip_bad,
                batch_size=batch_size,
                progress=True,
            )
        except KeyboardInterrupt:
            complain("stopped", "complete batches are kept; the same command continues from there")
            raise typer.Exit(130) from None
        for note in made.notes:
            complain("note", note)
        show(made, items.kind, output, ids_output or ids_path(output), time.perf_counter() - started)


def show(made: "Embeddings", kind: str, output: Path, ids: Path, seconds: float) -> None:
    """Print what was skipped and what was written."""
    for _, reason in made.skipped[:SKIPPED_SHOWN]:
        complain("skipped", reason)
    if len(made.skipped) > SKIPPED_SHOWN:
        listing = f"{output.stem}.embed.json"
        complain("skipped", f"{len(made.skipped) - SKIPPED_SHOWN} more; {listing} beside {output.name} names all")
    rows, dim = made.vectors.shape
    if made.num_resumed == rows:
        out.print(Text(f"{output} is up to date: {rows:,} {kind} × {dim:,} by {made.encoder}"), soft_wrap=True)
        return
    resumed = f", {made.num_resumed:,} of them by an earlier start" if made.num_resumed else ""
    out.print(
        Text(f"{rows:,} {kind} × {dim:,} by {made.encoder} in {seconds:.1f} s{resumed}, written to {output}"),
        soft_wrap=True,
    )
    out.print(Text(f"their ids are in {ids}"), soft_wrap=True)

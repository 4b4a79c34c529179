"""`batchbalance select` and `batchbalance strategies`."""

import json
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer
from rich.table import Table
from rich.text import Text

from batchbalance.cli.app import Ray, RayCommand, app, complain, imports_done, out, reported_errors
from batchbalance.cli.labels import check_alone, chosen, learn, read_labels
from batchbalance.errors import FileFormatError, UnknownNameError
from batchbalance.system.ids import id_of, ids_path

if TYPE_CHECKING:
    from batchbalance.balance.edges import Pairs
    from batchbalance.batches.cover import Cover
    from batchbalance.predictions import Values
    from batchbalance.selection import Selection
    from batchbalance.strategies import Strategy

ROWS_SHOWN = 20
SHOW_PROGRESS = 10**7  # numbers in the pool; smaller pools are fast
FILLED_UP = {  # how a batch continues once nothing is left to gain
    "tail": "follows the last surviving pairs",
    "power": "is sampled by the points' own Δ",
    "random": "is random",
}


@app.command("select", cls=RayCommand)
def select_command(
    batch_size: Annotated[int, typer.Option("--batch-size", "-b", help="How many points to choose.")],
    predictions: Annotated[
        list[Path] | None,
        typer.Argument(help="Predictions of the pool: .npy, .npz or .safetensors; several files are concatenated."),
    ] = None,
    strategy: Annotated[
        str, typer.Option(help="See 'batchbalance strategies'; auto chooses by the input given.")
    ] = "auto",
    option: Annotated[
        list[str] | None, typer.Option(help="An option of the strategy, such as beta=2; repeatable.")
    ] = None,
    reference: Annotated[
        Path | None, typer.Option(help="Predictions of the same draws on the reference set; default: the pool.")
    ] = None,
    validation_error: Annotated[float | None, typer.Option(help="The error rate ε on validation data.")] = None,
    threshold: Annotated[float | None, typer.Option(help="The threshold τ, instead of ratio · ε.")] = None,
    ratio: Annotated[float | None, typer.Option(help="The ratio τ / ε; default 0.25.")] = None,
    pairs: Annotated[
        str | None, typer.Option(help="Pairs of draws: disjoint (the default), all, or a number of random ones.")
    ] = None,
    values: Annotated[
        str | None,
        typer.Option(
            help="Content of the files: probs, logits or log-probs; default: as the file states, or else probs."
        ),
    ] = None,
    axes: Annotated[str, typer.Option(help="Order of the axes: n points, s draws, c classes.")] = "nsc",
    embeddings: Annotated[
        Path | None, typer.Option(help="Features of the pool: a .npy file, points × features (or × draws × features).")
    ] = None,
    labelled_embeddings: Annotated[
        Path | None, typer.Option(help="Features of labelled points outside the pool, as .npy.")
    ] = None,
    weights: Annotated[
        Path | None, typer.Option(help="Weights of the points to cover, as .npy; for coverage strategies.")
    ] = None,
    targets: Annotated[
        Path | None, typer.Option(help="Features of the points to cover instead of the pool, as .npy.")
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(help="How embeddings are compared: unit, raw, or auto (the default: raw below 32 features)."),
    ] = None,
    labelled: Annotated[
        Path | None, typer.Option(help="Points of the pool that have labels, one per line, as in --exclude.")
    ] = None,
    labels: Annotated[
        Path | None,
        typer.Option(help="Labels so far, with columns id and label; a head trained on --embeddings then predicts."),
    ] = None,
    ids: Annotated[
        list[Path] | None,
        typer.Option(help="Names of the points, one per line; repeatable; default e.ids.txt beside e.npy."),
    ] = None,
    exclude: Annotated[
        Path | None,
        typer.Option(help="Points not to choose, one per line: ids if --ids is given, else indices from 0."),
    ] = None,
    max_reference: Annotated[
        int | None, typer.Option(help="Use at most this many reference points; default 10,000.")
    ] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same batch.")] = 0,
    device: Annotated[
        str | None, typer.Option(help="The device to compute on, such as cuda; default: the CPU.")
    ] = None,
    memory_budget: Annotated[
        str | None,
        typer.Option(help="Memory to use besides the predictions, such as 2GiB; caches use at most 1 GiB by default."),
    ] = None,
    ray: Ray = None,
    output: Annotated[Path | None, typer.Option(help="Write the batch to this .csv or .json file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the batch as JSON.")] = False,
) -> None:
    """Choose the batch of points to label next."""
    with reported_errors(select_command):
        from batchbalance.predictions import Predictions, check_distinct_files, load_parts
        from batchbalance.selection import select
        from batchbalance.strategies import Strategy
        from batchbalance.system.files import mapped_array

        imports_done()
        if output is not None:
            check_output(output)
        chosen_strategy = parse_strategy(strategy, parse_options(option or []))
        if ray is not None and isinstance(chosen_strategy, Strategy) and not chosen_strategy.runs_on_executors:
            raise ValueError(f"--ray is not used by strategy {strategy!r}; omit it")
        kind = None if values is None else parse_values(values)
        if predictions:
            check_distinct_files(predictions)
        executor = None
        if ray is not None:
            from batchbalance.cluster import RayExecutor

            executor = RayExecutor(ray)
        points = None if embeddings is None else read_embeddings(embeddings)
        pool = None
        if predictions:
            pool = load_parts(predictions, kind, axes)
            shape: tuple[int, ...] = pool.shape
        elif points is not None:
            shape = points.shape
        else:
            raise ValueError("predictions or --embeddings must be given, got neither")
        compared = None if reference is None else Predictions.load(reference, kind, axes)
        if not ids and embeddings is not None and ids_path(embeddings).is_file():
            ids = [ids_path(embeddings)]
        names = read_ids(ids, shape[0]) if ids else None
        with_labels = None if labelled is None else read_points(labelled, names)
        given: dict[str, Any] = {
            "validation_error": validation_error,
            "threshold": threshold,
            "ratio": ratio,
            "pairs": None if pairs is None else parse_pairs(pairs),
            "max_reference": max_reference,
            "embeddings": points,
            "labelled_embeddings": None if labelled_embeddings is None else read_embeddings(labelled_embeddings),
            "weights": None if weights is None else read_array(weights, "weights", mapped_array),
            "targets": None if targets is None else read_embeddings(targets),
            "metric": metric,
        }
        how: dict[str, Any] = {
            "exclude": None if exclude is None else read_points(exclude, names),
            "seed": seed,
            "device": device,
            "memory_budget": memory_budget,
            "progress": math.prod(shape) >= SHOW_PROGRESS,
        }
        if labels is not None:
            check_alone(predictions=predictions, labelled=labelled, reference=reference, ray=ray)
            known = read_labels(labels, names, shape[0])
            learned = learn(known, embeddings, seed)
            out.print(Text(learned.told), soft_wrap=True)
        started = time.perf_counter()
        if labels is not None:
            selection = chosen(known, learned, given, chosen_strategy, batch_size, **how)
        else:
            selection = select(
                pool,
                batch_size,
                strategy=chosen_strategy,
                reference=compared,
                labelled=with_labels,
                executor=executor,
                **given,
                **how,
            )
        seconds = time.perf_counter() - started
        shown = [str(i) if names is None else names[i] for i in selection.indices.tolist()]
        if output is not None:
            write_batch(output, selection, shown)
        if as_json:
            typer.echo(batch_json(selection, shown))
            return
        show(selection, shown, shape[0], seconds)
        if output is not None:
            out.print(Text(f"written to {output}"), soft_wrap=True)


@app.command("strategies")
def strategies_command() -> None:
    """List the strategies with their inputs and options."""
    from batchbalance.strategies import STRATEGIES
    from batchbalance.strategies.probing import parts_needed, parts_read

    imports_done()
    for name, strategy in STRATEGIES.items():
        options = [f"{key}={field.default}" for key, field in strategy.model_fields.items()]
        out.print(Text.assemble((name, "bold"), f": {strategy.summary}"), soft_wrap=True)
        needed = parts_needed(strategy())
        others = sorted(part.replace("_", "-") for part in parts_read(strategy()) - needed)
        parts = [f"needs {', '.join(sorted(needed))}"] * bool(needed) + [f"uses {', '.join(others)}"] * bool(others)
        out.print(Text(f"    {'; '.join(parts) or 'needs only the number of points'}"), soft_wrap=True)
        out.print(Text(f"    options {' '.join(options) or 'none'}"), soft_wrap=True)


def parse_strategy(name: str, options: dict[str, Any]) -> "Strategy | str":
    """Return the strategy with its options, or "auto", which has none."""
    from batchbalance.strategies import AUTO, strategy_named

    if name != AUTO:
        return strategy_named(name, options)
    if options:
        raise ValueError(f"--option is for a strategy that --strategy names, got {next(iter(options))!r} with auto")
    return AUTO


def parse_options(pairs: list[str]) -> dict[str, Any]:
    """Parse ["beta=2"] as {"beta": "2"}."""
    options = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise ValueError(f"--option must look like beta=2, got {pair!r}")
        options[name.replace("-", "_")] = value
    return options


def parse_values(text: str) -> "Values":
    """Parse --values."""
    from batchbalance.predictions import Values

    for kind in get_args(Values):
        if text == kind:
            return kind  # type: ignore[no-any-return]
    raise UnknownNameError("kind of values", text, get_args(Values))


def parse_pairs(text: str) -> "Pairs":
    """Parse --pairs: a name or a number."""
    if text in ("disjoint", "all"):
        return text  # type: ignore[return-value]
    if not text.isdecimal():
        raise ValueError(f"--pairs must be disjoint, all or a number of random pairs, got {text!r}")
    return int(text)


def read_lines(path: Path) -> list[str]:
    """Return the lines of a text file, without trailing blank lines."""
    try:
        return path.read_text(encoding="utf-8-sig").rstrip().splitlines()
    except UnicodeDecodeError as error:
        raise FileFormatError(f"{path} must be a UTF-8 text file with one entry per line") from error


def read_embeddings(path: Path) -> Any:
    """Return the embeddings of a .npy file, memory-mapped."""
    from batchbalance.encoders.store import mapped_embeddings

    return read_array(path, "embeddings", mapped_embeddings)


def read_array(path: Path, what: str, read: Callable[[Path], Any]) -> Any:
    """Return the array of a .npy file."""
    if path.suffix != ".npy":
        raise FileFormatError(f"{path} must be a .npy file of {what}, got {path.suffix or 'no ending'!r}")
    return read(path)


def read_ids(paths: list[Path], num_points: int) -> list[str]:
    """Return one distinct id for each point."""
    names = [id_of(line.strip()) for path in paths for line in read_lines(path)]
    files = ", ".join(map(str, paths))
    if len(names) != num_points:
        raise FileFormatError(f"{files} must have one id for each of {num_points} points, got {len(names)}")
    check_distinct(files, names)
    return names


def check_distinct(path: Path | str, names: list[str]) -> None:
    """Raise if a file names something twice."""
    if len(set(names)) < len(names):
        twice = Counter(names).most_common(1)[0][0]
        raise FileFormatError(f"{path} must have distinct entries, got {twice!r} more than once")


def read_points(path: Path, names: list[str] | None) -> list[int]:
    """Return the indices of the points listed in a file."""
    lines = [id_of(line.strip()) for line in read_lines(path)]
    check_distinct(path, lines)
    if names is None:
        wrong = next((line for line in lines if not line.isdecimal()), None)
        if wrong is not None:
            raise FileFormatError(f"{path} must have one index from 0 per line, got {wrong!r}; for names, give --ids")
        return [int(line) for line in lines]
    position = {name: i for i, name in enumerate(names)}
    unknown = next((line for line in lines if line not in position), None)
    if unknown is not None:
        raise FileFormatError(f"{path} must name points of --ids, got {unknown!r}")
    return [position[line] for line in lines]


def check_output(path: Path) -> None:
    """Refuse an output path that cannot be written, before any work."""
    if path.suffix not in (".csv", ".json"):
        raise ValueError(f"--output must end in .csv or .json, got {str(path)!r}")
    if path.is_dir() or not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise OSError(f"cannot write {path}: {path.parent} must be a folder that can be written to")


def batch_json(selection: "Selection", names: list[str]) -> str:
    """Return the ids of a batch and its facts as JSON."""
    return json.dumps({"ids": names, **selection.as_dict()}, indent=2, allow_nan=False, default=str)


def write_batch(path: Path, selection: "Selection", names: list[str]) -> None:
    """Write the batch atomically."""
    from batchbalance.system.files import replacing
    from batchbalance.system.spreadsheets import csv_text

    if path.suffix == ".json":
        text = batch_json(selection, names) + "\n"
    else:
        columns: dict[str, list[Any]] = {
            "rank": list(range(1, len(names) + 1)),
            "id": names,
            "index": selection.indices.tolist(),
        }
        for name in ("gain", "gain_error", "coverage", "score"):
            tensor = getattr(selection, name if name == "coverage" else name + "s")
            columns[name] = [""] * len(names) if tensor is None else tensor.tolist()
        if selection.predicted is not None:
            columns["predicted"] = list(selection.predicted)
        text = csv_text(list(columns), zip(*columns.values(), strict=True))
    with replacing(path) as temporary:
        temporary.write_bytes(text.encode())


def show(selection: "Selection", names: list[str], num_points: int, seconds: float) -> None:
    """Print a short table, then coverage with its baselines, certificate and time."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("rank", justify="right")
    table.add_column("id", overflow="fold")
    has_gains = selection.gains is not None and selection.edges is not None and selection.edges.num_edges
    values = selection.gains if has_gains else selection.scores
    if values is not None:
        table.add_column("gain" if has_gains else "score", justify="right")
    for rank, name in enumerate(names[:ROWS_SHOWN]):
        cells: list[str | Text] = [str(rank + 1), Text(name)]
        if values is not None:
            errors = selection.gain_errors if has_gains else None
            error = "" if errors is None else f" ± {float(errors[rank]):.1g}"
            cells.append(f"{float(values[rank]):.4g}{error}")
        table.add_row(*cells)
    out.print(table)
    if len(names) > ROWS_SHOWN:
        out.print(f"… and {len(names) - ROWS_SHOWN} more; --output writes all of them")
    out.print()
    for line in facts(selection):
        out.print(line, soft_wrap=True)
    out.print(f"{selection.strategy.name} chose {len(names)} of {num_points:,} points in {seconds:.2f} s")
    if selection.note is not None:
        out.print(Text(selection.note), soft_wrap=True)
    for warning in selection.warnings:
        complain("warning", warning)


def facts(selection: "Selection") -> Iterator[str]:
    """Yield facts about a batch, one line each."""
    if selection.cover is not None:
        yield from cover_facts(selection.cover)
    edges, choice = selection.edges, selection.choice
    if edges is None or selection.coverage is None or selection.null_coverage is None:
        return
    if selection.certificate is not None:
        yield f"coverage     {float(selection.coverage[-1]):8.3%}  of the edge weight discounted in expectation, beside"
        yield f"  random     {selection.random_coverage:8.3%}  by the mean of 20 random batches of this size"
        yield f"  null       {float(selection.null_coverage[-1]):8.3%}  by label noise alone, if all draws agreed"
        yield f"certificate  {selection.certificate:8.3%}  of the best batch at least, under these draws and pairs"
    yield (
        f"edges        {edges.num_edges:,} of {edges.num_pairs:,} pairs of draws differ on more than "
        f"{edges.threshold:.3%} of {edges.num_reference:,} reference points"
    )
    yield f"threshold    {edges.threshold:.4g} ({selection.threshold_source})"
    if choice.clustering_rounds is not None:
        yield f"clustering   {choice.clustering_rounds:,} rounds, until no centroid moved or the limit was reached"
    if choice.continued_from is not None:
        start, rest = choice.continued_from + 1, FILLED_UP[choice.continuation or "tail"]
        yield f"continued    from pick {start} on nothing was left to gain: the rest {rest} ({choice.continuation})"


def cover_facts(cover: "Cover") -> Iterator[str]:
    """Yield what a batch covers in the space of embeddings, one line each."""
    seen = f"{cover.num_targets:,} points"
    if cover.is_sampled:
        seen = f"a sample of {cover.num_targets:,} of {cover.num_points:,} points"
    yield f"covered      {float(cover.coverage[-1]):8.3%}  of the weighted pool in the space of embeddings, beside"
    yield f"  random     {cover.random_coverage:8.3%}  by the mean of 20 random batches of this size"
    yield f"  labelled   {cover.labelled_coverage:8.3%}  by the labelled points alone"
    if cover.certificate is not None:
        yield f"  at least   {cover.certificate:8.3%}  of what the best batch adds to that, by {seen}"
    shape = "σ" if cover.kernel == "gaussian" else "radius"
    yield f"  kernel     {cover.kernel}, {shape} = {cover.length:.4g}, measured on {seen}"

"""Files that others wrote: labels, embeddings, notes about predictions and what is to be embedded, all of them odd.

What can be read must be what a plain reading gives; everything else is refused in one sentence.
"""

import csv
import gzip
import io
import json
import math
import os
import signal
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import scipy.sparse
import torch
from PIL import Image

from batchbalance import select
from batchbalance.cli.labels import read_labels
from batchbalance.encoders import read_ids
from batchbalance.system.sealed import read_checked, write_sealed
from torture.campaign import Finding, campaign
from torture.damage import pool
from torture.exchanges import odd_inside
from torture.fuzz import mutated, odd_text, run_command

NUM_POINTS = 12
TABLES = (".csv", ";.csv", ".tsv", ".jsonl", ".parquet", ".csv.gz", ".jsonl.gz")
CELLS: list[Any] = [
    "cat", "dog", " cat ", "", "  ", None, "nan", "N/A", 0, 1, 1.0, True, 2**70, math.nan, "é", "e\u0301", "=1+1",
    "a;b", "a,b", 'a"b', "a\nb", "-1", [1], {"a": 1}, b"cat", "x" * 5000, "01",
]  # fmt: skip


def apart(work: Callable[[], Finding]) -> Finding:
    """Do something in a process of its own: a library that reads a damaged file may crash."""
    reading, handle = os.pipe()
    process = os.fork()
    if process == 0:
        found = Finding("traceback", "no result")
        try:
            found = work()
        except BaseException as error:
            found = Finding("traceback", f"{type(error).__name__}: {error}")
        finally:
            os.write(handle, json.dumps([found.outcome, found.what[-3000:]]).encode())
            os._exit(0)
    os.close(handle)
    with os.fdopen(reading) as stream:
        told = stream.read()
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    if code or not told:
        return Finding("traceback", f"a process ended by {signal.Signals(-code).name if code < 0 else code}")
    return Finding(*json.loads(told))


def write_table(path: Path, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[Sequence[Any]]:
    """Write rows as the ending says, semicolons for ";.csv"; the cells as they are in the file."""
    name = path.name.removesuffix(".gz")
    if name.endswith(".parquet"):
        import pyarrow
        from pyarrow import parquet

        cells = [[str(cell) if cell is not None else None for cell in column] for column in zip(*rows, strict=True)]
        for at, column in enumerate(zip(*rows, strict=True)):
            if len({type(cell) for cell in column if cell is not None}) == 1:
                cells[at] = list(column)
        arrays = []
        for texts in cells:
            try:
                arrays.append(pyarrow.array(texts))
            except (pyarrow.ArrowException, OverflowError, UnicodeEncodeError):
                arrays.append(pyarrow.array([None if cell is None else ascii(cell) for cell in texts]))
        table = pyarrow.Table.from_arrays(arrays, names=list(columns))
        parquet.write_table(table, path)
        return list(zip(*(column.to_pylist() for column in table.columns), strict=True))
    if name.endswith(".jsonl"):
        rows = [[cell.decode() if isinstance(cell, bytes) else cell for cell in row] for row in rows]
        text = "".join(json.dumps(dict(zip(columns, row, strict=True))) + "\n" for row in rows)
    else:
        buffer = io.StringIO(newline="")
        separator = "\t" if name.endswith(".tsv") else ";" if name.endswith(";.csv") else ","
        csv.writer(buffer, delimiter=separator).writerows([list(columns), *rows])
        text = buffer.getvalue()
        rows = [["" if cell is None else str(cell) for cell in row] for row in rows]
    content = text.encode("utf-8", "surrogatepass")
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return list(rows)


def points() -> np.ndarray:
    """The embeddings of a small pool."""
    return np.random.default_rng(0).normal(size=(NUM_POINTS, 3)).astype(np.float32)


@campaign("fuzzed labels", "`select --labels` on any CSV, TSV, JSON lines or Parquet file works or says why not")
def fuzzed_labels(folder: Path, random: Random) -> Finding:
    """Mutate the bytes of a valid file of labels, and select with it."""
    np.save(folder / "e.npy", points())
    path = folder / f"labels{random.choice(TABLES)}"
    write_table(path, ["id", "label"], [[i, ["cat", "dog"][i % 2]] for i in range(8)])
    path.write_bytes(mutated(path.read_bytes(), random))
    arguments = ["select", "--embeddings", str(folder / "e.npy"), "--labels", str(path), "-b", "2"]
    return apart(lambda: run_command(arguments, f"a mutated {path.name}"))


@campaign("odd labels", "labels in any file are read as a plain reading does, or refused", share=2)
def odd_labels(folder: Path, random: Random) -> Finding:
    """Write odd ids and labels with valid structure, and compare with a plain loop."""
    names = random.choice([None, [f"p {i}" for i in range(NUM_POINTS)]])
    known: list[Any] = [*(names or range(NUM_POINTS)), *([] if names else map(str, range(NUM_POINTS)))]
    rows = [[random.choice(known), random.choice(["cat", "dog", None])] for _ in range(random.randint(1, 6))]
    for _ in range(random.randint(0, 2)):
        row = random.choice(rows)
        row[random.random() < 0.8] = random.choice([*CELLS, odd_text(random)])
    path = folder / f"labels{random.choice(TABLES)}"
    try:
        written = write_table(path, ["id", "label"], rows)
    except csv.Error:
        return Finding("refused", "a table that cannot be written")
    expected = plainly(written, [str(each) for each in names or range(NUM_POINTS)])

    def work() -> Finding:
        what = f"{path.name} of {rows!r}"
        try:
            found = read_labels(path, names, NUM_POINTS).of_rows
        except (ValueError, OSError) as error:
            return Finding("traceback" if "\n" in str(error) else "refused", f"{what}: {error}")
        return Finding("intact" if found == expected else "different", f"{what}: {found} is not {expected}")

    return apart(work)


def plainly(rows: Sequence[Sequence[Any]], names: list[str]) -> dict[int, str] | None:
    """The label of each row that has one; None if the file must be refused."""
    found: dict[int, str] = {}
    for name, label in rows:
        texts = ["" if cell is None else str(cell) for cell in (name, label)]
        if isinstance(name, list | dict | bytes) or isinstance(label, list | dict | bytes):
            return None
        spelled = next((each for each in (texts[0], texts[0].strip()) if each in names), None)
        if spelled is None or texts[1].strip().lower() in ("nan", "n/a"):
            return None
        if texts[1].strip():
            row = names.index(spelled)
            if found.get(row, texts[1].strip()) != texts[1].strip():
                return None
            found[row] = texts[1].strip()
    return found


@campaign("odd embeddings", "embeddings of any type and shape give the batch of the same numbers, or are refused")
def odd_embeddings(folder: Path, random: Random) -> Finding:
    """Save the same numbers in another form, or something else, and select with them."""
    x = points()
    same: list[np.ndarray] = [x.astype(">f4"), x.astype("f8"), np.asfortranarray(x), x.astype(">f8")]
    other: list[Any] = [
        x[0], x[None], x[:0], x[:, :0], x[:5], np.where(x > 1, np.nan, x), np.where(x > 1, np.inf, x), x * 1e38,
        x.astype(complex), x > 0, x.astype("U8"), x.astype("datetime64[s]"), np.array(1.0), x.astype("f8") * 1e300,
        x.view([("a", "f4")]), np.zeros((NUM_POINTS, 3)), (100 * x).astype("i1"), x.astype("f2"), np.ones((12, 1000)),
    ]  # fmt: skip
    strategy = random.choice(["coreset", "prob-cover", "typiclust", "auto"])
    is_same = random.random() < 0.4
    array = random.choice(same if is_same else other)
    np.save(folder / "a.npy", x)
    np.save(folder / "b.npy", array)
    write_table(folder / "l.csv", ["id", "label"], [[i, ["cat", "dog"][i % 2]] for i in range(6)])
    labels = ["--labels", str(folder / "l.csv")] if random.random() < 0.3 else []
    what = f"{array.dtype} of shape {array.shape}, {strategy} {labels[:1]}"
    for name in ("a", "b"):
        arguments = ["select", "--embeddings", str(folder / f"{name}.npy"), "-b", "3", "--strategy", strategy, *labels]
        found = run_command([*arguments, "--output", str(folder / f"{name}.json")], what)
        if found.outcome != "intact":
            break
    if not is_same or found.outcome == "traceback":
        return found
    batches = [
        json.loads((folder / f"{each}.json").read_text())["ids"] if (folder / f"{each}.json").exists() else None
        for each in ("a", "b")
    ]
    return found if batches[0] == batches[1] else Finding("different", f"{what}: {batches}")


@campaign("odd arrays", "embeddings in memory give the batch of the same numbers, or are refused, and stay as they are")
def odd_arrays(folder: Path, random: Random) -> Finding:
    """Hand the same numbers over in another form, or numbers that are odd, and select with them."""
    x = np.random.default_rng(random.randrange(2**32)).normal(size=(NUM_POINTS, 3))
    np.save(folder / "e.npy", x)
    kept = np.ones((NUM_POINTS, 1))
    kept[::3] = 0
    same: dict[str, Any] = {
        "strides": np.repeat(x, 2, 0)[::2], "reversed": x[::-1].copy()[::-1], "Fortran": np.asfortranarray(x),
        "masked nowhere": np.ma.array(x), "mapped": np.load(folder / "e.npy", mmap_mode="r"), "lists": x.tolist(),
        "tensor": torch.from_numpy(x.copy()), "other bytes": x.astype(">f8"),
    }  # fmt: skip
    fine: dict[str, Any] = {
        "huge": x * 1e200, "tiny": x * 1e-300, "denormal": x * 1e-315, "scales": x * np.array([1e-150, 1, 1e150]),
        "constant": 0 * x + 1, "zeros": 0 * x, "copies": np.repeat(x[:3], 4, 0), "rows of zeros": x * kept,
        "integers": (10 * x).astype(int), "booleans": x > 0, "float16": x.astype("f2"),
    }  # fmt: skip
    worst = x.copy()
    worst[random.randrange(NUM_POINTS), 1] = random.choice([math.nan, math.inf, -math.inf])
    wrong: dict[str, Any] = {
        "not finite": worst, "masked": np.ma.masked_greater(x, np.median(x)), "objects": x.astype(object),
        "text": x.astype(str),
        "complex": x + 1j, "one axis": x[:, 0], "no axis": np.array(1.0), "no rows": x[:0], "no columns": x[:, :0],
        "ragged": [[1.0, 2.0], [3.0]], "sparse": scipy.sparse.csr_array(x),
        "sparse tensor": torch.from_numpy(x).to_sparse(),
    }  # fmt: skip
    group = random.choice([same, fine, wrong])
    name, strategy = random.choice(list(group)), random.choice(["coreset", "prob-cover", "typiclust", "max-herding"])
    what = f"{name}, {strategy}"
    before = np.array(group[name]) if isinstance(group[name], np.ndarray) else None

    def chosen(given: Any) -> list[int]:
        return [int(each) for each in select(embeddings=given, batch_size=3, strategy=strategy, seed=1).indices]

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            found = chosen(group[name])
        except (ValueError, TypeError) as error:
            is_said = group is wrong and "must" in str(error) and "\n" not in str(error)
            return Finding("refused" if is_said else "traceback", f"{what}: {type(error).__name__}: {error}")
    if before is not None and before.tobytes() != np.array(group[name]).tobytes():
        return Finding("different", f"{what}: the array was written to")
    is_right = group is not wrong and len({*found} & {*range(NUM_POINTS)}) == 3
    is_right &= group is not same or found == chosen(x)
    return Finding("intact" if is_right else "different", f"{what}: {found}")


@campaign("fuzzed notes about predictions", "`select` with any sealed note beside a .npy works or says why not")
def fuzzed_prediction_notes(folder: Path, random: Random) -> Finding:
    """Put something odd into the note of a file of predictions, with a valid checksum."""
    path = folder / "pool.npy"
    pool().save(path)
    note = folder / "pool.npy.json"
    content = odd_inside(read_checked(note)[0], random)
    if isinstance(content, dict):
        write_sealed(note, content)
    else:
        note.write_text(json.dumps(content))
    return run_command(["select", str(path), "-b", "3"], f"the note {str(content)[:500]}")


@campaign("fuzzed sources", "`embed` on any table or image embeds what is there, or says why not")
def fuzzed_sources(folder: Path, random: Random) -> Finding:
    """Mutate a table of texts or numbers, or images, and embed."""
    encoder, source = random.choice([("tfidf", "text"), ("table", "number"), ("pixels", "image")]), folder / "photos"
    if encoder[1] == "image":
        source.mkdir()
        for i in range(3):
            ending = random.choice(["png", "jpg", "gif", "bmp", "webp", "tiff"])
            image = source / f"{i}.{ending}"
            Image.new(random.choice(["RGB", "L"]), (9, 7), 40 * i).save(image)
            if random.random() < 0.6:
                image.write_bytes(mutated(image.read_bytes(), random))
    else:
        source = folder / f"t{random.choice(TABLES)}"
        cells = [[f"i{i}", random.choice([f"some words {i}", i / 3, "", None])] for i in range(9)]
        write_table(source, ["id", encoder[1]], cells)
        source.write_bytes(mutated(source.read_bytes(), random))
    out = folder / "e.npy"
    options = ["--skip-bad"] if random.random() < 0.5 else []
    arguments = ["embed", str(source), "--encoder", encoder[0], "--output", str(out), *options]

    def work() -> Finding:
        found = run_command(
            arguments, f"a mutated {source.name}: {source.read_bytes()[:300] if source.is_file() else ''!r}"
        )
        if found.outcome != "intact":
            return found
        vectors, names = np.load(out), read_ids(folder / "e.ids.txt")
        is_right = len(vectors) == len(names) == len(set(names)) and bool(np.isfinite(vectors).all())
        return found if is_right else Finding("different", f"{found.what}: {vectors.shape} for {names}")

    return apart(work)

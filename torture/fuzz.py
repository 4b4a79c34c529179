"""Fuzz: whatever a user's file holds, a command ends with its work or with exit code 2 and one sentence."""

import csv
import hashlib
import io
import json
import traceback
import warnings
from contextlib import suppress
from pathlib import Path
from random import Random

import numpy as np
from typer.testing import CliRunner

from batchbalance.cli import app
from batchbalance.project import Project
from batchbalance.project.bridge import write_export
from batchbalance.project.bridge.files import FORMATS
from batchbalance.system.sealed import write_sealed
from torture.campaign import Finding, campaign
from torture.damage import pool
from torture.kills import CONFIG

WORDS = [
    "nan",
    "inf",
    "-1",
    "0",
    "1e308",
    "10**9",
    "",
    "true",
    "[]",
    "{}",
    '"x"',
    "\x00",
    "é",
    "=cmd()",
    ",",
    "\n",
    "'",
    "]]",
]


def mutated(content: bytes, random: Random) -> bytes:
    """Content with a few random changes: bytes, pieces taken out, doubled or replaced."""
    found = bytearray(content)
    for _ in range(random.randint(1, 6)):
        if not found:
            break
        at = random.randrange(len(found))
        kind = random.randrange(5)
        if kind == 0:
            found[at] = random.randrange(256)
        elif kind == 1:
            del found[at : at + random.randint(1, 40)]
        elif kind == 2:
            found[at:at] = found[at : at + random.randint(1, 40)]
        elif kind == 3:
            found[at:at] = random.choice(WORDS).encode()
        else:
            found[at : at + random.randint(1, 8)] = random.randbytes(random.randint(0, 8))
    return bytes(found)


def run_command(arguments: list[str], what: str) -> Finding:
    """What a command comes to."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = CliRunner().invoke(app, arguments)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        text = "".join(traceback.format_exception(result.exception))
        return Finding("traceback", f"{what}: batchbalance {' '.join(arguments)}\n{text}")
    if result.exit_code == 0:
        return Finding("intact", what)
    if result.exit_code == 2 and "Traceback" not in result.output:
        return Finding("refused", what)
    return Finding("traceback", f"{what}: exit code {result.exit_code}\n{result.output}")


@campaign("fuzzed predictions", "`select` on any .npy, .npz or .safetensors works or says why not")
def fuzzed_predictions(folder: Path, random: Random) -> Finding:
    """Mutate a valid file of predictions and select from it."""
    path = folder / f"pool{random.choice(['.npy', '.npz', '.safetensors'])}"
    pool().save(path)
    path.write_bytes(mutated(path.read_bytes(), random))
    for beside in folder.glob("pool.npy.*"):
        if random.random() < 0.5:
            beside.unlink()
    values = random.choice([[], ["--values", "logits"], ["--values", "log-probs"]])
    return run_command(["select", str(path), "-b", "3", *values], f"a mutated {path.suffix}")


@campaign("fuzzed embeddings", "`select --embeddings` on any .npy works or says why not")
def fuzzed_embeddings(folder: Path, random: Random) -> Finding:
    """Mutate a valid file of embeddings and select with it."""
    pool().save(folder / "pool.npz")
    path = folder / "e.npy"
    np.save(path, np.random.default_rng(0).normal(size=(12, 3)))
    path.write_bytes(mutated(path.read_bytes(), random))
    arguments = ["select", str(folder / "pool.npz"), "-b", "3", "--strategy", "coreset", "--embeddings", str(path)]
    return run_command(arguments, "mutated embeddings")


@campaign("fuzzed TOML", "`run --dry-run` on any TOML file works or says why not")
def fuzzed_toml(folder: Path, random: Random) -> Finding:
    """Mutate a config, by bytes or by values, and plan it."""
    path = folder / "run.toml"
    lines = CONFIG.splitlines()
    if random.random() < 0.5:
        at = random.choice([i for i, line in enumerate(lines) if "=" in line])
        lines[at] = f"{lines[at].split('=')[0]}= {random.choice(WORDS)}"
        content = "\n".join(lines).encode()
    else:
        content = mutated(CONFIG.encode(), random)
    path.write_bytes(content)
    return run_command(["run", str(path), "--dry-run", "--runs-dir", str(folder / "runs")], "a mutated config")


@campaign("fuzzed CSV", "a run on any CSV file works or says why not")
def fuzzed_csv(folder: Path, random: Random) -> Finding:
    """Mutate a data set in a CSV file and load it, as a run does."""
    from batchbalance.lab.data import load

    buffer = io.StringIO()
    writer = csv.writer(buffer)
    writer.writerow(["a", "b", "label"])
    for i in range(30):
        writer.writerow([i / 7, -i, ["cat", "dog"][i % 2]])
    path = folder / "data.csv"
    path.write_bytes(mutated(buffer.getvalue().encode(), random))
    try:
        load(str(path))
    except (ValueError, OSError):
        return Finding("refused", "a mutated CSV file")
    except Exception:
        return Finding("traceback", f"{path.read_bytes()!r}: {traceback.format_exc()}")
    return Finding("intact", "a mutated CSV file")


def odd_text(random: Random) -> str:
    """A text of any characters: halves of some, controls, formulas, other scripts."""
    ranges = [(0, 32), (32, 127), (0xD800, 0xDFFF), (0x600, 0x6FF), (0x2000, 0x206F), (0x1F300, 0x1F6FF), (1, 0x10FFFF)]
    letters = [chr(random.randint(*random.choice(ranges))) for _ in range(random.randint(1, 12))]
    return "".join(letters) + random.choice(["", "=1+1", '"', "\r\n", ";"])


@campaign("fuzzed notes", "any text of a person is refused, or comes back from every export as it was")
def fuzzed_notes(folder: Path, random: Random) -> Finding:
    """Enter odd texts as ids, texts, notes and names, and export what was taken in."""
    rows = [{"id": f"{i} {odd_text(random)}", "text": f"word{i} other {odd_text(random)}"} for i in range(6)]
    rows += [{"id": str(i), "text": f"word{i % 3} other"} for i in range(4)]
    (folder / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    notes, what = [], "odd texts"
    try:
        project = Project.create(
            folder / "p", texts=folder / "t.jsonl", classes=["a", "b"], encoder="tfidf", audit=0, random_arm=0
        )
        names = project.ids()
    except ValueError:  # one of the ids or texts; so the notes are for texts that are fine
        (folder / "t.jsonl").write_text("\n".join(map(json.dumps, rows[6:])))
        project = Project.create(folder / "p", texts=folder / "t.jsonl", classes=["a", "b"], encoder="tfidf")
        names, what = project.ids(), "odd texts, of which some were refused"
    for name in names:
        note, who = odd_text(random), odd_text(random)
        with suppress(ValueError):
            project.comment(name, note)
            notes.append((name, note))
        with suppress(ValueError):
            project.tell({name: "a"}, who)
    try:
        for form in FORMATS:
            write_export(project, folder / f"out.{form}", form)
        lines = (folder / "out.jsonl").read_text(encoding="utf-8").split("\n")
    except Exception:
        return Finding("traceback", f"{rows!r} {notes!r}: {traceback.format_exc()}")
    found = [(line["item_id"], note) for line in map(json.loads, filter(None, lines)) for note in line["comments"]]
    if sorted(found) != sorted(notes):
        return Finding("different", f"{notes!r} came back as {found!r}")
    return Finding("intact", what)


@campaign("fuzzed records", "`report` on any records works or says why not", share=0.5)
def fuzzed_records(folder: Path, random: Random) -> Finding:
    """Mutate records before they are sealed, and report on them."""
    run = folder / "runs" / "random-1"
    run.mkdir(parents=True)
    write_sealed(run / "config.json", {"strategy": {"name": "random"}})
    record = {
        "trial": 0, "num_validation": 3, "metrics": {"accuracy": 0.5}, "validation_error": 0.2, "indices": [3],
        "seconds": {"train": 1.0}, "peak_memory": 1, "labels_per_class": [1, 2],
    }  # fmt: skip
    rows = [{"round": i, "num_labelled": 10 + i, **record} for i in range(4)]
    content = b""
    for number, row in enumerate(rows, start=1):
        line = mutated(json.dumps(row).encode(), random).replace(b"\n", b" ")
        content += b'[%d, "%s", %s]\n' % (number, hashlib.sha256(content + line).hexdigest()[:16].encode(), line)
    (run / "trial-0.jsonl").write_bytes(content)
    return run_command(["report", str(folder / "runs"), "--output", str(folder / "report")], "mutated records")

"""docs/reproduction.md from the claims and the records."""

import json
import tarfile
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from readings import (
    CONFIRMED,
    FEWEST,
    NOT_CONFIRMED,
    OF_NUMBERS,
    OF_TRIALS,
    Expectation,
    Finding,
    Trials,
    joined,
)

from batchbalance.lab.records import read_runs

ROOT = Path(__file__).parents[2]
ANALYSES = ROOT / "results" / "analyses"  # earlier ones, at laptop size
NOT_RUN = "not run"

HEAD = """# Do the paper's claims hold?

Every figure, table and numbered claim of the paper, what was run here, and what came out:
**{verdicts}.**

Differences are in accuracy, between trials of the same seed, with Student's 95 % interval. A claim is *confirmed* if
the whole interval lies where the claim puts it, *contradicted* if the interval lies on the other side, and *not
confirmed* if neither is the case or fewer than three trials are complete. Where several comparisons belong to a
claim, all must hold. Sizes are smaller than the paper's unless the row says otherwise, so *contradicted* means "at
this size". For the rows that [were run for this page](#what-was-run), what should come out was written down in
`claims.toml` before the run; those with a command of their own are older. "Ours" marks questions that are not
the paper's.

This page is written by `python results/paper/reproduce.py page` from the records in
[results/paper]({repository}/results/paper).
[What the released code computes](paper.md#what-the-released-code-computes) explains the rows about it.

"""
TAIL = """
## What was run

Core-hours are processor time of one thread, without those of trials that were ended before a first version of the
command noted them.

| row | what | trials | core-hours |
| --- | --- | ---: | ---: |
{rows}

```console
# not run in the tests: hours, and published data
python results/paper/reproduce.py run --dry-run            # the core-hours of each row
python results/paper/reproduce.py run --data-dir DATA      # what is missing, in this order; goes on where it stopped
python results/paper/reproduce.py run --only dry-bean --data-dir DATA
```
"""
REPOSITORY = "https://github.com/batchbalance/batchbalance/blob/main"


def page(
    claims: Sequence[dict[str, Any]], rows: dict[str, Any], runs_dir: Path, spent: dict[str, tuple[int, float]]
) -> str:
    """The whole page; `spent` tells the complete trials and the core-hours of each row."""
    findings = [finding(claim, rows, runs_dir) for claim in claims]
    verdicts = Counter(verdict.split(":")[0] for _, verdict in findings)
    order = ("confirmed", "not confirmed", "contradicted", NOT_RUN)
    text = HEAD.format(verdicts=", ".join(f"{verdicts[each]} {each}" for each in order), repository=REPOSITORY)
    lines = [
        "| where | what the paper says | what was run here | what came out | verdict |",
        "| --- | --- | --- | --- | --- |",
    ]
    for claim, (outcome, verdict) in zip(claims, findings, strict=True):
        cells = (claim["where"], claim["says"], size_of(claim), outcome, f"*{verdict}*")
        lines.append("| " + " | ".join(cells) + " |")
    table = []
    for name, (complete, hours) in spent.items():
        table.append(f"| `{name}` | {rows[name].size} | {complete} of {rows[name].trials} | {hours:.2f} |")
    return text + "\n".join(lines) + "\n" + TAIL.format(rows="\n".join(table))


def size_of(claim: dict[str, Any]) -> str:
    """What was run, in words, and how."""
    if "row" in claim:
        names = [claim["row"]] if isinstance(claim["row"], str) else claim["row"]
        return ", ".join(f"`{name}`" for name in names)
    if "records" in claim:
        return f"{claim['size']}; `{claim['command']}`"
    if "analysis" in claim:
        return f"`batchbalance analyse {claim['analysis']} --data-dir DATA`, the laptop preset"
    return ""


def finding(claim: dict[str, Any], rows: dict[str, Any], runs_dir: Path) -> Finding:
    """The outcome and the verdict of a claim."""
    if "verdict" in claim:
        return claim["outcome"], claim["verdict"]
    if "not_run" in claim:
        return "", f"{NOT_RUN}: {claim['not_run']}"
    found = _of_numbers(claim, rows, runs_dir) if claim.get("reading") in OF_NUMBERS else _of_trials(claim, runs_dir)
    return found or ("", f"{NOT_RUN}: time")


def _of_numbers(claim: dict[str, Any], rows: dict[str, Any], runs_dir: Path) -> Finding | None:
    if "analysis" in claim:
        paths = [ANALYSES / f"{claim['analysis']}-laptop.json"]
    else:
        row = rows[claim["row"]]
        paths = [path for seed in range(row.trials) if (path := row.numbers(seed, runs_dir)).is_file()]
    numbers = [json.loads(path.read_text(encoding="utf-8"))["numbers"] for path in paths]
    return OF_NUMBERS[claim["reading"]](numbers) if numbers else None


def _of_trials(claim: dict[str, Any], runs_dir: Path) -> Finding | None:
    if "records" in claim:
        with tempfile.TemporaryDirectory() as folder, tarfile.open(ROOT / claim["records"]) as archive:
            wanted = claim.get("folder", "")
            archive.extractall(folder, [each for each in archive if each.name.startswith(wanted)], filter="data")
            trials = trials_of(Path(folder))
    elif isinstance(claim["row"], str):
        trials = trials_of(runs_dir / claim["row"])
    else:
        parts = {name: trials_of(runs_dir / name) for name in claim["row"]}
        trials = {f"{name}: {label}": seeds for name, runs in parts.items() for label, seeds in runs.items()}
    reading: Callable[[Trials], Finding | None] | None = OF_TRIALS.get(claim.get("reading", ""))
    if reading is not None:
        found = reading(trials)
        too_few = max(map(len, trials.values()), default=0) < FEWEST
        return (found[0], NOT_CONFIRMED) if found and too_few else found
    findings = [Expectation(**each).finding(trials) for each in claim["expect"]]
    known = [each for each in findings if each is not None]
    if not known:
        return ("begun, no pair of trials to compare yet", f"{NOT_RUN}: time") if trials else None
    outcome, verdict = joined(known)
    return outcome, NOT_CONFIRMED if len(known) < len(findings) and verdict == CONFIRMED else verdict


def trials_of(folder: Path) -> Trials:
    """The records of the runs in a folder, by label; none if it is not there."""
    runs = read_runs([folder]) if any(folder.rglob("config.json")) else []
    return {run.label: run.trials for run in runs}

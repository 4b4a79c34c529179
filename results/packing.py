"""Records of runs as archives in this repository.

    python results/packing.py unpack results/cifar-10.tar.xz results/runs    # to look at them, or to resume the runs
    python results/packing.py pack results/runs results/cifar-10.tar.xz cifar-10

An archive holds run directories as `batchbalance run` writes them, in the order of their names, without what no report
reads: the labels of each class are omitted, and metrics, seconds and coverages are rounded.
"""

import io
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from batchbalance.system.journal import Journal, read_journal

ROUNDED = ("coverage", "null_coverage", "random_coverage", "certificate")


def pack(runs_dir: Path, archive: Path, names: Sequence[str]) -> None:
    """Write the runs in these folders of `runs_dir` to an archive."""
    paths = sorted(path for name in names for path in (runs_dir / name).rglob("[!.]*.json*"))  # not the locks
    with tarfile.open(archive, "w:xz", preset=9) as packed, tempfile.TemporaryDirectory() as folder:
        for number, path in enumerate(paths):
            content = path.read_bytes()
            if path.name.startswith("trial-"):
                content = smaller_journal(path, Path(folder) / f"{number}.jsonl")
            member = tarfile.TarInfo(path.relative_to(runs_dir).as_posix())
            member.size, member.mtime = len(content), int(path.stat().st_mtime)  # `report` asks which run is newest
            packed.addfile(member, io.BytesIO(content))


def unpack(archive: Path, runs_dir: Path, names: Sequence[str] = ("",)) -> None:
    """Extract the runs of an archive, or those in these folders of it."""
    runs_dir.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive) as packed:
        wanted = [member for member in packed if member.name.startswith(tuple(names))]
        packed.extractall(runs_dir, wanted, filter="data")


def smaller_journal(path: Path, copy: Path) -> bytes:
    """Return a journal whose records are those of `path`, smaller; `copy` is where it is written meanwhile."""
    with Journal(copy) as journal:
        for record in read_journal(path):
            journal.append(smaller_record(record))
    return copy.read_bytes()


def smaller_record(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record without what no report reads; what decides how a trial goes on stays exact."""
    small = {key: value for key, value in record.items() if key != "labels_per_class"}
    small["metrics"] = rounded(record["metrics"] or {}, ".6f") or record["metrics"]
    small["seconds"] = rounded(record["seconds"] or {}, ".3g") or record["seconds"]
    small |= rounded({name: record[name] for name in ROUNDED if name in record}, ".6f")
    return small


def rounded(numbers: dict[str, Any], digits: str) -> dict[str, Any]:
    """Return the floats of a table with fewer digits, and everything else as it is."""
    return {name: float(f"{x:{digits}}") if isinstance(x, float) else x for name, x in numbers.items()}


if __name__ == "__main__":
    command, first, second, *rest = sys.argv[1:]
    {"pack": pack, "unpack": unpack}[command](Path(first), Path(second), *([rest] if rest else []))

"""What it costs to keep labels: ``python -m benchmarks.labels`` tells one a second, then 10,000 at once."""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import typer

from batchbalance.project import Project

NUM_AT_ONCE = 10_000


def timed_tell(project: Project, names: list[str]) -> float:
    """Seconds that it takes to tell the labels of some items."""
    start = time.perf_counter()
    project.tell(dict.fromkeys(names, "a"))
    return time.perf_counter() - start


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--labels", type=int, default=60, help="told one by one")
    parser.add_argument("--pause", type=float, default=1.0, help="seconds between two of them")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        np.save(Path(folder) / "e.npy", np.zeros((NUM_AT_ONCE + given.labels, 2), dtype=np.float32))
        project = Project.create(Path(folder) / "p", embeddings=Path(folder) / "e.npy", classes=["a", "b"])
        names = project.ids()
        single = []
        for name in names[: given.labels]:
            single.append(1000 * timed_tell(project, [name]))
            time.sleep(given.pause)
        typer.echo(f"one label: median {statistics.median(single):.1f} ms, slowest {max(single):.1f} of {len(single)}")
        typer.echo(f"{NUM_AT_ONCE:,} labels at once: {timed_tell(project, names[given.labels :]):.2f} s")
        project.close()


if __name__ == "__main__":
    main()

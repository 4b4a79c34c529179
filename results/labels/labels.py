"""Several labels for an item: the default against random, margin and max-herding.

    python results/labels/labels.py make --data-dir DATA   # two multi-label CSV files, of joined messages
    python results/labels/labels.py run --data-dir DATA    # ten trials each, resumable; a quarter of a core-hour
    python results/labels/labels.py show                   # prints the tables, and writes summary.json

PLAN.md says what was decided before the first look. The CSV files and the runs are in results/runs/labels; each can be
run and reported on its own: ``batchbalance run``, ``batchbalance report --metric micro_f1``.
"""

import argparse
import csv
import json
from pathlib import Path

import numpy as np

from batchbalance.cli.run import follow
from batchbalance.lab.config import Comparison, comparison_of
from batchbalance.lab.processes import run_tasks, tasks_of
from batchbalance.lab.records import read_runs
from batchbalance.lab.report import compare

OWN = Path(__file__).parent
RUNS = Path("results/runs/labels")
SEED = 40
SETS = {  # the folder, the column, the number of classes, the numbers of messages joined
    "banking-pairs": ("banking77", "category", 10, (2,)),
    "trec-joined": ("trec", "label", 6, (1, 2, 3)),
}
NUM_ITEMS = 2600


def make(data_dir: Path) -> None:
    """Write `SETS` as CSV files with the columns `text` and `labels`."""
    RUNS.mkdir(parents=True, exist_ok=True)
    for name, (folder, column, num_classes, joined) in SETS.items():
        rng = np.random.default_rng(SEED)
        with (RUNS / f"{name}.csv").open("w", encoding="utf-8", newline="") as out:
            writer = csv.writer(out)
            writer.writerow(["text", "labels"])
            with (data_dir / folder / "train.csv").open(encoding="utf-8", newline="") as file:
                rows = list(csv.DictReader(file))
            classes = sorted({row[column] for row in rows})[:num_classes]
            rows = [row for row in rows if row[column] in classes]
            for _ in range(NUM_ITEMS):
                picked = rng.choice(len(rows), size=rng.choice(joined), replace=False)
                labels = sorted({rows[i][column] for i in picked})
                writer.writerow([" ".join(rows[i]["text"] for i in picked), ";".join(labels)])


def comparison(name: str) -> Comparison:
    """The comparison on one set."""
    return comparison_of({
        "data": {"name": str(RUNS / f"{name}.csv"), "column": "text", "label": "labels", "multi_label": True},
        "split": {"initial_per_class": 0, "validation": 0, "reference": 500},
        "posterior": {"kind": "bayesian-head", "num_draws": 50},
        "strategies": ["random", "margin", "max-herding", "auto"],
        "cold_start": "max-herding",
        "batch_size": 20,
        "budget": 120,
        "trials": 10,
    })  # fmt: skip


def run(data_dir: Path) -> bool:
    """Run what is missing, and return whether everything is there."""
    tasks = [task for name in SETS for task in tasks_of(comparison(name), RUNS / name, data_dir)]
    tasks.sort(key=lambda task: task.seed)
    return not follow(tasks, run_tasks(tasks, 1))


def show() -> None:
    """Print a table for each metric, and write the numbers."""
    found: dict[str, dict[str, dict[str, object]]] = {}
    for name in SETS:
        runs = read_runs([RUNS / name])
        for metric in ("macro_f1", "micro_f1"):
            report = compare(runs, metric=metric, control="random")
            for summary in report.summaries:
                areas = list(summary.areas.values())
                row: dict[str, object] = {"trials": len(areas), "area": round(float(np.mean(areas)), 4)}
                against = next((each for each in report.comparisons if each.label == summary.label), None)
                if against is not None and against.interval is not None:
                    low, high = against.interval
                    row |= {"minus random": round(against.effect or 0.0, 4), "low": round(low, 4),
                            "high": round(high, 4), "p (Holm)": against.corrected_p}  # fmt: skip
                found.setdefault(name, {}).setdefault(metric, {})[summary.label] = row
                print(name, metric, summary.label, *(f"{key} {value}" for key, value in row.items()))
            default = compare(runs, metric=metric, control="auto")
            for each in default.comparisons:
                low, high = each.interval or (0.0, 0.0)
                print(f"    auto minus {each.label}: {-(each.effect or 0):+.4f} [{-high:+.4f}, {-low:+.4f}]")
    (OWN / "summary.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    """Run a command."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("command", choices=["make", "run", "show"])
    parser.add_argument("--data-dir", type=Path)
    options = parser.parse_args()
    if options.command == "show":
        show()
    elif options.data_dir is None:
        parser.error(f"{options.command} needs --data-dir")
    elif options.command == "make":
        make(options.data_dir)
    elif not run(options.data_dir):
        raise SystemExit(2)


if __name__ == "__main__":
    main()

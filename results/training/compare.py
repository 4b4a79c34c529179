"""How should a small network be trained on 20 to 500 labels? Early stopping, fixed steps, cross-validation, penalties.

    python results/training/compare.py run --data-dir DATA    # takes up what results/training/cells.jsonl lacks
    python results/training/compare.py show                   # the tables of docs/posteriors.md

A cell is a data set, a number of labels and a seed. Every way of training gets the same labels, drawn at random. What
is measured is the mean prediction of 20 draws of MC dropout on 1,500 test inputs.
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from batchbalance.arguments.seeds import generator
from batchbalance.lab.data import load
from batchbalance.lab.metrics import test_metrics
from batchbalance.posteriors import MCDropout
from batchbalance.posteriors.training.fitting import Recipe, TrainedNetwork, fit, network_accuracy
from batchbalance.posteriors.training.networks import tabular_mlp
from batchbalance.posteriors.tuning import stratified_folds
from batchbalance.predictions import Predictions

CELLS = Path(__file__).with_name("cells.jsonl")
COUNTS = (20, 50, 100, 200, 500)
SEEDS = range(4)
DATA = ("digits", "dry-bean", "mnist", "fashion-mnist", "skewed-mnist")
TEST, DRAWS, MOST_VALIDATION = 1500, 20, 200
FALLING = 0.6  # of each class of skewed-mnist, train and test, this share of the one before is kept
PLAIN = Recipe(steps=1000, class_weighted=False, weight_decay=0.0)
EARLY = Recipe(learning_rate=0.003, samples_per_epoch=640, max_epochs=30, patience=5, class_weighted=True)
NUM_FOLDS, GRID = 3, (100, 300, 1000)  # cross-validation, and what it chooses from

STEPS = {f"{steps:,} steps": replace(PLAIN, steps=steps) for steps in (100, 300, 1000)}
VARIANTS = {
    "1,000, weight decay 0.001": replace(PLAIN, weight_decay=1e-3),
    "1,000, weight decay 0.01": replace(PLAIN, weight_decay=1e-2),
    "1,000, class weights": replace(PLAIN, class_weighted=True),
}
# With as many validation labels on top as training labels, at most 200: twice the labels of all others.
STOPPED = {
    "early stopping, default before": Recipe(max_epochs=100, patience=3, class_weighted=True),
    "early stopping, as in results": EARLY,
    "early stopping, patience 20": replace(EARLY, max_epochs=100, patience=20),
}
HELD_OUT = "early stopping, a fifth held out"
CHOSEN = "steps by cross-validation"
WAYS = (*STOPPED, HELD_OUT, *STEPS, *VARIANTS, CHOSEN)
MEASURES = {
    "accuracy": "Accuracy", "balanced": "Balanced accuracy", "nll": "Negative log-likelihood",
    "training_accuracy": "Training accuracy",
}  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """Labelled rows, those that follow them for validation, a test part, and what builds the network."""

    x: Tensor
    y: Tensor
    validation: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    num_classes: int
    build: Callable[[], Any]
    seed: int

    def fit(self, recipe: Recipe, rows: Tensor | None = None, validation: Any = None) -> TrainedNetwork:
        """A network trained on all labels, or on some."""
        x, y = (self.x, self.y) if rows is None else (self.x[rows], self.y[rows])
        return fit(self.build, x, y, recipe, num_classes=self.num_classes, validation=validation, seed=self.seed)


def cell(name: str, count: int, seed: int, data_dir: str | None) -> Cell:
    """Random labels of a data set; images of 28 × 28 are averaged to 14 × 14."""
    dataset = load(name.removeprefix("skewed-"), data_dir=data_dir, seed=seed, download=False)
    random = generator(seed, "rows")
    parts = []
    for y, read in ((dataset.train_y, dataset.train_inputs), (dataset.test_y, dataset.test_inputs)):
        rows = torch.randperm(len(y), generator=random)
        if name.startswith("skewed-"):
            rows = rows[torch.rand(len(rows), generator=random) < FALLING ** y[rows]]
        rows = rows[:TEST]
        x = read(rows)
        parts.append((torch.nn.functional.avg_pool2d(x, 2) if x.shape[-1] == 28 else x, y[rows]))
    (x, y), (test_x, test_y) = ((x.flatten(1), y) for x, y in parts)
    hidden = (64, 64) if name == "dry-bean" else (128, 128)
    end = count + min(count, MOST_VALIDATION)
    build = partial(tabular_mlp, dataset.num_classes, x.shape[1:], hidden=hidden)
    return Cell(
        x[:count], y[:count], (x[count:end], y[count:end]), (test_x, test_y), dataset.num_classes, build, seed
    )  # fmt: skip


def measured(cell: Cell, fitted: TrainedNetwork) -> dict[str, Any]:
    """What a network is worth, and how it was trained."""
    probs = MCDropout(fitted.model, DRAWS, cell.seed).predict(cell.test[0]).mean_probs()
    y, predicted = cell.test[1], probs.argmax(dim=1)
    recalls = [float((predicted[y == label] == label).double().mean()) for label in y.unique()]
    return {
        "accuracy": float((predicted == y).double().mean()),
        "balanced": fmean(recalls),
        "nll": test_metrics(Predictions.from_probs(probs, "nc"), y).nll,
        "unsure": float((1 - probs.max(dim=1).values).mean()),
        "network_accuracy": network_accuracy(fitted.model, *cell.test),
        **vars(fitted.kept),
    }


def cross_validated(cell: Cell) -> dict[int, float]:
    """The error on labels left out, for each number of steps."""
    parts = stratified_folds(cell.y, NUM_FOLDS, generator(cell.seed, "folds"), singles=False)
    wrong = dict.fromkeys(GRID, 0.0)
    for fold in parts:
        rest = torch.ones(len(cell.y), dtype=torch.bool)
        rest[fold] = False
        for steps in GRID:
            model = cell.fit(replace(PLAIN, steps=steps), rest).model
            wrong[steps] += (1 - network_accuracy(model, cell.x[fold], cell.y[fold])) * len(fold)
    return {steps: value / sum(map(len, parts)) for steps, value in wrong.items()}


def result(cell: Cell, way: str) -> dict[str, Any]:
    """One way of training on one cell."""
    if way in STOPPED:
        return measured(cell, cell.fit(STOPPED[way], validation=cell.validation))
    if way == HELD_OUT:
        fifth = torch.arange(len(cell.y)) < len(cell.y) // 5
        return measured(cell, cell.fit(EARLY, ~fifth, (cell.x[fifth], cell.y[fifth])))
    if way == CHOSEN:
        errors = cross_validated(cell)
        best = min(GRID, key=lambda steps: (errors[steps], -steps))
        return {**measured(cell, cell.fit(replace(PLAIN, steps=best))), "cross_validated": errors[1000]}
    return measured(cell, cell.fit((STEPS | VARIANTS)[way]))


def run(data_dir: str | None) -> None:
    """Do what is missing, one line of JSON each: cross-validation last, since it takes longest."""
    torch.set_num_threads(1)
    done = read()
    for ways in (WAYS[:-1], WAYS[-1:]):
        for seed, count, name in product(SEEDS, COUNTS, DATA):
            missing = [way for way in ways if (name, count, seed, way) not in done]
            made = cell(name, count, seed, data_dir) if missing else None
            for way in missing:
                started = time.process_time()
                found = {"data": name, "labels": count, "seed": seed, "way": way, **result(made, way)}
                with CELLS.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({**found, "seconds": time.process_time() - started}) + "\n")


def read() -> dict[tuple[str, int, int, str], dict[str, Any]]:
    """What has been done so far."""
    lines = CELLS.read_text(encoding="utf-8").splitlines() if CELLS.is_file() else []
    return {(x["data"], x["labels"], x["seed"], x["way"]): x for x in map(json.loads, lines)}


def show() -> None:
    """Print the tables as Markdown. Each is a mean over the cells in which all its rows have been done."""
    done = read()
    keys = list(product(DATA, COUNTS, SEEDS))
    cells = [key for key in keys if all((*key, way) in done for way in WAYS[:-1])]
    folded = [key for key in keys if all((*key, way) in done for way in (*STEPS, CHOSEN))]

    def table(title: str, names: Sequence[Any], rows: dict[str, Any], groups: list[list[Any]]) -> None:
        print(f"\n{title}\n\n| | {' | '.join(map(str, names))} |\n| --- |{' ---: |' * len(names)}")
        for name, value in rows.items():
            means = [f"{fmean(map(value, group)):.3f}" if group else "–" for group in groups]
            print(f"| {name} | {' | '.join(means)} |")
        print(f"| cells | {' | '.join(str(len(group)) for group in groups)} |")

    def rows_of(ways: Sequence[str], key: str) -> dict[str, Any]:
        return {way: (lambda at, way=way: done[*at, way][key]) for way in ways}

    def by_data(found: list[Any]) -> list[list[Any]]:
        return [*([key for key in found if key[0] == name] for name in DATA), found]

    def by_count(found: list[Any]) -> list[list[Any]]:
        return [[key for key in found if key[1] == count] for count in COUNTS]

    for key, title in MEASURES.items():
        table(f"{title} by data set", [*DATA, "mean"], rows_of(WAYS[:-1], key), by_data(cells))
    table("Accuracy by labels", COUNTS, rows_of(WAYS[:-1], "accuracy"), by_count(cells))
    table("Accuracy with cross-validation", [*DATA, "mean"], rows_of([*STEPS, CHOSEN], "accuracy"), by_data(folded))
    errors = {
        "on the test part": lambda at: 1 - done[*at, "1,000 steps"]["network_accuracy"],
        "by cross-validation": lambda at: done[*at, CHOSEN]["cross_validated"],
        "1 − largest mean probability": lambda at: done[*at, "1,000 steps"]["unsure"],
    }
    table("The error ε of a network of 1,000 steps, by labels", COUNTS, errors, by_count(folded))
    print(f"\nAll done so far: {sum(x['seconds'] for x in done.values()) / 60:.0f} core-minutes")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["run", "show"])
    parser.add_argument("--data-dir", help="where the published data sets are")
    given = parser.parse_args()
    run(given.data_dir) if given.what == "run" else show()

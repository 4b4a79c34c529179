"""What the calls of a project cost as its items grow, with the same labels."""

import shutil
import tempfile
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from batchbalance.project import Project
from batchbalance.selection import select
from benchmarks.cases import Case, Size
from benchmarks.inputs import mapped_embeddings
from benchmarks.measure import Side

CLASSES = tuple("abcdefghij")
BUDGET = "1GiB"


def calls_of_a_project(size: Size, seed: int) -> list[Side]:
    """`ask` after some labels; the selection in it, `tell` of 20 answers, `status`, opening, and `init`."""
    folder = Path(tempfile.mkdtemp())
    rows = mapped_embeddings(size["N"], size["D"], seed)
    np.save(folder / "e.npy", rows)
    made = [0]

    def create() -> Project:
        made[0] += 1
        return Project.create(
            folder / f"p{made[0]}", embeddings=folder / "e.npy", classes=CLASSES, batch_size=size["B"]
        )

    project = create()

    def answer(names: Sequence[str]) -> None:
        labels = rows[[int(name) for name in names], : len(CLASSES)].argmax(axis=1)
        project.tell({name: CLASSES[label] for name, label in zip(names, labels, strict=True)})

    answer(project.ask(memory_budget=BUDGET).ids)
    project.train()

    def ask() -> None:
        project.give_back(project.open_questions())
        project.ask(memory_budget=BUDGET)

    def selection() -> None:
        labelled = [int(name) for name in project.labels]
        select(embeddings=rows, labelled=labelled, batch_size=size["B"], strategy="max-herding", memory_budget=BUDGET)

    calls: dict[str, Callable[[], object]] = {
        "ask": ask,
        "selection alone": selection,
        "tell 20": lambda: answer(project.ids(range(20))),
        "status": project.status,
        "open": lambda: Project.open(project.folder).close(),
        "init": lambda: create().close(),
    }
    weakref.finalize(project, shutil.rmtree, folder)
    return [Side(name, call) for name, call in calls.items()]


PROJECT_CASES = [
    Case(
        "project", calls_of_a_project,
        tuple({"N": num, "D": 32, "B": 20} for num in (10_000, 100_000, 1_000_000)),
        ({"N": 1_000, "D": 32, "B": 20},), has_memory=False,
    ),
]  # fmt: skip

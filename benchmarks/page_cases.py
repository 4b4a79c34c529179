"""What an answer costs on the page: after many labels, against few."""

import shutil
import tempfile
import weakref
from collections.abc import Callable
from functools import cache
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from batchbalance.project import Project
from batchbalance.project.page.chooser import ChoiceProgress, ProcessChooser
from batchbalance.project.page.page import Page
from benchmarks.cases import Case, Size
from benchmarks.measure import Side

CLASSES = ("ant", "bee")
TIMES = 50  # calls of a run; one alone takes a millisecond or two


class NoChooser(ProcessChooser):
    """Chooses nothing, and starts no process."""

    def __init__(self) -> None:
        pass

    def want(self, who: str | None, revision: int) -> None:
        """Choose nothing."""

    def explain(self, names: Any) -> None:
        """Explain nothing."""

    def choosing(self, who: str | None) -> ChoiceProgress:  # noqa: ARG002
        """Tell that nothing is under way."""
        return ChoiceProgress()

    def is_explained(self, name: str) -> bool:  # noqa: ARG002
        """Tell that there is nothing to explain."""
        return True

    def insight(self, name: str) -> None:
        """Know nothing."""

    def status(self, revision: int) -> None:
        """Measure nothing."""

    def try_again(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


@cache
def page_after(num_labels: int, seed: int) -> Page:
    """The page of a project with so many labels, one in a hundred skipped before, and 20 open questions."""
    folder = Path(tempfile.mkdtemp())
    np.save(folder / "e.npy", np.random.default_rng(seed).normal(size=(num_labels + 200, 2)).astype(np.float32))
    project = Project.create(
        folder / "p", embeddings=folder / "e.npy", classes=CLASSES, strategy="random", batch_size=20, audit=0.0
    )
    names = project.ids()[:num_labels]
    project.skip(names[::100])
    project.tell({name: CLASSES[i % 2] for i, name in enumerate(names)}, seconds=1.0)
    project.ask()
    page = Page(project, NoChooser(), [None])
    weakref.finalize(page, shutil.rmtree, folder)
    return page


def many_against_few(call: Callable[[Page], Callable[[], object]]) -> Callable[[Size, int], list[Side]]:
    """The same call on the page of a long log and on that of a short one."""

    def build(size: Size, seed: int) -> list[Side]:
        counts = size["N"], size["L"]
        calls = {count: call(page_after(count, seed)) for count in counts}
        return [Side(f"{TIMES} after {count:,} labels", repeated(each)) for count, each in calls.items()]

    return build


def repeated(call: Callable[[], object]) -> Callable[[], None]:
    """The same call several times."""

    def run() -> None:
        for _ in range(TIMES):
            call()

    return run


def answering(page: Page) -> Callable[[], object]:
    """Answer the same question again and again, each time otherwise, as /api/label does."""
    name, labels = page.project.open_questions()[0], cycle(CLASSES)
    return lambda: page.label(None, {name: next(labels)}, 1.0)


FULL, QUICK = ({"N": 100_000, "L": 150},), ({"N": 3_000, "L": 150},)
PAGE_CASES = [
    Case("situation", many_against_few(lambda page: lambda: page.situation(None)), FULL, QUICK, 0.5, has_memory=False),
    Case("answer", many_against_few(answering), FULL, QUICK, 0.5, has_memory=False),
]

"""`batchbalance demo`: a project on handwritten digits, without a download."""

import csv
import io
import json
import threading
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from batchbalance.cli.app import app, imports_done, reported_errors
from batchbalance.cli.compare import digest_of, num_cores, planned, run_comparison
from batchbalance.cli.label import serve_page
from batchbalance.cli.project import say

if TYPE_CHECKING:
    from batchbalance.lab.report import Report
    from batchbalance.project import Project

CLASSES = [str(digit) for digit in range(10)]
ENLARGED = 8  # scale of the PNG files, because digits have 8×8 pixels
NUM_TEST = 500  # digits of the test set, which are never asked
BATCH_SIZE, BUDGET, TRIALS = 20, 120, 5
PAUSE = 1.0  # seconds between automatic answers, and between checks for new labels
AS = "demo"  # who answers with --auto
NEXT = """\
Now your own data:
  batchbalance init mine --images FOLDER --classes cat,dog,neither    (or --texts, --table, --embeddings)
  batchbalance label mine
Does it help on data that you have labels for?
  batchbalance compare mails.csv --column text --label intent"""


@app.command("demo")
def demo_command(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="The folder to create; the same command resumes.")
    ] = Path("batchbalance-demo"),
    auto: Annotated[
        bool, typer.Option("--auto", help="Answer with the true labels, and watch in the browser.")
    ] = False,
    no_page: Annotated[
        bool,
        typer.Option("--no-page", help="Answer with the true labels, without a browser; then compare with random."),
    ] = False,
    no_open: Annotated[bool, typer.Option("--no-open", help="Do not open a browser.")] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port to listen on; 0 picks a free one.")] = 0,
) -> None:
    """Try it now: label handwritten digits in the browser, or watch. Nothing is downloaded."""
    with reported_errors(demo_command):
        from batchbalance.project import Project
        from batchbalance.project.page.page import COMPARED
        from batchbalance.project.page.serving import Serving

        imports_done()
        say("Which of 1,797 handwritten digits should you label first? Few labels are enough if they are chosen well.")
        create_project(folder)
        strategies = ["auto", "random"] if no_page else ["random"]
        say(f"First, {TRIALS} trials of {' and '.join(strategies)} with the known labels, for comparison …")
        report = compare_digits(folder, strategies)
        bands = report.summaries[0].bands("accuracy")  # random comes first
        curve = {band.num_labels: band.mean for band in bands if band.num_labels}
        (folder / "project" / COMPARED).write_text(json.dumps(list(curve.items())), encoding="utf-8")
        say(f"Now the project {folder / 'project'}. Accuracy on {NUM_TEST} digits that are never asked:")
        say("  labels  chosen  random" + ("" if no_page else "      (Progress on the page draws both)"))
        if no_page:
            with closing(Project.open(folder / "project")) as project:
                for labels, accuracy in answer(project, answers_of(folder)):
                    show_row(labels, accuracy, curve)
            from batchbalance.lab.report.notes import verdict

            say(verdict(report))
            say("Digits are easy, and other data differ: docs/results.md has results on other data sets.")
        else:
            ended = threading.Event()
            job = watch(folder, curve, ended, auto)
            try:
                serve_page(folder / "project", Serving(port=port), no_open=no_open)
            finally:
                ended.set()
                job.join()
        say(NEXT)


def create_project(folder: Path) -> None:
    """Write scikit-learn's digits as PNG files, and create a project of them or open an existing one."""
    from batchbalance.encoders.images import require_pillow
    from batchbalance.project import Project

    project = folder / "project"
    if project.exists():
        return
    require_pillow()
    import numpy as np
    from PIL import Image
    from sklearn.datasets import load_digits

    images = folder / "images"
    images.mkdir(parents=True)
    digits = load_digits()
    names = [f"{number:04d}.png" for number in range(len(digits.target))]
    for name, pixels in zip(names, digits.images, strict=True):
        grey = (pixels * 255 / 16).round().astype(np.uint8)
        Image.fromarray(grey.repeat(ENLARGED, axis=0).repeat(ENLARGED, axis=1)).save(images / name)
    rows = list(zip(names, digits.target.tolist(), strict=True))
    write_rows(folder / "answers.csv", rows)
    test = np.random.default_rng(0).choice(len(rows), NUM_TEST, replace=False)
    write_rows(folder / "test.csv", [rows[i] for i in sorted(test)])
    Project.create(
        project,
        images=images,
        classes=CLASSES,
        encoder="pixels",
        image_size=8,
        test=folder / "test.csv",
        audit=0.0,
        batch_size=BATCH_SIZE,
        instructions="Which digit is this? Press its key.",
    ).close()


def write_rows(path: Path, rows: list[tuple[str, int]]) -> None:
    """Write a CSV file of ids and labels."""
    from batchbalance.system.spreadsheets import csv_text

    path.write_bytes(csv_text(("id", "label"), rows).encode())


def answers_of(folder: Path) -> dict[str, str]:
    """Return the true label of each image."""
    with (folder / "answers.csv").open(newline="", encoding="utf-8") as file:
        return {row["id"]: row["label"] for row in csv.DictReader(file)}


def compare_digits(folder: Path, strategies: list[str]) -> "Report":
    """Run trials on the embeddings of the project, from a cold start and with its model."""
    from batchbalance.lab.data import OwnData, load

    own = OwnData(labels=str(folder / "answers.csv"))
    data = load(str(folder / "project" / "embeddings.npy"), own=own)
    comparison = planned(data, own, strategies, TRIALS, BUDGET, BATCH_SIZE)
    return run_comparison(comparison, folder, digest_of(data), num_cores(), io.StringIO())


def answer(project: "Project", answers: dict[str, str], size: int = BATCH_SIZE) -> Iterator[tuple[int, float]]:
    """Answer with the true labels, batch by batch; yield the number of labels and the accuracy after each."""
    while len(project.labels) < BUDGET:
        batch = project.ask(size, AS)
        project.tell({name: answers[name] for name in batch.ids}, AS)
        project.train()
        yield from latest(project)


def latest(project: "Project") -> list[tuple[int, float]]:
    """Return the number of labels and the accuracy of the newest model, if there is one."""
    return [(found.num_labels, found.value) for found in project.status().curve[-1:]]


def show_row(labels: int, accuracy: float, curve: dict[int, float]) -> None:
    """Print one row of the table; random is measured after whole batches only."""
    random = f"{curve[labels]:.3f}" if labels in curve else ""
    say(f"  {labels:6}   {accuracy:.3f}   {random}")


def watch(folder: Path, curve: dict[int, float], ended: threading.Event, auto: bool) -> threading.Thread:
    """Print a row for each new model while the page is open; with `auto`, answer too."""

    def follow_labels() -> None:
        from batchbalance.project import Project

        shown = 0
        with closing(Project.open(folder / "project")) as project:
            rows = answer(project, answers_of(folder), BATCH_SIZE // 4) if auto else None
            while not ended.wait(PAUSE):
                found = latest(project) if rows is None else list(islice(rows, 1))
                for labels, accuracy in found:
                    if labels // BATCH_SIZE > shown:
                        shown = labels // BATCH_SIZE
                        show_row(labels, accuracy, curve)

    job = threading.Thread(target=follow_labels, daemon=True)
    job.start()
    return job

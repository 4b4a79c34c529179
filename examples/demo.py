"""`make demo`: label handwritten digits with the real commands, the default strategy beside random questions.

The digits are scikit-learn's, written as PNG files, so that nothing is downloaded. Their true labels answer in place of
a person. One project is shown command by command. One project proves little, so the same is then repeated without its
output, by the default and by random questions, with other test sets. It ends in a table and a report.
"""

import csv
import io
import shlex
import sys
import time
from contextlib import chdir, contextmanager, nullcontext, redirect_stderr, redirect_stdout
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

from batchbalance import Project
from batchbalance.cli import app
from batchbalance.lab.records import open_trial, versions

SHOWN = "digits"  # the project that is shown
IMAGES, TRUTH = Path("images"), Path("truth.csv")
ENLARGED = 8  # each pixel of a digit is a square of so many, so that people can see it
STRATEGIES = ("auto", "random")


def main(folder, *, trials=10, rounds=6, batch_size=20, items=1797, test_items=600):
    """Run the demo in a new folder."""
    started = time.monotonic()
    Path(folder).mkdir(parents=True)
    say(f"{items:,} handwritten digits as PNG files, and {rounds * batch_size} labels to spend.")
    print(f"$ cd {folder}")
    with chdir(folder):
        write_digits(items)
        for trial in range(trials):
            write_test_set(trial, test_items)
        show_project(rounds, batch_size)
        compare(trials, rounds, batch_size, test_items)
    print(f"\nThat took {time.monotonic() - started:.0f} seconds. To look at, in {folder}:")
    print("  report/report.html   the comparison: curves, tables, settings")
    print(f"  {SHOWN}/status.html   the project that was shown: accuracy, advice, hardest images")
    print(f"  {SHOWN}/batch.html    its last batch")
    say("Now your own images (or --texts, --table, --embeddings), labelled in the browser:")
    print("$ batchbalance init mine --images FOLDER --classes cat,dog,neither\n$ batchbalance label mine")


def show_project(rounds, batch_size):
    """Show one project, command by command."""
    say("Make a project. Images this small need no pretrained network, which is the default: their pixels will do.")
    make_project(SHOWN, "auto", trial=0)
    say("Ask, answer, tell. A person fills in batch.csv, or labels in the browser. Here the true labels answer.")
    for number in range(rounds):
        label_batch(SHOWN, batch_size, quiet=number > 0)
    say("How good is the model by now, and is it time to stop?")
    run("status", SHOWN)
    say("Take the labels home, with a prediction for every image that has none:")
    run("export", SHOWN, "--output", "labels.csv", "--predictions")


def compare(trials, rounds, batch_size, test_items):
    """Play the same project by every strategy, in trials that differ in their test set, and report."""
    say(f"Did it help to choose? The same {trials} times with the default, and {trials} times with random questions.")
    print(f"Accuracy on {test_items} test images after each batch of {batch_size}:", flush=True)
    for trial in range(trials):
        for strategy in STRATEGIES:
            project = SHOWN if (strategy, trial) == ("auto", 0) else f"{strategy}-{trial}"
            if project != SHOWN:
                with silence():
                    make_project(project, strategy, trial)
                    for _ in range(rounds):
                        label_batch(project, batch_size)
            curve = write_records(project, strategy, trial, batch_size, test_items)
            print(f"  trial {trial}  {strategy:<6}  {'  '.join(f'{value:.3f}' for value in curve)}", flush=True)
    say("All trials together, paired by their test set:")
    run("report", "runs", "--output", "report")
    print("Digits are easy. On other data the gain can be smaller, or none: docs/results.md has what came out.")


def make_project(name, strategy, trial):
    """Make a project whose model is measured on the trial's test set."""
    options = [] if strategy == "auto" else ["--strategy", strategy]
    run("init", name, "--images", IMAGES, "--classes", ",".join(map(str, range(10))), "--encoder", "pixels",
        "--image-size", 8, "--test", f"test-{trial}.csv", "--audit", 0, "--seed", trial, *options)  # fmt: skip


def label_batch(project, batch_size, quiet=False):
    """Ask, answer, tell."""
    run("ask", project, "-n", batch_size, quiet=quiet)
    batch = Path(project, "batch.csv")
    labels = {row["id"]: row["label"] for row in read(TRUTH)}
    write(batch, ({**row, "label": labels[row["id"]]} for row in read(batch)))
    run("tell", project, batch)


def run(*words, quiet=False):
    """Print a command and run it, in this process because starting Python again takes longer than the command."""
    words = list(map(str, words))
    print(f"$ batchbalance {shlex.join(words)}", flush=True)
    with silence() if quiet else nullcontext():
        code = app(words, standalone_mode=False)
        if code:
            sys.exit(code)


def write_digits(items):
    """Write scikit-learn's digits as PNG files, and their labels."""
    data = load_digits()
    IMAGES.mkdir()
    rows = []
    for number, (pixels, label) in enumerate(zip(data.images[:items], data.target[:items], strict=True)):
        grey = (pixels * 255 / 16).round().astype(np.uint8).repeat(ENLARGED, axis=0).repeat(ENLARGED, axis=1)
        rows.append({"id": f"{number:04d}.png", "label": label})
        Image.fromarray(grey).save(IMAGES / rows[-1]["id"])
    write(TRUTH, rows)


def write_test_set(trial, size):
    """Choose the images to measure on, which no project asks for."""
    rows = list(read(TRUTH))
    chosen = np.random.default_rng(trial).choice(len(rows), size, replace=False)
    write(f"test-{trial}.csv", (rows[i] for i in sorted(chosen)))


def write_records(project, strategy, trial, batch_size, test_items):
    """Write what `batchbalance report` reads, and return the accuracy after each batch."""
    config = {
        "strategy": {"name": strategy},
        "data": {"name": "digits", "encoder": "pixels", "image_size": 8},
        "split": {"initial": 0, "test": test_items},
        "posterior": {"kind": "bayesian-head"},
        "batch_size": batch_size,
    }
    curve = Project.open(project).status().curve
    with open_trial(Path("runs", strategy), config, trial) as journal:
        for number, found in enumerate(curve):
            shared = {"indices": [], "validation_error": None, "seconds": None, "versions": versions()}
            metrics = {"accuracy": found.value}
            journal.append(
                {"round": number, "trial": trial, "num_labelled": found.num_labels, "metrics": metrics, **shared}
            )
    return [found.value for found in curve]


def say(text):
    """A remark between commands."""
    print(f"\n# {text}", flush=True)


@contextmanager
def silence():
    """Swallow what is printed, unless something goes wrong."""
    printed = io.StringIO()
    try:
        with redirect_stdout(printed), redirect_stderr(printed):
            yield
    except BaseException:
        sys.stderr.write(printed.getvalue())
        raise


def read(path):
    """The rows of a CSV file."""
    with Path(path).open(newline="", encoding="utf-8-sig") as file:
        return list(csv.DictReader(file))


def write(path, rows):
    """Write a CSV file of rows with equal keys."""
    rows = list(rows)
    with Path(path).open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "demo")

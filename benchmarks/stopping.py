"""`python -m benchmarks.stopping --embeddings fashion-mnist --records runs`: what each stopping rule would have cost.

Runs whole projects on embeddings, answered from published labels, to the end; keeps what every model said about the
audit set and how good it was on test data; then replays the rules of `batchbalance.project.stopping` on these records.
"""

import json
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from batchbalance.cli.app import out, reported_errors
from batchbalance.project import stopping
from batchbalance.project.audit import audit_order
from batchbalance.project.project import Project
from batchbalance.project.stopping import Round, looks_of, read_rounds
from batchbalance.system.files import replacing
from batchbalance.system.progress import progress

Array = NDArray[Any]

POOL, TEST, DRAWS = 3000, 2000, 20  # items of a run, draws of its head

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


@dataclass(frozen=True, eq=False)
class Record:
    """One run: every model in turn.

    Attributes:
        rounds: with what each said about the audit set, in the order it was asked.
        truth: (F,) true classes of the audit set.
        accuracy: of each model on test data.
    """

    rounds: list[Round]
    truth: Array
    accuracy: list[float]

    def asked(self, end: int) -> int:
        """Labels that had been given when the model was trained, audit labels included."""
        return self.rounds[end].num_labels + self.rounds[end].audit_total


@app.command()
def stopping_command(
    embeddings: Annotated[
        list[Path],
        typer.Option(help="NAME for NAME-train.npy, NAME-train.labels.npy and the same of test; repeatable."),
    ],
    records: Annotated[Path, typer.Option(help="Folder of the records; runs that it holds are not run again.")],
    runs: Annotated[int, typer.Option(min=1, help="Runs on each, seeds from 0.")] = 10,
    labels: Annotated[int, typer.Option(min=1, help="Labels of a run, those of the audit set included.")] = 500,
    batch: Annotated[int, typer.Option(min=1, help="Labels between two models.")] = 50,
    features: Annotated[
        int | None, typer.Option(min=1, help="Keep so many principal components; default: all.")
    ] = None,
    target: Annotated[float, typer.Option(min=0, max=1, help="Accuracy that the rule `target` waits for.")] = 0.6,
) -> None:
    """Run projects to the end and print what each rule would have saved and lost."""
    with reported_errors():
        records.mkdir(parents=True, exist_ok=True)
        jobs = [(prefix, seed) for prefix in embeddings for seed in range(runs)]
        with progress("running", len(jobs), True) as bar:
            for prefix, seed in jobs:
                path = _path(records, prefix, seed)
                if not path.is_file():
                    run(prefix, seed, labels, batch, path, features)
                bar.advance(note=path.stem)
        for prefix in embeddings:
            found = [read(_path(records, prefix, seed)) for seed in range(runs)]
            out.print(f"\n{prefix.name}, {runs} runs of {labels} labels in batches of {batch}\n")
            out.print("\n".join(table(found, target)), markup=False, soft_wrap=True)
            out.print(f"\n{forecasts(found)}", markup=False, soft_wrap=True)


def _path(records: Path, prefix: Path, seed: int) -> Path:
    return records / f"{prefix.name}-{seed}.json"


def run(prefix: Path, seed: int, num_labels: int, batch: int, path: Path, features: int | None = None) -> None:
    """One project from the first label to the last, into a file."""
    (train, labels), (test, test_labels) = (_sampled(prefix, part, seed) for part in ("train", "test"))
    if features is not None:
        train, test = _projected(train, test, features)
    accuracy: list[float] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        np.save(folder / "pool.npy", train)
        np.save(folder / "test.npy", test)
        classes = sorted(set(labels.tolist()) | set(test_labels.tolist()))
        project = Project.create(
            folder / "project",
            classes=classes,
            embeddings=folder / "pool.npy",
            model={"kind": "bayesian-head", "method": "laplace", "num_draws": DRAWS},
            seed=seed,
        )
        for _ in range(num_labels // batch):
            project.tell({each: str(labels[int(each)]) for each in project.ask(batch)})
            guessed = [each.label for each in project.predict(folder / "test.npy")]
            accuracy.append(float(np.mean(np.array(guessed) == test_labels)))
        rows = np.flatnonzero(project.is_audit(project.ids()))
        order = _audit_order(project, rows)
        rounds = read_rounds(project.folder, order)
        truth = [project.classes.index(labels[row]) for row in order]
        project.close()
    content = {
        "truth": truth, "accuracy": accuracy, "num_labels": [each.num_labels for each in rounds],
        "audit": [[each.audit_correct, each.audit_total] for each in rounds],
        "predicted": [each.predicted.tolist() for each in rounds],
    }  # fmt: skip
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(content), encoding="ascii")


def _audit_order(project: Project, rows: Array) -> Array:
    return rows[np.argsort(audit_order(project.ids(rows.tolist()), project.settings.seed), kind="stable")]


def _sampled(prefix: Path, part: str, seed: int) -> tuple[Array, Array]:
    """Some embeddings with their labels: of the training part others for each seed, of the test part the same."""
    vectors = np.load(prefix.with_name(f"{prefix.name}-{part}.npy"), mmap_mode="r")
    labels = np.load(prefix.with_name(f"{prefix.name}-{part}.labels.npy"))
    count, seed = (POOL, seed) if part == "train" else (TEST, 0)
    rows = np.sort(np.random.default_rng(seed).permutation(len(labels))[:count])
    return np.array(vectors[rows]), labels[rows].astype(str)


def _projected(train: Array, test: Array, features: int) -> tuple[Array, Array]:
    """Both on the principal components of the pool."""
    mean = train.mean(axis=0)
    axes = np.linalg.svd(train - mean, full_matrices=False)[2][:features].T
    return (train - mean) @ axes, (test - mean) @ axes


def read(path: Path) -> Record:
    """A record."""
    content = json.loads(path.read_text(encoding="ascii"))
    rounds = [
        Round(num, 0.0, np.array(predicted), *audit)
        for num, predicted, audit in zip(content["num_labels"], content["predicted"], content["audit"], strict=True)
    ]
    return Record(rounds, np.array(content["truth"]), content["accuracy"])


Rule = Callable[[Record, int], stopping.Advice]


def rules(target: float, last: int) -> dict[str, Rule]:
    """What each rule says at a round, knowing nothing that came later."""

    def look(record: Record, end: int) -> stopping.Advice:
        seen = record.rounds[: end + 1]
        return stopping.target_reached(target, looks_of(seen, has_test=False))

    def agrees(least: float) -> Rule:
        return lambda record, end: stopping.agreement(record.rounds[: end + 1], least)

    def changes(most: float) -> Rule:
        return lambda record, end: stopping.label_change(record.rounds[: end + 1], most)

    return {
        **{f"agreement, κ ≥ {least}": agrees(least) for least in (0.99, 0.95, 0.9)},
        **{f"label change, at most {100 * most:g} %": changes(most) for most in (0.05, 0.1, 0.15)},
        f"target {target}": look,
        "forecast": lambda record, end: stopping.worth_it(forecast_at(record, end)),
        f"budget of {last // 2}": lambda record, end: stopping.budget_spent(last // 2, record.asked(end)),
    }


def forecast_at(record: Record, end: int) -> stopping.Forecast | None:
    """The forecast at a round, from the audit labels of the time."""
    seen = record.rounds[: end + 1]
    known = seen[-1].audit_total
    right = np.array([each.predicted[:known] == record.truth[:known] for each in seen])
    return stopping.forecast([each.num_labels for each in seen], right)


def stopped_at(record: Record, rule: Rule) -> int | None:
    """The first round at which a rule says stop, before the last one."""
    ends = range(len(record.rounds) - 1)
    return next((end for end in ends if rule(record, end).verdict == "stop"), None)


def table(records: Sequence[Record], target: float) -> Iterator[str]:
    """Labels saved and accuracy lost by each rule, as Markdown."""
    last = max(record.asked(len(record.rounds) - 1) for record in records)
    whole = statistics.mean(record.accuracy[-1] for record in records)
    yield f"Accuracy with all labels: {100 * whole:.1f} %.\n"
    yield "| rule | stopped | labels then | labels saved | accuracy then, % | accuracy lost, points | most lost |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: | ---: |"
    for name, rule in rules(target, last).items():
        ends = [(record, stopped_at(record, rule)) for record in records]
        stops = [(record, end) for record, end in ends if end is not None]
        if not stops:
            yield f"| {name} | 0 of {len(records)} | | | | | |"
            continue
        then = [record.asked(end) for record, end in stops]
        saved = [record.asked(len(record.rounds) - 1) - record.asked(end) for record, end in stops]
        reached = [100 * record.accuracy[end] for record, end in stops]
        lost = [100 * (record.accuracy[-1] - record.accuracy[end]) for record, end in stops]
        yield (
            f"| {name} | {len(stops)} of {len(records)} | {_spread(then, 0)} | {statistics.mean(saved):.0f} | "
            f"{statistics.mean(reached):.1f} | {statistics.mean(lost):.1f} | {max(lost):.1f} |"
        )


def _spread(values: Sequence[float], digits: int) -> str:
    return f"{statistics.mean(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def forecasts(records: Sequence[Record]) -> str:
    """How often the interval of a forecast held what came."""
    mean_curve = np.mean([record.accuracy for record in records], axis=0)
    own, usual, widths, errors = [], [], [], []
    for record in records:
        counts = [each.num_labels for each in record.rounds]
        for end, count in enumerate(counts):
            found = forecast_at(record, end)
            if found is not None and count + found.more <= counts[-1]:
                came, expected = (
                    float(np.interp(count + found.more, counts, curve)) - float(curve[end])
                    for curve in (record.accuracy, mean_curve)
                )
                own.append(came in found.interval)
                usual.append(expected in found.interval)
                widths.append(100 * (found.interval.high - found.interval.low))
                errors.append(100 * (found.gain - came))
    if not own:
        return "There was no forecast to check."
    held, held_mean = (100 * statistics.mean(each) for each in (own, usual))
    return (
        f"Forecasts of {stopping.MORE} labels: {len(own)}. The 95 % interval held the gain that came in the run on "
        f"test data in {held:.0f} % and the mean gain of all runs in {held_mean:.0f} %; it was "
        f"{statistics.median(widths):.1f} points wide in the median, and the mean error of the forecast "
        f"was {statistics.mean(errors):+.1f} points."
    )


if __name__ == "__main__":
    app()

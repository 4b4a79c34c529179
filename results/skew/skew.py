"""Projects on imbalanced pools: how many of a rare class are found, and macro F1, by strategy.

    python results/skew/skew.py run --data-dir DATA     # resumes; --only digits needs no data
    python results/skew/skew.py table

Banking77: 2,000 messages, 40 of them of five intents that are about fraud or loss (`FRAUD`), embedded by WordLlama.
Digits (scikit-learn): 1,250 images, 25 of them an 8, pixels as embeddings. Each project is the same draw and seed for
every strategy, with the default settings, batches of 20, and an audit set that counts as labels. Macro F1 is that of
the project's model on points outside the pool, weighted so that 2 % are positive.
"""

import argparse
import csv
import json
import tempfile
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits

from batchbalance.encoders import encoder
from batchbalance.project import Project

FRAUD = (
    "compromised_card",
    "lost_or_stolen_card",
    "lost_or_stolen_phone",
    "card_payment_not_recognised",
    "cash_withdrawal_not_recognised",
)
SIZES = {"banking77": (2000, 40), "digits": (1250, 25)}  # items, positives
ARMS = {
    "default": {},
    "seek": {"seek": "yes"},
    "seek 0.25": {"seek": "yes", "seek_share": 0.25},
    "seek 0.75": {"seek": "yes", "seek_share": 0.75},
    "margin": {"strategy": "margin"},
    "random": {"strategy": "random"},
}
STEP, LABELS = 20, 200
OTHERS = 2000  # negatives outside the pool that measure
RECORDS = Path(__file__).with_name("records.jsonl")


def read(name: str, data_dir: Path | None) -> tuple[np.ndarray, np.ndarray]:
    """Read the embeddings of all points, and which are positive."""
    if name == "digits":
        digits = load_digits()
        return digits.data.astype(np.float32), digits.target == 8
    if data_dir is None:
        raise SystemExit("--data-dir must name the folder that holds banking77/train.csv and test.csv")
    files = [(data_dir / "banking77" / f"{part}.csv").open(encoding="utf-8", newline="") for part in ("train", "test")]
    rows = [row for file in files for row in csv.DictReader(file)]
    return encoder("wordllama").encode([row["text"] for row in rows]), np.isin([row["category"] for row in rows], FRAUD)


def macro_f1(model_says: np.ndarray, truth: np.ndarray, share: float) -> float:
    """Return macro F1 of yes and no if `share` of the points were positive."""
    recall, false_alarms = model_says[truth].mean(), model_says[~truth].mean()
    right, missed = share * recall, share * (1 - recall)
    wrong, rejected = (1 - share) * false_alarms, (1 - share) * (1 - false_alarms)
    scores = (2 * right / (2 * right + missed + wrong), 2 * rejected / (2 * rejected + missed + wrong))
    return float(np.mean(scores))


def run_project(x: np.ndarray, y: np.ndarray, name: str, settings: dict, seed: int) -> dict:
    """Label 200 items of a new draw; what share of positives had a label, and macro F1, after every 20."""
    size, positives = SIZES[name]
    random = np.random.default_rng(seed)
    yes, no = random.permutation(np.flatnonzero(y)), random.permutation(np.flatnonzero(~y))
    rows = random.permutation(np.concatenate([yes[:positives], no[: size - positives]]))
    outside = np.concatenate([yes[positives:], no[size - positives :][:OTHERS]])
    found, scores = [], []
    with tempfile.TemporaryDirectory() as folder:
        np.save(Path(folder) / "e.npy", x[rows])
        np.save(Path(folder) / "new.npy", x[outside])
        project = Project.create(
            Path(folder) / "p", embeddings=Path(folder) / "e.npy", classes=["no", "yes"], seed=seed, **settings
        )
        for _ in range(LABELS // STEP):
            batch = project.ask(STEP)
            project.tell({each: "yes" if y[rows[int(each)]] else "no" for each in batch.ids})
            found.append(project.class_counts()["yes"] / positives)
            says = np.zeros(len(outside), dtype=bool)  # before there is a model: always no
            if project.train():
                says = np.array([each.label == "yes" for each in project.predict(Path(folder) / "new.npy")])
            scores.append(macro_f1(says, y[outside], positives / size))
        project.close()
    return {"found": found, "macro_f1": scores}


def run(only: str | None, arms: list[str], projects: int, data_dir: Path | None) -> None:
    """Run what is missing."""
    done = {(each["data"], each["arm"], each["seed"]) for each in records()}
    for name in SIZES if only is None else (only,):
        x, y = read(name, data_dir)
        for seed in range(projects):
            for arm in arms:
                if (name, arm, seed) not in done:
                    made = run_project(x, y, name, ARMS[arm], seed)
                    with RECORDS.open("a", encoding="utf-8") as file:
                        file.write(json.dumps({"data": name, "arm": arm, "seed": seed, **made}) + "\n")


def records() -> list[dict]:
    """Read the finished projects."""
    return [json.loads(line) for line in RECORDS.read_text(encoding="utf-8").splitlines()] if RECORDS.exists() else []


def table() -> None:
    """Print a row for each data set and strategy; ± is the standard error, of paired differences in the last two."""
    names = ("data", "strategy", "projects", "found at 100", "at 200", "macro F1", "default ahead", "seek ahead")
    print(f"| {' | '.join(names)} |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    every = records()
    for name in SIZES:
        curves = {
            arm: {each["seed"]: each for each in every if (each["data"], each["arm"]) == (name, arm)} for arm in ARMS
        }
        for arm, runs in curves.items():
            if runs:
                found = np.array([each["found"] for each in runs.values()])
                area = np.mean([np.mean(each["macro_f1"]) for each in runs.values()])
                ahead = [_ahead(curves[first], runs) if first != arm else "" for first in ("default", "seek")]
                shares = f"{found[:, 4].mean():.2f} | {told(found[:, -1])}"
                print(f"| {name} | {arm} | {len(runs)} | {shares} | {area:.3f} | {ahead[0]} | {ahead[1]} |")


def _ahead(first: dict, second: dict) -> str:
    """Return by how much macro F1 over the curve is higher, on the same projects."""
    both = sorted(first.keys() & second.keys())
    gaps = [np.mean(first[seed]["macro_f1"]) - np.mean(second[seed]["macro_f1"]) for seed in both]
    return told(np.array(gaps), "+") if both else ""


def told(values: np.ndarray, sign: str = "") -> str:
    """Return a mean and its standard error."""
    error = values.std(ddof=1) / len(values) ** 0.5 if len(values) > 1 else float("nan")
    return f"{values.mean():{sign}.3f} ± {error:.3f}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("do", choices=("run", "table"))
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--only", choices=tuple(SIZES))
    parser.add_argument("--arms", nargs="+", choices=tuple(ARMS), default=["default", "seek", "margin", "random"])
    parser.add_argument("--projects", type=int, default=10)
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.do == "run":
        run(given.only, given.arms, given.projects, given.data_dir)
    else:
        table()

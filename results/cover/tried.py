"""What might be stronger than `u-herding` on embeddings: σ by labels, handing over, other kernels, pools not clean.

    OMP_NUM_THREADS=1 python results/cover/tried.py DATA.npz [DATA.npz …] --output tried.jsonl
    OMP_NUM_THREADS=1 python results/cover/tried.py DATA.npz [DATA.npz …] --output later.jsonl
        --pool 2500 --batch 50 --labels 500 --handed 200 300 --arms u-herding --kinds clean
    OMP_NUM_THREADS=1 python results/cover/tried.py DATA.npz [DATA.npz …] --output weights.jsonl
        --handed --arms u-herding two-spaces delta-50 delta-500 --kinds clean

A file has embeddings and labels of a pool and of a test set (`x`, `y`, `x_test`, `y_test`). Every trial draws a pool
and runs all arms on it; those that need a model begin with a batch of max-herding. The model is softmax regression on
rows that are centred with the pool, scaled to unit length and reduced to 128 principal components. Trials that are in
the output are not run again; the tables are printed from it.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import sem, t
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score

from batchbalance import Predictions, Strategy, UHerding, select
from batchbalance.batches.targets import Cloud
from batchbalance.posteriors import BayesianHead

TEST = 1000  # rows
ARMS = ["random", "max-herding", "u-herding", "shrinking", "margin", "badge"]
OTHER_ARMS = ["two-spaces", "delta-50", "delta-500"]
KINDS = ["clean", "outliers", "copies", "imbalance"]


class Shrinking(UHerding):
    """σ by all labels at the end of the batch, not by those of the batch: k = |T| / (L + B)."""

    labels: int = 0

    def squared_length(self, targets: Cloud, batch_size: int) -> float:
        """A smaller neighbourhood, the more labels there are."""
        return super().squared_length(targets, batch_size + self.labels)


def together(embeddings: Any, logits: Any) -> Any:
    """The encoder's space beside that of the head's logits, each of variance 1: the kernel is the product of both."""
    logits = logits.reshape(len(logits), -1)  # of two classes there is one
    parts = [part / np.sqrt(part.var(axis=0).sum()) for part in (embeddings, logits)]
    return np.concatenate(parts, axis=1).astype(np.float32)


class Trial:
    """One pool, its test set, and what any strategy makes of it."""

    def __init__(self, data: dict[str, Any], rows: Any, batch_size: int, num_labels: int) -> None:
        self.x, self.y = data["x"][rows], data["y"][rows]
        self.batch_size, self.num_labels = batch_size, num_labels
        self.test = data["x_test"][:TEST], data["y_test"][:TEST]
        self.weights = np.ones(len(rows), bool)  # whether a label is worth something

    def head(self, labelled: list[int]) -> Any:
        """The model, or None while there is one class."""
        rows = [i for i in labelled if self.weights[i]]
        if len(set(self.y[rows])) < 2:
            return None
        return LogisticRegression(C=64, max_iter=100).fit(self.x[rows], self.y[rows])

    def accuracy(self, labelled: list[int]) -> float:
        """On the test set."""
        head = self.head(labelled)
        return 0.0 if head is None else float(head.score(*self.test))

    def batch(self, strategy: str | Strategy, labelled: list[int], seed: int) -> list[int]:
        """The next batch; of coverage alone while nothing is known."""
        if strategy == "random":
            left = np.setdiff1d(np.arange(len(self.x)), labelled)
            return np.random.default_rng([seed, len(labelled)]).choice(left, self.batch_size, replace=False).tolist()
        head = None if strategy == "max-herding" else self.head(labelled)
        points = self.x
        if head is None:
            strategy, probs = "max-herding", None
        elif str(strategy).startswith("delta-"):  # weights Δ of so many draws
            probs, strategy = self.draws(labelled, int(str(strategy).removeprefix("delta-")), seed), "cover-balance"
        else:
            probs = Predictions.from_probs(head.predict_proba(self.x)[:, None].astype(np.float32))
        if strategy == "two-spaces":
            points, strategy = together(self.x, head.decision_function(self.x)), "u-herding"
        known = {} if strategy == "margin" else {"embeddings": points}
        found = select(probs, self.batch_size, strategy=strategy, labelled=labelled, seed=seed, **known)
        return found.indices.tolist()

    def draws(self, labelled: list[int], num: int, seed: int) -> Predictions:
        """What draws of a Bayesian last layer say about the pool."""
        head = BayesianHead("laplace", num, seed=seed)
        num_classes = int(self.y.max()) + 1
        return head.fit(self.x[labelled], self.y[labelled], num_classes=num_classes, unlabelled=self.x).predict(self.x)

    def run(self, name: str, seed: int, start: list[int] | None = None) -> tuple[list[float], list[list[int]]]:
        """Accuracies after each batch, and what was labelled by then."""
        labelled = list(start or [])
        curve, sets = [], []
        while len(labelled) < self.num_labels:
            strategy = Shrinking(labels=len(labelled)) if name == "shrinking" else name
            labelled += self.batch(strategy, labelled, seed)
            curve.append(self.accuracy(labelled))
            sets.append(list(labelled))
        return curve, sets


def clean(data: dict[str, Any], seed: int, options: Any) -> dict[str, Any]:
    """All arms on a pool as it is; what might tell the crossing beside them."""
    rows = np.random.default_rng(seed).permutation(len(data["x"]))[: options.pool]
    trial = Trial(data, rows, options.batch, options.labels)
    found: dict[str, Any] = {}
    for name in options.arms:
        found[name], sets = trial.run(name, seed)
        if name == "u-herding":
            kept = {num: next(each for each in sets if len(each) == num) for num in options.handed}
    for num, start in kept.items():
        before = found["u-herding"][: num // options.batch]
        for name in ("margin", "badge"):
            found[f"{name} from {num}"] = before + trial.run(name, seed, start)[0]
        counted = [i for i in start if np.sum(trial.y[start] == trial.y[i]) >= 3]
        if len(set(trial.y[counted])) > 1:
            scores = cross_val_score(LogisticRegression(C=64), trial.x[counted], trial.y[counted], cv=3)
            found[f"cross-validated {num}"] = float(scores.mean())
    return found


def hard(data: dict[str, Any], kind: str, seed: int, options: Any) -> dict[str, Any]:
    """Coverage with and without weights on a pool with outliers, copies, or rare classes, up to half of the labels."""
    rng, num = np.random.default_rng(seed), options.pool
    order = rng.permutation(len(data["x"]))
    if kind == "copies":  # half of the rows are copies, five of each
        order = np.concatenate([order[: num // 2], np.repeat(order[num // 2 : num // 2 + num // 10], 5)])
    if kind == "imbalance":  # from the most frequent class to the rarest a factor of 20
        ranks = rng.permutation(data["y"].max() + 1)[data["y"][order]]
        order = order[rng.random(len(order)) < 20 ** (-ranks / data["y"].max())]
    trial = Trial(data, order[:num], options.batch, options.labels // 2)
    if kind == "outliers":  # a tenth of the rows are random directions; whoever labels throws them away
        strange = rng.choice(num, num // 10, replace=False)
        noise = rng.normal(size=(len(strange), trial.x.shape[1]))
        trial.x = trial.x.copy()
        trial.x[strange] = noise / np.linalg.norm(noise, axis=1, keepdims=True)
        trial.weights[strange] = False
    return {name: trial.run(name, seed)[0] for name in ("random", "max-herding", "u-herding", "margin")}


def read(path: Path) -> dict[str, Any]:
    """Rows centred with the pool, of unit length, on their principal components."""
    data = dict(np.load(path))
    middle = data["x"].mean(axis=0)
    pca = PCA(min(128, data["x"].shape[1]), random_state=0)
    for name in ("x", "x_test"):
        rows = data[name] - middle
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        rows = pca.fit_transform(rows) if name == "x" else pca.transform(rows)
        data[name] = rows.astype(np.float32)
    return data


def tables(lines: list[dict[str, Any]]) -> None:
    """Arms minus u-herding (on hard pools minus max-herding) in points of accuracy, with 95 % intervals."""
    for kind in KINDS:
        own = [line for line in lines if line["kind"] == kind]
        if own:
            table(kind, "mean of the curve", own, lambda curve: float(np.mean(curve)))
            table(kind, "at the end", own, lambda curve: curve[-1])


def table(kind: str, what: str, lines: list[dict[str, Any]], value: Callable[[list[float]], float]) -> None:
    """One of them."""
    base = "u-herding" if kind == "clean" else "max-herding"
    names = list(dict.fromkeys(line["data"] for line in lines))
    trials = {name: [line["found"] for line in lines if line["data"] == name] for name in names}
    print(
        f"\n| {kind}, {what}, minus {base} | "
        + " | ".join(f"{name}, {len(trials[name])} trials" for name in names)
        + " |"
    )
    print("| --- |" + " ---: |" * len(names))
    for arm in (arm for arm, curve in lines[0]["found"].items() if isinstance(curve, list) and arm != base):
        row = []
        for name in names:
            apart = 100 * np.array([value(each[arm]) - value(each[base]) for each in trials[name]])
            row.append(f"{apart.mean():+.2f} ± {t.ppf(0.975, len(apart) - 1) * sem(apart):.2f}")
        print(f"| {arm} | " + " | ".join(row) + " |")


def main() -> None:
    """Run what is missing, then print tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, nargs="+")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--pool", type=int, default=1000, help="rows of a pool")
    parser.add_argument("--batch", type=int, default=20, help="labels a batch")
    parser.add_argument("--labels", type=int, default=200, help="labels at the end")
    parser.add_argument("--handed", type=int, nargs="*", default=[60, 100], help="labels at which another takes over")
    parser.add_argument("--arms", nargs="+", default=ARMS, choices=ARMS + OTHER_ARMS)
    parser.add_argument("--kinds", nargs="+", default=KINDS, choices=KINDS)
    options = parser.parse_args()
    lines = [json.loads(line) for line in options.output.read_text().splitlines()] if options.output.exists() else []
    done = {(line["data"], line["kind"], line["seed"]) for line in lines}
    known = {path: read(path) for path in options.data}
    for seed in range(options.trials):
        for path, data in known.items():
            for kind in options.kinds:
                if (path.stem, kind, seed) in done:
                    continue
                found = clean(data, seed, options) if kind == "clean" else hard(data, kind, seed, options)
                lines.append({"data": path.stem, "kind": kind, "seed": seed, "found": found})
                with options.output.open("a") as file:
                    file.write(json.dumps(lines[-1]) + "\n")
    tables(lines)


if __name__ == "__main__":
    main()

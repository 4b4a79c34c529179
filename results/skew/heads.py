"""The default head against scikit-learn and the majority class: ``python results/skew/heads.py --data-dir DATA``.

Prints a table: error and NLL of the head's most probable weights, of the same head without a bias, of scikit-learn's
logistic regression with an intercept, and of the majority class (NLL: of the class frequencies among the labels). Rows
are Banking77 and customer reviews by WordLlama and the digits of scikit-learn, with random labels and with labels that
margin sampling chose. Means of `--trials` sets of labels; test sets have the skew of the pool.
"""

import argparse
import csv
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from batchbalance.encoders import embed, encoder
from batchbalance.posteriors import BayesianHead

Pool = tuple[np.ndarray, np.ndarray]
FRAUD = ("compromised_card", "lost_or_stolen_card")


def texts(path: Path, column: str) -> tuple[np.ndarray, np.ndarray]:
    """Embeddings and labels of a CSV file."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    vectors = np.asarray(embed([row["text"] for row in rows], encoder("wordllama")).vectors)
    return vectors, np.array([row[column] for row in rows])


def digits() -> Pool:
    """The digits of scikit-learn."""
    found = load_digits()
    return found.data.astype(np.float32), found.target


def positives(pool: Pool, names: list[object], share: float, rng: np.random.Generator) -> Pool:
    """Named classes against all others, as large a share as asked."""
    x, y = pool
    is_positive = np.isin(y, names)
    few, others = rng.permutation(np.flatnonzero(is_positive)), rng.permutation(np.flatnonzero(~is_positive))
    wanted = round(len(others) * share / (1 - share))
    if wanted > len(few):
        others = others[: round(len(few) * (1 - share) / share)]
    rows = rng.permutation(np.concatenate([few[:wanted], others]))
    return x[rows], is_positive[rows].astype(np.int64)


def pools(data_dir: Path) -> dict[str, object]:
    """A function from a generator to a pool, for each row of the table."""
    banking = texts(data_dir / "banking77" / "train.csv", "category")
    reviews = texts(data_dir / "customer-reviews" / "reviews.csv", "label")
    names = sorted(set(banking[1]))
    return {
        "Banking77, 5 of 77 intents, 5 %": lambda rng: positives(banking, list(rng.choice(names, 5, False)), 0.05, rng),
        "Banking77, fraud, 2 %": lambda rng: positives(banking, list(FRAUD), 0.02, rng),
        "digits, 3, 10 %": lambda rng: positives(digits(), [3], 0.1, rng),
        "digits, 8, 2 %": lambda rng: positives(digits(), [8], 0.02, rng),
        "customer reviews, 2 classes": lambda rng: shuffled(reviews, rng),
        "Banking77, 10 classes": lambda rng: shuffled(subset(banking, names[:10]), rng),
        "digits, 10 classes": lambda rng: shuffled(digits(), rng),
    }


def subset(pool: Pool, names: list[str]) -> Pool:
    """The rows of some classes."""
    kept = np.isin(pool[1], names)
    return pool[0][kept], pool[1][kept]


def shuffled(pool: Pool, rng: np.random.Generator) -> Pool:
    """All rows in a random order, with classes as numbers."""
    order = rng.permutation(len(pool[1]))
    return pool[0][order], np.unique(pool[1], return_inverse=True)[1][order]


def by_margin(x: np.ndarray, y: np.ndarray, num: int) -> np.ndarray:
    """Labels by margin in batches of 10, from the first 20 and one of another class."""
    known = list(dict.fromkeys([*range(20), int(np.flatnonzero(y != y[0])[0])]))
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    while len(known) < num:
        probs = LogisticRegression(C=16, max_iter=500).fit(unit[known], y[known]).predict_proba(unit)
        ranked = np.sort(probs, axis=1)
        margin = ranked[:, -1] - ranked[:, -2]
        margin[known] = 2
        known += np.argsort(margin)[:10].tolist()
    return np.array(known[:num])


def scores(probs: np.ndarray, truth: np.ndarray) -> tuple[float, float]:
    """Error and NLL."""
    nll = -np.log(np.maximum(probs[np.arange(len(truth)), truth], 1e-12)).mean()
    return float((probs.argmax(axis=1) != truth).mean()), float(nll)


def trial(pool: Pool, num_labels: int, how: str) -> list[float]:
    """Error and NLL of the four models on one set of labels."""
    x, y = pool
    half, num_classes = len(y) // 2, int(y.max()) + 1
    test, truth = x[half:], y[half:]
    x, y = x[:half], y[:half]
    rows = by_margin(x, y, num_labels) if how == "margin" else np.arange(num_labels)
    if len(set(y[rows])) < 2:  # no model can be fitted: replace the last one
        rows[-1] = np.flatnonzero(y != y[0])[0]
    found: list[float] = []
    for bias in (None, 0.0):
        head = BayesianHead(num_draws=2, bias=bias).fit(x[rows], y[rows], num_classes=num_classes, unlabelled=x)
        found += scores(head.most_probable.predict(torch.from_numpy(test)).mean_probs().numpy(), truth)
    mean = x.mean(axis=0)
    unit, unit_test = (part - mean for part in (x, test))
    unit, unit_test = (part / np.linalg.norm(part, axis=1, keepdims=True) for part in (unit, unit_test))
    plain = LogisticRegression(C=16, max_iter=500).fit(unit[rows], y[rows])
    probs = np.full((len(test), num_classes), 1e-12)
    probs[:, plain.classes_] = plain.predict_proba(unit_test)
    found += scores(probs, truth)
    counts = np.bincount(y[rows], minlength=num_classes) + 0.5
    majority = np.broadcast_to(counts / counts.sum(), probs.shape)
    return [*found, float((truth != np.bincount(y).argmax()).mean()), scores(majority, truth)[1]]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--trials", type=int, default=10)
    options = parser.parse_args()
    print("| data | labels | head | without a bias | scikit-learn | majority class |")
    print("| --- | --- | ---: | ---: | ---: | ---: |")
    for name, make in pools(options.data_dir).items():
        for num_labels, how in ((20, "random"), (100, "random"), (100, "margin")):
            rngs = [np.random.default_rng([seed, num_labels]) for seed in range(options.trials)]
            found = np.mean([trial(make(rng), num_labels, how) for rng in rngs], axis=0)
            cells = [f"{error:.3f} / {nll:.2f}" for error, nll in found.reshape(4, 2)]
            print(f"| {name} | {num_labels} {how} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()

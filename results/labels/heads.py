"""Heads for several labels against plain answers: ``python results/labels/heads.py --data-dir DATA``.

Prints a table: macro F1, micro F1 and the NLL of a label, by the most probable weights of the head, by scikit-learn's
one-against-rest logistic regression on the same rows, and by the majority answer for each label, whose probability is
its share among the labels. Pools are Banking77 messages joined two at a time, embedded by WordLlama, so that an item
has two of ten or of 77 intents, and scikit-learn's `make_multilabel_classification`. Means of `--trials` sets of random
labels.
"""

import argparse
import csv
import warnings
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import make_multilabel_classification
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from sklearn.multiclass import OneVsRestClassifier

from batchbalance.encoders import embed, encoder
from batchbalance.posteriors import BayesianHead

NUM_ITEMS, NUM_TEST = 3000, 1000


def pairs(data_dir: Path, num_intents: int) -> tuple[np.ndarray, np.ndarray]:
    """Embeddings of two messages joined, and the matrix of their intents."""
    with (data_dir / "banking77" / "train.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    names = sorted({row["category"] for row in rows})[:num_intents]
    rows = [row for row in rows if row["category"] in names]
    rng = np.random.default_rng(0)
    chosen = rng.integers(len(rows), size=(NUM_ITEMS, 2))
    vectors = embed([f"{rows[a]['text']} {rows[b]['text']}" for a, b in chosen], encoder("wordllama")).vectors
    labels = np.zeros((NUM_ITEMS, num_intents), dtype=np.int64)
    for item, both in enumerate(chosen):
        for row in both:
            labels[item, names.index(rows[row]["category"])] = 1
    return np.asarray(vectors), labels


def by_head(x: np.ndarray, y: np.ndarray, pool: np.ndarray, test: np.ndarray) -> np.ndarray:
    """The default head."""
    head = BayesianHead(num_draws=20).fit(x, y, unlabelled=pool)
    return head.most_probable.predict(torch.from_numpy(test)).label_probs().double().numpy()


def by_scikit_learn(x: np.ndarray, y: np.ndarray, pool: np.ndarray, test: np.ndarray) -> np.ndarray:
    """One-against-rest logistic regression on rows of unit length, centred with the pool."""
    mean = pool.mean(axis=0)
    rows, others = (each - mean for each in (x, test))
    rows, others = (each / np.linalg.norm(each, axis=1, keepdims=True) for each in (rows, others))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about labels that no row has, or all
        fitted = OneVsRestClassifier(LogisticRegression(C=16, max_iter=1000)).fit(rows, y)
    return np.asarray(fitted.predict_proba(others))


def by_majority(x: np.ndarray, y: np.ndarray, pool: np.ndarray, test: np.ndarray) -> np.ndarray:  # noqa: ARG001
    """The share of each label."""
    return np.broadcast_to((y.sum(axis=0) + 0.5) / (len(y) + 1), (len(test), y.shape[1]))


MODELS = {"head": by_head, "scikit-learn": by_scikit_learn, "majority": by_majority}


def scores(probs: np.ndarray, truth: np.ndarray) -> list[float]:
    """Macro F1, micro F1 and the NLL of a label."""
    said = (probs > 0.5).astype(int)
    nll = -np.log(np.clip(np.where(truth == 1, probs, 1 - probs), 1e-7, 1)).mean()
    return [f1_score(truth, said, average=kind, zero_division=0) for kind in ("macro", "micro")] + [float(nll)]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--trials", type=int, default=5)
    asked = parser.parse_args()
    toy = make_multilabel_classification(NUM_ITEMS, 20, n_classes=8, n_labels=2, random_state=0)
    pools = {
        "two of 10 intents": pairs(asked.data_dir, 10),
        "two of 77 intents": pairs(asked.data_dir, 77),
        "`make_multilabel_classification`, 8 labels": (toy[0].astype(np.float32), toy[1]),
    }
    print("| data | labelled items |", " | ".join(MODELS), "|\n| --- | ---: |", " | ".join(["---:"] * len(MODELS)), "|")
    for name, (x, y) in pools.items():
        for count in (50, 200):
            found: dict[str, list[list[float]]] = {each: [] for each in MODELS}
            for trial in range(asked.trials):
                order = np.random.default_rng(trial).permutation(NUM_ITEMS)
                test, rows = order[:NUM_TEST], order[NUM_TEST : NUM_TEST + count]
                for each, predict in MODELS.items():
                    found[each].append(scores(predict(x[rows], y[rows], x[order[NUM_TEST:]], x[test]), y[test]))
            cells = [" / ".join(f"{value:.3f}" for value in np.mean(values, axis=0)) for values in found.values()]
            print(f"| {name} | {count} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()

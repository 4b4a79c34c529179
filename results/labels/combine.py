"""Mean or maximum over the labels of an item: which ranks better, alone and as the weights of coverage?

Two messages of Banking77 are joined to one, which has both intents: 3,000 items with 10 intents, or with 30 of unequal
frequency. Twenty bootstrap draws of one logistic regression for each label learn from 20 random items, then from ten
batches of 10. F1 is measured on 1,000 other items. `python results/labels/combine.py --data-dir DATA --set ten`
"""

import argparse
import csv
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from batchbalance import BatchBalance, Entropy, Margin, MaxHerding, Predictions, Random, UHerding, select
from batchbalance.encoders.texts import WordLlama

STRATEGIES = {
    "random": Random(),
    "margin, mean": Margin(combine="mean"),
    "margin, max": Margin(combine="max"),
    "entropy, mean": Entropy(combine="mean"),
    "max-herding": MaxHerding(),
    "u-herding, mean": UHerding(combine="mean"),
    "u-herding, max": UHerding(combine="max"),
    "u-herding by entropy, mean": UHerding(score="entropy", combine="mean"),
    "batch-balance": BatchBalance(),
}
SETS = {"ten": (10, 0.0), "thirty": (30, 0.7)}  # intents, and the power by which their frequency falls
NUM_ITEMS, NUM_POOL, INITIAL, BATCH, ROUNDS, DRAWS = 3000, 2000, 20, 10, 10, 20
PRECISION, STEPS = 0.3, 8


def joined_messages(folder: Path, name: str) -> tuple[Tensor, Tensor]:
    """Return the directions of embeddings, and the labels of the items."""
    rows = []
    for part in ("train", "test"):
        with (folder / "banking77" / f"{part}.csv").open(encoding="utf-8") as file:
            rows += list(csv.DictReader(file))
    num, power = SETS[name]
    kept = np.random.default_rng(1).permutation(sorted({row["category"] for row in rows}))[:num]
    texts_of = [[row["text"] for row in rows if row["category"] == intent] for intent in kept]
    shares = 1 / np.arange(1, num + 1) ** power
    draws, texts, labels = np.random.default_rng(2), [], torch.zeros(NUM_ITEMS, num, dtype=torch.float64)
    for i in range(NUM_ITEMS):
        a, b = draws.choice(num, 2, replace=False, p=shares / shares.sum())
        texts.append(draws.choice(texts_of[a]).rstrip() + " " + draws.choice(texts_of[b]))
        labels[i, [a, b]] = 1
    vectors = torch.from_numpy(np.asarray(WordLlama().encode(texts))).double()
    vectors = vectors - vectors.mean(dim=0)
    return vectors / vectors.norm(dim=1, keepdim=True), labels


def heads(x: Tensor, y: Tensor, seed: int) -> Tensor:
    """Return the dual coefficients (S, L, n) of logistic regressions on bootstrap samples, by Newton's method."""
    (num, num_labels), stream = y.shape, torch.Generator().manual_seed(seed)
    samples = [torch.randint(0, num, (num,), generator=stream) for _ in range(DRAWS)]
    counts = torch.stack([torch.bincount(sample, minlength=num) for sample in samples]).double()
    kernel = (x @ x.T + 1) / PRECISION  # the 1 is the bias
    weights = counts[:, None].expand(DRAWS, num_labels, num)
    scores = torch.zeros(DRAWS, num_labels, num, dtype=torch.float64)
    for _ in range(STEPS):
        p = torch.sigmoid(scores)
        curvature = weights * (p * (1 - p)).clamp_min(1e-6)
        root, aim = curvature.sqrt(), scores + weights * (y.T - p) / curvature.clamp_min(1e-9)
        system = torch.eye(num, dtype=torch.float64) + root[..., None] * kernel * root[..., None, :]
        coefficients = root * torch.linalg.solve(system, (root * aim)[..., None])[..., 0]
        scores = coefficients @ kernel
    return coefficients / PRECISION


def f1(probs: Tensor, y: Tensor) -> tuple[float, float]:
    """Return micro and macro F1 at probability one half."""
    told = (probs > 0.5).double()
    hits, errors = (told * y).sum(dim=0), (told != y).double().sum(dim=0)
    micro = 2 * hits.sum() / (2 * hits + errors).sum()
    return float(micro), float((2 * hits / (2 * hits + errors).clamp_min(1)).mean())


def curve(x: Tensor, y: Tensor, strategy: object, trial: int) -> list[tuple[float, float]]:
    """Return F1 after every batch."""
    order = torch.randperm(NUM_ITEMS, generator=torch.Generator().manual_seed(trial))
    pool, test = order[:NUM_POOL], order[NUM_POOL:]
    labelled, found = list(range(INITIAL)), []
    for turn in range(ROUNDS + 1):
        known = pool[labelled]
        coefficients = heads(x[known], y[known], trial * 100 + turn)

        def logits(rows: Tensor, known: Tensor = known, coefficients: Tensor = coefficients) -> Tensor:
            return torch.einsum("sln,mn->msl", coefficients, x[rows] @ x[known].T + 1)

        found.append(f1(torch.sigmoid(logits(test)).mean(dim=1), y[test]))
        if turn < ROUNDS:
            predictions, embeddings = Predictions.from_label_logits(logits(pool).float()), x[pool].float()
            options = {"embeddings": embeddings, "labelled": labelled, "seed": trial * 100 + turn}
            labelled += select(predictions, BATCH, strategy=strategy, **options).indices.tolist()
    return found


def main() -> None:
    """Run the trials and print one row for each strategy."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--set", choices=SETS, default="ten", dest="name")
    parser.add_argument("--trials", type=int, default=10)
    given = parser.parse_args()
    x, y = joined_messages(given.data_dir, given.name)
    found = {name: [] for name in STRATEGIES}
    for trial in range(given.trials):
        for name, strategy in STRATEGIES.items():
            found[name].append(curve(x, y, strategy, trial))
    base = np.array(found["random"])
    print("| strategy | micro F1, mean of the curve | at the end | micro F1 − random | macro F1 − random |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for name, each in found.items():
        curves = np.array(each)  # (trials, rounds, 2)
        lead = (curves - base).mean(axis=1)
        half = 2.26 * lead.std(axis=0, ddof=1) / len(lead) ** 0.5
        shown = " | ".join(f"{100 * lead[:, i].mean():+.1f} ± {100 * half[i]:.1f}" for i in (0, 1))
        print(f"| {name} | {curves[:, :, 0].mean():.3f} | {curves[:, -1, 0].mean():.3f} | {shown} |")


if __name__ == "__main__":
    main()

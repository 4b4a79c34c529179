"""The best that labels could buy: ``python results/suite/oracle.py --data-dir DATA``.

On the splits of two comparisons, a greedy search that may look at the test labels: for each label it draws 60 random
points of the pool and takes the one with which a ridge classifier has the best test accuracy (then the smallest squared
error). After each batch the suite's Bayesian head is trained on that batch, on the default's and on margin's, and the
search goes on with the best of the three. No strategy can do that; it shows how much room is left above the default.
Writes ``oracle.json``, which ``suite.py show`` reads.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch

from batchbalance import select
from batchbalance.lab.config import read_comparison
from batchbalance.lab.trial import prepared
from batchbalance.posteriors import BayesianHead

OWN = Path(__file__).parent
COMPARISONS = ("banking10-b10", "reviews-b10")
CANDIDATES = 60  # random points to try for each label
RIDGE = 0.1


def curve(name: str, seed: int, data_dir: Path) -> dict[int, float]:
    """Return test accuracy by label count, of one trial."""
    comparison = read_comparison(OWN / f"{name}.toml")
    data, split = prepared(comparison.runs()[0], seed, data_dir)
    x, y = data.train_x[split.pool].float(), data.train_y[split.pool]
    search = Search(x, y, data, np.random.default_rng(seed))
    size, found = comparison.batch_size, {0: float((data.test_y == 0).double().mean())}
    labelled = select(embeddings=x, batch_size=size, seed=seed).indices.tolist()
    while True:
        head, found[len(labelled)] = fitted(x, y, labelled, data, seed)
        if len(labelled) + size > comparison.budget:
            return found
        predictions, how = head.predict(x), {"embeddings": x, "labelled": labelled}
        batches = [
            search.batch(labelled, size),
            select(predictions, size, strategy="u-herding", **how).indices.tolist(),
            select(predictions, size, strategy="margin", exclude=labelled).indices.tolist(),
        ]
        labelled += max(batches, key=lambda batch: fitted(x, y, [*labelled, *batch], data, seed)[1])


def fitted(x, y, rows, data, seed):
    """Return a head trained on some rows, and its test accuracy."""
    head = BayesianHead(num_draws=50, seed=seed)
    head.fit(x[rows], y[rows], num_classes=data.num_classes, unlabelled=x)
    right = head.most_probable.predict(data.test_x.float()).mean_probs().argmax(dim=1) == data.test_y
    return head, float(right.double().mean())


class Search:
    """A greedy search for the labels that help a ridge classifier most on the test set."""

    def __init__(self, x, y, data, rng) -> None:
        centre = x.mean(dim=0)
        rows, tests = (
            torch.nn.functional.normalize(part - centre).double().numpy() for part in (x, data.test_x.float())
        )
        self._inner, self._to_test, self._rng = rows @ rows.T, tests @ rows.T, rng
        classes = np.eye(data.num_classes)
        self._targets, self._wanted, self._right = classes[y], classes[data.test_y], data.test_y.numpy()

    def batch(self, labelled, size):
        """Return the next batch."""
        chosen: list[int] = []
        for _ in range(size):
            rows = [*labelled, *chosen]
            others = np.setdiff1d(np.arange(len(self._inner)), rows)
            tried = self._rng.permutation(others)[:CANDIDATES].tolist()
            chosen.append(max(tried, key=lambda row, rows=rows: self._quality([*rows, row])))
        return chosen

    def _quality(self, rows):
        """Return the test accuracy with these labels, and minus the mean squared error."""
        inner = self._inner[np.ix_(rows, rows)] + RIDGE * np.eye(len(rows))
        scores = self._to_test[:, rows] @ np.linalg.solve(inner, self._targets[rows])
        return (scores.argmax(axis=1) == self._right).mean(), -np.square(scores - self._wanted).mean()


def main() -> None:
    """Run the trials, and write their curves."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--trials", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    path = OWN / "oracle.json"
    known = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    for seed in range(options.trials):
        for name in COMPARISONS:
            trials = known.setdefault(name, {})
            if str(seed) not in trials:
                trials[str(seed)] = curve(name, seed, options.data_dir)
                path.write_text(json.dumps(known) + "\n", encoding="utf-8")
                print(f"{name}, trial {seed}: {list(trials[str(seed)].values())[-1]:.3f} at the end", flush=True)


if __name__ == "__main__":
    main()

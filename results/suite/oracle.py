"""The best that labels could buy: ``python results/suite/oracle.py --data-dir DATA``.

On the splits of two comparisons, a search that may look at test accuracy: in each round it tries several batches, by
the default strategy, by margin and at random, trains on each, and keeps the one after which the test accuracy is best.
No strategy can do that. Its curve shows how much room is left above the default. Writes ``oracle.json``.
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
COMPARISONS = ("banking10-b10", "cifar-10-b10")
RANDOM_BATCHES, CHOSEN_BATCHES = 6, 6


def curve(name: str, seed: int, data_dir: Path) -> dict[int, float]:
    """Return test accuracy by label count, of one trial."""
    comparison = read_comparison(OWN / f"{name}.toml")
    config = comparison.runs()[0]
    data, split = prepared(config, seed, data_dir)
    x, y = data.train_x[split.pool].float(), data.train_y[split.pool]
    rng, size = np.random.default_rng(seed), comparison.batch_size
    labelled = select(embeddings=x, batch_size=size, seed=seed).indices.tolist()
    head, found = None, {}
    while True:
        if head is None:
            head, accuracy = fitted(x, y, labelled, data, seed)
        found[len(labelled)] = accuracy
        if len(labelled) + size > comparison.budget:
            return found
        best = None
        for batch in batches(head, x, labelled, size, rng):
            tried = fitted(x, y, [*labelled, *batch], data, seed)
            if best is None or tried[1] > best[0][1]:
                best = tried, batch
        (head, accuracy), batch = best
        labelled += batch


def fitted(x, y, rows, data, seed):
    """Return a head trained on some rows, and its test accuracy."""
    head = BayesianHead(num_draws=20, seed=seed)
    head.fit(x[rows], y[rows], num_classes=data.num_classes, unlabelled=x)
    right = head.most_probable.predict(data.test_x.float()).mean_probs().argmax(dim=1) == data.test_y
    return head, float(right.double().mean())


def batches(head, x, labelled, size, rng):
    """Yield batches to try: by the default on random parts of the pool, by margin, and at random."""
    predictions = head.predict(x)
    others = np.setdiff1d(np.arange(len(x)), labelled)
    yield select(predictions, size, strategy="u-herding", embeddings=x, labelled=labelled).indices.tolist()
    yield select(predictions, size, strategy="margin", exclude=labelled).indices.tolist()
    for _ in range(CHOSEN_BATCHES):
        left_out = rng.permutation(others)[: len(others) // 2]
        how = {"embeddings": x, "labelled": labelled, "exclude": left_out.tolist()}
        yield select(predictions, size, strategy="u-herding", **how).indices.tolist()
    for _ in range(RANDOM_BATCHES):
        yield rng.permutation(others)[:size].tolist()


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
                found = curve(name, seed, options.data_dir)
                trials[str(seed)] = {
                    "curve": found,
                    "area": float(np.trapezoid([*found.values()], [*found]) / (max(found) - min(found))),
                }
                path.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
                print(f"{name}, trial {seed}: mean over the curve {trials[str(seed)]['area']:.3f}", flush=True)


if __name__ == "__main__":
    main()

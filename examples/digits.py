"""The main job in one page: a committee of classifiers, a pool of digits, and the batch to label next."""

import numpy as np
from sklearn.datasets import load_digits
from sklearn.ensemble import BaggingClassifier
from sklearn.linear_model import LogisticRegression

from batchbalance import select
from batchbalance.posteriors import Committee

NUM_LABELLED, NUM_DRAWS, BATCH_SIZE = 40, 40, 10


def main() -> None:
    """Train on a few labels, select a batch, and compare it with a random one."""
    digits = load_digits()
    x, y = digits.data / 16, digits.target
    order = np.random.default_rng(0).permutation(len(x))
    labelled, pool, test = order[:NUM_LABELLED], order[NUM_LABELLED:1000], order[1000:]

    def fitted(rows: np.ndarray) -> BaggingClassifier:
        model = BaggingClassifier(LogisticRegression(max_iter=500), n_estimators=NUM_DRAWS, random_state=0)
        return model.fit(x[rows], y[rows])

    committee = fitted(labelled)
    predictions = Committee.from_sklearn(committee, classes=range(10)).predict(x[pool])
    print(f"{NUM_LABELLED} labels: accuracy {committee.score(x[test], y[test]):.3f}; pool: {predictions}")

    for strategy in ("batch-balance", "random"):
        selection = select(predictions, BATCH_SIZE, strategy=strategy)
        print(f"\n{strategy} asks for the labels of pool points {selection.indices.tolist()}")
        if selection.certificate is not None:
            print(
                f"  coverage {selection.coverage[-1]:.2%} beside {selection.random_coverage:.2%} by random batches and "
                f"{selection.null_coverage[-1]:.2%} by label noise alone"
            )
            print(f"  at least {selection.certificate:.2%} of the best batch under these draws and pairs")
        chosen = pool[selection.indices.numpy()]
        accuracy = fitted(np.concatenate([labelled, chosen])).score(x[test], y[test])
        print(f"  digits {y[chosen].tolist()}; accuracy with them {accuracy:.3f}")


if __name__ == "__main__":
    main()

"""Every model that is used by default, on pools as skewed as those of users, against the majority class."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from batchbalance.posteriors import BayesianHead, Committee, MCDropoutOptions, PosteriorFit
from batchbalance.posteriors.training import Recipe

pytestmark = pytest.mark.slow

NUM_LABELS = 100
TOLERANCE = 0.05  # of the NLL: what estimating frequencies of 100 labels costs, and more


def digits(seed):
    """All digits in a random order, scaled to [0, 1]."""
    found = load_digits()
    order = np.random.default_rng(seed).permutation(len(found.data))
    return (found.data[order] / 16).astype(np.float32), found.target[order]


def skewed(share, seed):
    """A pool and a test set in which digit 8, the hardest, is this share."""
    x, y = digits(seed)
    y = (y == 8).astype(np.int64)
    positives, others = np.flatnonzero(y), np.flatnonzero(1 - y)
    if share > 0.1:
        others = others[: round(len(positives) * (1 - share) / share)]
    positives = positives[: round(len(others) * share / (1 - share))]
    rows = np.random.default_rng(seed).permutation(np.concatenate([positives, others]))
    half = len(rows) // 2
    return x[rows[:half]], y[rows[:half]], x[rows[half:]], y[rows[half:]]


def long_tail(seed):
    """Ten classes, each three quarters as frequent as the one before."""
    x, y = digits(seed)
    rows = np.concatenate([np.flatnonzero(y == c)[: int(174 * 0.75**c)] for c in range(10)])
    rows = np.random.default_rng(seed).permutation(rows)
    half = len(rows) // 2
    return x[rows[:half]], y[rows[:half]], x[rows[half:]], y[rows[half:]]


def chosen(x, y, num, seed):
    """Labels by margin in batches of 10, from 20 random ones with at least two classes."""
    order = np.random.default_rng(seed).permutation(len(y))
    first = [order[0], next(row for row in order if y[row] != y[order[0]])]
    known = list(dict.fromkeys([*first, *order]))[:20]
    while len(known) < num:
        probs = LogisticRegression(C=16, max_iter=500).fit(x[known], y[known]).predict_proba(x)
        ranked = np.sort(probs, axis=1)
        margin = ranked[:, -1] - ranked[:, -2]
        margin[known] = 2
        known += np.argsort(margin)[:10].tolist()
    return np.array(known[:num])


def random(x, y, num, seed):
    """Uniform labels, with at least two classes."""
    order = np.random.default_rng(seed).permutation(len(y))
    first = [order[0], next(row for row in order if y[row] != y[order[0]])]
    return np.array(list(dict.fromkeys([*first, *order]))[:num])


def head(method):
    def fit(x, y, num_classes, pool):
        return BayesianHead(method, 20).fit(x, y, num_classes=num_classes, unlabelled=pool)

    return fit


def committee(x, y, num_classes, pool):
    return Committee.bootstrap(LogisticRegression(), x, y, size=10, classes=range(num_classes))


def mlp(x, y, num_classes, pool):
    options = MCDropoutOptions(num_draws=20)
    recipe = Recipe(max_epochs=60)
    fitted = PosteriorFit(options, num_classes, "tabular-mlp", recipe=recipe)(torch.tensor(x), torch.tensor(y), 0)
    return fitted.posterior


MODELS = {
    "bootstrap": head("bootstrap"),
    "laplace": head("laplace"),
    "committee": committee,
    "mlp": mlp,
}
POOLS = {f"{share:.0%}": (skewed, share) for share in (0.5, 0.2, 0.1, 0.05, 0.02, 0.01)} | {"long tail": (long_tail,)}


@pytest.mark.parametrize("labels", [random, chosen])
@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("model", MODELS)
def test_no_default_model_is_worse_than_the_majority_class(model, pool, labels):
    make, *options = POOLS[pool]
    x, y, test, truth = make(*options, 0)
    num_classes = int(max(y.max(), truth.max())) + 1
    rows = labels(x, y, min(NUM_LABELS, len(y) // 2), 0)
    posterior = MODELS[model](x[rows], y[rows], num_classes, x)
    posterior = posterior.most_probable if isinstance(posterior, BayesianHead) else posterior
    probs = posterior.predict(torch.tensor(test)).mean_probs().double().numpy()
    error = float((probs.argmax(axis=1) != truth).mean())
    majority = float((truth != np.bincount(y).argmax()).mean())
    assert error <= majority + 2 * np.sqrt(majority * (1 - majority) / len(truth))
    frequencies = (np.bincount(y, minlength=num_classes) + 0.5) / (len(y) + num_classes / 2)
    nll = float(-np.log(np.maximum(probs[np.arange(len(truth)), truth], 1e-12)).mean())
    assert nll <= float(-np.log(frequencies[truth]).mean()) + TOLERANCE


def test_labels_that_were_chosen_balanced_from_a_skewed_pool_get_a_free_bias():
    x, y, test, truth = skewed(0.1, 0)
    rows = chosen(x, y, NUM_LABELS, 0)
    assert 0.3 < y[rows].mean() < 0.6
    errors = []
    for bias in (None, 0.0):
        found = BayesianHead("bootstrap", 2, bias=bias).fit(x[rows], y[rows], unlabelled=x)
        assert found.tuned.bias == (1.0 if bias is None else 0.0)
        predicted = found.most_probable.predict(torch.tensor(test)).mean_probs().argmax(dim=1).numpy()
        errors.append(float((predicted != truth).mean()))
    assert errors[0] < truth.mean() / 2 < truth.mean() < errors[1]


@pytest.mark.parametrize("num_labels", [10, 20, 60])
def test_the_bias_costs_nothing_on_balanced_labels(num_labels):
    """Paired with the same head without one: at most 0.3 points on average, beyond chance."""
    differences = []
    for seed in range(8):
        x, y = digits(seed)
        rows = random(x, y, num_labels, seed)
        errors = []
        for bias in (None, 0.0):
            found = BayesianHead("bootstrap", 2, bias=bias).fit(x[rows], y[rows], num_classes=10, unlabelled=x)
            predicted = found.most_probable.predict(torch.tensor(x[800:])).mean_probs().argmax(dim=1).numpy()
            errors.append(float((predicted != y[800:]).mean()))
        differences.append(errors[0] - errors[1])
    assert np.mean(differences) <= 0.003 + 2 * np.std(differences) / np.sqrt(len(differences))


@pytest.mark.parametrize("method", ["bootstrap", "laplace"])
def test_a_class_without_labels_is_less_likely_than_one_with_many(method):
    x, y = digits(0)
    rows = np.flatnonzero(y < 8)[:60]
    found = BayesianHead(method, 5).fit(x[rows], y[rows], num_classes=10, unlabelled=x)
    shares = found.most_probable.predict(torch.tensor(x)).mean_probs().mean(dim=0)
    assert float(shares[8:].max()) < 0.5 * float(shares[:8].min())

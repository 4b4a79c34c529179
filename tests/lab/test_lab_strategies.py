"""The estimators of the released scripts, against plain loops over label configurations."""

import math
from itertools import product

import numpy as np
import pytest
import torch

import oracles
from batchbalance import STRATEGIES, BatchBald, GreedyBalance, Predictions, connect, select
from batchbalance.arguments.seeds import generator
from batchbalance.balance.closed_form import BalanceModel
from batchbalance.lab.config import comparison_of
from batchbalance.lab.strategies import (
    ExactThenRandom,
    MarginalConfigurations,
    ReleasedBalance,
    ReleasedBatchBald,
    ReleasedEstimator,
    lab_strategy,
)
from batchbalance.strategies.pool import Pool
from conftest import random_weights

pytestmark = pytest.mark.typed


def confident(num_points, num_draws, num_classes, seed):
    """Predictions of draws that are sure, and often disagree: what a network trained on few labels gives."""
    logits = 4 * np.random.default_rng(seed).normal(size=(num_points, num_draws, num_classes))
    exponents = np.exp(logits - logits.max(axis=2, keepdims=True))
    return exponents / exponents.sum(axis=2, keepdims=True)


PROBS = confident(12, 6, 3, seed=0)
WEIGHTS = random_weights(6, 2)
PREDICTIONS = Predictions.from_probs(PROBS, weights=WEIGHTS)
EDGES = connect(PREDICTIONS, 0.0)
CHOSEN = (3, 7)


def likelihoods(points, labels):
    """p(ŷ | ω_j) of one configuration, for every draw."""
    return [math.prod(float(PROBS[x, j, y]) for x, y in zip(points, labels, strict=True)) for j in range(6)]


def marginal(point, label):
    return sum(float(WEIGHTS[j]) * float(PROBS[point, j, label]) for j in range(6))


def mean_over(points, value, *, jointly):
    """The mean of value(weights of the draws given ŷ, ŷ) with ŷ from the joint, or from the product of marginals."""
    total = 0.0
    for labels in product(range(3), repeat=len(points)):
        weighted = [float(WEIGHTS[j]) * each for j, each in enumerate(likelihoods(points, labels))]
        drawn = math.prod(marginal(x, y) for x, y in zip(points, labels, strict=True))
        share = sum(weighted) if jointly else drawn
        total += share * value([each / sum(weighted) for each in weighted], labels)
    return total


def discount(points, x):
    """What is averaged in eq. 6 for one configuration."""

    def ratio(j, point, y):
        return float(PROBS[point, j, y]) / max(float(PROBS[point, j, other]) for other in range(3))

    def value(given, labels):
        found = 0.0
        for y in range(3):
            predicted = sum(given[j] * float(PROBS[x, j, y]) for j in range(6))
            for (a, b), weight in zip(EDGES.ends.tolist(), EDGES.edge_weights.tolist(), strict=True):
                kept = ratio(a, x, y) * ratio(b, x, y)
                for point, label in zip(points, labels, strict=True):
                    kept *= ratio(a, point, label) * ratio(b, point, label)
                found += predicted * weight * (1 - kept)
        return found

    return value


def entropy_given(x):
    def value(given, _labels):
        predicted = [sum(given[j] * float(PROBS[x, j, y]) for j in range(6)) for y in range(3)]
        return -sum(p * math.log(p) for p in predicted)

    return value


def draw_entropy(x):
    return sum(float(WEIGHTS[j]) * -sum(float(p) * math.log(float(p)) for p in PROBS[x, j]) for j in range(6))


def estimated(num_samples, repeats, chosen=CHOSEN, exact=1):
    scores = []
    for seed in range(repeats):
        estimator = ReleasedEstimator(
            BalanceModel(PREDICTIONS, EDGES), exact=exact, num_samples=num_samples, generator=generator(seed, "test")
        )
        for index in chosen:
            estimator.add(index)
        scores.append(estimator.scores(torch.arange(12)).double().numpy())
    return np.array(scores)


def test_enumerated_picks_are_exact():
    found = estimated(10, 1, exact=3)[0]
    expected = oracles.delta(PROBS, EDGES.ends.tolist(), EDGES.edge_weights.tolist(), WEIGHTS.tolist(), [*CHOSEN, 5])
    assert found[5] == pytest.approx(expected, abs=1e-6)


def test_the_second_pick_is_unbiased_and_the_third_is_not():
    second = estimated(500, 200, chosen=(3,))
    third = estimated(500, 200)
    for x in (0, 5, 9):
        right = mean_over((3,), discount((3,), x), jointly=True)
        error = 4 * second[:, x].std() / math.sqrt(200)
        assert second[:, x].mean() == pytest.approx(right, abs=error)
        released = mean_over(CHOSEN, discount(CHOSEN, x), jointly=False)
        joint = mean_over(CHOSEN, discount(CHOSEN, x), jointly=True)
        edges = EDGES.ends.tolist(), EDGES.edge_weights.tolist(), WEIGHTS.tolist()
        assert joint == pytest.approx(oracles.delta(PROBS, *edges, [*CHOSEN, x]), abs=1e-10)
        error = 4 * third[:, x].std() / math.sqrt(200)
        assert third[:, x].mean() == pytest.approx(released, abs=error)
        assert abs(released - joint) > 2 * error


def test_information_of_the_third_pick_is_biased():
    found = []
    for seed in range(100):
        samples = MarginalConfigurations(PREDICTIONS, 500, generator(seed, "test"))
        for index in CHOSEN:
            samples.extend(PREDICTIONS.log_probs([index])[0].double())
        predicted = samples.posteriors.T @ torch.as_tensor(PROBS[5]).double()
        found.append(float(torch.special.entr(predicted).sum(dim=1).mean()) - draw_entropy(5))
    released = mean_over(CHOSEN, entropy_given(5), jointly=False) - draw_entropy(5)
    right = mean_over(CHOSEN, entropy_given(5), jointly=True) - draw_entropy(5)
    error = 4 * np.std(found) / 10
    assert np.mean(found) == pytest.approx(released, abs=error)
    assert abs(released - right) > 2 * error


def problem(predictions, batch_size, seed=0):
    return Pool({"predictions": predictions, "threshold": 0.0}).to_choose(batch_size=batch_size, seed=seed)


def test_released_batch_bald_takes_the_largest_estimate_in_every_pick():
    given = problem(PREDICTIONS, 4)
    choice = ReleasedBatchBald(num_samples=2_000).choose(given)
    samples = MarginalConfigurations(PREDICTIONS, 2_000, generator(0, "configurations"))
    for pick, index in enumerate(choice.indices.tolist()):
        rows = choice.indices[:pick].tolist()
        if pick < 2:  # enumerated
            gains = [mean_over(rows, entropy_given(x), jointly=True) - draw_entropy(x) for x in range(12)]
        else:
            posteriors = samples.posteriors.T.tolist()
            gains = [np.mean([entropy_given(x)(row, None) for row in posteriors]) - draw_entropy(x) for x in range(12)]
        left = [gain for x, gain in enumerate(gains) if x not in rows]
        assert gains[index] == pytest.approx(max(left), abs=1e-9)
        assert float(choice.scores[pick]) == pytest.approx(gains[index], abs=1e-9)
        samples.extend(PREDICTIONS.log_probs([index])[0].double())


def test_released_batch_bald_takes_copies():
    copied = np.concatenate([confident(40, 40, 5, seed=1)] * 3)
    given = problem(Predictions.from_probs(copied), 10)
    released = {int(index) % 40 for index in ReleasedBatchBald().choose(given).indices}
    right = {int(index) % 40 for index in BatchBald().choose(given).indices}
    assert len(right) >= 9
    assert len(released) <= 7


def test_ties_go_to_the_first_and_are_recorded():
    predictions = Predictions.from_probs(confident(60, 40, 5, seed=2).astype(np.float32))
    choice = ReleasedBalance().choose(problem(predictions, 12))
    assert choice.continued_from is not None
    last = choice.indices[-4:].tolist()
    assert last == sorted(set(range(60)) - set(choice.indices[:-4].tolist()))[:4]


def test_exact_then_random():
    given = problem(PREDICTIONS, 6)
    choice = ExactThenRandom(exact=3).choose(given)
    assert choice.indices[:3].tolist() == GreedyBalance().choose(given).indices[:3].tolist()
    others = {tuple(ExactThenRandom(exact=3).choose(problem(PREDICTIONS, 6, seed)).indices[3:]) for seed in range(5)}
    assert len(choice.indices.unique()) == 6
    assert len(others) > 1


@pytest.mark.parametrize("name", ["released-balance", "released-batch-bald", "exact-then-random"])
def test_lab_strategies_are_known_to_configs_only(name):
    comparison = comparison_of(
        {"data": {"name": "digits"}, "batch_size": 5, "budget": 30, "strategies": [{"name": name, "exact": 4}],
         "model": {"name": "tabular-mlp"}}
    )  # fmt: skip
    (run,) = comparison.runs()
    assert run.chosen_strategy == lab_strategy(name, {"exact": 4})
    assert run.label == f"{name}(exact=4)"
    assert name not in STRATEGIES
    with pytest.raises(ValueError, match="strategy"):
        select(PREDICTIONS, 2, strategy=name)

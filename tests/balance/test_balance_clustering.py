import numpy as np
import pytest

import oracles
from batchbalance import Predictions, connect, information
from batchbalance.arguments.seeds import generator
from batchbalance.balance.closed_form import BalanceModel
from batchbalance.balance.clustering import balance_clustering
from batchbalance.scores.ranking import power_sample
from conftest import random_probs

pytestmark = pytest.mark.typed


@pytest.mark.parametrize("seed", range(8))
def test_clustering_is_a_plain_loop_of_algorithm_3(seed):
    probs = random_probs(40, 8, 3, seed=seed)
    predictions = Predictions.from_probs(np.concatenate([probs, probs[:5]]))  # with duplicates
    edges = connect(predictions, 0.0)
    matrix = information(predictions, edges, range(45), range(45)).tolist()
    model = BalanceModel(predictions, edges)
    seeds = power_sample(model.scores(slice(None)), 6, 1.0, generator=generator(seed, "seeds"))
    found, num_rounds = balance_clustering(model.features(slice(None)), model.scores(slice(None)), seeds)
    assert found.tolist() == oracles.clustering(matrix, seeds.tolist())
    # the first limit of rounds at which a plain loop is where it stays; one more round finds that nothing moves
    still = next(n for n in range(50) if oracles.clustering(matrix, seeds.tolist(), max_rounds=n) == found.tolist())
    assert num_rounds == still + 1
    assert len(set(found.tolist())) == 6


def test_clustering_stops_at_the_limit_of_rounds():
    predictions = Predictions.from_probs(random_probs(60, 8, 3, seed=1))
    edges = connect(predictions, 0.0)
    model = BalanceModel(predictions, edges)
    matrix = information(predictions, edges, range(60), range(60)).tolist()
    features, scores = model.features(slice(None)), model.scores(slice(None))
    differ = 0
    for seed in range(12):
        seeds = power_sample(scores, 12, 0.0, generator=generator(seed, "seeds"))
        one, num_rounds = balance_clustering(features, scores, seeds, max_rounds=1)
        assert num_rounds == 1
        assert one.tolist() == oracles.clustering(matrix, seeds.tolist(), max_rounds=1)
        differ += one.tolist() != balance_clustering(features, scores, seeds)[0].tolist()
    assert differ

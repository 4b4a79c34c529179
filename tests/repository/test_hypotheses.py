"""EC² and ECED on a finite set of hypotheses, in results/paper."""

import itertools
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from batchbalance import UnknownNameError
from conftest import random_probs, random_weights

sys.path.append(str(Path(__file__).parents[2] / "results" / "paper"))

from analyses.hypotheses import HypothesisTable


def edge_list(classes):
    return [(a, b) for a, b in itertools.combinations(range(len(classes)), 2) if classes[a] != classes[b]]


def oracle_scores(table, classes, posterior, nodes, rule):
    """Appendix, EC² and ECED, by loops over points, labels and edges."""
    num_hypotheses, num_points, num_labels = table.shape
    left = [h for h in range(num_hypotheses) if posterior[h] > 0]
    scores = []
    for x in range(num_points):
        total = 0.0
        for y in range(num_labels):
            probability = sum(posterior[h] * table[h, x, y] for h in left)
            lam = {h: table[h, x, y] / max(table[h, x]) for h in left}
            for a, b in edge_list(classes):
                if a not in lam or b not in lam:
                    continue
                if rule == "ec2":
                    lost = 1.0 if table[a, x, y] == 0 or table[b, x, y] == 0 else 0.0
                else:
                    lost = (1 - lam[a] * lam[b]) - (1 - max(value**2 for value in lam.values()))
                total += probability * nodes[a] * nodes[b] * lost
        scores.append(total)
    return scores


@pytest.mark.parametrize("rule", ["ec2", "eced"])
def test_scores_and_updates_follow_the_paper(rule):
    table = random_probs(6, 9, 3, seed=1, zeros=0.4).transpose(1, 0, 2)  # 9 hypotheses, 6 points
    classes, prior = [4, 4, -1, 7, 7, 7, 4, -1, 2], random_weights(9)
    learner = HypothesisTable(torch.from_numpy(table), torch.tensor(classes), torch.from_numpy(prior), rule=rule)
    posterior, nodes = list(prior), list(prior)
    for x, y in ((2, 0), (4, 1), (0, 2)):
        expected = oracle_scores(table, classes, posterior, nodes, rule)
        np.testing.assert_allclose(learner.scores().numpy(), expected, rtol=0, atol=1e-10)
        assert learner.next_query() == int(np.argmax(expected))
        remaining = sum(nodes[a] * nodes[b] for a, b in edge_list(classes))
        assert abs(learner.edge_weight - remaining) < 1e-10
        learner.observe(x, y)
        joint = [p * table[h, x, y] for h, p in enumerate(posterior)]
        posterior = [p / sum(joint) for p in joint]
        kept = [n * (table[h, x, y] > 0) for h, n in enumerate(nodes)]
        nodes = posterior if rule == "eced" else [n / sum(kept) for n in kept]
        np.testing.assert_allclose(learner.posterior.numpy(), posterior, rtol=0, atol=1e-10)
        np.testing.assert_allclose(learner.node_weights.numpy(), nodes, rtol=0, atol=1e-10)


@pytest.mark.parametrize("rule", ["ec2", "eced"])
def test_noise_free_labels_lead_to_the_class_of_the_target(rule):
    labels = torch.randint(0, 2, (16, 20), generator=torch.Generator().manual_seed(0))
    table = torch.nn.functional.one_hot(labels, 2).double()
    classes = torch.arange(16) // 4
    for target in range(16):
        learner, asked = HypothesisTable(table, classes, rule=rule), []
        while learner.edge_weight > 0:
            asked.append(learner.next_query())
            learner.observe(asked[-1], int(labels[target, asked[-1]]))
        assert len(set(asked)) == len(asked) <= 6
        assert set(classes[learner.version_space].tolist()) == {target // 4}


def test_a_test_that_is_all_noise_is_worth_nothing_to_eced():
    table = torch.tensor([[[0.6, 0.4], [0.9, 0.1]], [[0.6, 0.4], [0.2, 0.8]]])
    scores = HypothesisTable(table, torch.tensor([0, 1]), rule="eced").scores()
    assert float(scores[0]) == pytest.approx(0, abs=1e-15)
    assert float(scores[1]) > 0.05


def test_next_query_keeps_to_the_candidates_and_ties_go_to_the_lowest():
    table = torch.eye(2, dtype=torch.float64).unsqueeze(1).repeat(1, 5, 1)  # every point settles it
    learner = HypothesisTable(table, torch.tensor([0, 1]))
    assert learner.next_query() == 0
    assert learner.next_query(torch.tensor([3, 4])) == 3


def test_hypothesis_table_refuses_what_cannot_be():
    table, classes = torch.full((3, 2, 2), 0.5), torch.tensor([0, 0, 1])
    with pytest.raises(UnknownNameError, match="did you mean 'ec2'"):
        HypothesisTable(table, classes, rule="ec3")
    with pytest.raises(ValueError, match=r"one of `classes` for each hypothesis, got shape .* and 2 classes"):
        HypothesisTable(table, classes[:2])
    with pytest.raises(ValueError, match="`prior` must have one number for each of 3 hypotheses, got 2"):
        HypothesisTable(table, classes, torch.tensor([0.5, 0.5]))
    with pytest.raises(ValueError, match="`likelihoods` must be non-negative and sum to 1"):
        HypothesisTable(table * 2, classes)
    with pytest.raises(ValueError, match="`prior` must be non-negative and sum to 1"):
        HypothesisTable(table, classes, torch.tensor([0.5, 0.2, 0.1]))
    learner = HypothesisTable(torch.eye(2).expand(3, 2, 2).clone(), classes)
    with pytest.raises(ValueError, match="`x` must be from 0 to 1 and `y` from 0 to 1, got 2 and 0"):
        learner.observe(2, 0)
    with pytest.raises(ValueError, match="`y` must be a label that some remaining hypothesis allows, got 1"):
        learner.observe(0, 1)
    assert float(learner.posterior.sum()) == pytest.approx(1)

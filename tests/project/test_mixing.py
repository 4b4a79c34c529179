"""Machine labels in the model's predictions: tables and weights against plain loops, and whole projects."""

import math

import numpy as np
import pytest
from test_suggestions import source_file

from batchbalance.project.label_errors import NUM_FOLDS, folds
from batchbalance.project.mixing import WEIGHTS, Mixture, doubts, mixture_of, source_logs
from batchbalance.project.suggestions import Source
from made_projects import answered, make, points


def made(num=200, seed=0, share=0.7, confidence=True):
    random = np.random.default_rng(seed)
    y = random.integers(3, size=num)
    is_right = random.random(num) < share
    said = np.where(is_right, y, (y + random.integers(1, 3, size=num)) % 3)
    said[random.random(num) < 0.1] = -1
    sure = np.where(is_right, random.uniform(0.4, 1, num), random.uniform(0.2, 0.8, num))
    return Source("gpt", said, sure if confidence else None), y


def by_loops(source, rows, labels, item, num_classes):
    """The log-probabilities of one item, estimated on labelled rows."""
    s = int(source.labels[item])
    if s < 0:
        return [0.0] * num_classes
    pairs = [
        (row, int(source.labels[row]), int(y)) for row, y in zip(rows, labels, strict=True) if source.labels[row] >= 0
    ]

    def logit(p):
        return math.log(p / (1 - p))

    def rate(some):
        return (sum(a == b for _, a, b in some) + 4 * overall) / (len(some) + 4)

    overall = (sum(a == b for _, a, b in pairs) + 1) / (len(pairs) + 2)
    odds = logit(rate([each for each in pairs if each[1] == s]))
    if source.confidence is not None:
        known = source.confidence[source.labels >= 0]
        edges = [np.quantile(known, part / 5) for part in range(1, 5)]

        def fifth(row):
            return sum(source.confidence[row] >= edge for edge in edges)

        odds += logit(rate([each for each in pairs if fifth(each[0]) == fifth(item)])) - logit(overall)
    right = 1 / (1 + math.exp(-odds))
    errors = [2 / (num_classes - 1) + sum(a == s and b == y for _, a, b in pairs) for y in range(num_classes)]
    total = sum(errors) - errors[s]
    return [math.log(right if y == s else (1 - right) * errors[y] / total) for y in range(num_classes)]


@pytest.mark.parametrize("confidence", [True, False])
def test_what_a_source_says_is_estimated_as_by_loops(confidence):
    source, y = made(confidence=confidence)
    rows = np.arange(40)
    errors = source_logs(source, rows, y[:40], np.arange(200), 3)
    for item in range(0, 200, 7):
        assert errors[item] == pytest.approx(by_loops(source, rows, y[:40], item, 3), abs=1e-10)
    some = np.abs(np.exp(errors[source.labels >= 0]).sum(axis=1) - 1)
    assert some.max() < 1e-10


def combined(probs, parts, item):
    """Class probabilities of one item."""
    logs = [math.log(0.99 * p + 0.01 / len(probs)) + sum(w * part[c] for w, part in parts) for c, p in enumerate(probs)]
    total = sum(map(math.exp, logs))
    return [math.exp(each) / total for each in logs]


def test_the_weight_has_the_largest_likelihood_of_labels_that_nothing_has_seen():
    source, y = made(share=0.6)
    random = np.random.default_rng(1)
    rows, labels = np.arange(60), y[:60]
    probs = random.dirichlet(np.ones(3), size=60)
    judged = random.random(60) < 0.8
    found = mixture_of({"gpt": source}, rows, labels, probs, judged, seed=4)
    fold = folds(labels, NUM_FOLDS, 4)
    totals = []
    for weight in WEIGHTS:
        total = 0.0
        for i in range(60):
            kept = [j for j in range(60) if fold[j] != fold[i]]
            part = by_loops(source, rows[kept], labels[kept], i, 3)
            head = probs[i].tolist() if judged[i] else [1 / 3] * 3
            total += math.log(combined(head, [(weight, part)], i)[labels[i]])
        totals.append(total)
    assert found.weights == {"gpt": WEIGHTS[int(np.argmax(totals))]}
    new = random.dirichlet(np.ones(3), size=200)
    together = found.combined(new, slice(None))
    for item in range(0, 200, 11):
        part = by_loops(source, rows, labels, item, 3)
        assert together[item] == pytest.approx(combined(new[item], [(found.weights["gpt"], part)], item), abs=1e-10)
    assert found.combined(new[:5], [3, 4, 5, 6, 7]).shape == (5, 3)


def test_a_source_that_does_not_help_has_no_weight():
    source, y = made(share=1 / 3, confidence=False)
    head = np.full((200, 3), 0.01)
    head[np.arange(200), y] = 0.98
    assert mixture_of({"gpt": source}, np.arange(200), y, head, np.ones(200, dtype=bool), 0) is None


def test_of_two_sources_each_has_its_own_weight():
    (good, y), (bad, _) = made(share=0.9), made(seed=8, share=1 / 3)
    head = np.full((200, 3), 1 / 3)
    found = mixture_of({"bad": bad, "good": good}, np.arange(200), y, head, np.ones(200, dtype=bool), 0)
    assert isinstance(found, Mixture)
    assert found.weights.get("bad", 0) < found.weights["good"]


def test_doubts_are_large_where_sources_disagree_or_are_unsure():
    first = Source("a", np.array([0, 0, 1, -1]), np.array([0.9, 0.9, 0.4, 0.0]))
    second = Source("b", np.array([0, 1, 1, -1]), None)
    assert doubts({"a": first, "b": second}, 3) == pytest.approx([0.15, 0.5, 0.4, 2 / 3])


def test_predictions_questions_and_reports_use_a_good_source(tmp_path):
    y = points()[1]
    with_source, without = make(tmp_path / "a", model={"num_draws": 4}), make(tmp_path / "b", model={"num_draws": 4})
    source_file(tmp_path / "gpt.csv", share=0.95, confidence=False)
    with_source.suggest(tmp_path / "gpt.csv", "gpt")
    first = with_source.ask(12)
    assert first.selection.strategy.name == "max-herding"
    assert "embeddings and weights" in first.notes[0]
    accuracies = []
    for project in (with_source, without):
        project.tell({name: ("ant", "bee", "cow")[y[int(name)]] for name in project.ask(12)})
        guessed = project.guess(project.ids())
        accuracies.append(np.mean([("ant", "bee", "cow").index(each.label) == y[int(each.id)] for each in guessed]))
    assert accuracies[0] > accuracies[1]
    state, vectors = with_source.store.snapshot(), with_source.embeddings.array()
    trained = with_source.model.trained(state, vectors)
    assert trained.mixture.weights["gpt"] > 0
    shown = {each.id: each.probabilities["ant"] for each in with_source.guess(with_source.ids([5, 9]))}
    assert list(shown.values()) == pytest.approx(trained.probs(vectors, [5, 9])[:, 0])
    selection = with_source.ask(20).selection
    assert selection.strategy.name == "u-herding"
    answered(with_source, 20)
    newer = with_source.model.trained(with_source.store.snapshot(), vectors)
    source_file(tmp_path / "gpt.csv", share=1 / 3, seed=7, confidence=False)
    with_source.suggest(tmp_path / "gpt.csv", "gpt")
    last = with_source.model.trained(with_source.store.snapshot(), vectors)
    assert last.key != newer.key
    assert len(list((tmp_path / "a" / "p" / "rounds").glob("*.json"))) >= 3

"""Items with several labels, or none: heads, committees, networks, functions, `Learner`; oracles are plain loops."""

import math

import numpy as np
import pytest
import torch
from sklearn.datasets import make_multilabel_classification
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import ClassifierChain, MultiOutputClassifier
from torch import nn

from batchbalance import Learner, Predictions, select
from batchbalance.posteriors import (
    BayesianHead,
    Committee,
    DeepEnsemble,
    FitContext,
    FunctionPosterior,
    HeadOptions,
    MCDropout,
    PosteriorFit,
    load_posterior,
    posterior_options,
)
from batchbalance.posteriors.softmax import class_frequencies, most_probable
from batchbalance.posteriors.training import Recipe, fit
from batchbalance.posteriors.tuning import resamples, stratified_folds, with_classes

NUM = 80


@pytest.fixture(scope="module")
def data():
    """Rows with five labels that vary, one that no labelled row has, and one that all have."""
    x, y = make_multilabel_classification(300, 12, n_classes=5, n_labels=2, random_state=1)
    never, always = np.arange(300) >= 290, np.arange(300) < 290
    return x.astype(np.float64), np.c_[y, never, always].astype(int)


def by_loops(counts):
    """Frequencies of "no" and "yes" of each label, whose concentration all labels share."""
    total, alphas = sum(counts[0]), [2.0**k for k in range(-3, 11)]
    evidence = []
    for alpha in alphas:
        value = -math.log(14)
        for pair in counts:
            value += math.lgamma(2 * alpha) - math.lgamma(total + 2 * alpha)
            value += sum(math.lgamma(count + alpha) - math.lgamma(alpha) for count in pair)
        evidence.append(value)
    evidence.append(-total * len(counts) * math.log(2))
    weights = [math.exp(value - max(evidence)) for value in evidence]
    weights = [weight / math.fsum(weights) for weight in weights]
    skew = math.fsum(w for w, a in zip(weights, alphas, strict=False) if a <= 1)
    shares, offsets = [], []
    for pair in counts:
        mixed = [sum(w * (c + a) / (total + 2 * a) for w, a in zip(weights, alphas, strict=False)) for c in pair]
        found = [value + weights[-1] / 2 for value in mixed]
        offset = [skew * math.log(share / max(found)) for share in found]
        seen = [c for c in range(2) if pair[c]]
        highest = math.fsum(offset[c] for c in seen) / len(seen) - math.log(max(1, total / len(seen) / 5))
        shares.append(found)
        offsets.append([offset[c] if pair[c] else min(offset[c], highest) for c in range(2)])
    return shares, skew, offsets


def logistic(x, y, precision, offset, steps=200):
    """Newton's method for one label: log-odds x·u + offset, penalty λ/4·‖u‖², as of two classes with λ/2 each."""
    u = np.zeros(x.shape[1])
    for _ in range(steps):
        gradient, hessian = precision / 2 * u, precision / 2 * np.eye(len(u))
        for row, target in zip(x, y, strict=True):
            p = 1 / (1 + math.exp(-(float(row @ u) + offset)))
            gradient = gradient + (p - target) * row
            hessian = hessian + p * (1 - p) * np.outer(row, row)
        step = np.linalg.solve(hessian, gradient)
        u = u - step
        if np.abs(step).max() < 1e-14:
            break
    return u


def unit_rows(x, mean):
    centred = [row - mean for row in x]
    return np.array([row / math.sqrt(sum(value * value for value in row)) for row in centred])


def test_the_head_is_one_regression_for_each_label(data):
    x, y = data
    head = BayesianHead("laplace", 3, prior_precision=0.2, temperature=0.1, bias=0.5).fit(
        x[:NUM], y[:NUM], unlabelled=x
    )
    mean = np.concatenate([x[:NUM], x]).mean(axis=0)
    known, new = unit_rows(x[:NUM], mean), unit_rows(x[200:204], mean)
    counts = [[NUM - int(column.sum()), int(column.sum())] for column in y[:NUM].T]
    _, _, offsets = by_loops(counts)
    got = head.most_probable.predict(torch.tensor(x[200:204])).label_probs()
    for label in range(7):
        shift = offsets[label][1] - offsets[label][0]
        u = logistic(np.c_[known, np.full(NUM, 0.5)], y[:NUM, label], 0.2, shift)
        for row in range(4):
            odds = float(new[row] @ u[:-1]) + 0.5 * u[-1] + shift
            assert float(got[row, label]) == pytest.approx(1 / (1 + math.exp(-odds)), abs=1e-6)


@pytest.mark.parametrize("method", ["laplace", "bootstrap"])
def test_without_a_bias_a_label_is_a_head_of_two_classes(data, method):
    x, y = data
    options = {"prior_precision": 0.2, "bias": 0.0} | ({"temperature": 0.5} if method == "laplace" else {})
    several = BayesianHead(method, 4000 if method == "laplace" else 60, **options).fit(x[:NUM], y[:NUM])
    got = several.predict(torch.tensor(x[200:220])).questions.probs()[:, :, 1].view(20, 7, -1)
    for label in (0, 3):
        alone = BayesianHead(method, 4000 if method == "laplace" else 60, **options).fit(x[:NUM], y[:NUM, label])
        best = alone.most_probable.predict(torch.tensor(x[200:220])).mean_probs()[:, 1]
        found = several.most_probable.predict(torch.tensor(x[200:220])).label_probs()[:, label]
        torch.testing.assert_close(found, best, rtol=0, atol=1e-6)
        expected = alone.predict(torch.tensor(x[200:220])).probs()[:, :, 1]
        if method == "bootstrap":  # the same resamples
            torch.testing.assert_close(got[:, label], expected, rtol=0, atol=2e-3)
        else:
            for row in range(20):
                error = 4 * float(expected[row].std()) * math.sqrt(2 / 4000)
                assert abs(float(got[row, label].mean() - expected[row].mean())) < error
                assert float(got[row, label].std()) == pytest.approx(float(expected[row].std()), rel=0.1)


def test_frequencies_of_several_labels_share_their_skew():
    y = torch.tensor([[1, 0, 0], [0, 0, 0], [0, 0, 0], [1, 0, 0], [0, 0, 0], [0, 1, 0], [0, 0, 0], [0, 0, 0]])
    found = class_frequencies(y, 2)
    shares, skew, offsets = by_loops([[6, 2], [7, 1], [8, 0]])
    assert found.skew == pytest.approx(skew)
    np.testing.assert_allclose(found.shares, shares, atol=1e-10)
    np.testing.assert_allclose(found.offset, offsets, atol=1e-10)
    assert shares[2][1] < shares[1][1] < shares[0][1] < 0.5


def test_resamples_keep_every_answer_of_every_label():
    y = torch.zeros(30, 3, dtype=torch.long)
    y[:2, 0], y[:12, 1], y[1:, 2] = 1, 1, 1
    base = resamples(y, 40, torch.Generator().manual_seed(0))
    counts = with_classes(y, base).view(30, 40, 3)
    for draw in range(40):
        for label in range(3):
            for n in range(30):
                same = [m for m in range(30) if y[m, label] == y[n, label]]
                there = any(base[m, draw] > 0 for m in same)
                assert float(counts[n, draw, label]) == (float(base[n, draw]) if there else 1.0)


def test_folds_of_several_labels_spread_the_rare_ones():
    y = torch.zeros(50, 3, dtype=torch.long)
    y[:5, 0], y[:30, 1] = 1, 1
    folds = stratified_folds(y, 5, torch.Generator().manual_seed(0))
    assert sorted(int(row) for fold in folds for row in fold) == list(range(50))
    assert [int(y[fold, 0].sum()) for fold in folds] == [1] * 5


def test_regressions_of_labels_are_solved_together():
    random = torch.Generator().manual_seed(0)
    x = torch.randn(20, 3, generator=random, dtype=torch.float64)
    y = torch.randint(2, (20, 4), generator=random)
    counts = torch.randint(3, (20, 2 * 4), generator=random).double()
    precisions = torch.tensor([0.3] * 4 + [1.0] * 4, dtype=torch.float64)
    together = most_probable(x, y, 2, counts, precisions)
    for k in range(8):
        alone = most_probable(x, y[:, k % 4], 2, counts[:, k : k + 1], precisions[k : k + 1])
        torch.testing.assert_close(together[:, k : k + 1], alone, rtol=0, atol=1e-7)


@pytest.mark.parametrize("method", ["laplace", "bootstrap"])
def test_never_and_always_seen_labels(data, method, tmp_path):
    x, y = data
    names = [*"abcde", "rare", "usual"]
    head = BayesianHead(method, 10).fit(x[:NUM], y[:NUM], classes=names, unlabelled=x)
    assert (head.never_seen, head.always_seen) == (["rare"], ["usual"])
    assert "1 labels were never seen; 1 labels were always seen" in repr(head)
    probs = head.predict(torch.tensor(x)).label_probs()
    assert 0 < float(probs[:, 5].max()) < 0.2 < 0.8 < float(probs[:, 6].min()) < 1
    head.save(tmp_path)
    loaded = load_posterior(tmp_path)
    assert loaded.never_seen == ["rare"]
    assert torch.equal(loaded.predict(torch.tensor(x)).label_probs(), probs)
    assert head.predict(torch.tensor(x)).classes == tuple(names)
    again = head.refitted(x[:60], y[:60]).predict(torch.tensor(x)).label_probs()
    assert again.shape == (300, 7)


def test_the_tuned_head_beats_the_majority_answer(data):
    x, y = data
    options = HeadOptions(num_draws=10)
    fitted = options.fit(torch.tensor(x[:NUM]), torch.tensor(y[:NUM]), FitContext(7, unlabelled=torch.tensor(x)))
    wrong = (fitted.posterior.most_probable.predict(torch.tensor(x[NUM:290])).label_probs() > 0.5).numpy() != y[NUM:290]
    majority = np.mean([min(column.mean(), 1 - column.mean()) for column in y[NUM:290].T])
    assert wrong.mean() < 0.8 * majority
    plain = OneVsRestClassifier(LogisticRegression(C=16)).fit(unit_rows(x[:NUM], x.mean(axis=0)), y[:NUM, :5])
    probs = plain.predict_proba(unit_rows(x[NUM:290], x.mean(axis=0)))
    shares = np.broadcast_to(y[:NUM, :5].mean(axis=0), probs.shape)
    head = fitted.posterior.most_probable.predict(torch.tensor(x[NUM:290])).label_probs()[:, :5].numpy()
    nlls = [-np.log(np.where(y[NUM:290, :5] == 1, p, 1 - p)).mean() for p in (head, probs, shares)]
    assert nlls[0] < min(nlls[1:])
    assert abs(fitted.error - wrong.mean()) < 0.08
    assert options.error(fitted.posterior, (torch.tensor(x[NUM:290]), torch.tensor(y[NUM:290]))) == pytest.approx(
        wrong.mean()
    )


ESTIMATORS = {
    "multi-output": MultiOutputClassifier(LogisticRegression()),
    "one against rest": OneVsRestClassifier(LogisticRegression()),
    "chain": ClassifierChain(LogisticRegression()),
    "forest": RandomForestClassifier(5),
}


def by_label(classifier, x):
    """P(yes) of each label, however scikit-learn returns it."""
    found = classifier.predict_proba(x)
    return np.stack([each[:, 1] for each in found], axis=1) if isinstance(found, list) else found


@pytest.mark.parametrize("name", ESTIMATORS)
def test_committees_of_several_labels(data, name, tmp_path):
    x, y = data
    committee = Committee.bootstrap(ESTIMATORS[name], x[:NUM], y[:NUM], size=3, seed=1)
    predictions = committee.predict(x[NUM:])
    assert predictions.shape == (220, 3, 7)
    probs = predictions.questions.probs()[:, :, 1].view(220, 7, 3)
    for draw, member in enumerate(committee._members):
        np.testing.assert_allclose(probs[:, :5, draw], by_label(member.classifier, x[NUM:]), atol=1e-5)
    np.testing.assert_allclose(probs[:, 5:], np.broadcast_to([[1 / 82], [81 / 82]], (220, 2, 3)), atol=1e-5)
    assert len(select(committee, 5, pool=x[NUM:], strategy="margin").indices) == 5
    again = Committee.bootstrap(ESTIMATORS[name], x[:NUM], y[:NUM], size=3, seed=1)
    assert again.draw_ids == committee.draw_ids
    assert torch.equal(again.predict(x[NUM:]).label_probs(), predictions.label_probs())
    fitted = [member.classifier for member in committee._members]
    made = Committee.from_sklearn(fitted, classes=list("abcde")).predict(x[NUM:])
    assert made.classes == tuple("abcde")
    np.testing.assert_allclose(made.label_probs(), probs[:, :5].mean(dim=2), atol=1e-5)
    if name == "multi-output":
        committee.save(tmp_path)
        loaded = Committee.load(tmp_path)
        assert torch.equal(loaded.predict(x[NUM:]).label_probs(), predictions.label_probs())


def test_committees_that_are_refused(data):
    x, y = data
    with pytest.raises(ValueError, match="pass a list of forests"):
        Committee.from_sklearn(RandomForestClassifier(2).fit(x[:NUM], y[:NUM, :3]))
    one, other = (MultiOutputClassifier(LogisticRegression()).fit(x[:NUM], y[:NUM, :k]) for k in (3, 4))
    with pytest.raises(ValueError, match="same number of labels"):
        Committee.from_sklearn([one, other])
    with pytest.raises(ValueError, match=r"\(N, L\) of 0 and 1"):
        Committee.bootstrap(OneVsRestClassifier(LogisticRegression()), x[:3], [[0, 1], [1, 2], [0, 0]])
    with pytest.raises(ValueError, match="at least two classes"):
        Committee.bootstrap(OneVsRestClassifier(LogisticRegression()), x[:3], [[0, 1]] * 3)


def network(num_classes=4):
    return nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, num_classes))


def test_dropout_of_a_network_with_sigmoid_outputs(data, tmp_path):
    x = torch.tensor(data[0][:30], dtype=torch.float32)
    model = network()
    posterior = MCDropout(model, 5, multi_label=True)
    predictions = posterior.predict(x)
    for draw in range(5):
        kept = posterior._masks[0].keep(draw, (16,))
        logits = model[3](torch.relu(model[0](x)) * kept * 2)
        found = predictions.questions.probs()[:, draw, 1].view(30, 4)
        torch.testing.assert_close(found, torch.sigmoid(logits).detach(), rtol=0, atol=1e-6)
    sigmoid = MCDropout(nn.Sequential(*model, nn.Sigmoid()), 5, multi_label=True, outputs="probs")
    kept = sigmoid._masks[0].keep(4, (16,))
    expected = torch.sigmoid(model[3](torch.relu(model[0](x)) * kept * 2)).detach()
    found = sigmoid.predict(x).questions.probs()[:, 4, 1].view(30, 4)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    with pytest.warns(UserWarning, match="pass outputs='probs'"):
        MCDropout(nn.Sequential(*model, nn.Sigmoid()), 5, multi_label=True).predict(x)
    with pytest.raises(ValueError, match=r"must return probabilities in \[0, 1\]"):
        MCDropout(model, 5, multi_label=True, outputs="probs").predict(x)
    with pytest.raises(ValueError, match="`binary` must not be combined"):
        MCDropout(model, 5, multi_label=True, binary=True)
    posterior.save(tmp_path / "saved")
    loaded = load_posterior(tmp_path / "saved", network())
    assert torch.equal(loaded.predict(x).label_probs(), predictions.label_probs())
    streamed = posterior.predict(x, path=tmp_path / "pool.npy")
    assert torch.equal(streamed.label_probs(), predictions.label_probs())
    read = Predictions.load(tmp_path / "pool.npy")
    assert (read.num_labels, read.draw_ids) == (4, posterior.draw_ids)
    assert torch.equal(read.label_probs(), predictions.label_probs())


def test_networks_are_trained_with_a_sigmoid_for_each_label(data):
    x, y = torch.tensor(data[0], dtype=torch.float32), torch.tensor(data[1][:, :4])
    x = (x - x.mean(dim=0)) / x.std(dim=0)
    fitted = PosteriorFit(posterior_options("mc-dropout", num_draws=10), 4, network, recipe=Recipe(steps=300))(
        x[:150], y[:150], 0
    )
    wrong = ((fitted.posterior.predict(x[150:]).label_probs() > 0.5) != y[150:]).double().mean()
    majority = torch.minimum(y.double().mean(dim=0), 1 - y.double().mean(dim=0)).mean()
    assert float(wrong) < 0.75 * float(majority)
    assert abs(fitted.error - float(wrong)) < 0.1
    ensemble = DeepEnsemble(network, 2, Recipe(steps=100), multi_label=True).fit(x[:150], y[:150], num_classes=4)
    assert ensemble.predict(x).num_labels == 4
    with pytest.raises(ValueError, match="with multi_label=True"):
        DeepEnsemble(network, 2).fit(x, y, num_classes=4)
    with pytest.raises(ValueError, match="`class_weighted` must be false"):
        fit(network, x, y, Recipe(class_weighted=True), num_classes=4)
    with pytest.raises(ValueError, match="classes from 0 to 1, got 0 to 2"):
        fit(network, x, 2 * y, num_classes=4)


def test_hugging_face_models_of_several_labels():
    transformers = pytest.importorskip("transformers")
    small = {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 16,
        "num_labels": 3,
    }
    config = transformers.BertConfig(**small, problem_type="multi_label_classification", vocab_size=50)
    tokens = torch.randint(1, 50, (9, 6), generator=torch.Generator().manual_seed(0))
    model = transformers.BertForSequenceClassification(config)
    assert MCDropout(model, 3).predict({"input_ids": tokens}).num_labels == 3
    assert MCDropout(model, 3, multi_label=False).predict({"input_ids": tokens}).num_labels is None


def test_functions_of_several_labels():
    weights = np.random.default_rng(0).normal(size=(6, 4, 3))

    def odds(batch):
        return np.einsum("nf,fsl->nsl", batch, weights)

    x = np.random.default_rng(1).normal(size=(10, 6))
    found = FunctionPosterior(odds, multi_label=True, classes=list("abc")).predict(x)
    assert (found.num_labels, found.classes) == (3, ("a", "b", "c"))
    expected = np.array(
        [[np.mean([1 / (1 + math.exp(-float(o))) for o in odds(x)[n, :, k]]) for k in range(3)] for n in range(10)]
    )
    np.testing.assert_allclose(found.label_probs(), expected, atol=1e-6)
    probs = FunctionPosterior(lambda batch: 1 / (1 + np.exp(-odds(batch))), "probs", multi_label=True, name="p")
    np.testing.assert_allclose(probs.predict(x).label_probs(), expected, atol=1e-6)


def test_a_learner_of_several_labels(data, tmp_path):
    x, y = data
    names = list("abcdefg")
    told = {row: [names[k] for k in range(7) if y[row, k]] for row in range(300)}

    def learner():
        options = posterior_options("bayesian-head", num_draws=10)
        return Learner(torch.tensor(x), names, options, multi_label=True, directory=tmp_path)

    first = learner()
    for _ in range(3):
        ids = first.ask(12)
        first.tell(ids, [told[row] for row in ids])
    assert first.labels == {row: told[row] for row in first.labels}
    assert learner().ask(5) == first.ask(5)
    assert first.selection.choice is not None
    assert first.fitted().posterior.predict(torch.tensor(x)).num_labels == 7
    with pytest.raises(ValueError, match="must be a list of labels for each point, empty for none, got 'a'"):
        first.tell(first.ask(1), ["a"])
    with pytest.raises(ValueError, match="unknown label 'z'"):
        first.tell(first.ask(1), [["z"]])
    by_estimator = Learner(x, names, OneVsRestClassifier(LogisticRegression()), multi_label=True)
    by_estimator.tell(range(40), [told[row] for row in range(40)])
    assert len(by_estimator.ask(4)) == 4

"""Bayesian heads end to end: what they are fitted on, what they choose, what they take and refuse."""

import math

import numpy as np
import pytest
import torch
from test_frequencies import by_loops

from batchbalance.posteriors import BayesianHead, FitContext, HeadOptions, load_posterior
from batchbalance.posteriors.tuning import (
    LEAST_HELD_OUT,
    Tuned,
    held_out,
    resamples,
    stratified_folds,
    tuned,
    tuned_heads,
    with_classes,
)

pytestmark = pytest.mark.typed


def data(num=40, num_features=2, seed=0):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(num, num_features, generator=g, dtype=torch.float64)
    y = (x[:, 0] + 0.5 * torch.randn(num, generator=g, dtype=torch.float64) > 0.3).long() + (x[:, 1] > 0.8).long()
    return x, y


def blobs(num=120, num_features=48, num_classes=4, seed=0, spread=1.0):
    """Embeddings around one centre for each class, far from the origin."""
    g = torch.Generator().manual_seed(seed)
    centres = 0.5 * torch.randn(num_classes, num_features, generator=torch.Generator().manual_seed(7)) + 3
    y = torch.randint(num_classes, (num,), generator=g)
    return centres[y] + spread * torch.randn(num, num_features, generator=g), y


def accuracy(posterior, x, y):
    return float((posterior.predict(x).mean_probs().argmax(dim=1) == y).float().mean())


def of_draws(posterior, x, y):
    """(accuracy of one draw, share of points on which two draws differ), both averaged."""
    predicted = posterior.predict(x).log_probs().argmax(dim=2)
    half = predicted.shape[1] // 2
    differ = (predicted[:, :half] != predicted[:, half : 2 * half]).float().mean()
    return float((predicted == y[:, None]).float().mean()), float(differ)


def mean_nll(posterior, x, y):
    return float(-posterior.predict(x).mean_probs()[torch.arange(len(y)), y].log().mean())


@pytest.mark.parametrize("method", ["laplace", "bootstrap"])
def test_draws_are_close_to_the_most_probable_weights_and_differ(method):
    x, y = blobs()
    pool, truth = blobs(400, seed=1)
    head = BayesianHead(method, 40).fit(x, y, unlabelled=pool)
    best = head.most_probable
    one, differ = of_draws(head, pool, truth)
    assert best.num_draws == 1
    assert accuracy(best, pool, truth) > 0.8
    assert one > accuracy(best, pool, truth) - 0.1
    assert mean_nll(head, pool, truth) < 1.1 * mean_nll(best, pool, truth)
    assert differ > 0.02


def test_rows_are_centred_with_the_pool_and_scaled_to_unit_length():
    x, y = blobs(20)
    pool, _ = blobs(50, seed=1)
    head = BayesianHead("laplace", 2).fit(x, y, unlabelled=pool.numpy())
    inputs, _ = blobs(3, seed=2)
    best = head._tensors["best"]
    centre = [math.fsum(float(row[d]) for row in [*x, *pool]) / 70 for d in range(48)]
    for n, got in enumerate(head.most_probable.predict(inputs).log_probs()[:, 0]):
        row = [float(inputs[n, d]) - centre[d] for d in range(48)]
        length = math.sqrt(math.fsum(value**2 for value in row))
        logits = [
            math.fsum(row[d] / length * float(best[d, c]) for d in range(48)) + float(best[48, c]) for c in range(4)
        ]
        total = math.log(math.fsum(map(math.exp, logits)))
        for c in range(4):
            assert float(got[c]) == pytest.approx(logits[c] - total, abs=1e-4)


@pytest.mark.slow
def test_numpy_and_texts_in_and_classes_worked_out(tmp_path):
    x, y = blobs(40)
    names = np.array(["zebra", "ant", "bee", "cow"])[y.numpy()]
    head = BayesianHead("laplace", 3).fit(x.double().numpy(), names.tolist())
    assert head.classes == ["ant", "bee", "cow", "zebra"]
    known = BayesianHead("laplace", 3).fit(x, names, classes=["zebra", "ant", "bee", "cow", "dog"])
    assert known.predict(x.numpy()).num_classes == 5
    assert accuracy(known, x, y) == accuracy(BayesianHead("laplace", 3).fit(x, y, num_classes=5), x, y)
    assert BayesianHead("laplace", 3).fit(x.half(), y.tolist()).classes is None
    head.save(tmp_path)
    again = load_posterior(tmp_path)
    assert (again.classes, again.tuned, again.covariance) == (head.classes, head.tuned, "exact")
    assert repr(again) == repr(head)


def test_constant_features_a_row_at_the_centre_and_a_class_without_examples():
    x = torch.tensor([[1.0, 0.0, 1.0], [-1.0, 0.0, 1.0], [0.0, 0.0, 1.0]])
    predictions = BayesianHead("laplace", 5, bias=0.0).fit(x, [0, 1, 0], num_classes=5).predict(x)
    assert torch.isfinite(predictions.log_probs()).all()
    torch.testing.assert_close(predictions.probs()[2], torch.full((5, 5), 0.2))
    at_centre = BayesianHead("laplace", 5).fit(x, [0, 1, 0], num_classes=5).most_probable.predict(x).mean_probs()[2]
    assert float(at_centre[0]) > float(at_centre[1]) > float(at_centre[2:].max())


class Table:
    """Trials whose NLL is a table of precisions and temperatures."""

    frequencies_nll = 1.3

    def __init__(self, nll, num_held_out=100):
        self.nll, self.num_held_out, self.asked = nll, num_held_out, []

    def evaluate(self, precision, temperatures):
        self.asked.append(precision)
        return torch.tensor(self.nll[precision][: len(temperatures)], dtype=torch.float64), 0.25


def test_the_best_precision_and_the_warmest_temperature_about_as_good():
    table = Table({1.0: [2.0, 1.9, 1.8], 0.25: [1.2, 1.02, 1.0], 0.1: [9.0, 9.0, 1.2], 0.01: [0.1, 0.1, 0.1]})
    precisions, temperatures = (1.0, 0.25, 0.1, 0.01), (1.0, 0.5, 0.1)
    assert tuned(table, precisions, temperatures) == Tuned(0.25, 0.5, 100, 1.02, 0.25, 1.3)
    assert table.asked == [1.0, 0.25, 0.1]  # worse by more than a tenth: no need to look further
    none = tuned(Table({}, 0), precisions, temperatures)
    assert (none.precision, none.temperature, none.nll, none.error) == (1 / 64, 0.01, None, None)
    assert "no row can be held out" in str(none)
    given = tuned(Table({}, 0), (0.5,), (0.2,))
    assert (given.precision, given.temperature) == (0.5, 0.2)


def test_a_few_rows_move_the_precision_less_than_many():
    nll = {4.0**-k: [1.0 if k == 6 else 1.1] for k in range(-1, 7)}  # better by 0.1 a row, three factors of 4 away
    few, many = (tuned(Table(nll, num), tuple(nll), (0.0,)) for num in (20, 30))
    assert (few.precision, many.precision) == (1 / 64, 1 / 4096)
    table = {precision: [1.0] * 3 for precision in nll}
    warm = tuned(Table(table, LEAST_HELD_OUT - 1), tuple(nll), (1.0, 0.5, 0.1))
    assert (warm.temperature, tuned(Table(table), tuple(nll), (1.0, 0.5, 0.1)).temperature) == (0.01, 1.0)


def test_a_head_that_is_worse_than_class_frequencies_says_so():
    assert Tuned(1.0, 1.0, 100, nll=1.2, error=0.5, frequencies_nll=1.3).warning is None
    warning = Tuned(1.0, 1.0, 100, nll=1.4, error=0.5, frequencies_nll=1.3).warning
    assert "worse than class frequencies" in warning
    assert "1.40 against 1.30 on 100 labels" in warning


def test_heads_of_a_bootstrap_have_a_weaker_prior_than_the_most_probable_weights():
    alone = Tuned(1 / 16, 0.0, 100, 2.0, 0.25, 1.3)
    heads = Table({1 / 16: [2.0], 1 / 64: [1.5], 1 / 256: [1.6]})
    assert tuned_heads(alone, heads, given=False) == Tuned(1 / 16, 1.0, 100, 2.0, 0.25, 1.3, 1 / 64)
    assert tuned_heads(alone, heads, given=True) == Tuned(1 / 16, 1.0, 100, 2.0, 0.25, 1.3, 1 / 16)
    assert tuned_heads(alone, Table({}, 0), given=False).heads_precision == 1 / 16


def test_folds_and_resamples():
    labels = torch.tensor([0] * 11 + [1] * 3 + [2])
    g = torch.Generator().manual_seed(0)
    counts = torch.ones(15, 5)
    for fold, rows in enumerate(stratified_folds(labels, 5, g)):
        counts[rows, fold] = 0
    assert (counts == 0).sum(dim=1).tolist() == [1] * 15  # every row is left out once
    per_fold = (counts[:11] == 0).sum(dim=0)
    assert int(per_fold.max() - per_fold.min()) <= 1
    assert int((counts[11:14] == 0).sum(dim=0).max()) == 1
    out = held_out(labels, counts)
    assert out.sum(dim=1).tolist() == [1] * 14 + [0]  # the only row of its class cannot be predicted
    drawn = with_classes(labels, resamples(labels, 50, g))
    for label in range(3):
        assert (drawn[labels == label].sum(dim=0) > 0).all()
    missing = 0  # a class that came out empty has its own rows, beside the fifteen that were drawn
    for column in drawn.T:
        extra = [label for label in (1, 2) if (column[labels == label] == 1).all()]
        missing += int(column.sum()) > 15
        assert int(column.sum()) - 15 in {0, *(int((labels == label).sum()) for label in extra), 4 * (len(extra) == 2)}
    assert 0 < missing < 50
    assert int((drawn == 0).sum()) > 0


@pytest.mark.parametrize("method", ["laplace", "bootstrap"])
def test_one_row_for_each_class_or_one_row_at_all(method):
    x, _ = blobs(2)
    head = BayesianHead(method, 4).fit(x, [0, 1])
    assert head.tuned.num_held_out == 2
    one = BayesianHead(method, 4).fit(x[:1], [1], num_classes=3, unlabelled=x)
    assert (one.tuned.precision, one.tuned.num_held_out) == (1 / 64, 0)
    assert "no row can be held out" in repr(one)
    assert float(one.predict(x).mean_probs()[0, 1]) > 0.5
    options = HeadOptions(method=method, num_draws=4)
    assert options.fit(x[:1], torch.tensor([1]), FitContext(3, unlabelled=x)).error is None


@pytest.mark.parametrize("method", ["laplace", "bootstrap"])
@pytest.mark.parametrize("size", [1e-30, 1e20])
def test_the_size_of_numbers_does_not_matter(method, size):
    x, y = blobs(40)
    plain, scaled = (
        BayesianHead(method, 4).fit(factor * x, y).predict(factor * x).mean_probs() for factor in (1.0, size)
    )
    torch.testing.assert_close(scaled, plain, rtol=0, atol=0.02)
    assert float(plain.max()) > 0.4


@pytest.mark.parametrize("method", ["laplace", "bootstrap"])
def test_cross_validation_tells_the_error(method):
    x, y = blobs(150, spread=2.0)
    options = HeadOptions(method=method, num_draws=4, prior_precision=0.1)
    fitted = options.fit(x, y, FitContext(4))
    test, truth = blobs(1000, seed=1, spread=2.0)
    error = 1 - accuracy(options.for_metrics(fitted.posterior), test, truth)
    assert fitted.validation_error is None
    assert abs(fitted.error - error) < 4 * math.sqrt(0.25 / 150)
    validated = options.fit(x, y, FitContext(4, validation=(test, truth)))
    assert validated.error == pytest.approx(error)


@pytest.mark.slow
def test_wide_heads_take_the_kronecker_form_and_say_so():
    x, y = blobs(90, num_features=800, num_classes=30)
    head = BayesianHead("laplace", 4).fit(x, y)
    assert head.covariance == "kronecker"
    assert "kronecker covariance" in repr(head)
    assert accuracy(head.most_probable, x, y) > 0.9


def test_refusals():
    x, y = data()
    with pytest.raises(ValueError, match="did you mean 'laplace'"):
        BayesianHead("laplac")
    with pytest.raises(ValueError, match="num_draws"):
        BayesianHead(num_draws=0)
    with pytest.raises(ValueError, match="prior_precision"):
        BayesianHead(prior_precision=0.0)
    with pytest.raises(ValueError, match="`temperature` is not used by method 'bootstrap'"):
        BayesianHead("bootstrap", temperature=0.1)
    with pytest.raises(ValueError, match="must be fitted first"):
        BayesianHead().predict(x)
    with pytest.raises(ValueError, match=r"\(N, D\) floats"):
        BayesianHead().fit(x[:, :, None], y, num_classes=3)
    with pytest.raises(ValueError, match="finite"):
        BayesianHead().fit(x * float("nan"), y, num_classes=3)
    with pytest.raises(ValueError, match="`unlabelled` must be finite"):
        BayesianHead().fit(x, y, unlabelled=x * float("nan"))
    with pytest.raises(ValueError, match=r"`unlabelled` must be \(N, 2\)"):
        BayesianHead().fit(x, y, unlabelled=x[:, :1])
    with pytest.raises(ValueError, match="at least two classes, got only 'a'"):
        BayesianHead().fit(x, ["a"] * len(x))
    with pytest.raises(ValueError, match="among `classes`, got 'b'"):
        BayesianHead().fit(x, ["a", "b"] * (len(x) // 2), classes=["a", "c"])
    with pytest.raises(ValueError, match="`classes` must be distinct"):
        BayesianHead().fit(x, ["a", "b"] * (len(x) // 2), classes=["a", "b", "a"])
    with pytest.raises(ValueError, match="whole numbers or texts"):
        BayesianHead().fit(x, y.double())


@pytest.mark.slow
def test_a_head_is_refitted_to_other_labels_at_its_own_centre_and_precision():
    x, y = blobs(60)
    x = x.double()
    head = BayesianHead("bootstrap", 5).fit(x, y, num_classes=4)
    single = head.refitted(x[:30], y[:30])
    assert single.num_draws == 1
    # By plain gradient descent on the same loss.
    rows = torch.nn.functional.normalize(x[:30] - x.mean(dim=0), dim=1)
    rows = torch.cat([rows, torch.full((30, 1), head.tuned.bias, dtype=torch.float64)], dim=1)
    offset = torch.tensor(by_loops([int((y[:30] == c).sum()) for c in range(4)])[2], dtype=torch.float64)
    weights = torch.zeros(x.shape[1] + 1, 4, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [weights], max_iter=2000, tolerance_grad=1e-12, tolerance_change=1e-15, line_search_fn="strong_wolfe"
    )

    def loss():
        optimizer.zero_grad()
        value = torch.nn.functional.cross_entropy(rows @ weights + offset, y[:30], reduction="sum")
        value = value + head.tuned.precision / 2 * weights.square().sum()
        value.backward()
        return value

    optimizer.step(loss)
    others = torch.nn.functional.normalize(x[30:] - x.mean(dim=0), dim=1)
    others = torch.cat([others, torch.full((30, 1), head.tuned.bias, dtype=torch.float64)], dim=1)
    expected = torch.softmax(others @ weights.detach() + offset, dim=1)
    torch.testing.assert_close(single.predict(x[30:]).mean_probs(), expected, rtol=0, atol=1e-6)

"""Linear heads: many regressions at once and draws, against Newton's method on a plain loop for each of them."""

import math

import pytest
import torch
from test_frequencies import by_loops

from batchbalance.posteriors import linear
from batchbalance.posteriors.linear import bootstrap_draws, laplace_draws, linear_logits, refitted
from batchbalance.posteriors.softmax import most_probable
from batchbalance.posteriors.tuning import Tuned

pytestmark = pytest.mark.typed


def data(num=12, num_features=3, seed=0, dtype=torch.float64):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(num, num_features, generator=g, dtype=dtype), torch.arange(num) % 3


def energy(weights, x, y, counts, precision, offset=(0.0, 0.0, 0.0)):
    """The negative log posterior density, by loops over points and classes."""
    total = precision / 2 * (weights**2).sum()
    for n in range(len(x)):
        logits = [x[n] @ weights[:, c] + offset[c] for c in range(weights.shape[1])]
        total = total + counts[n] * (torch.stack(logits).exp().sum().log() - logits[int(y[n])])
    return total


def by_newton(x, y, counts, precision, offset=(0.0, 0.0, 0.0)):
    """The optimum of one regression, (D, 3), and the dense Hessian of autograd there."""
    shape = (x.shape[1], 3)
    best = torch.zeros(x.shape[1] * 3, dtype=torch.float64)

    def flat(w):
        return energy(w.reshape(shape), x, y, counts, precision, offset)

    for _ in range(8):
        gradient = torch.autograd.functional.jacobian(flat, best)
        step = torch.linalg.solve(torch.autograd.functional.hessian(flat, best), gradient)
        size = 1.0
        while float(flat(best - size * step)) > float(flat(best)) and size > 1e-6:
            size /= 2
        best = best - size * step
    return best.reshape(shape), torch.autograd.functional.hessian(flat, best)


@pytest.mark.slow
def test_every_regression_is_the_optimum_of_its_own_loss():
    x, y = data()
    counts = torch.tensor([[1.0, 0.0, 3.0], [1.0, 2.0, 0.0]] * 6, dtype=torch.float64)
    counts[0] = torch.tensor([1.0, 1.0, 0.5])
    precisions = torch.tensor([0.7, 0.05, 2.0], dtype=torch.float64)
    got = most_probable(x, y, 3, counts, precisions)
    for m in range(3):
        expected, _ = by_newton(x, y, counts[:, m], float(precisions[m]))
        torch.testing.assert_close(got[:, m], expected, rtol=0, atol=1e-8)
    again = most_probable(x, y, 3, counts, precisions, start=torch.ones_like(got))
    torch.testing.assert_close(again, got, rtol=0, atol=1e-8)


def test_float32_and_a_weak_prior_on_rows_that_can_be_separated():
    x, y = data(9, num_features=40, dtype=torch.float32)
    counts, precisions = torch.ones(9, 2), torch.tensor([0.02, 1.0])
    got = most_probable(x, y, 3, counts, precisions)
    exact = most_probable(x.double(), y, 3, counts.double(), precisions.double())
    assert torch.isfinite(got).all()
    torch.testing.assert_close(x @ got[:, 0], (x.double() @ exact[:, 0]).float(), rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(got[:, 1], exact[:, 1].float(), rtol=0, atol=1e-4)


def test_rows_that_count_for_nothing_give_the_prior():
    x, y = data()
    got = most_probable(x, y, 3, torch.zeros(12, 1, dtype=torch.float64), torch.ones(1, dtype=torch.float64))
    assert torch.equal(got, torch.zeros(3, 1, 3, dtype=torch.float64))


@pytest.mark.slow
def test_laplace_draws_have_the_mean_and_covariance_of_newton_and_autograd():
    x, y = data(9, num_features=2)
    found = laplace_draws(x, y, 3, 20_000, seed=1, precision=0.7, temperature=0.5, bias=0.0)
    best, hessian = by_newton(x, y, torch.ones(9), 0.7)
    torch.testing.assert_close(found.best[:2], best, rtol=0, atol=1e-8)
    moves = (found.draws[:2] - best[:, None]).transpose(1, 2).reshape(6, -1)
    covariance = 0.5 * torch.linalg.inv(hessian)
    got = moves @ moves.T / 20_000
    for i in range(6):
        assert abs(float(moves[i].mean())) < 4 * math.sqrt(float(covariance[i, i]) / 20_000)
        for j in range(6):
            variance = float(covariance[i, i] * covariance[j, j] + covariance[i, j] ** 2) / 20_000
            assert abs(float(got[i, j] - covariance[i, j])) < 4 * math.sqrt(variance)


@pytest.mark.slow
def test_bootstrap_heads_are_optima_of_resampled_rows():
    """From the weights of a head its resample is found: the gradient of each class tells how often its rows counted."""
    x, y = data(6, num_features=8)
    found = bootstrap_draws(x, y, 3, 3, seed=1, precision=0.2, bias=0.0)
    torch.testing.assert_close(found.best[:-1], by_newton(x, y, torch.ones(6), 0.2)[0], rtol=0, atol=1e-8)
    drawn = set()
    assert not found.best[-1].any()
    for head in found.draws[:-1].unbind(dim=1):
        residual = torch.nn.functional.one_hot(y, 3) - torch.softmax(x @ head, dim=1)
        pulls = torch.linalg.lstsq(x.T, 0.2 * head).solution  # λW = Xᵀ·diag(counts)·residual
        counts = (pulls / residual).mean(dim=1)
        torch.testing.assert_close(counts, counts.round(), rtol=0, atol=1e-6)
        assert all(float(counts[y == label].sum()) > 0.5 for label in range(3))
        torch.testing.assert_close(head, by_newton(x, y, counts.round(), 0.2)[0], rtol=0, atol=1e-8)
        drawn.add(tuple(counts.round().tolist()))
    assert len(drawn) > 1


def test_heads_solved_in_parts_are_the_same(monkeypatch):
    x, y = data(9)
    whole = bootstrap_draws(x, y, 3, 5, seed=1, precision=0.2).draws
    monkeypatch.setattr(linear, "SOLVED_AT_ONCE", 60)
    torch.testing.assert_close(bootstrap_draws(x, y, 3, 5, seed=1, precision=0.2).draws, whole, rtol=0, atol=1e-8)


def test_given_weights_stay_the_centre():
    x, y = data(40, num_features=5)
    centre = torch.ones(6, 3, dtype=torch.float64)
    found = laplace_draws(x, y, 3, 2000, seed=0, bias=0.5, centre=centre)
    assert torch.equal(found.best, centre)
    assert found.tuned.precision == 1 / 64
    error = found.draws.std(dim=1) / math.sqrt(2000)
    assert ((found.draws.mean(dim=1) - centre).abs() < 5 * error).all()


@pytest.mark.slow
def test_the_bias_is_the_frequencies_and_a_constant_feature_of_its_size():
    """Labels 5, 3, 1: log frequencies are added to the logits, and a column of 0.6 has the prior of the others."""
    x, _ = data(9, num_features=2)
    y = torch.tensor([0, 0, 0, 0, 0, 1, 1, 1, 2])
    _, skew, offset = by_loops([5, 3, 1])
    rows = torch.cat([x, torch.full((9, 1), 0.6, dtype=torch.float64)], dim=1)
    weights, hessian = by_newton(rows, y, torch.ones(9), 0.7, offset)
    expected = torch.cat([weights[:2], 0.6 * weights[2:] + torch.tensor(offset, dtype=torch.float64)])
    again = refitted(x, y, 3, Tuned(0.7, 1.0, 0, bias=0.6))
    heads = bootstrap_draws(x, y, 3, 2, seed=1, precision=0.7, bias=0.6)
    found = laplace_draws(x, y, 3, 20_000, seed=1, precision=0.7, temperature=0.5, bias=0.6)
    for best in (again, heads.best, found.best):
        torch.testing.assert_close(best, expected, rtol=0, atol=1e-8)
    variances = 0.5 * torch.linalg.inv(hessian).diagonal().reshape(3, 3) * torch.tensor([[1.0], [1.0], [0.36]])
    got = (found.draws - expected[:, None]).square().mean(dim=1)
    assert ((got - variances).abs() < 4 * math.sqrt(2 / 20_000) * variances).all()
    logits = linear_logits(x, found.draws[:, :2])
    for n in range(9):
        for c in range(3):
            value = math.fsum(float(x[n, d] * found.draws[d, 1, c]) for d in range(2)) + float(found.draws[2, 1, c])
            assert float(logits[n, 1, c]) == pytest.approx(value, abs=1e-10)
    chosen = bootstrap_draws(x, y, 3, 2, seed=1, precision=0.7).tuned
    assert chosen.bias == pytest.approx(skew**2)


def test_a_refit_to_the_same_rows_is_the_same():
    x, y = data(9)
    found = bootstrap_draws(x, y, 3, 2, seed=1)
    torch.testing.assert_close(refitted(x, y, 3, found.tuned), found.best, rtol=0, atol=1e-7)

"""The Laplace approximation by hand: its covariance against a dense Hessian of finite differences."""

import math

import pytest
import torch

from batchbalance.posteriors import softmax as laplace
from batchbalance.posteriors.softmax import Span, curvature, deviations, is_exact

pytestmark = pytest.mark.typed


def data(num, num_features, seed=0):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(num, num_features, generator=g, dtype=torch.float64)
    return x, torch.randn(num_features, 3, generator=g, dtype=torch.float64)


def energy(flat, x, labels, precision):
    """The negative log posterior density at the weights `flat`, a list of D·C numbers, class by class in a row."""
    total = precision / 2 * math.fsum(w * w for w in flat)
    for n, label in enumerate(labels):
        logits = [math.fsum(x[n][d] * flat[3 * d + c] for d in range(len(x[n]))) for c in range(3)]
        total += math.log(math.fsum(math.exp(z) for z in logits)) - logits[label]
    return total


def hessian(weights, x, precision, step=1e-3):
    """Second differences, corrected to fourth order by a second step size."""
    rows, at = x.tolist(), weights.flatten().tolist()
    labels = [n % 3 for n in range(len(rows))]

    def moved(*changes):
        there = list(at)
        for index, by in changes:
            there[index] += by
        return energy(there, rows, labels, precision)

    def second(i, j, h):
        plus, minus = moved((i, h), (j, h)) + moved((i, -h), (j, -h)), moved((i, h), (j, -h)) + moved((i, -h), (j, h))
        return (plus - minus) / (4 * h * h)

    size = range(len(at))
    return torch.tensor(
        [[(4 * second(i, j, step) - second(i, j, 2 * step)) / 3 for j in size] for i in size], dtype=torch.float64
    )


@pytest.mark.parametrize(("num", "num_features"), [(7, 2), (2, 4)])
def test_deviations_have_the_covariance_of_the_dense_hessian(num, num_features):
    """Unit vectors as noise give a matrix A with A·Aᵀ = H⁻¹, whether rows or features are fewer."""
    x, weights = data(num, num_features)
    size = num_features * 3
    noise = torch.eye(size, dtype=torch.float64).reshape(num_features, 3, size).transpose(1, 2)
    moves = deviations(Span.of(x), torch.softmax(x @ weights, dim=1), 0.7, noise, exact=True)
    factor = moves.transpose(1, 2).reshape(size, size)
    expected = torch.linalg.inv(hessian(weights, x, 0.7))
    torch.testing.assert_close(factor @ factor.T, expected, rtol=0, atol=1e-6)


def test_the_curvature_is_that_of_loops():
    x, weights = data(5, 2)
    probs = torch.softmax(x @ weights, dim=1)
    got = curvature(x, probs).reshape(2, 3, 2, 3)
    for d in range(2):
        for e in range(2):
            for a in range(3):
                for b in range(3):
                    terms = [
                        float(x[n, d] * x[n, e] * ((probs[n, a] if a == b else 0) - probs[n, a] * probs[n, b]))
                        for n in range(5)
                    ]
                    assert float(got[d, a, e, b]) == pytest.approx(math.fsum(terms), abs=1e-12)


def test_the_kronecker_curvature_is_exact_where_all_rows_are_alike():
    x = torch.ones(6, 2, dtype=torch.float64) * torch.tensor([1.0, -0.5], dtype=torch.float64)
    probs = torch.softmax(x @ data(1, 2)[1], dim=1)
    noise = torch.eye(6, dtype=torch.float64).reshape(2, 3, 6).transpose(1, 2)

    def covariance(exact):
        factor = deviations(Span.of(x), probs, 0.7, noise, exact=exact).transpose(1, 2).reshape(6, 6)
        return factor @ factor.T

    torch.testing.assert_close(covariance(exact=False), covariance(exact=True), rtol=0, atol=1e-12)


def test_the_span_of_rows(monkeypatch):
    x, _ = data(3, 5)
    x = torch.cat([x, x[:1] - x[1:2]])  # one row says nothing new
    span = Span.of(x)
    assert span.basis.shape == (3, 5)
    torch.testing.assert_close(span.rows @ span.basis, x, rtol=0, atol=1e-10)
    torch.testing.assert_close(span.basis @ span.basis.T, torch.eye(3, dtype=torch.float64), rtol=0, atol=1e-10)
    assert is_exact(x, 3)
    monkeypatch.setattr(laplace, "EXACT_SIZE", 11)
    assert not is_exact(x, 3)

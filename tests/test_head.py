"""Bayesian heads: the Laplace approximation by hand, both methods end to end."""

import math

import pytest
import torch

from batchbalance.posteriors import BayesianHead, head
from batchbalance.posteriors.head import laplace_draws
from batchbalance.training import Recipe

pytestmark = pytest.mark.typed


def data(num=40, num_features=2, seed=0):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(num, num_features, generator=g, dtype=torch.float64)
    y = (x[:, 0] + 0.5 * torch.randn(num, generator=g, dtype=torch.float64) > 0.3).long() + (x[:, 1] > 0.8).long()
    return x, y


def energy(weights, x, y, precision):
    """The negative log posterior density, by loops over points and classes."""
    total = precision / 2 * (weights**2).sum()
    for n in range(len(x)):
        row = torch.cat([x[n], torch.ones(1, dtype=x.dtype)])
        logits = [row @ weights[:, c] for c in range(weights.shape[1])]
        total = total - logits[int(y[n])] + torch.stack(logits).exp().sum().log()
    return total


def test_laplace_has_the_right_mean_and_covariance():
    x, y = data(15)
    draws = laplace_draws(x, y, 3, 20_000, 0.7, generator=torch.Generator().manual_seed(1)).flatten(1)
    mean = draws.mean(dim=0)
    # The maximum of the density, by Newton's method on the loop above.
    best = torch.zeros(9, dtype=torch.float64)

    def flat(w):
        return energy(w.reshape(3, 3), x, y, 0.7)

    for _ in range(8):
        gradient = torch.autograd.functional.jacobian(flat, best)
        hessian = torch.autograd.functional.hessian(flat, best)
        best = best - torch.linalg.solve(hessian, gradient)
    covariance = torch.linalg.inv(hessian)
    got = (draws - best).T @ (draws - best) / len(draws)
    for i in range(9):
        assert abs(float(mean[i] - best[i])) < 4 * math.sqrt(float(covariance[i, i]) / len(draws))
        for j in range(9):
            variance = float(covariance[i, i] * covariance[j, j] + covariance[i, j] ** 2) / len(draws)
            assert abs(float(got[i, j] - covariance[i, j])) < 4 * math.sqrt(variance)


def test_the_kronecker_curvature_is_exact_without_data_spread(monkeypatch):
    # All points alike: the Hessian is one outer product, and so a Kronecker product.
    x = torch.ones(6, 2, dtype=torch.float64) * torch.tensor([1.0, -0.5], dtype=torch.float64)
    y = torch.tensor([0, 0, 0, 1, 1, 2])

    def covariance():
        draws = laplace_draws(x, y, 3, 20_000, 0.7, generator=torch.Generator().manual_seed(1)).flatten(1)
        return torch.cov(draws.T)

    full = covariance()
    monkeypatch.setattr(head, "FULL_CURVATURE", 0)
    kronecker = covariance()
    for i in range(9):
        for j in range(9):
            variance = float(full[i, i] * full[j, j] + full[i, j] ** 2) / 20_000
            assert abs(float(full[i, j] - kronecker[i, j])) < 4 * math.sqrt(2 * variance)


@pytest.mark.parametrize("method", ["laplace", "dropout"])
def test_heads_learn_and_are_less_sure_far_away(method):
    x, y = data(200)
    x = (x * torch.tensor([100.0, 0.01]) + 5).float()
    recipe = Recipe(learning_rate=0.01, max_epochs=30)
    posterior = BayesianHead(method, 50, recipe=recipe).fit(x, y, num_classes=3)
    mean = posterior.predict(x).mean_probs()
    assert float((mean.argmax(dim=1) == y).float().mean()) > 0.7
    assert posterior.predict(x).num_draws == 50


def test_constant_features_and_a_class_without_examples():
    x, y = data(30)
    x = torch.cat([x, torch.ones(30, 1, dtype=torch.float64)], dim=1)
    predictions = BayesianHead("laplace", 5).fit(x, y, num_classes=5).predict(x)
    assert predictions.num_classes == 5
    assert torch.isfinite(predictions.log_probs()).all()


def test_wide_embeddings_take_the_kronecker_form():
    x, y = data(50, num_features=800)
    predictions = BayesianHead("laplace", 4).fit(x.float(), y, num_classes=3).predict(x.float())
    assert torch.isfinite(predictions.log_probs()).all()


def test_validation_stops_early():
    x, y = data(60)
    recipe = Recipe(learning_rate=0.05, patience=1, max_epochs=50)
    posterior = BayesianHead("dropout", 3, recipe=recipe).fit(x, y, num_classes=3, validation=data(30, seed=1))
    assert posterior.embed(x).shape == (60, 128)


def test_refusals():
    x, y = data()
    with pytest.raises(ValueError, match="did you mean 'laplace'"):
        BayesianHead("laplac")
    with pytest.raises(ValueError, match="num_draws"):
        BayesianHead(num_draws=0)
    with pytest.raises(ValueError, match="prior_precision"):
        BayesianHead(prior_precision=0.0)
    with pytest.raises(ValueError, match="must be fitted first"):
        BayesianHead().predict(x)
    with pytest.raises(ValueError, match=r"\(N, D\) floats"):
        BayesianHead().fit(x[:, :, None], y, num_classes=3)
    with pytest.raises(ValueError, match="finite"):
        BayesianHead().fit(x * float("nan"), y, num_classes=3)

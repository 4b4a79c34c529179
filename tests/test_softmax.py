"""Many softmax regressions at once, against Newton's method on a plain loop for each of them."""

import pytest
import torch

from batchbalance.posteriors.softmax import most_probable

pytestmark = pytest.mark.typed


def data(num=12, num_features=3, seed=0, dtype=torch.float64):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(num, num_features, generator=g, dtype=dtype), torch.arange(num) % 3


def energy(weights, x, y, counts, precision):
    """The negative log posterior density, by loops over points and classes."""
    total = precision / 2 * (weights**2).sum()
    for n in range(len(x)):
        logits = [x[n] @ weights[:, c] for c in range(weights.shape[1])]
        total = total + counts[n] * (torch.stack(logits).exp().sum().log() - logits[int(y[n])])
    return total


def by_newton(x, y, counts, precision):
    """The optimum of one regression, by a dense Hessian of autograd."""
    shape = (x.shape[1], 3)
    best = torch.zeros(x.shape[1] * 3, dtype=torch.float64)

    def flat(w):
        return energy(w.reshape(shape), x, y, counts, precision)

    for _ in range(8):
        gradient = torch.autograd.functional.jacobian(flat, best)
        step = torch.linalg.solve(torch.autograd.functional.hessian(flat, best), gradient)
        size = 1.0
        while float(flat(best - size * step)) > float(flat(best)) and size > 1e-6:
            size /= 2
        best = best - size * step
    return best.reshape(shape)


@pytest.mark.slow
def test_every_regression_is_the_optimum_of_its_own_loss():
    x, y = data()
    counts = torch.tensor([[1.0, 0.0, 3.0], [1.0, 2.0, 0.0]] * 6, dtype=torch.float64)
    counts[0] = torch.tensor([1.0, 1.0, 0.5])
    precisions = torch.tensor([0.7, 0.05, 2.0], dtype=torch.float64)
    got = most_probable(x, y, 3, counts, precisions)
    for m in range(3):
        expected = by_newton(x, y, counts[:, m], float(precisions[m]))
        torch.testing.assert_close(got[:, m], expected, rtol=0, atol=1e-8)
    again = most_probable(x, y, 3, counts, precisions, start=torch.ones_like(got))
    torch.testing.assert_close(again, got, rtol=0, atol=1e-8)


def test_float32_and_a_weak_prior_on_rows_that_can_be_separated():
    x, y = data(9, num_features=40, dtype=torch.float32)
    counts, precisions = torch.ones(9, 2), torch.tensor([1e-3, 1.0])
    got = most_probable(x, y, 3, counts, precisions)
    exact = most_probable(x.double(), y, 3, counts.double(), precisions.double())
    assert torch.isfinite(got).all()
    torch.testing.assert_close(x @ got[:, 0], (x.double() @ exact[:, 0]).float(), rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(got[:, 1], exact[:, 1].float(), rtol=0, atol=1e-4)


def test_rows_that_count_for_nothing_give_the_prior():
    x, y = data()
    got = most_probable(x, y, 3, torch.zeros(12, 1, dtype=torch.float64), torch.ones(1, dtype=torch.float64))
    assert torch.equal(got, torch.zeros(3, 1, 3, dtype=torch.float64))

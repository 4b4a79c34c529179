"""What precision and temperature are chosen by: rows left out, against plain loops."""

import math

import pytest
import torch
from test_frequencies import by_loops
from test_linear import by_newton, data

from batchbalance.posteriors import tuning
from batchbalance.posteriors.softmax import Span
from batchbalance.posteriors.tuning import Folds, Resamples

NUM, PRECISION = 10, 0.4
OFFSET = (0.0, -0.5, -1.0)


@pytest.fixture
def rows(monkeypatch):
    """Ten rows in the basis of their span, their labels, and few folds and heads."""
    monkeypatch.setattr(tuning, "NUM_FOLDS", 2)
    monkeypatch.setattr(tuning, "NUM_HEADS", 3)
    monkeypatch.setattr(tuning, "NUM_DRAWS", 20_000)
    x, y = data(NUM, num_features=2)
    return Span.of(x).rows, y


def softmax(logits):
    """By hand, of a list."""
    total = math.fsum(math.exp(z) for z in logits)
    return [math.exp(z) / total for z in logits]


def probs_of_row(x, weights, offset=OFFSET):
    return softmax([float(x @ weights[:, c]) + offset[c] for c in range(3)])


@pytest.mark.slow
def test_folds_are_predicted_by_the_others(rows):
    x, y = rows
    folds = Folds(x, y, 3, torch.Generator().manual_seed(0), True)
    (at_zero, at_half), error = folds.evaluate(PRECISION, (0.0, 0.5))
    nll, bound, sampled, wrong, out, plain = 0.0, 0.0, 0.0, 0, 0, 0.0
    random = torch.Generator().manual_seed(1)
    for fold in range(2):
        known = folds._counts[:, fold]
        shares, _, offset = by_loops([sum(bool(known[m]) and int(y[m]) == c for m in range(NUM)) for c in range(3)])
        weights, hessian = by_newton(x, y, known, PRECISION, offset)
        factor = torch.linalg.cholesky(0.5 * torch.linalg.inv(hessian))
        draws = weights.flatten() + torch.randn(20_000, 6, generator=random, dtype=torch.float64) @ factor.T
        for n in range(NUM):
            if known[n]:
                continue
            probs = probs_of_row(x[n], weights, offset)
            nll -= math.log(probs[int(y[n])])
            wrong += probs.index(max(probs)) != int(y[n])
            logits = torch.einsum("d,sdc->sc", x[n], draws.reshape(-1, 2, 3)) + torch.tensor(offset)
            of_draws = torch.softmax(logits, dim=1)[:, y[n]]
            plain -= math.log(shares[int(y[n])])
            sampled -= math.log(float(of_draws.mean()))
            bound += math.sqrt(2 / 20_000) * float(of_draws.std() / of_draws.mean())  # of both samples
            out += 1
    assert folds.num_held_out == out
    assert float(at_zero) == pytest.approx(nll / out, abs=1e-8)
    assert folds.frequencies_nll == pytest.approx(plain / out, abs=1e-10)
    assert error == pytest.approx(wrong / out)
    assert abs(float(at_half) - sampled / out) < 4 * bound / out
    assert abs(float(at_half) - float(at_zero)) > 8 * bound / out  # so that the line above can fail


@pytest.mark.slow
def test_rows_are_predicted_by_the_heads_that_have_not_seen_them(rows):
    x, y = rows
    trials = Resamples(x, y, 3, torch.Generator().manual_seed(0), torch.tensor([OFFSET], dtype=torch.float64))
    nll, error = trials.evaluate(PRECISION, (1.0,))
    heads = [by_newton(x, y, trials._counts[:, m], PRECISION, OFFSET)[0] for m in range(3)]
    total, wrong, out = 0.0, 0, 0
    for n in range(NUM):
        unseen = [m for m in range(3) if trials._counts[n, m] == 0]
        if unseen:
            probs = [probs_of_row(x[n], heads[m]) for m in unseen]
            mean = [math.fsum(each[c] for each in probs) / len(unseen) for c in range(3)]
            total -= math.log(mean[int(y[n])])
            wrong += mean.index(max(mean)) != int(y[n])
            out += 1
    assert 0 < out < NUM
    assert trials.num_held_out == out
    assert float(nll[0]) == pytest.approx(total / out, abs=1e-8)
    assert error == pytest.approx(wrong / out)

"""Cyclical SG-MCMC against known answers: a Gaussian, a logistic regression, stillness."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from batchbalance.arguments.seeds import generator
from batchbalance.posteriors import SCHEDULES, CyclicalSGMCMC, Schedule
from batchbalance.posteriors import csgmcmc as module
from batchbalance.posteriors.csgmcmc import cosine_step_size, langevin_step
from batchbalance.posteriors.training.calling import crop_and_flip


def test_discretised_covariance_of_an_asymmetric_gaussian():
    precision = torch.tensor([[2.0, 0.9], [0.9, 0.7]], dtype=torch.float64)
    step_size, temperature, decay, num_chains = 0.3, 0.5, 0.2, 20_000
    chains = torch.zeros(num_chains, 2, dtype=torch.float64)
    g = torch.Generator().manual_seed(0)
    for _ in range(150):
        gradient = chains @ precision
        langevin_step([chains], [gradient], step_size, weight_decay=decay, noise_scale=temperature, generator=g)
    whole = precision + decay * torch.eye(2, dtype=torch.float64)
    expected = temperature * torch.linalg.inv(whole @ (torch.eye(2, dtype=torch.float64) - step_size * whole / 2))
    covariance = chains.T @ chains / num_chains
    for i in range(2):
        for j in range(2):
            variance = (expected[i, i] * expected[j, j] + expected[i, j] ** 2) / num_chains
            assert abs(float(covariance[i, j] - expected[i, j])) < 4 * math.sqrt(float(variance))
            assert abs(float(chains[:, i].mean())) < 4 * math.sqrt(float(expected[i, i]) / num_chains)
    # The undiscretised covariance is far enough away for the test to tell.
    exact = temperature * torch.linalg.inv(whole)
    assert abs(float(covariance[0, 0] - exact[0, 0])) > 4 * math.sqrt(2 * float(expected[0, 0]) ** 2 / num_chains)


def test_steps_without_noise_by_hand():
    theta, without = torch.tensor([1.0, -2.0]), torch.tensor([3.0])
    g = torch.Generator().manual_seed(0)
    langevin_step([theta, without], [torch.tensor([0.5, 1.0]), None], 0.1, weight_decay=0.2, generator=g)
    torch.testing.assert_close(theta, torch.tensor([1 - 0.1 * (0.5 + 0.2), -2 - 0.1 * (1 - 0.4)]))
    torch.testing.assert_close(without, torch.tensor([3 - 0.1 * 0.6]))


def test_stillness_at_zero_gradient_and_zero_temperature():
    start = nn.Linear(2, 2)
    nn.init.zeros_(start.weight)
    nn.init.zeros_(start.bias)
    x = torch.tensor([[1.0, 2.0], [1.0, 2.0]])
    posterior = CyclicalSGMCMC(lambda: start, Schedule(6, 2, 1, 0.5, 0.0, 5e-4, noise_epochs=2))
    posterior.fit(x, torch.tensor([0, 1]), num_classes=2)
    assert torch.equal(start.weight, torch.zeros(2, 2))
    assert torch.equal(start.bias, torch.zeros(2))


def test_step_sizes_fall_along_a_cosine_in_each_cycle():
    steps = [cosine_step_size(step, 4, 0.5) for step in range(8)]
    expected = [0.25 * (math.cos(math.pi * k / 4) + 1) for k in range(4)]
    assert steps == pytest.approx(expected * 2)
    assert steps[0] == 0.5


def logistic_data():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(20, 2)) * [1.0, 0.5] + [0.3, 0.0]
    y = (rng.random(20) < 1 / (1 + np.exp(-(1.5 * x[:, 0] - x[:, 1])))).astype(int)
    return x, y


def reference_chain(x, y, decay, num_steps):
    """Random-walk Metropolis on the weights of class 1 against class 0 (their difference is all that matters)."""
    rng = np.random.default_rng(1)

    def energy(w):
        logits = x @ w
        # Each class has weights of its own under a N(0, 1/(N·decay)) prior: their difference has twice the variance.
        return np.sum(np.logaddexp(0, logits) - y * logits) + len(y) * decay * (w @ w) / 4

    w, now, kept = np.zeros(2), energy(np.zeros(2)), []
    for step in range(num_steps):
        proposal = w + 0.8 * rng.normal(size=2)
        new = energy(proposal)
        if rng.random() < math.exp(min(0.0, now - new)):
            w, now = proposal, new
        if step >= 1000:
            kept.append(w)
    return np.array(kept)


@pytest.mark.slow
def test_logistic_regression_agrees_with_a_long_reference_chain():
    x, y = logistic_data()
    decay, cycles = 0.1, 100
    schedule = Schedule(60 * cycles, cycles, 1, 1.0, 1.0, decay, noise_epochs=60, batch_size=20)
    posterior = CyclicalSGMCMC(lambda: nn.Linear(2, 2, bias=False).double(), schedule, seed=3)
    posterior.fit(torch.tensor(x), torch.tensor(y), num_classes=2)
    draws = np.stack([(s["weight"][1] - s["weight"][0]).numpy() for s in posterior._states])
    reference = reference_chain(x, y, decay, 40_000)
    blocks = reference[:39_000].reshape(39, 1000, 2)
    for name, statistic in (
        ("mean", lambda w: w),
        ("second moment", lambda w: w**2),
        ("product", lambda w: w[..., :1] * w[..., 1:]),
    ):
        ours, theirs = statistic(draws), statistic(blocks)
        # Draws of neighbouring cycles are nearly independent; blocks of the reference are.
        error = np.sqrt(ours.var(axis=0, ddof=1) / len(ours) + theirs.mean(axis=1).var(axis=0, ddof=1) / 39)
        assert (np.abs(ours.mean(axis=0) - theirs.mean(axis=(0, 1))) < 4 * error).all(), name


def small(seed=0, **options):
    defaults = {"epochs": 6, "cycles": 2, "samples_per_cycle": 2, "noise_epochs": 2, "batch_size": 4}
    return CyclicalSGMCMC(lambda: nn.Linear(3, 2), Schedule(**{**defaults, **options}), seed=seed)


X = torch.randn(10, 3, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()


def test_draws_are_snapshots_of_every_chain_and_cycle():
    posterior = small(num_chains=3).fit(X, Y, num_classes=2)
    assert posterior.num_draws == 3 * 2 * 2
    assert len({tuple(s["weight"].flatten().tolist()) for s in posterior._states}) == 12


def test_noise_only_in_the_sampling_part(monkeypatch):
    scales = []

    def spy(parameters, gradients, step_size, *, weight_decay, noise_scale, generator):
        scales.append(noise_scale)

    monkeypatch.setattr(module, "langevin_step", spy)
    small(temperature=0.5).fit(X, Y, num_classes=2)
    assert scales == ([0.0] * 3 + [0.05] * 6) * 2


def chain_by_loops(x, y, *, weighted, samples, num_noise, seed, epochs=4, cycles=2, batch=3):
    """Softmax regression, every step written out; the order of random numbers is rows of an epoch, then noise."""
    stream = generator(seed, "chain", 0)
    weight, bias = torch.full((2, 3), 0.1, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    counts = [sum(int(label) == c for label in y) for c in range(2)]
    snapshots, step, cycle_epochs = [], 0, epochs // cycles
    for epoch in range(epochs):
        rows = (
            torch.randperm(len(x), generator=stream)
            if samples == "labels"
            else torch.randint(len(x), (samples,), generator=stream)
        ).tolist()
        groups = [rows[i : i + batch] for i in range(0, len(rows), batch)]
        for group in groups:
            grad_w, grad_b, total = torch.zeros_like(weight), torch.zeros_like(bias), 0.0
            for row in group:
                p = torch.exp(weight @ x[row] + bias)
                p = p / p.sum()
                p[y[row]] -= 1
                importance = 1 / counts[y[row]] if weighted else 1.0
                grad_w += importance * p[:, None] * x[row][None, :]
                grad_b += importance * p
                total += importance
            h = 0.2 / 2 * (math.cos(math.pi * (step % (len(groups) * cycle_epochs)) / (len(groups) * cycle_epochs)) + 1)
            is_last = epoch % cycle_epochs == cycle_epochs - 1
            moved = []
            for theta, gradient in ((weight, grad_w / total), (bias, grad_b / total)):
                theta = theta - h * (gradient + 0.01 * theta)
                if is_last:
                    noise = torch.randn(theta.shape, generator=stream, dtype=torch.float64)
                    theta = theta + math.sqrt(2 * h * 0.5 / num_noise) * noise
                moved.append(theta)
            weight, bias = moved
            step += 1
        if epoch % cycle_epochs == cycle_epochs - 1:
            snapshots.append((weight, bias))
    return snapshots


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {"weighted": False, "samples": "labels", "num_noise": 9}),
        ({"class_weighted": True}, {"weighted": True, "samples": "labels", "num_noise": 9}),
        ({"samples_per_epoch": 24}, {"weighted": False, "samples": 24, "num_noise": 9}),
        ({"noise_examples": 500}, {"weighted": False, "samples": "labels", "num_noise": 500}),
        (
            {"class_weighted": True, "samples_per_epoch": 5, "noise_examples": 50},
            {"weighted": True, "samples": 5, "num_noise": 50},
        ),
    ],
)
def test_weights_epochs_and_noise_against_loops(options, expected):
    x = torch.randn(9, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    y = torch.tensor([0, 1, 1, 1, 0, 1, 1, 1, 1])

    def start():
        layer = nn.Linear(3, 2).double()
        nn.init.constant_(layer.weight, 0.1)
        nn.init.constant_(layer.bias, 0.0)
        return layer

    schedule = Schedule(4, 2, 1, 0.2, 0.5, 0.01, noise_epochs=1, batch_size=3, **options)
    posterior = CyclicalSGMCMC(start, schedule, seed=6)
    posterior.fit(x, y, num_classes=2)
    snapshots = chain_by_loops(x, y, seed=6, **expected)
    for state, (weight, bias) in zip(posterior._states, snapshots, strict=True):
        torch.testing.assert_close(state["weight"], weight, rtol=0, atol=1e-10)
        torch.testing.assert_close(state["bias"], bias, rtol=0, atol=1e-10)


def test_augmented_chains_see_crops():
    x = torch.randn(6, 2, 5, 5, generator=torch.Generator().manual_seed(0))
    seen = []

    class Spy(nn.Linear):
        def forward(self, rows):
            seen.append(rows.detach().reshape(-1, 2, 5, 5).clone())
            return super().forward(rows)

    def build():
        return nn.Sequential(nn.Flatten(), Spy(50, 2))

    options = {"epochs": 1, "cycles": 1, "samples_per_cycle": 1, "noise_epochs": 1, "temperature": 0.0, "batch_size": 3}
    schedule = Schedule(augmentation="crop-flip", **options)
    CyclicalSGMCMC(build, schedule, seed=2).fit(x, torch.arange(6) % 2, num_classes=2)
    stream = generator(2, "chain", 0)
    order = torch.randperm(6, generator=stream)
    expected = [crop_and_flip(x[rows], generator=stream) for rows in order.split(3)]
    assert all(torch.equal(a, b) for a, b in zip(seen, expected, strict=True))


def test_same_seed_same_draws():
    first, again, other = (small(seed=s).fit(X, Y, num_classes=2) for s in (4, 4, 5))
    assert first.draw_ids == again.draw_ids
    assert set(first.draw_ids).isdisjoint(other.draw_ids)


def test_an_interrupted_run_leaves_none_or_the_old_result(monkeypatch):
    posterior = small()
    original, calls = module.langevin_step, []

    def interrupted(*args, **kwargs):
        calls.append(1)
        if len(calls) > 10:
            raise KeyboardInterrupt
        original(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(module, "langevin_step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            posterior.fit(X, Y, num_classes=2)
    with pytest.raises(ValueError, match="must be fitted first"):
        posterior.predict(X)
    posterior.fit(X, Y, num_classes=2)
    before = posterior.predict(X).log_probs()
    with monkeypatch.context() as patch:
        patch.setattr(module, "langevin_step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            posterior.fit(X, Y, num_classes=2)
    assert torch.equal(posterior.predict(X).log_probs(), before)


def test_presets_are_the_papers():
    assert SCHEDULES["cifar10"] == Schedule(400, 8, 3, 0.5, 1 / 50_000, 5e-4, 5, 64, 1)
    assert (SCHEDULES["cifar100"].epochs, SCHEDULES["cifar100"].cycles) == (200, 4)
    assert SCHEDULES["cifar10-multichain"].num_draws == 3 * 4 * 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 0}, "epochs"),
        ({"epochs": 7}, "multiple of the 2 cycles"),
        ({"samples_per_cycle": 3}, "lower them"),
        ({"noise_epochs": 4}, "a cycle of 3 epochs"),
        ({"initial_step_size": 0.0}, "initial_step_size"),
        ({"temperature": -1.0}, "temperature"),
        ({"num_chains": 0}, "num_chains"),
        ({"samples_per_epoch": 0}, "`samples_per_epoch` must be a whole number of at least 1, got 0"),
        ({"noise_examples": -3}, "`noise_examples` must be"),
        ({"augmentation": "crop"}, "unknown augmentation 'crop'"),
    ],
)
def test_wrong_settings(options, message):
    with pytest.raises(ValueError, match=message):
        small(**options)


def test_wrong_data():
    with pytest.raises(ValueError, match=r"torch\.float32"):
        small().fit(X.double(), Y, num_classes=2)
    with pytest.raises(ValueError, match="0 to 0"):
        small().fit(X, Y, num_classes=1)
    with pytest.raises(ValueError, match="lower `initial_step_size`"):
        small(initial_step_size=1e30, epochs=20).fit(X * 1e9, Y, num_classes=2)

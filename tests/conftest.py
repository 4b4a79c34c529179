import signal

import numpy as np
import pytest
import torch
from hypothesis import settings

from batchbalance import Predictions, connect

settings.register_profile("repo", deadline=None, max_examples=25, derandomize=True)
settings.load_profile("repo")


def interruptible():
    """For `preexec_fn`: what a background job of a shell starts ignores interrupts otherwise."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def random_probs(num_points, num_draws, num_classes, seed=0, spread=2.0, zeros=0.0):
    """Asymmetric random distributions (N, S, C), float64; a share of entries may be exactly 0."""
    rng = np.random.default_rng(seed)
    logits = spread * rng.normal(size=(num_points, 1, num_classes)) + rng.normal(
        size=(num_points, num_draws, num_classes)
    )
    logits += 0.7 * rng.normal(size=(1, num_draws, num_classes))
    probs = np.exp(logits - logits.max(axis=2, keepdims=True))
    if zeros:
        drop = rng.random(probs.shape) < zeros
        drop[np.arange(num_points)[:, None], np.arange(num_draws)[None], probs.argmax(axis=2)] = False
        probs[drop] = 0
    return probs / probs.sum(axis=2, keepdims=True)


def random_weights(num_draws, seed=0):
    weights = np.random.default_rng(seed).random(num_draws) + 0.1
    return weights / weights.sum()


@pytest.fixture
def pool():
    """200 points, 12 draws, 4 classes."""
    return Predictions.from_probs(random_probs(200, 12, 4, seed=1))


@pytest.fixture
def pool_edges(pool):
    return connect(pool, 0.05)


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)

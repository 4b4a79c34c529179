"""Random inputs of the benchmark, made block by block: making one takes no more memory than the input itself."""

import tempfile
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from batchbalance.arguments.seeds import generator
from batchbalance.predictions import Predictions, stored_predictions

BLOCK_NUMBERS = 2**22


def random_pool(num_points: int, num_draws: int, num_classes: int, seed: int) -> Predictions:
    """A pool on which draws disagree in part: a shared part for each point and one for each draw, and noise."""
    stream = generator(seed, "benchmark pool")
    by_draw = 1.5 * torch.randn(1, num_draws, num_classes, generator=stream)
    stored = torch.empty(num_points, num_draws, num_classes)
    for block in stored.split(max(1, BLOCK_NUMBERS // (num_draws * num_classes))):
        logits = torch.randn(block.shape, generator=stream)
        logits += 3 * torch.randn(len(block), 1, num_classes, generator=stream)
        logits += by_draw
        torch.log_softmax(logits, dim=-1, out=block)
    return stored_predictions(stored)


def random_probs(num_points: int, num_classes: int, seed: int) -> Tensor:
    """Mean predictions, (N, C)."""
    return random_pool(num_points, 1, num_classes, seed).probs()[:, 0]


def random_embeddings(num_points: int, num_features: int, seed: int, purpose: str = "pool") -> Tensor:
    """Embeddings, (N, D)."""
    return torch.randn(num_points, num_features, generator=generator(seed, f"benchmark embeddings {purpose}"))


def mapped_embeddings(num_points: int, num_features: int, seed: int) -> NDArray[Any]:
    """Embeddings of 50 clusters in a memory-mapped file, (N, D); variances fall as 1 / k, as those of encoders do."""
    with tempfile.TemporaryFile() as file:
        points = np.memmap(file, np.float32, "w+", shape=(num_points, num_features))
    stream = generator(seed, "benchmark embeddings mapped")
    spread = torch.arange(1, num_features + 1).rsqrt()
    turn = torch.linalg.qr(torch.randn(num_features, num_features, generator=stream)).Q  # no feature is the largest
    centres = torch.randn(50, num_features, generator=stream)
    step = BLOCK_NUMBERS // num_features
    for start in range(0, num_points, step):
        rows = points[start : start + step]
        inside = torch.randint(50, (len(rows),), generator=stream)
        made = (centres[inside] + torch.randn(rows.shape, generator=stream)) * spread
        rows[:] = (made @ turn).numpy()
    return points


def random_images(num_images: int, seed: int) -> Tensor:
    """Images of the size of MNIST, (N, 1, 28, 28)."""
    return torch.rand(num_images, 1, 28, 28, generator=generator(seed, "benchmark images"))

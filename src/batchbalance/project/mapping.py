"""Two-dimensional maps of all items: fast principal components, and a slower layout by neighbours.

Both measure distances as the strategies do, between rows that are centred and, depending on the metric, scaled to unit
length. The second is t-SNE (van der Maaten and Hinton 2008) of a sample. Every other item is placed at the weighted
mean of its nearest items in the sample.
"""

import numpy as np
import torch
from torch import Tensor

from batchbalance.batches.distances import directions
from batchbalance.project.learning import BLOCK, Trained
from batchbalance.strategies.pool import Metric, is_unit

NUM_FOR_AXES, NUM_LAID_OUT = 20_000, 4_000  # rows used to fit the axes; rows laid out by t-SNE
NUM_NEIGHBOURS = 3
LARGEST = 65_535
NOT_KNOWN = 255  # marks an unknown uncertainty


class Space:
    """The embeddings of a project in the space that distances are measured in, read block by block.

    Args:
        vectors: (N, D) embeddings.
        metric: how distances are measured, as in ``select``.
        seed: the seed of the samples.
    """

    def __init__(self, vectors: np.ndarray, *, metric: Metric, seed: int) -> None:
        self._vectors, self._is_unit, self._seed = vectors, is_unit(metric, vectors.shape[1]), seed
        self.num_items = len(vectors)
        self._centre = self._points(self.sample(NUM_FOR_AXES)).mean(dim=0)

    def sample(self, most: int) -> np.ndarray:
        """Return at most `most` random rows, ascending."""
        if self.num_items <= most:
            return np.arange(self.num_items)
        random = np.random.default_rng(self._seed)
        return np.sort(random.choice(self.num_items, most, replace=False))

    def _points(self, rows: np.ndarray | slice) -> Tensor:
        return torch.from_numpy(np.array(self._vectors[rows], dtype=np.float32))

    def placed(self, rows: np.ndarray | slice) -> Tensor:
        """Return (n, D) some rows, centred."""
        points = self._points(rows)
        return directions(points, self._centre) if self._is_unit else points - self._centre

    def blocks(self) -> list[slice]:
        """Return slices that cover all rows."""
        return [slice(start, start + BLOCK) for start in range(0, self.num_items, BLOCK)]


def principal_plane(space: Space) -> np.ndarray:
    """Return (N, 2) coordinates along the two directions in which a sample of the items varies most."""
    sample = space.placed(space.sample(NUM_FOR_AXES))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        axes = torch.pca_lowrank(sample, q=min(6, *sample.shape))[2][:, :2]
    middle = sample.mean(dim=0)
    found = torch.cat([(space.placed(each) - middle) @ axes for each in space.blocks()])
    return torch.nn.functional.pad(found, (0, 2 - found.shape[1])).numpy()


def neighbour_plane(space: Space, seed: int) -> np.ndarray:
    """Return (N, 2) coordinates that keep neighbours together."""
    from sklearn.manifold import TSNE  # importing takes a second

    rows = space.sample(NUM_LAID_OUT)
    sample = space.placed(rows)
    perplexity = min(30.0, max(1.0, (len(rows) - 1) / 3))
    start = principal_plane(space)[rows]
    start = 1e-4 * start / max(float(start.std()), 1e-12)
    laid_out = torch.from_numpy(
        TSNE(perplexity=perplexity, init=start, random_state=seed).fit_transform(sample.numpy())
    )
    found = torch.cat([_between(space.placed(each), sample, laid_out) for each in space.blocks()])
    found[torch.from_numpy(rows)] = laid_out
    return found.numpy()


def _between(points: Tensor, sample: Tensor, laid_out: Tensor) -> Tensor:
    """Return the mean positions of the nearest items of the sample, weighted by 1 / distance."""
    apart, nearest = torch.cdist(points, sample).topk(min(NUM_NEIGHBOURS, len(sample)), largest=False)
    weights = 1 / (apart + 1e-6)
    return torch.einsum("nk,nkd->nd", weights / weights.sum(dim=1, keepdim=True), laid_out[nearest])


def as_bytes(plane: np.ndarray) -> bytes:
    """Return coordinates as pairs of 16-bit numbers with one scale; the farthest 0.1 % are clipped to the border."""
    middle = np.median(plane, axis=0)
    reach = float(np.quantile(np.abs(plane - middle).max(axis=1), 0.999)) or 1.0
    scaled = np.clip((plane - middle) / (2.1 * reach) + 0.5, 0, 1)
    return bytes(np.round(LARGEST * scaled).astype("<u2").tobytes())


def model_bytes(model: Trained, vectors: np.ndarray, is_hidden: np.ndarray) -> bytes:
    """Return the colour of the model's prediction for every item as 16 bits, then its uncertainty as 8 bits.

    The uncertainty is 1 − the probability of the prediction, from 0 to 254. Hidden items have no prediction.
    """
    guesses, doubts = np.zeros(len(vectors), dtype="<u2"), np.full(len(vectors), NOT_KNOWN, dtype=np.uint8)
    for start in range(0, len(vectors), BLOCK):
        probs = model.probs(vectors, slice(start, start + BLOCK))
        guesses[start : start + BLOCK] = colours(model.labelling.predicted(probs))
        doubts[start : start + BLOCK] = np.round(254 * (1 - model.labelling.confidence(probs)))
    guesses[is_hidden], doubts[is_hidden] = 0, NOT_KNOWN
    return guesses.tobytes() + doubts.tobytes()


def colours(labels: np.ndarray) -> np.ndarray:
    """Return (n,) the number of the colour of each answer, given as (n,) classes or as (n, L) of 0 and 1.

    It is the class plus one; L + 1 for several classes, and L + 2 for none of them.
    """
    if labels.ndim == 1:
        return labels + 1
    counts, num = labels.sum(axis=1), labels.shape[1]
    return np.select([counts == 1, counts > 1], [labels.argmax(axis=1) + 1, num + 1], num + 2)

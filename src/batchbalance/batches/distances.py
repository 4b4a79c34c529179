"""Distances between embeddings.

They come from differences of coordinates, never from the expansion ‖a‖² + ‖b‖² − 2⟨a, b⟩, which tells a duplicate from
itself.
"""

import torch
from jaxtyping import Float
from torch import Tensor

BLOCK_NUMBERS = 2**22


def check_finite(name: str, embeddings: Tensor) -> None:
    """Raise unless the embeddings are finite real numbers; they are read in blocks."""
    step = max(1, BLOCK_NUMBERS // max(1, embeddings[:1].numel()))
    for start in range(0, len(embeddings), step):
        wrong = ~torch.isfinite(embeddings[start : start + step])
        if bool(wrong.any()):
            where = wrong.nonzero()[0].tolist()
            raise ValueError(
                f"`{name}` must be finite, got NaN or infinity (first at point {start + where[0]}, feature {where[-1]})"
            )


def distances(points: Float[Tensor, "n D"], centre: Float[Tensor, " D"]) -> Float[Tensor, " n"]:
    """Distances to one centre by differences, float64; exactly 0 for a duplicate."""
    apart = torch.cdist(points, centre.unsqueeze(0), compute_mode="donot_use_mm_for_euclid_dist")
    return apart[:, 0].double().cpu()


def nearest_distances(points: Float[Tensor, "n D"], centres: Float[Tensor, "L D"]) -> Float[Tensor, " n"]:
    """Distance to the nearest of many centres: it is found by matrix products, then measured by differences."""
    middle = centres.mean(dim=0)
    shifted = centres - middle
    half_norms = shifted.square().sum(dim=1) / 2
    found = []
    for block in points.split(max(1, BLOCK_NUMBERS // max(centres.shape))):
        nearest = ((block - middle) @ shifted.T - half_norms).argmax(dim=1)
        found.append((block.double() - centres[nearest].double()).square().sum(dim=1).sqrt().cpu())
    return torch.cat(found)

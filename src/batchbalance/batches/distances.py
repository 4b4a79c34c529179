"""Distances between embeddings.

They are computed from differences of coordinates, not from the expansion ‖a‖² + ‖b‖² − 2⟨a, b⟩, because its rounding
gives duplicates a distance above 0.
"""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from batchbalance.arguments.checks import compute_dtype

BLOCK_NUMBERS = 2**22
USUAL_EXPONENT = 30  # embeddings of sizes from 1e-9 to 1e9 are not rescaled


def check_finite(name: str, embeddings: Tensor) -> float:
    """Return the largest absolute value, read in blocks; raise ValueError unless all numbers are finite."""
    step = max(1, BLOCK_NUMBERS // max(1, embeddings[:1].numel()))
    largest = 0.0
    kind = compute_dtype(embeddings.dtype)
    for start in range(0, len(embeddings), step):
        block = embeddings[start : start + step].to(kind)
        wrong = ~torch.isfinite(block)
        if bool(wrong.any()):
            where = wrong.nonzero()[0].tolist()
            raise ValueError(
                f"`{name}` must be finite, got NaN or infinity (first at point {start + where[0]}, feature {where[-1]})"
            )
        largest = max(largest, float(block.abs().max()))
    return largest


def usual_scale(largest: float) -> float:
    """Return the power of two that scales tiny or huge embeddings to about 1; 1 for embeddings of usual size.

    Squares of numbers beyond about 1e±19 leave the range of float32, and distances would be 0 or infinite. Multiplying
    by a power of two is exact.
    """
    exponent = math.frexp(largest)[1]
    return 1.0 if largest == 0 or abs(exponent) <= USUAL_EXPONENT else 2.0 ** max(-1000, min(1000, -exponent))


def distances(points: Float[Tensor, "n D"], centre: Float[Tensor, " D"]) -> Float[Tensor, " n"]:
    """Return distances to one centre by differences, float64; exactly 0 for a duplicate."""
    apart = torch.cdist(points, centre.unsqueeze(0), compute_mode="donot_use_mm_for_euclid_dist")
    return apart[:, 0].double().cpu()


def directions(points: Float[Tensor, "n D"], centre: Float[Tensor, " D"]) -> Float[Tensor, "n D"]:
    """Return rows centred and scaled to unit length, the space of a linear head; a row at the centre stays there.

    Rows are first divided by their largest number, because its square may overflow or underflow.
    """
    centred = points - centre
    largest = centred.abs().amax(dim=1, keepdim=True)
    return torch.nn.functional.normalize(centred / torch.where(largest > 0, largest, 1.0), dim=1)


def squared_norms(points: Float[Tensor, "n D"]) -> Float[Tensor, " n"]:
    """Return squared norms in float64, computed in blocks."""
    blocks = points.split(max(1, BLOCK_NUMBERS // points.shape[1]))
    return torch.cat([block.double().square().sum(dim=1).cpu() for block in blocks])


def nearest_distances(points: Float[Tensor, "n D"], centres: Float[Tensor, "L D"]) -> Float[Tensor, " n"]:
    """Return distances to the nearest of many centres: matrix products find candidates, differences measure them."""
    middle = centres.double().mean(dim=0)
    shifted = centres.double() - middle
    norms = shifted.square().sum(dim=1)
    found = []
    for block in points.split(max(1, BLOCK_NUMBERS // max(centres.shape))):
        moved = block.double() - middle
        block_norms = moved.square().sum(dim=1)
        squared = norms - 2 * moved @ shifted.T  # (n, L), without the norm of the point
        # A small distance far from the mean is a difference of large numbers: all centres within rounding are measured.
        slack = (4 + shifted.shape[1]) * 2.0**-52 * (block_norms + norms.max())
        close = squared <= (squared.amin(dim=1) + 2 * slack).unsqueeze(1)
        found.append(_least_distances(block, centres, close).cpu())
    return torch.cat(found)


def _least_distances(
    points: Float[Tensor, "n D"], centres: Float[Tensor, "L D"], close: Bool[Tensor, "n L"]
) -> Float[Tensor, " n"]:
    """Return the smallest distance of each point to those of the centres that are `close` to it."""
    least = torch.full((len(points),), torch.inf, dtype=torch.float64, device=points.device)
    for pairs in close.nonzero().split(max(1, BLOCK_NUMBERS // points.shape[1])):
        which, centre = pairs.T
        apart = (points[which].double() - centres[centre].double()).square().sum(dim=1)
        least.scatter_reduce_(0, which, apart, reduce="amin")
    return least.sqrt()

"""Falcun: uncertain points with diverse predictions (Gilhuber et al., ECML-PKDD 2024)."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from batchbalance.scores.ranking import power_sample


def falcun(
    probs: Float[Tensor, "n C"],
    uncertainty: Float[Tensor, " n"],
    batch_size: int,
    *,
    generator: torch.Generator,
    gamma: float = 10.0,
) -> tuple[Int[Tensor, " B"], Float[Tensor, " B"]]:
    """Draw points one at a time with p ∝ (uncertainty + distance)^γ.

    The distance of a point is the L1 distance of its prediction to that of the nearest chosen point, but at most
    its uncertainty. For each pick it is scaled to [0, 1] over the remaining points.

    Args:
        probs: mean probabilities.
        uncertainty: one minus the margin.
        batch_size: B, at most n.
        generator: random generator for drawing the points.
        gamma: γ; 0 is uniform, larger is greedier.

    Returns:
        (B,) positions in the order drawn; (B,) uncertainty + distance of each when it was drawn, float64.
    """
    probs, uncertainty = probs.to("cpu", torch.float64), uncertainty.to("cpu", torch.float64)
    distances = uncertainty.clone()
    left = torch.arange(len(probs))
    chosen = torch.empty(batch_size, dtype=torch.long)
    relevances = torch.empty(batch_size, dtype=torch.float64)
    for i in range(batch_size):
        open_distances = distances[left] - distances[left].amin()
        relevance = uncertainty[left] + open_distances / (float(open_distances.amax()) or 1.0)
        at = int(power_sample(relevance, 1, gamma, generator=generator))
        chosen[i], relevances[i] = left[at], relevance[at]
        left = torch.cat([left[:at], left[at + 1 :]])
        distances = torch.minimum(distances, (probs - probs[chosen[i]]).abs().sum(dim=1))
    return chosen, relevances

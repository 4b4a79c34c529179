"""What a batch in the space of embeddings is to cover: targets with weights, and how near a point is to them.

A kernel κ in [0, 1] says how well a point covers a target. Matrix products of centred rows give upper bounds on it,
never less than it is whatever is rounded; differences of coordinates in float64 measure it.
"""

import math
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from batchbalance.batches.distances import BLOCK_NUMBERS, nearest_distances
from batchbalance.predictions import spans_of

Kernel = Literal["gaussian", "ball"]

BOUNDARY = 1e-12  # relative; a squared distance that is so close to the radius is inside


def squared_length(targets: Float[Tensor, "T D"], batch_size: int) -> float:
    """ℓ² = 2σ²: the median over targets of the squared distance to the k-th nearest other one, k = |T| / B.

    Only distinct targets count, so that copies do not make it 0; k is rounded and clipped to 1 … |T| − 1. With a single
    distinct target there is no distance, and ℓ² = 1.
    """
    points = targets.unique(dim=0).double()
    num = len(points)
    if num == 1:
        return 1.0
    k = min(max(round(num / batch_size), 1), num - 1)
    shifted = points - points.median(dim=0).values  # one point far away must not cost the others their digits
    norms = shifted.square().sum(dim=1)
    found = torch.empty(num, dtype=torch.float64, device=points.device)
    for span in spans_of(num, BLOCK_NUMBERS // num):
        apart = torch.addmm(norms, shifted[span], shifted.T, alpha=-2)  # a constant of the row is left out
        apart[torch.arange(len(apart)), torch.arange(span.start, span.stop)] = -torch.inf
        neighbours = apart.kthvalue(k + 1, dim=1).indices
        found[span] = (points[span] - points[neighbours]).square().sum(dim=1)
    return max(float(found.quantile(0.5)), torch.finfo(torch.float64).tiny)


class Targets:
    """What is to be covered, and how near a point is to it.

    Args:
        points: (T, D) embeddings of the targets.
        weights: (T,) what each is worth; not negative.
        kernel: "gaussian", κ = exp(−d² / ℓ²); or "ball", κ = 1 up to the distance ℓ.
        squared_length: ℓ².
        labelled: (L, D) embeddings of points that cover already.
    """

    def __init__(
        self,
        points: Float[Tensor, "T D"],
        weights: Float[Tensor, " T"],
        kernel: Kernel,
        squared_length: float,
        labelled: Float[Tensor, "L D"] | None = None,
    ) -> None:
        self.points = points.double()
        self.weights = weights.to(points.device, torch.float64)
        self.kernel, self.squared_length = kernel, squared_length
        self.total = float(self.weights.sum())
        self.covered = torch.zeros_like(self.weights)
        if labelled is not None and len(labelled):
            nearest = nearest_distances(self.points, labelled.to(self.points)).to(points.device)
            self.covered = self._similarity(nearest.square() / squared_length)
        self._centre = self.points.median(dim=0).values
        scaled = (self.points - self._centre) / math.sqrt(squared_length)
        norms = scaled.square().sum(dim=1)
        # float32 will do unless its rounding would blur most bounds, as with tight clusters that are far apart
        blurred = 4 * float(norms.quantile(0.9)) * self._rounding(torch.float32)
        self.dtype = torch.float32 if blurred <= 0.01 else torch.float64
        self._scaled = (2 * scaled).to(self.dtype)
        self._norms = norms

    def __len__(self) -> int:
        return len(self.points)

    @property
    def num_features(self) -> int:
        """D."""
        return self.points.shape[1]

    def similarities(self, rows: Float[Tensor, "p D"]) -> Float[Tensor, "p T"]:
        """κ of points and targets, measured by differences in float64."""
        apart = torch.cdist(rows.double(), self.points, compute_mode="donot_use_mm_for_euclid_dist")
        return self._similarity(apart.square_() / self.squared_length)

    def similarity_bounds(self, rows: Float[Tensor, "p D"], *, slack: bool = True) -> Float[Tensor, "p T"]:
        """κ by a matrix product in working precision; with `slack` never less than it is."""
        rounding = self._rounding(self.dtype) if slack else 0.0
        shifted = ((rows.double() - self._centre) / math.sqrt(self.squared_length)).to(self.dtype)
        norms = shifted.double().square().sum(dim=1)
        own, other = ((each * (1 - rounding) - rounding).to(self.dtype) for each in (norms, self._norms))
        squared = torch.addmm(
            other, shifted, self._scaled.T, alpha=-1
        )  # in place from here on: it is the largest array
        squared += own.unsqueeze(1)
        if not (bool(own.isfinite().all()) and bool(other.isfinite().all())):
            squared.nan_to_num_(nan=0.0)  # numbers beyond the range of floats: nothing is known, so the bound is 1
        return self._similarity(squared.clamp_min_(0))

    def bounds_of(self, bounds: Float[Tensor, "p T"], covered: Float[Tensor, " T"]) -> Float[Tensor, " p"]:
        """Upper bounds on gains from upper bounds on κ, float64."""
        so_far = covered.to(self.dtype)
        so_far = torch.where(so_far.double() > covered, so_far.nextafter(torch.zeros_like(so_far)), so_far)
        gains = (bounds - so_far).clamp_min_(0) @ self.weights.to(self.dtype)
        return gains.double().cpu() * (1 + self._rounding(self.dtype, len(self)))

    def gains(self, rows: Float[Tensor, "p D"], covered: Float[Tensor, " T"]) -> Float[Tensor, " p"]:
        """What points add to F, measured by differences in float64."""
        return ((self.similarities(rows) - covered).clamp_min_(0) @ self.weights).cpu()

    def _similarity(self, squared: Tensor) -> Tensor:
        """κ of squared distances in units of ℓ²; overwrites them."""
        if self.kernel == "gaussian":
            return squared.neg_().exp_()
        return (squared <= 1 + BOUNDARY).to(squared.dtype)

    def _rounding(self, dtype: torch.dtype, num_terms: int | None = None) -> float:
        """How far a sum of products may be off, as a share of the sizes of its terms."""
        return 4 * torch.finfo(dtype).eps * math.sqrt(num_terms or self.num_features)

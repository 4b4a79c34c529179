"""What is to be covered in the space of embeddings: points with weights, and how near any other point is to them.

Matrix products of centred rows tell distances nearly, and how far they may be off is known. What decides is measured by
differences of coordinates in float64: a length is exact although nearly all of its work is done in float32.
"""

import math
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from batchbalance.batches.distances import BLOCK_NUMBERS, nearest_distances
from batchbalance.predictions import spans_of
from batchbalance.system import threads

Kernel = Literal["gaussian", "ball"]

BOUNDARY = 1e-12  # relative; a squared distance that is so close to the radius is inside
KEPT_PRODUCTS = 2**27  # bytes of products of targets among themselves that are kept at most
PRODUCT_ROWS = 512  # rows of products made at a time
CENTRE_ROWS = 255  # points whose median is the centre


class Cloud:
    """Points, centred and scaled to a typical length of 1 in working precision, and products of them.

    Args:
        points: (T, D) embeddings.
        places: (T,) their places in the pool, ascending, if they have any.
        keep_bytes: what products among the points may take in memory.
        dtype: working precision.
    """

    def __init__(
        self,
        points: Float[Tensor, "T D"],
        places: Int[Tensor, " T"] | None = None,
        *,
        keep_bytes: int = KEPT_PRODUCTS,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.given, self.points, self.dtype = points, points.double(), dtype
        step = max(1, len(points) // CENTRE_ROWS)
        self.centre = self.points[::step].median(dim=0).values  # a point far away must not cost the others their digits
        shifted = self.points - self.centre
        norms = shifted.square().sum(dim=1)
        self.scale = float(norms.median().sqrt()) or 1.0
        self.norms = norms / self.scale**2
        self.rows = shifted.div_(self.scale).to(dtype)
        self._places = places
        self._keeps = len(points) ** 2 * dtype.itemsize <= min(keep_bytes, KEPT_PRODUCTS)
        self._products: Tensor | None = None

    def __len__(self) -> int:
        return len(self.points)

    def __getstate__(self) -> dict[str, Any]:
        """All but the products and where the points are in this process's pool."""
        return {**self.__dict__, "_products": None, "_places": None, "_keeps": False}

    @property
    def kept_bytes(self) -> int:
        """What the products among the points take in memory."""
        return len(self) ** 2 * self.dtype.itemsize if self._keeps else 0

    def working(self, rows: Float[Tensor, "p D"]) -> Float[Tensor, "p D"]:
        """Other points, centred and scaled as these are."""
        return ((rows.double() - self.centre) / self.scale).to(self.dtype)

    def rounding(self, num_terms: int | None = None) -> float:
        """How far a sum of products may be off, as a share of the sizes of its terms."""
        return 4 * torch.finfo(self.dtype).eps * math.sqrt(num_terms or self.points.shape[1])

    def distinct(self) -> Int[Tensor, " n"]:
        """The first of each group of copies, ascending."""
        values, group = self.given.unique(dim=0, return_inverse=True)
        first = torch.full((len(values),), len(self), device=group.device)
        return first.scatter_reduce(0, group, torch.arange(len(self), device=group.device), "amin").sort().values

    def among(self, which: Int[Tensor, " p"] | slice) -> Float[Tensor, "p T"]:
        """Products of some of the points with all; made once if there is room for them, and shared for a slice."""
        if not self._keeps:
            return self.rows[which] @ self.rows.T
        if self._products is None:
            self._products = self._all_products()
        return self._products[which]

    def known(self, places: Int[Tensor, " p"]) -> Int[Tensor, " p"]:
        """Which of the points are at these places of the pool, −1 for none; all −1 if no products are kept."""
        if self._places is None or self._products is None:
            return torch.full_like(places, -1)
        at = torch.searchsorted(self._places, places).clamp_max_(len(self) - 1)
        return torch.where(self._places[at] == places, at, -1)

    def _all_products(self) -> Float[Tensor, "T T"]:
        """A product and its mirror image are made once."""
        made = torch.empty(len(self), len(self), dtype=self.dtype, device=self.rows.device)

        def fill(span: slice) -> None:
            found = self.rows[span] @ self.rows[span.start :].T
            made[span, span.start :] = found
            made[span.start :, span] = found.T

        threads.each(fill, spans_of(len(self), PRODUCT_ROWS))
        return made


def squared_length(targets: Float[Tensor, "T D"] | Cloud, batch_size: int) -> float:
    """ℓ² = 2σ²: the median over targets of the squared distance to the k-th nearest other one, k = |T| / B.

    Only distinct targets count, so that copies do not make it 0; k is rounded and clipped to 1 … |T| − 1. With a single
    distinct target there is no distance, and ℓ² = 1.
    """
    cloud = targets if isinstance(targets, Cloud) else Cloud(targets)
    distinct = cloud.distinct()
    if len(distinct) == 1:
        return 1.0
    k = min(max(round(len(distinct) / batch_size), 1), len(distinct) - 1)
    found, slack = _neighbour_distances(cloud, distinct, k)
    lower = (found - slack).nan_to_num_(nan=0.0, posinf=0.0)  # beyond the range of floats nothing is known
    upper = (found + slack).nan_to_num_(nan=torch.inf)
    middle = (len(found) - 1) // 2, len(found) // 2
    least, most = lower.sort().values[middle[0]], upper.sort().values[middle[1]]
    unsure = ((upper >= least) & (lower <= most)).nonzero().flatten()  # all others are below the median, or above it
    found *= cloud.scale**2
    found[unsure] = _measured_distances(cloud, distinct, unsure, k)
    return max(float(found.quantile(0.5)), torch.finfo(torch.float64).tiny)


def _neighbour_distances(
    cloud: Cloud, distinct: Int[Tensor, " n"], k: int
) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
    """Squared distances to the k-th neighbour by products, in the unit of the cloud, and how far they may be off."""
    num, norms = len(distinct), cloud.norms[distinct]
    found = torch.empty(num, dtype=torch.float64)
    others = norms.to(cloud.dtype)
    for span in spans_of(num, BLOCK_NUMBERS // len(cloud)):
        products = cloud.among(span) if num == len(cloud) else cloud.among(distinct[span])[:, distinct]
        apart = torch.add(others, products, alpha=-2).cpu().numpy()  # less the norm of the row
        apart.partition(k, axis=1)  # the row's own is the least
        found[span] = torch.from_numpy(apart[:, k])
    own = norms.cpu()
    found = (found + own).clamp_min_(0)
    # What is as near as this has at most so large a norm, and its product is off by at most so much.
    return found, 2 * cloud.rounding() * (own + (own.sqrt() + found.sqrt()).square())


def _measured_distances(
    cloud: Cloud, distinct: Int[Tensor, " n"], which: Int[Tensor, " m"], k: int
) -> Float[Tensor, " m"]:
    """The same of a few, in the unit of the points: products in float64 tell the neighbour, differences how far."""
    points = cloud.points[distinct]
    shifted = points - cloud.centre
    norms = shifted.square().sum(dim=1)
    found = torch.empty(len(which), dtype=torch.float64)
    for span in spans_of(len(which), BLOCK_NUMBERS // len(points)):
        own = which[span].to(points.device)
        apart = torch.addmm(norms, shifted[own], shifted.T, alpha=-2)  # a constant of the row is left out
        apart[torch.arange(len(own)), own] = -torch.inf
        neighbours = apart.kthvalue(k + 1, dim=1).indices
        found[span] = (points[own] - points[neighbours]).square().sum(dim=1).cpu()
    return found


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
        points: Float[Tensor, "T D"] | Cloud,
        weights: Float[Tensor, " T"],
        kernel: Kernel,
        squared_length: float,
        labelled: Float[Tensor, "L D"] | None = None,
    ) -> None:
        self.cloud = points if isinstance(points, Cloud) else Cloud(points)
        self.weights = weights.to(self.points.device, torch.float64)
        self._largest_weight = max(float(self.weights.amax()), torch.finfo(torch.float64).tiny)
        self.kernel, self.squared_length = kernel, squared_length
        self.total = float(self.weights.sum())
        self.covered = torch.zeros_like(self.weights)
        if labelled is not None and len(labelled):
            nearest = nearest_distances(self.points, labelled.to(self.points)).to(self.points.device)
            self.covered = self._similarity(nearest.square() / squared_length)
        # float32 will do unless its rounding would blur most bounds, as with tight clusters that are far apart
        if 4 * float(self.cloud.norms.quantile(0.9)) * self._unit * self.cloud.rounding() > 0.01:
            self.cloud = Cloud(self.cloud.given, keep_bytes=0, dtype=torch.float64)

    def __len__(self) -> int:
        return len(self.cloud)

    @property
    def points(self) -> Float[Tensor, "T D"]:
        """Embeddings, float64."""
        return self.cloud.points

    @property
    def dtype(self) -> torch.dtype:
        """Working precision."""
        return self.cloud.dtype

    @property
    def num_features(self) -> int:
        """D."""
        return self.points.shape[1]

    @property
    def _unit(self) -> float:
        """The square of the unit of working precision, in units of ℓ²."""
        return self.cloud.scale**2 / self.squared_length

    def similarities(self, rows: Float[Tensor, "p D"]) -> Float[Tensor, "p T"]:
        """κ of points and targets, measured by differences in float64."""
        apart = torch.cdist(rows.double(), self.points, compute_mode="donot_use_mm_for_euclid_dist")
        return self._similarity(apart.square_() / self.squared_length)

    def similarity_bounds(self, rows: Float[Tensor, "p D"], *, slack: bool = True) -> Float[Tensor, "p T"]:
        """κ by a matrix product in working precision; with `slack` never less than it is.

        A point that rounding does not tell from the edge of a ball is inside with and without.
        """
        shifted = self.cloud.working(rows)
        return self._from_products(shifted @ self.cloud.rows.T, shifted.double().square().sum(dim=1), slack=slack)

    def own_bounds(self, which: Int[Tensor, " p"]) -> Float[Tensor, "p T"]:
        """``similarity_bounds`` of some of the targets, from products that are known."""
        return self._from_products(self.cloud.among(which), self.cloud.norms[which], slack=True)

    def _from_products(
        self, products: Float[Tensor, "p T"], norms: Float[Tensor, " p"], *, slack: bool
    ) -> Float[Tensor, "p T"]:
        """Overwrites the products: they are the largest array."""
        rounding = self.cloud.rounding() if slack or self.kernel == "ball" else 0.0
        own, other = (
            (each * self._unit * (1 - rounding) - rounding).to(self.dtype) for each in (norms, self.cloud.norms)
        )
        squared = torch.add(other, products, alpha=-2 * self._unit, out=products)
        squared += own.unsqueeze(1)
        if not (bool(own.isfinite().all()) and bool(other.isfinite().all())):
            squared.nan_to_num_(nan=0.0)  # numbers beyond the range of floats: nothing is known, so the bound is 1
        return self._similarity(squared.clamp_min_(0))

    def bounds_of(self, bounds: Float[Tensor, "p T"], covered: Float[Tensor, " T"]) -> Float[Tensor, " p"]:
        """Upper bounds on gains from upper bounds on κ, float64."""
        so_far = covered.to(self.dtype)
        so_far = torch.where(so_far.double() > covered, so_far.nextafter(torch.zeros_like(so_far)), so_far)
        shares = (self.weights / self._largest_weight).to(self.dtype)  # weights may be too small for float32
        gains = (bounds - so_far).clamp_min_(0) @ shares
        return gains.double().cpu() * self._largest_weight * (1 + self.cloud.rounding(len(self)))

    def gains(self, similarities: Float[Tensor, "p T"], covered: Float[Tensor, " T"]) -> Float[Tensor, " p"]:
        """What points of these κ add to F, float64."""
        return ((similarities - covered).clamp_min_(0) @ self.weights).cpu()

    def _similarity(self, squared: Tensor) -> Tensor:
        """κ of squared distances in units of ℓ²; overwrites them."""
        if self.kernel == "gaussian":
            return squared.neg_().exp_()
        return (squared <= 1 + BOUNDARY).to(squared.dtype)

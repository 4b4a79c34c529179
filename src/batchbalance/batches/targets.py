"""The targets of coverage in the space of embeddings: weighted points, and similarities of other points to them.

Matrix products of centred rows in float32 give approximate distances with known error bounds. Only the distances that
could change a result are measured again by differences of coordinates in float64, so results are exact.
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

BOUNDARY = 1e-12  # relative; a squared distance this close to the squared radius counts as inside
KEPT_PRODUCTS = 2**27  # maximum bytes of cached products between targets
PRODUCT_ROWS = 512  # rows of products computed at a time
CENTRE_ROWS = 255  # number of points whose median is the centre


class Cloud:
    """Points, centred and scaled to a typical norm of 1 in working precision, and their products.

    Args:
        points: (T, D) embeddings.
        places: (T,) their indices in the pool, ascending, if they are in it.
        keep_bytes: memory for products between the points.
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
        self.centre = self.points[::step].median(dim=0).values  # the mean would move with outliers and lose digits
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
        """Return the state without the products and the indices, which are valid only in this process."""
        return {**self.__dict__, "_products": None, "_places": None, "_keeps": False}

    @property
    def kept_bytes(self) -> int:
        """The memory of the cached products between the points."""
        return len(self) ** 2 * self.dtype.itemsize if self._keeps else 0

    def working(self, rows: Float[Tensor, "p D"]) -> Float[Tensor, "p D"]:
        """Return other points, centred and scaled like these."""
        return ((rows.double() - self.centre) / self.scale).to(self.dtype)

    def rounding(self, num_terms: int | None = None) -> float:
        """Return a bound on the rounding error of a sum of products, relative to the sizes of its terms."""
        return 4 * torch.finfo(self.dtype).eps * math.sqrt(num_terms or self.points.shape[1])

    def distinct(self) -> Int[Tensor, " n"]:
        """Return the first of each group of duplicates, ascending."""
        values, group = self.given.unique(dim=0, return_inverse=True)
        first = torch.full((len(values),), len(self), device=group.device)
        return first.scatter_reduce(0, group, torch.arange(len(self), device=group.device), "amin").sort().values

    def among(self, which: Int[Tensor, " p"] | slice) -> Float[Tensor, "p T"]:
        """Return products of some points with all points; cached if they fit. A slice returns a view of the cache."""
        if not self._keeps:
            return self.rows[which] @ self.rows.T
        if self._products is None:
            self._products = self._all_products()
        return self._products[which]

    def known(self, places: Int[Tensor, " p"]) -> Int[Tensor, " p"]:
        """Return the position of each pool index among the points, −1 if absent; all −1 if no products are cached."""
        if self._places is None or self._products is None:
            return torch.full_like(places, -1)
        at = torch.searchsorted(self._places, places).clamp_max_(len(self) - 1)
        return torch.where(self._places[at] == places, at, -1)

    def _all_products(self) -> Float[Tensor, "T T"]:
        """Return all products; the matrix is symmetric, so only its upper blocks are computed."""
        made = torch.empty(len(self), len(self), dtype=self.dtype, device=self.rows.device)

        def fill(span: slice) -> None:
            found = self.rows[span] @ self.rows[span.start :].T
            made[span, span.start :] = found
            made[span.start :, span] = found.T

        threads.each(fill, spans_of(len(self), PRODUCT_ROWS))
        return made


def squared_length(targets: Float[Tensor, "T D"] | Cloud, batch_size: int) -> float:
    """Return ℓ² = 2σ²: the median over targets of the squared distance to the k-th nearest other one, k = |T| / B.

    Only distinct targets count, so duplicates do not make it 0. k is rounded and clipped to 1 … |T| − 1. With a single
    distinct target ℓ² = 1. Float32 products bound every distance; those that may be the median are measured exactly.
    """
    cloud = targets if isinstance(targets, Cloud) else Cloud(targets)
    distinct = cloud.distinct()
    if len(distinct) == 1:
        return 1.0
    k = min(max(round(len(distinct) / batch_size), 1), len(distinct) - 1)
    found, slack = _neighbour_distances(cloud, distinct, k)
    lower = (found - slack).nan_to_num_(nan=0.0, posinf=0.0)  # an overflow gives no bound
    upper = (found + slack).nan_to_num_(nan=torch.inf)
    middle = (len(found) - 1) // 2, len(found) // 2
    least, most = lower.sort().values[middle[0]], upper.sort().values[middle[1]]
    unsure = ((upper >= least) & (lower <= most)).nonzero().flatten()  # the others are surely below or above the median
    found *= cloud.scale**2
    found[unsure] = _measured_distances(cloud, distinct, unsure, k)
    return max(float(found.quantile(0.5)), torch.finfo(torch.float64).tiny)


def _neighbour_distances(
    cloud: Cloud, distinct: Int[Tensor, " n"], k: int
) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
    """Return squared distances to the k-th neighbour by products, in units of the cloud, and bounds on their errors."""
    num, norms = len(distinct), cloud.norms[distinct]
    found = torch.empty(num, dtype=torch.float64)
    others = norms.to(cloud.dtype)
    for span in spans_of(num, BLOCK_NUMBERS // len(cloud)):
        products = cloud.among(span) if num == len(cloud) else cloud.among(distinct[span])[:, distinct]
        apart = torch.add(others, products, alpha=-2).cpu().numpy()  # the row's own norm, a constant, is added below
        apart.partition(k, axis=1)  # entry 0 is the point itself, so entry k is its k-th neighbour
        found[span] = torch.from_numpy(apart[:, k])
    own = norms.cpu()
    found = (found + own).clamp_min_(0)
    # A point at distance d of a row of norm r has a norm of at most r + d, which bounds the error of their product.
    return found, 2 * cloud.rounding() * (own + (own.sqrt() + found.sqrt()).square())


def _measured_distances(
    cloud: Cloud, distinct: Int[Tensor, " n"], which: Int[Tensor, " m"], k: int
) -> Float[Tensor, " m"]:
    """Return exact distances of a few, in units of the points: products find the neighbours, differences measure."""
    points = cloud.points[distinct]
    shifted = points - cloud.centre
    norms = shifted.square().sum(dim=1)
    found = torch.empty(len(which), dtype=torch.float64)
    for span in spans_of(len(which), BLOCK_NUMBERS // len(points)):
        own = which[span].to(points.device)
        apart = torch.addmm(norms, shifted[own], shifted.T, alpha=-2)  # without the row's norm, a constant
        apart[torch.arange(len(own)), own] = -torch.inf
        neighbours = apart.kthvalue(k + 1, dim=1).indices
        found[span] = (points[own] - points[neighbours]).square().sum(dim=1).cpu()
    return found


class Targets:
    """The points to cover, and similarities of other points to them.

    Args:
        points: (T, D) embeddings of the targets.
        weights: (T,) their non-negative weights.
        kernel: "gaussian", κ = exp(−d² / ℓ²); or "ball", κ = 1 up to the distance ℓ.
        squared_length: ℓ².
        labelled: (L, D) embeddings of labelled points, which already cover targets.
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
        # float32 is enough unless its rounding makes most bounds useless, as with tight clusters that are far apart.
        if 4 * float(self.cloud.norms.quantile(0.9)) * self._unit * self.cloud.rounding() > 0.01:
            self.cloud = Cloud(self.cloud.given, keep_bytes=0, dtype=torch.float64)

    def __len__(self) -> int:
        return len(self.cloud)

    @property
    def points(self) -> Float[Tensor, "T D"]:
        """The embeddings of the targets, float64."""
        return self.cloud.points

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the working precision."""
        return self.cloud.dtype

    @property
    def num_features(self) -> int:
        """The number of features, D."""
        return self.points.shape[1]

    @property
    def _unit(self) -> float:
        """The squared unit of the cloud, in units of ℓ²."""
        return self.cloud.scale**2 / self.squared_length

    def similarities(self, rows: Float[Tensor, "p D"]) -> Float[Tensor, "p T"]:
        """Return κ of points and targets, measured by differences in float64."""
        apart = torch.cdist(rows.double(), self.points, compute_mode="donot_use_mm_for_euclid_dist")
        return self._similarity(apart.square_() / self.squared_length)

    def similarity_bounds(self, rows: Float[Tensor, "p D"], *, slack: bool = True) -> Float[Tensor, "p T"]:
        """Return κ by a matrix product in working precision; with `slack`, an upper bound on it.

        With or without `slack`, a point within rounding of the surface of a ball counts as inside.
        """
        shifted = self.cloud.working(rows)
        return self._from_products(shifted @ self.cloud.rows.T, shifted.double().square().sum(dim=1), slack=slack)

    def own_bounds(self, which: Int[Tensor, " p"]) -> Float[Tensor, "p T"]:
        """Return ``similarity_bounds`` of some of the targets, from cached products."""
        return self._from_products(self.cloud.among(which), self.cloud.norms[which], slack=True)

    def _from_products(
        self, products: Float[Tensor, "p T"], norms: Float[Tensor, " p"], *, slack: bool
    ) -> Float[Tensor, "p T"]:
        """Return κ from products, which are overwritten to save memory; norms are lowered by the rounding error."""
        rounding = self.cloud.rounding() if slack or self.kernel == "ball" else 0.0
        own, other = (
            (each * self._unit * (1 - rounding) - rounding).to(self.dtype) for each in (norms, self.cloud.norms)
        )
        squared = torch.add(other, products, alpha=-2 * self._unit, out=products)
        squared += own.unsqueeze(1)
        if not (bool(own.isfinite().all()) and bool(other.isfinite().all())):
            squared.nan_to_num_(nan=0.0)  # after an overflow nothing is known, so the bound is κ = 1
        return self._similarity(squared.clamp_min_(0))

    def bounds_of(self, bounds: Float[Tensor, "p T"], covered: Float[Tensor, " T"]) -> Float[Tensor, " p"]:
        """Return upper bounds on gains from upper bounds on κ, float64."""
        so_far = covered.to(self.dtype)  # rounded down below, because a smaller cover gives a larger gain
        so_far = torch.where(so_far.double() > covered, so_far.nextafter(torch.zeros_like(so_far)), so_far)
        shares = (self.weights / self._largest_weight).to(self.dtype)  # weights alone may underflow in float32
        gains = (bounds - so_far).clamp_min_(0) @ shares
        return gains.double().cpu() * self._largest_weight * (1 + self.cloud.rounding(len(self)))

    def gains(self, similarities: Float[Tensor, "p T"], covered: Float[Tensor, " T"]) -> Float[Tensor, " p"]:
        """Return the gains in F of points with these κ, float64."""
        return ((similarities - covered).clamp_min_(0) @ self.weights).cpu()

    def _similarity(self, squared: Tensor) -> Tensor:
        """Return κ of squared distances in units of ℓ²; overwrites its argument."""
        if self.kernel == "gaussian":
            return squared.neg_().exp_()
        return (squared <= 1 + BOUNDARY).to(squared.dtype)

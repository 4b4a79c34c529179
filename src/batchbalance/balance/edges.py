"""Edges between draws that differ enough: Hamming distances, the annealed threshold, edges (section 3.1).

A pair of draws is an edge if their hard predictions differ on more than τ·N_ref points of the reference set. Two draws
differ on an item with several labels by the share of its labels on which they differ: labels are counted, against
τ·N_ref·L.
``partition`` builds explicit equivalence classes instead, by farthest-first traversal (appendix, BALanCe-Partition).
"""

from dataclasses import dataclass
from typing import Annotated, Literal, SupportsFloat, SupportsIndex

import torch
from jaxtyping import Bool, Float, Int
from pydantic import Field, model_validator
from torch import Tensor

from batchbalance.arguments.checks import check_unit, check_whole
from batchbalance.arguments.sections import Section, Whole
from batchbalance.arguments.seeds import generator
from batchbalance.predictions import CHUNK_NUMBERS, Draws, Predictions, spans_of

Pairs = Literal["disjoint", "all"] | int
Design = Literal["disjoint", "random", "all", "partition"]
Share = Annotated[float, Field(ge=0, le=1, strict=True)]
MaxReference = SupportsIndex | Literal["all"]
MAX_REFERENCE = 10_000
DEFAULT_RATIO = 0.25


@dataclass(frozen=True, eq=False, repr=False)
class Edges:
    """The pairs of draws that were compared, and which of them are edges.

    Attributes:
        pairs: (K, 2) draw indices of the compared pairs.
        connected: (K,) whether the pair is an edge.
        draws: the draws of the reference set, which the edges join.
        design: how the pairs were chosen: "disjoint", "random", "all" or "partition".
        threshold: τ, the share of the reference set that an edge must exceed.
        num_reference: points of the reference set that were compared.
        num_reference_given: points that were given, before subsampling.
    """

    pairs: Int[Tensor, "K 2"]
    connected: Bool[Tensor, " K"]
    draws: Draws
    design: Design
    threshold: float
    num_reference: int
    num_reference_given: int

    @property
    def num_draws(self) -> int:
        """The number of draws, S."""
        return self.draws.num

    @property
    def num_pairs(self) -> int:
        """The number of compared pairs, K."""
        return len(self.pairs)

    @property
    def num_edges(self) -> int:
        """The number of edges, E: pairs that differ by more than the threshold."""
        return int(self.connected.sum())

    @property
    def ends(self) -> Int[Tensor, "E 2"]:
        """The two draws of each edge."""
        return self.pairs[self.connected]

    @property
    def pair_weights(self) -> Float[Tensor, " K"]:
        """The weights w_a w_b of the compared pairs, normalised to sum 1, float64."""
        if self.draws.weights is None:
            return torch.full((self.num_pairs,), 1 / self.num_pairs, dtype=torch.float64)
        products = self.draws.weights[self.pairs].prod(dim=1)
        total = products.sum()
        return products / total if total > 0 else products

    @property
    def edge_weights(self) -> Float[Tensor, " E"]:
        """The weights v_k of the edges, float64; their sum Δ_max is the largest possible Δ."""
        return self.pair_weights[self.connected]

    @property
    def total_weight(self) -> float:
        """Δ_max, the sum of the edge weights."""
        return float(self.edge_weights.sum())

    def __repr__(self) -> str:
        return f"Edges({self.num_edges} of {self.num_pairs} {self.design} pairs, threshold {self.threshold:g})"


class EdgeSettings(Section):
    """Settings: which pairs of draws are compared, and by how much they must differ.

    Attributes:
        ratio: τ / ε, the threshold as a share of the validation error.
        threshold: τ, instead of `ratio`.
        pairs: `disjoint` compares each draw with one other, `all` compares all pairs; or a number of random pairs.
        max_reference: a larger reference set is subsampled to this size.
    """

    table = "[edges]"
    ratio: Share = DEFAULT_RATIO
    threshold: Share | None = None
    pairs: Literal["disjoint", "all"] | Whole = "disjoint"
    max_reference: Whole = MAX_REFERENCE

    @model_validator(mode="after")
    def _one_threshold(self) -> "EdgeSettings":
        if self.threshold is not None and "ratio" in self.model_fields_set and self.ratio != DEFAULT_RATIO:
            raise ValueError("`ratio` and `threshold` must not be given together; omit one of them")
        return self


def annealed_threshold(validation_error: SupportsFloat, ratio: SupportsFloat = DEFAULT_RATIO) -> float:
    """Return τ = ratio · ε: the threshold shrinks with the validation error ε (both in [0, 1])."""
    return check_unit("ratio", ratio) * check_unit("validation_error", validation_error)


def hamming_distances(
    reference: Predictions, pairs: Int[Tensor, "K 2"] | None = None, *, rows: Int[Tensor, " r"] | None = None
) -> Int[Tensor, " K"] | Int[Tensor, "S S"]:
    """Count the reference points on which the hard predictions of two draws differ; with several labels, the labels.

    Args:
        reference: predictions on the reference set.
        pairs: (K, 2) pairs of draws; all pairs if omitted.
        rows: the points to compare on; all if omitted.

    Returns:
        Counts, int64: (K,) for given pairs, else the symmetric (S, S) matrix.
    """
    items = torch.arange(reference.num_points) if rows is None else rows
    asked, reference = torch.as_tensor(reference.question_rows(items)), reference.questions
    if pairs is None:
        return _distance_matrix(reference, asked)
    counts = torch.zeros(len(pairs), dtype=torch.long)
    for span in spans_of(len(asked), CHUNK_NUMBERS // (reference.num_draws * reference.num_classes)):
        labels = reference.hard_labels(asked[span]).cpu()
        counts += (labels[:, pairs[:, 0]] != labels[:, pairs[:, 1]]).sum(dim=0)
    return counts


def _distance_matrix(reference: Predictions, rows: Tensor) -> Tensor:
    num_draws = reference.num_draws
    agreements = torch.zeros(num_draws, num_draws, dtype=torch.float64)
    for span in spans_of(len(rows), CHUNK_NUMBERS // (reference.num_draws * reference.num_classes)):
        labels = reference.hard_labels(rows[span]).cpu()
        one_hot = torch.nn.functional.one_hot(labels, reference.num_classes).to(torch.float32)
        flat = one_hot.transpose(0, 1).reshape(num_draws, -1)  # (S, n·C)
        agreements += flat @ flat.T  # whole numbers below 2^24 are exact in float32
    return len(rows) - agreements.round().long()


def connect(
    reference: Predictions,
    threshold: SupportsFloat,
    pairs: Pairs | SupportsIndex = "disjoint",
    seed: int = 0,
    *,
    max_reference: MaxReference | None = None,
) -> Edges:
    """Join the draws that differ on more than a share `threshold` of the reference set.

    Args:
        reference: predictions on the reference set (the paper's D̄pool).
        threshold: τ in [0, 1].
        pairs: "disjoint" joins draw i with draw i + ⌊S/2⌋ as in the paper (an odd last draw with draw 0), a
            number takes that many distinct random pairs, "all" takes every pair.
        seed: for random pairs and for subsampling the reference set.
        max_reference: a larger reference set is subsampled to this size, 10,000 if omitted; "all" keeps it whole.
    """
    tau = check_unit("threshold", threshold)
    chosen, design = choose_pairs(reference.num_draws, pairs, seed)
    rows = subsampled_rows(reference, max_reference, seed)
    if len(chosen) > reference.num_draws:  # a matrix product is cheaper than comparing pair by pair
        distances = hamming_distances(reference, rows=rows)[chosen[:, 0], chosen[:, 1]]
    else:
        distances = hamming_distances(reference, chosen, rows=rows)
    connected = distances > threshold_count(tau, len(rows) * (reference.num_labels or 1))
    return _edges(reference, len(rows), tau, chosen, connected, design)


def partition_edges(
    reference: Predictions, threshold: SupportsFloat, seed: int = 0, *, max_reference: MaxReference | None = None
) -> Edges:
    """Join all draws that lie in different classes of a farthest-first partition (BALanCe-Partition)."""
    tau = check_unit("threshold", threshold)
    chosen, _ = choose_pairs(reference.num_draws, "all", seed)
    rows = subsampled_rows(reference, max_reference, seed)
    radius = threshold_count(tau, len(rows) * (reference.num_labels or 1))
    classes = partition(hamming_distances(reference, rows=rows), radius)
    connected = classes[chosen[:, 0]] != classes[chosen[:, 1]]
    return _edges(reference, len(rows), tau, chosen, connected, "partition")


def _edges(
    reference: Predictions, num_compared: int, threshold: float, pairs: Tensor, connected: Tensor, design: Design
) -> Edges:
    return Edges(
        pairs=pairs,
        connected=connected,
        draws=reference.draws,
        design=design,
        threshold=threshold,
        num_reference=num_compared,
        num_reference_given=reference.num_points,
    )


def partition(distances: Int[Tensor, "S S"], radius: int) -> Int[Tensor, " S"]:
    """Return equivalence classes by farthest-first traversal (Gonzalez 1985).

    Draw 0 is the first centre. The draw farthest from all centres becomes the next one until every draw is
    within `radius` of a centre. Each draw joins its nearest centre; ties go to the earliest.

    Returns:
        (S,) class of each draw, numbered in the order of the centres.
    """
    nearest = distances[0].clone()
    classes = torch.zeros(len(distances), dtype=torch.long)
    num_classes = 1
    while int(nearest.max()) > radius:
        centre = int(nearest.argmax())
        closer = distances[centre] < nearest
        classes[closer] = num_classes
        nearest = torch.minimum(nearest, distances[centre])
        num_classes += 1
    return classes


def choose_pairs(num_draws: int, pairs: Pairs | SupportsIndex, seed: int) -> tuple[Int[Tensor, "K 2"], Design]:
    """Return the pairs of draws to compare, (K, 2), and the name of the design."""
    if num_draws < 2:
        raise ValueError(f"pairs of draws need at least 2 draws, got {num_draws}; predict with more draws")
    if pairs == "disjoint":
        half = num_draws // 2
        first = torch.arange(half)
        chosen = torch.stack([first, first + half], dim=1)
        if num_draws % 2:
            chosen = torch.cat([chosen, torch.tensor([[0, num_draws - 1]])])
        return chosen, "disjoint"
    upper = torch.triu_indices(num_draws, num_draws, offset=1).T
    if pairs == "all":
        return upper, "all"
    if isinstance(pairs, str):
        raise ValueError(f"`pairs` must be 'disjoint', 'all' or a number of random pairs, got {pairs!r}")
    number = check_whole("pairs", pairs, 1, len(upper), limit=f"the pairs of {num_draws} draws")
    picked = torch.randperm(len(upper), generator=generator(seed, "pairs"))[:number]
    return upper[picked.sort().values], "random"


def threshold_count(threshold: float, num_reference: int) -> int:
    """Return the largest number of differing points that does not exceed τ·N_ref."""
    # 0.29 · 100 is 28.999… in floating point; a pair that differs on exactly 29 points is not an edge.
    return int(threshold * num_reference + 1e-9)


def subsampled_rows(reference: Predictions, max_reference: MaxReference | None, seed: int) -> Int[Tensor, " r"]:
    """Draw at most `max_reference` points of the reference set without replacement, in ascending order."""
    most = reference.num_points
    if max_reference != "all":
        given = MAX_REFERENCE if max_reference is None else max_reference
        most = check_whole("max_reference", given)
    if reference.num_points <= most:
        return torch.arange(reference.num_points)
    stream = generator(seed, "reference")
    return torch.randperm(reference.num_points, generator=stream)[:most].sort().values


def subsample(reference: Predictions, max_reference: MaxReference | None, seed: int) -> Predictions:
    """Return the reference set, subsampled to at most `max_reference` points."""
    rows = subsampled_rows(reference, max_reference, seed)
    return reference if len(rows) == reference.num_points else reference.subset(rows)

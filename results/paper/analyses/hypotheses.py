"""EC² and ECED on a finite set of hypotheses (appendix, preliminary works).

Hypotheses lie in equivalence classes, and an edge joins every two of different classes. With s_c the weight of class c,
the total edge weight is ½ Σ_c s_c (Σ s − s_c), so no list of edges is needed.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from batchbalance.errors import UnknownNameError
from batchbalance.scores import above_rounding

RULES = ("ec2", "eced")
SUM_TOLERANCE = 1e-4
BLOCK_NUMBERS = 2**22


class HypothesisTable:
    """Active learning on a finite set of H hypotheses: query points and observe labels until one class is left.

    Args:
        likelihoods: (H, N, C) probabilities p(y | h, x) of each label of each point under each hypothesis.
        classes: (H,) equivalence class of each hypothesis, any whole numbers.
        prior: (H,) probabilities of the hypotheses; equal if omitted.
        rule: "ec2" or "eced". EC² cuts at probability 0 only, so use it where labels are free of noise.

    Attributes:
        posterior: (H,) probabilities of the hypotheses given the labels observed so far.
        node_weights: (H,) weights of the hypotheses: an edge weighs the product of its two ends. For ECED this is the
            posterior; for EC² the prior of the hypotheses that no label has ruled out. Scaled to sum 1 after each
            label, which is one factor for all edges.
    """

    def __init__(
        self,
        likelihoods: Float[Tensor, "H N C"],
        classes: Int[Tensor, " hypotheses"],
        prior: Float[Tensor, " priors"] | None = None,
        *,
        rule: str = "ec2",
    ) -> None:
        if rule not in RULES:
            raise UnknownNameError("rule", rule, RULES)
        num_hypotheses = len(likelihoods)
        if 0 in likelihoods.shape or len(classes) != num_hypotheses:
            raise ValueError(
                f"`likelihoods` must be (H, N, C) with one of `classes` for each hypothesis, got shape "
                f"{tuple(likelihoods.shape)} and {len(classes)} classes"
            )
        self.rule = rule
        self.likelihoods = likelihoods.double()
        _check_distributions("likelihoods", self.likelihoods)
        if prior is None:
            prior = torch.full((num_hypotheses,), 1 / num_hypotheses, dtype=torch.float64)
        self.posterior = prior.double()
        if len(prior) != num_hypotheses:
            raise ValueError(f"`prior` must have one number for each of {num_hypotheses} hypotheses, got {len(prior)}")
        _check_distributions("prior", self.posterior)
        self.posterior = self.posterior / self.posterior.sum()
        self.node_weights = self.posterior
        numbered = torch.unique(classes, return_inverse=True)[1]
        self.membership = torch.nn.functional.one_hot(numbered).double()  # (H, number of classes)

    @property
    def version_space(self) -> Bool[Tensor, " H"]:
        """Which hypotheses no label has ruled out."""
        return self.posterior > 0

    @property
    def edge_weight(self) -> float:
        """The total weight of the remaining edges; 0 once all remaining hypotheses are of one class."""
        return float(_edge_weight(self.node_weights @ self.membership))

    def scores(self) -> Float[Tensor, " N"]:
        """Return the expected weight of the edges that the label of each point cuts or discounts, float64."""
        num_points, num_classes = self.likelihoods.shape[1:]
        left = self.version_space
        table, nodes = self.likelihoods[left], self.node_weights[left]
        scores = torch.empty(num_points, dtype=torch.float64)
        step = max(1, BLOCK_NUMBERS // (len(table) * num_classes))
        for start in range(0, num_points, step):
            block = table[:, start : start + step]  # (h, n, C)
            expected = torch.einsum("h,hnc->nc", self.posterior[left], block)
            kept = _ratios(block) if self.rule == "eced" else (block > 0).double()
            survives = _edge_weight(torch.einsum("hnc,hk->nck", kept * nodes[:, None, None], self.membership[left]))
            most = self.edge_weight * (kept.amax(dim=0).square() if self.rule == "eced" else torch.ones_like(expected))
            scores[start : start + step] = (expected * above_rounding(most - survives, most)).sum(dim=1)
        return scores

    def next_query(self, candidates: Int[Tensor, " n"] | None = None) -> int:
        """Return the point of highest score, among `candidates` if given; ties go to the lowest index."""
        scores = self.scores()
        if candidates is not None:
            allowed = torch.zeros(len(scores), dtype=torch.bool)
            allowed[candidates] = True
            scores = scores.masked_fill(~allowed, -torch.inf)
        return int((scores >= scores.max() - 1e-12 * max(self.edge_weight, 1e-300)).nonzero()[0])

    def observe(self, x: int, y: int) -> None:
        """Update the weights with the label `y` of point `x`."""
        num_points, num_classes = self.likelihoods.shape[1:]
        if not 0 <= x < num_points or not 0 <= y < num_classes:
            raise ValueError(
                f"`x` must be from 0 to {num_points - 1} and `y` from 0 to {num_classes - 1}, got {x} and {y}"
            )
        likelihood = self.likelihoods[:, x, y]
        posterior = self.posterior * likelihood
        if not bool((posterior > 0).any()):
            raise ValueError(f"`y` must be a label that some remaining hypothesis allows, got {y} for point {x}")
        self.posterior = posterior / posterior.sum()
        nodes = self.posterior if self.rule == "eced" else self.node_weights * (likelihood > 0)
        self.node_weights = nodes / nodes.sum()


def _ratios(table: Float[Tensor, "h n C"]) -> Float[Tensor, "h n C"]:
    return table / table.amax(dim=2, keepdim=True)


def _edge_weight(by_class: Float[Tensor, "... K"]) -> Float[Tensor, "..."]:
    """Return the total weight of the edges between classes of these weights."""
    return (by_class * (by_class.sum(dim=-1, keepdim=True) - by_class)).sum(dim=-1).clamp_min(0) / 2


def _check_distributions(name: str, table: Tensor) -> None:
    """Raise unless the last axis holds distributions."""
    wrong = ~((table >= 0).all(dim=-1) & ((table.sum(dim=-1) - 1).abs() <= SUM_TOLERANCE))
    if bool(wrong.any()):
        where = wrong.nonzero()[0].tolist()
        raise ValueError(
            f"`{name}` must be non-negative and sum to 1 along the last axis, got a sum of "
            f"{float(table[tuple(where)].sum()):g} at {where}; divide by the sums"
        )

"""EC² and ECED, the ancestors of BALanCe, over posterior draws (appendix, preliminary works).

EC² cuts an edge when a label has probability 0 under one of its ends (Golovin et al. 2010); ECED discounts an edge by
the likelihood ratios λ_h(y) = p(y | h, x) / max_y' p(y' | h, x) of its ends and subtracts what noise alone would
discount (Chen et al. 2017).
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from batchbalance.balance.edges import Edges
from batchbalance.predictions import CHUNK_NUMBERS, Predictions, spans_of
from batchbalance.scores import above_rounding

BLOCK_NUMBERS = 2**22


def ec2(predictions: Predictions, edges: Edges) -> Float[Tensor, " N"]:
    """Return the EC² score over draws: the expected edge weight that a label cuts, float64.

    Draws count by their hard predictions, because a softmax never rules out a label: an edge survives only a label
    that both of its ends predict, or the same set of labels.
    """
    predictions.draws.check_same(edges.draws, "edges")
    ends, values = edges.ends, edges.edge_weights
    weights = predictions.draw_weights
    scores = []
    num_draws = predictions.num_draws
    for span in spans_of(predictions.num_points, CHUNK_NUMBERS // (num_draws * predictions.num_classes)):
        labels = _hard_answers(predictions, span)
        votes = torch.zeros(len(labels), max(num_draws, predictions.num_classes), dtype=torch.float64)
        votes.scatter_add_(1, labels, weights.expand(labels.shape))
        first, second = labels[:, ends[:, 0]], labels[:, ends[:, 1]]  # (n, E)
        votes /= votes.sum(dim=1, keepdim=True)  # exactly 1 where all draws agree
        cut = torch.where(first == second, 1 - votes.gather(1, first), 1)
        scores.append(cut @ values)
    return torch.cat(scores)


def eced(predictions: Predictions, edges: Edges) -> Float[Tensor, " N"]:
    """Return the ECED score over draws: the expected edge weight that a label discounts beyond the noise offset.

    Σ_y p̄(y) Σ_k v_k (max_h λ_h(y)² − λ_a(y) λ_b(y)) over the edges k = (a, b); 0 where all draws agree. The
    maximum is over draws of positive weight. Float64. With several labels y is a set of at most 10 labels.
    """
    predictions = predictions.joint()
    predictions.draws.check_same(edges.draws, "edges")
    device = predictions.device
    num_draws = predictions.num_draws
    weights = predictions.draw_weights.to(device)
    halves = torch.zeros(num_draws, num_draws, dtype=torch.float64)
    halves.index_put_((edges.ends[:, 0], edges.ends[:, 1]), edges.edge_weights, accumulate=True)
    halves = halves.to(device)
    scores = []
    for _, chunk in predictions.chunks(BLOCK_NUMBERS // 4):
        log_probs = chunk.double()
        expected = torch.einsum("s,nsc->nc", weights, log_probs.exp())
        ratios = (log_probs - log_probs.amax(dim=2, keepdim=True)).exp().transpose(1, 2)  # (n, C, S)
        discounted = (ratios * (ratios @ halves.T)).sum(dim=2)  # Σ_k v_k λ_a λ_b
        most = edges.total_weight * ratios[..., weights > 0].amax(dim=2).square()
        scores.append((expected * above_rounding(most - discounted, most)).sum(dim=1).cpu())
    return torch.cat(scores)


def _hard_answers(predictions: Predictions, span: slice) -> Int[Tensor, "n S"]:
    """Return the most probable class of each draw; for several labels, a number that equal sets of labels share."""
    labels = predictions.questions.hard_labels(predictions.question_rows(span)).cpu()
    if predictions.num_labels is None:
        return labels
    by_label = labels.unflatten(0, (-1, predictions.num_labels))
    numbers = torch.zeros_like(by_label[:, 0])
    for label in range(predictions.num_labels):  # sets are numbered again after each label: below S, however many
        ordered, order = (2 * numbers + by_label[:, label]).sort(dim=1)
        ranks = torch.nn.functional.pad(ordered[:, 1:] != ordered[:, :-1], (1, 0)).cumsum(dim=1)
        numbers = torch.empty_like(ranks).scatter_(1, order, ranks)
    return numbers

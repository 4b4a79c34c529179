"""Plain forms of what the library computes: the other side of a line, as one would write it down first."""

import math

import torch
from torch import Tensor, nn

from batchbalance.balance.edges import Edges


def entropy(probs: Tensor) -> Tensor:
    """Entropy along the last axis."""
    return -(probs * probs.clamp_min(1e-38).log()).sum(dim=-1)


def bald(log_probs: Tensor) -> Tensor:
    """The textbook difference of entropies, over the whole array in float32."""
    probs = log_probs.exp()
    return entropy(probs.mean(dim=1)) - entropy(probs).mean(dim=1)


def margin(log_probs: Tensor) -> Tensor:
    """One minus the gap between the two largest mean probabilities."""
    return 1 + log_probs.exp().mean(dim=1).topk(2).values.diff(dim=1)[:, 0]


def batch_bald(log_probs: Tensor, batch_size: int) -> Tensor:
    """Joint entropies of every candidate at every pick, all configurations, as in the published algorithm."""
    probs = log_probs.double().exp()
    own = entropy(probs).mean(dim=1)
    joint = torch.ones(1, probs.shape[1], dtype=torch.float64)
    chosen: list[int] = []
    for _ in range(batch_size):
        values = [entropy((joint @ point / probs.shape[1]).flatten()) for point in probs]
        scores = torch.stack(values) - own
        scores[chosen] = -math.inf
        chosen.append(int(scores.argmax()))
        joint = (joint.unsqueeze(1) * probs[chosen[-1]].T.unsqueeze(0)).flatten(0, 1)
    return torch.tensor(chosen)


class SampledBalance:
    """The paper's eq. 6 in its own matrices: every pair, configuration and label of the new point is formed.

    Args:
        log_probs: (N, S, C) of the pool.
        ends: (K, 2) pairs of draws; draws are equally likely.
        weights: (K,) 1/K for a connected pair, else 0.
        chosen: the batch so far.
        num_samples: M configurations of its labels, each from one draw.
        generator: for the configurations.
    """

    def __init__(
        self,
        log_probs: Tensor,
        ends: Tensor,
        weights: Tensor,
        chosen: Tensor,
        num_samples: int,
        generator: torch.Generator,
    ) -> None:
        self._probs, self._ends, self._weights = log_probs.exp(), ends, weights
        batch = self._probs[chosen]  # (b, S, C)
        draws = torch.randint(batch.shape[1], (num_samples,), generator=generator)
        labels = [torch.multinomial(point[draws], 1, generator=generator)[:, 0] for point in batch]
        self._joint = torch.stack([point[:, y] for point, y in zip(batch, labels, strict=True)]).prod(dim=0)  # (S, M)
        self._largest = batch.amax(dim=2).prod(dim=0)  # (S,)

    def scores(self, indices: Tensor) -> Tensor:
        """The estimate of Δ for the batch and each of some points."""
        return torch.stack([self._score(self._probs[index]) for index in indices.tolist()])

    def _score(self, point: Tensor) -> Tensor:
        ratios = []
        for end in self._ends.T:
            joint = self._joint[end].unsqueeze(2) * point[end].unsqueeze(1)  # (K, M, C)
            ratios.append(joint / (self._largest[end] * point[end].amax(dim=1))[:, None, None])
        discounted = torch.einsum("k,kmc->mc", self._weights, 1 - ratios[0] * ratios[1])
        likelihoods = self._joint.T @ point / self._joint.sum(dim=0).unsqueeze(1)  # (M, C)
        return (discounted * likelihoods).sum() / len(likelihoods)


def epig(log_probs: Tensor, target_log_probs: Tensor) -> Tensor:
    """All joint distributions at once, (N, T, C, C)."""
    joint = torch.einsum("nsc,tsd->ntcd", log_probs.exp(), target_log_probs.exp()) / log_probs.shape[1]
    product = joint.sum(dim=3, keepdim=True) * joint.sum(dim=2, keepdim=True)
    return (joint * (joint.clamp_min(1e-38) / product.clamp_min(1e-38)).log()).sum(dim=(2, 3)).mean(dim=1)


def ec2(log_probs: Tensor, edges: Edges) -> Tensor:
    """Edge by edge."""
    labels = log_probs.argmax(dim=2)
    votes = torch.stack([(labels == y).double().mean(dim=1) for y in range(log_probs.shape[2])], dim=1)
    total = torch.zeros(len(labels), dtype=torch.float64)
    for (a, b), value in zip(edges.ends.tolist(), edges.edge_weights.tolist(), strict=True):
        kept = (labels[:, a] == labels[:, b]) * votes.gather(1, labels[:, a : a + 1])[:, 0]
        total += value * (1 - kept)
    return total


def eced(log_probs: Tensor, edges: Edges) -> Tensor:
    """Edge by edge."""
    probs = log_probs.double().exp()
    ratios = probs / probs.amax(dim=2, keepdim=True)
    most, total = ratios.amax(dim=1).square(), torch.zeros(len(probs), dtype=torch.float64)
    for (a, b), value in zip(edges.ends.tolist(), edges.edge_weights.tolist(), strict=True):
        total += value * (probs.mean(dim=1) * (most - ratios[:, a] * ratios[:, b])).sum(dim=1)
    return total


def k_center(points: Tensor, batch_size: int, labelled: Tensor) -> Tensor:
    """All distances anew at every pick."""
    centres = labelled
    chosen: list[int] = []
    for _ in range(batch_size):
        chosen.append(int(torch.cdist(points, centres).amin(dim=1).argmax()))
        centres = torch.cat([labelled, points[chosen]])
    return torch.tensor(chosen)


def badge(probs: Tensor, points: Tensor, batch_size: int, stream: torch.Generator) -> Tensor:
    """Gradient embeddings in full, N × C·D."""
    residuals = probs - nn.functional.one_hot(probs.argmax(dim=1), probs.shape[1])
    gradients = (residuals.unsqueeze(2) * points.unsqueeze(1)).flatten(1)
    chosen = [int(gradients.norm(dim=1).argmax())]
    nearest = torch.full((len(gradients),), math.inf, dtype=torch.float64)
    for _ in range(batch_size - 1):
        nearest = torch.minimum(nearest, (gradients - gradients[chosen[-1]]).square().sum(dim=1).double())
        place = torch.rand((), generator=stream, dtype=torch.float64) * nearest.sum()
        chosen.append(int(torch.searchsorted(nearest.cumsum(0), place, right=True)))
    return torch.tensor(chosen)


def cluster_margin(probs: Tensor, points: Tensor, batch_size: int) -> Tensor:
    """As published: clusters of the whole pool, then the points of small margin in turn."""
    from sklearn.cluster import AgglomerativeClustering

    top = probs.topk(2, dim=1).values
    kept = (top[:, 0] - top[:, 1]).argsort(stable=True)[: 10 * batch_size].tolist()
    clusters = AgglomerativeClustering(n_clusters=batch_size, linkage="average").fit_predict(points.numpy())
    groups: dict[int, list[int]] = {}
    for x in kept:
        groups.setdefault(int(clusters[x]), []).append(x)
    queues = sorted(groups.values(), key=len)
    chosen: list[int] = []
    while len(chosen) < batch_size:
        chosen.extend(queue.pop(0) for queue in queues if queue)
    return torch.tensor(chosen[:batch_size])


def pair_overlaps(log_probs: Tensor, edges: Edges, scores: Tensor) -> Tensor:
    """I(x, y) = Δ(x) + Δ(y) − Δ({x, y}) of all pairs, (n, n), by enumerating the C² labels of each; Δ(x) for x = y."""
    num_points, num_draws, num_classes = log_probs.shape
    probs = log_probs.exp()
    ratios = (log_probs - log_probs.amax(dim=2, keepdim=True)).exp()
    kept = ratios[:, edges.ends[:, 0]] * ratios[:, edges.ends[:, 1]]  # (n, E, C)
    by_draw = probs.transpose(0, 1).reshape(num_draws, -1)  # (S, n·C)
    by_edge = kept.transpose(0, 1).reshape(edges.num_edges, -1)
    weights = edges.edge_weights.to(log_probs).unsqueeze(1)
    out = torch.empty(num_points, num_points, dtype=log_probs.dtype)
    for x in range(num_points):
        joint = probs[x].T @ by_draw / num_draws  # (C, n·C)
        discounts = weights.sum() - (kept[x] * weights).T @ by_edge
        both = (joint * discounts).view(num_classes, num_points, num_classes).sum(dim=(0, 2))
        out[x] = scores[x] + scores - both
    return out.fill_diagonal_(0) + scores.diag()


def medoids(overlaps: Tensor, seeds: Tensor, max_rounds: int = 100) -> Tensor:
    """Clusters around points by overlap, until no centroid moves."""
    centroids = seeds.tolist()
    for _ in range(max_rounds):
        assigned = overlaps[:, centroids].argmax(dim=1)
        assigned[centroids] = torch.arange(len(centroids))
        moved = []
        for cluster, centroid in enumerate(centroids):
            members = (assigned == cluster).nonzero().flatten()
            values = overlaps[members][:, members].sum(dim=0)
            best = int(values.argmax())
            keep = values[members == centroid] >= values[best] * (1 - 1e-6)
            moved.append(centroid if bool(keep) else int(members[best]))
        if moved == centroids:
            break
        centroids = moved
    return torch.tensor(centroids)


@torch.no_grad()
def repeated(model: nn.Module, inputs: Tensor, num_draws: int, rows: int) -> None:
    """The usual MC dropout: every input `num_draws` times, in forward passes of `rows` rows."""
    model.train()
    for batch in inputs.repeat_interleave(num_draws, dim=0).split(rows):
        torch.log_softmax(model(batch), dim=-1)


@torch.no_grad()
def looped(model: nn.Module, inputs: Tensor, num_draws: int, rows: int) -> None:
    """A pass over the inputs for each draw, with dropout on and batch normalisation as it was trained."""
    model.train()
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.eval()
    for _ in range(num_draws):
        for batch in inputs.split(rows):
            torch.log_softmax(model(batch), dim=-1)


def epoch(model: nn.Module, inputs: Tensor, labels: Tensor, batch_size: int, num_classes: int) -> None:
    """One epoch of training as a user would write it."""
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    loss = nn.CrossEntropyLoss(len(labels) / (num_classes * torch.bincount(labels, minlength=num_classes).float()))
    model.train()
    for rows in torch.randperm(len(inputs)).split(batch_size):
        optimizer.zero_grad()
        loss(model(inputs[rows]), labels[rows]).backward()
        optimizer.step()


def max_herding(points: Tensor, batch_size: int, squared_length: float) -> Tensor:
    """The similarity of all pairs in one matrix, and a full pass over it for every pick."""
    similarity = (-torch.cdist(points, points).square() / squared_length).exp()
    covered = torch.zeros(len(points))
    chosen: list[int] = []
    for _ in range(batch_size):
        gains = (similarity - covered).clamp_min(0).sum(dim=1)
        gains[chosen] = -math.inf
        chosen.append(int(gains.argmax()))
        covered = torch.maximum(covered, similarity[chosen[-1]])
    return torch.tensor(chosen)

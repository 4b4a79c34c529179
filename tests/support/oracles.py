"""Plain loops over the definitions. Nothing here uses the library or shares code with it."""

import itertools
import math

import numpy as np


def ratio(probs, offset_over=None):
    """λ of one draw on one point, optionally divided by the largest λ of any draw for each class."""
    lam = [p / max(probs) for p in probs]
    if offset_over is not None:
        lam = [a / b if b > 0 else a for a, b in zip(lam, offset_over, strict=True)]
    return lam


def ratios(probs, offset=False):
    """λ[n][s][c] of all points and draws."""
    num_points, num_draws, num_classes = probs.shape
    out = np.zeros_like(probs)
    for n in range(num_points):
        for s in range(num_draws):
            out[n, s] = ratio(list(probs[n, s]))
        if offset:
            largest = [max(out[n, s, c] for s in range(num_draws)) for c in range(num_classes)]
            for s in range(num_draws):
                out[n, s] = ratio(list(probs[n, s]), largest)
    return out


def delta(probs, edges, edge_weights, draw_weights, batch, offset=False):
    """Eq. 2 by enumerating every label configuration of the batch."""
    num_classes = probs.shape[2]
    lam = ratios(probs, offset)
    total = 0.0
    for labels in itertools.product(range(num_classes), repeat=len(batch)):
        probability = 0.0
        for j, weight in enumerate(draw_weights):
            probability += weight * math.prod(probs[x, j, y] for x, y in zip(batch, labels, strict=True))
        discount = 0.0
        for (a, b), v in zip(edges, edge_weights, strict=True):
            kept = math.prod(lam[x, a, y] * lam[x, b, y] for x, y in zip(batch, labels, strict=True))
            discount += v * (1 - kept)
        total += probability * discount
    return total


def paper_delta(probs, pairs, connected, batch):
    """Eq. 2 letter by letter, with its 1 / (2K²), for K disjoint pairs of 2K draws."""
    lam = ratios(probs)
    num_pairs = len(pairs)
    total = 0.0
    for labels in itertools.product(range(probs.shape[2]), repeat=len(batch)):
        likelihood = 0.0
        for a, b in pairs:
            likelihood += math.prod(probs[x, a, y] for x, y in zip(batch, labels, strict=True))
            likelihood += math.prod(probs[x, b, y] for x, y in zip(batch, labels, strict=True))
        discount = 0.0
        for (a, b), edge in zip(pairs, connected, strict=True):
            if edge:
                discount += 1 - math.prod(lam[x, a, y] * lam[x, b, y] for x, y in zip(batch, labels, strict=True))
        total += likelihood * discount
    return total / (2 * num_pairs**2)


def hamming(probs, a, b):
    """On how many points the most probable class of two draws differs."""
    count = 0
    for point in probs:
        first = max(range(len(point[a])), key=lambda c: (point[a][c], -c))
        second = max(range(len(point[b])), key=lambda c: (point[b][c], -c))
        count += first != second
    return count


def greedy(value, candidates, batch_size):
    """Brute-force greedy: `value` of a list of points; ties go to the lowest index."""
    batch = []
    for _ in range(batch_size):
        left = [x for x in candidates if x not in batch]
        values = {x: value([*batch, x]) for x in left}
        best = max(values.values())
        batch.append(min(x for x in left if values[x] >= best - 1e-13))
    return batch


def clustering(similarity, seeds, max_rounds=100):
    """Algorithm 3 on a matrix I(x, y): centroids stay in their cluster, ties keep the current centroid."""
    centroids = list(seeds)
    num_points = len(similarity)
    for _ in range(max_rounds):
        clusters = [[] for _ in centroids]
        for x in range(num_points):
            if x in centroids:
                clusters[centroids.index(x)].append(x)
                continue
            overlaps = [similarity[x][centroid] for centroid in centroids]
            home = next(j for j, overlap in enumerate(overlaps) if overlap >= max(overlaps) - 1e-12 * max(overlaps))
            clusters[home].append(x)
        moved = []
        for current, members in zip(centroids, clusters, strict=True):
            values = {y: sum(similarity[x][y] for x in members) for y in members}
            best = max(values.values())
            moved.append(
                current
                if values[current] >= best - 1e-12 * abs(best)
                else min(y for y in members if values[y] >= best - 1e-12 * abs(best))
            )
        if moved == centroids:
            break
        centroids = moved
    return centroids


def nearness(x, a, kernel, squared_length):
    """κ of two embeddings: exp(−d² / ℓ²), or 1 up to the distance ℓ."""
    squared = math.fsum((float(p) - float(q)) ** 2 for p, q in zip(x, a, strict=True))
    if kernel == "gaussian":
        return math.exp(-squared / squared_length)
    return 1.0 if squared <= squared_length * (1 + 1e-12) else 0.0


def covered(points, targets, weights, batch, kernel, squared_length, labelled=()):
    """Σ_x w(x) · max κ(x, a) over the batch and the labelled points, for `targets` and `batch` as rows of `points`."""
    centres = [points[a] for a in batch] + list(labelled)
    terms = []
    for x, w in zip(targets, weights, strict=True):
        terms.append(w * max([nearness(points[x], a, kernel, squared_length) for a in centres], default=0.0))
    return math.fsum(terms)


def squared_length(points, batch_size):
    """Median over distinct points of the squared distance to the k-th nearest other one, k = |T| / B."""
    distinct = sorted({tuple(float(p) for p in point) for point in points})
    if len(distinct) == 1:
        return 1.0
    k = min(max(round(len(distinct) / batch_size), 1), len(distinct) - 1)
    found = []
    for i, x in enumerate(distinct):
        apart = [math.fsum((p - q) ** 2 for p, q in zip(x, y, strict=True)) for j, y in enumerate(distinct) if i != j]
        found.append(sorted(apart)[k - 1])
    found.sort()
    half = len(found) // 2
    return found[half] if len(found) % 2 else (found[half - 1] + found[half]) / 2


def over_sets(probs):
    """P[n][s][y] of all 2^L sets of labels, from (N, S, L) of each label; the first label is slowest."""
    num_points, num_draws, num_labels = probs.shape
    sets = list(itertools.product((0, 1), repeat=num_labels))
    out = np.zeros((num_points, num_draws, len(sets)))
    for n in range(num_points):
        for s in range(num_draws):
            for y, answers in enumerate(sets):
                out[n, s, y] = math.prod(
                    probs[n, s, label] if answer else 1 - probs[n, s, label] for label, answer in enumerate(answers)
                )
    return out


def label_hamming(probs, a, b):
    """On how many labels of all items two draws differ; a probability of exactly 1/2 is a no."""
    return sum((point[a][label] > 0.5) != (point[b][label] > 0.5) for point in probs for label in range(len(point[a])))

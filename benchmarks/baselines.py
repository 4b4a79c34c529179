"""The baselines against plain forms of the same thing: time in one process, and peak memory in a fresh one.

python benchmarks/baselines.py             a line for each strategy: plain, ours, ratio, and whether they agree
python benchmarks/baselines.py --memory    peak memory above the input at full size
"""

import argparse
import math
import resource
import subprocess
import sys
import time

import torch
from sklearn.cluster import AgglomerativeClustering

from batchbalance import Predictions, connect
from batchbalance.acquisition import uncertainty
from batchbalance.acquisition.bald import bald, batch_bald, epig
from batchbalance.acquisition.diversity import badge, cluster_margin, k_center
from batchbalance.acquisition.finite import ec2, eced


def stream(seed=0):
    """A seeded generator."""
    return torch.Generator().manual_seed(seed)


def random_log_probs(num_points, num_draws, num_classes):
    """Filled block by block, so that making the input needs no more memory than the input."""
    source = stream()
    out = torch.empty(num_points, num_draws, num_classes)
    for block in out.split(1000):
        shared = 2 * torch.randn(len(block), 1, num_classes, generator=source)
        torch.log_softmax(shared + torch.randn(block.shape, generator=source), dim=-1, out=block)
    return out


def plain_entropy(probs):
    """Entropy along the last axis."""
    return -(probs * probs.clamp_min(1e-38).log()).sum(dim=-1)


def plain_bald(log_probs):
    """The textbook difference of entropies, over the whole array in float32."""
    probs = log_probs.exp()
    return plain_entropy(probs.mean(dim=1)) - plain_entropy(probs).mean(dim=1)


def plain_batch_bald(log_probs, batch_size):
    """Joint entropies of every candidate at every pick, all configurations, as in the published algorithm."""
    probs = log_probs.double().exp()
    own = plain_entropy(probs).mean(dim=1)
    joint, chosen = torch.ones(1, probs.shape[1], dtype=torch.float64), []
    for _ in range(batch_size):
        values = []
        for point in probs:  # (S, C)
            values.append(plain_entropy((joint @ point / probs.shape[1]).flatten()))
        scores = torch.stack(values) - own
        scores[chosen] = -math.inf
        chosen.append(int(scores.argmax()))
        joint = (joint.unsqueeze(1) * probs[chosen[-1]].T.unsqueeze(0)).flatten(0, 1)
    return chosen


def plain_epig(log_probs, target_log_probs):
    """All joint distributions at once, (N, T, C, C)."""
    joint = torch.einsum("nsc,tsd->ntcd", log_probs.exp(), target_log_probs.exp()) / log_probs.shape[1]
    product = joint.sum(dim=3, keepdim=True) * joint.sum(dim=2, keepdim=True)
    return (joint * (joint.clamp_min(1e-38) / product.clamp_min(1e-38)).log()).sum(dim=(2, 3)).mean(dim=1)


def plain_k_center(points, batch_size, labelled):
    """All distances anew at every pick."""
    centres, chosen = labelled, []
    for _ in range(batch_size):
        chosen.append(int(torch.cdist(points, centres).amin(dim=1).argmax()))
        centres = torch.cat([labelled, points[chosen]])
    return chosen


def plain_badge(probs, points, batch_size, source):
    """Gradient embeddings in full, N × C·D."""
    residuals = probs - torch.nn.functional.one_hot(probs.argmax(dim=1), probs.shape[1])
    gradients = (residuals.unsqueeze(2) * points.unsqueeze(1)).flatten(1)
    chosen = [int(gradients.norm(dim=1).argmax())]
    nearest = torch.full((len(gradients),), math.inf, dtype=torch.float64)
    for _ in range(batch_size - 1):
        nearest = torch.minimum(nearest, (gradients - gradients[chosen[-1]]).square().sum(dim=1).double())
        place = torch.rand((), generator=source, dtype=torch.float64) * nearest.sum()
        chosen.append(int(torch.searchsorted(nearest.cumsum(0), place, right=True)))
    return chosen


def plain_cluster_margin(probs, points, batch_size):
    """As published: clusters of the whole pool, then the points of small margin in turn."""
    top = probs.topk(2, dim=1).values
    kept = (top[:, 0] - top[:, 1]).argsort(stable=True)[: 10 * batch_size].tolist()
    clusters = AgglomerativeClustering(n_clusters=batch_size, linkage="average").fit_predict(points.numpy())
    groups = {}
    for x in kept:
        groups.setdefault(clusters[x], []).append(x)
    queues, chosen = sorted(groups.values(), key=len), []
    while len(chosen) < batch_size:
        chosen.extend(queue.pop(0) for queue in queues if queue)
    return chosen[:batch_size]


def plain_ec2(log_probs, edges):
    """Edge by edge."""
    labels = log_probs.argmax(dim=2)
    votes = torch.stack([(labels == y).double().mean(dim=1) for y in range(log_probs.shape[2])], dim=1)
    total = torch.zeros(len(labels), dtype=torch.float64)
    for (a, b), value in zip(edges.ends.tolist(), edges.edge_weights.tolist(), strict=True):
        kept = (labels[:, a] == labels[:, b]) * votes.gather(1, labels[:, a : a + 1])[:, 0]
        total += value * (1 - kept)
    return total


def plain_eced(log_probs, edges):
    """Edge by edge."""
    probs = log_probs.double().exp()
    ratios = probs / probs.amax(dim=2, keepdim=True)
    most, total = ratios.amax(dim=1).square(), torch.zeros(len(probs), dtype=torch.float64)
    for (a, b), value in zip(edges.ends.tolist(), edges.edge_weights.tolist(), strict=True):
        total += value * (probs.mean(dim=1) * (most - ratios[:, a] * ratios[:, b])).sum(dim=1)
    return total


def timed(function, repeats):
    """(best seconds, result)."""
    best = math.inf
    for _ in range(repeats):
        start = time.perf_counter()
        result = function()
        best = min(best, time.perf_counter() - start)
    return best, result


def agreement(plain, ours):
    """Whether two results are the same."""
    if isinstance(plain, list):
        return "same batch" if plain == ours[0].tolist() else "other batch"
    return f"differ by {float((plain.double() - ours).abs().max()):.0e}"


def show(name, size, plain, ours, repeats=3):
    """Time both and print a line."""
    plain_seconds, expected = timed(plain, repeats)
    seconds, found = timed(ours, repeats)
    ratio = plain_seconds / seconds
    print(f"{name:17} {size:34} {plain_seconds:9.3f} {seconds:9.3f} {ratio:7.1f}  {agreement(expected, found)}")


def compare_scores():
    """Scores of single points, N = 20,000, S = 50, C = 10."""
    log_probs = random_log_probs(20_000, 50, 10)
    pool, mean = Predictions.from_log_probs(log_probs), lambda: log_probs.exp().mean(dim=1)
    size = "N 20,000 S 50 C 10"
    show("bald, power-bald", size, lambda: plain_bald(log_probs), lambda: bald(pool))
    show("entropy", size, lambda: plain_entropy(mean()), lambda: uncertainty.entropy(pool))
    show("least-confidence", size, lambda: 1 - mean().amax(dim=1), lambda: uncertainty.least_confidence(pool))
    show("variation-ratio", size, lambda: 1 - mean().amax(dim=1), lambda: uncertainty.variation_ratio(pool))
    show("margin", size, lambda: 1 + mean().topk(2).values.diff(dim=1)[:, 0], lambda: uncertainty.margin(pool))
    spread = lambda: log_probs.exp().std(dim=1, correction=0).mean(dim=1)  # noqa: E731
    show("mean-std", size, spread, lambda: uncertainty.mean_std(pool))
    few = log_probs[:1000]
    show(
        "epig",
        "N 1,000 T 100 S 50 C 10",
        lambda: plain_epig(few, log_probs[-100:]),
        lambda: epig(Predictions.from_log_probs(few), Predictions.from_log_probs(log_probs[-100:])),
    )
    edges = connect(pool, 0.05, 500)
    show("ec2", f"{size}, 500 pairs", lambda: plain_ec2(log_probs, edges), lambda: ec2(pool, edges), 1)
    show("eced", f"{size}, 500 pairs", lambda: plain_eced(log_probs, edges), lambda: eced(pool, edges), 1)


def compare_batches():
    """Joint strategies, at sizes that the plain forms can still do."""
    log_probs = random_log_probs(2000, 50, 10)
    pool = Predictions.from_log_probs(log_probs)
    ours = lambda: batch_bald(pool, 4, generator=stream())  # noqa: E731
    show("batch-bald", "N 2,000 S 50 C 10 B 4", lambda: plain_batch_bald(log_probs, 4), ours, 1)
    points, labelled = torch.randn(20_000, 128, generator=stream(1)), torch.randn(200, 128, generator=stream(2))
    size = "N 20,000 D 128 L 200 B 30"
    show(
        "coreset",
        size,
        lambda: plain_k_center(points, 30, labelled),
        lambda: k_center(points, 30, labelled=labelled),
        1,
    )
    probs = random_log_probs(20_000, 1, 20)[:, 0].exp()
    size = "N 20,000 D 128 C 20 B 30"
    plain = lambda: plain_badge(probs, points, 30, stream())  # noqa: E731
    show("badge", size, plain, lambda: badge(probs, points, 30, generator=stream()), 1)
    few, size = slice(0, 4000), "N 4,000 D 128 C 20 B 40"
    plain = lambda: plain_cluster_margin(probs[few], points[few], 40)  # noqa: E731
    show("cluster-margin", size, plain, lambda: cluster_margin(probs[few], points[few], 40), 1)


def peak_batch_bald():
    """BatchBALD at full size."""
    pool = Predictions(random_log_probs(50_000, 50, 10), "log-probs")
    return lambda: batch_bald(pool, 10, generator=stream())


def peak_badge():
    """BADGE at full size."""
    probs, points = random_log_probs(50_000, 1, 100)[:, 0].exp_(), torch.empty(50_000, 512)
    for block in points.split(1000):
        block.normal_(generator=stream(1))
    return lambda: badge(probs, points, 100, generator=stream())


PEAKS = {
    "batch-bald": ("N 50,000 S 50 C 10 B 10", peak_batch_bald),
    "badge": ("N 50,000 D 512 C 100 B 100", peak_badge),
}


def peak_memory():
    """High-water mark of the process, MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**10 if sys.platform != "darwin" else 2**20)


def measure_peak(name):
    """Peak memory of one strategy above its input."""
    size, prepare = PEAKS[name]
    run = prepare()
    before, start = peak_memory(), time.perf_counter()
    run()
    above, seconds = peak_memory() - before, time.perf_counter() - start
    print(f"{name:17} {size:34} {above:9.0f} MiB above its input, {seconds:.1f} s")


def main():
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--memory", action="store_true", help="peak memory above the input at full size")
    parser.add_argument("--peak-of", choices=PEAKS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.peak_of:
        measure_peak(arguments.peak_of)
    elif arguments.memory:
        for name in PEAKS:
            subprocess.run([sys.executable, __file__, "--peak-of", name], check=True)
    else:
        print(f"{'strategy':17} {'size':34} {'plain s':>9} {'ours s':>9} {'ratio':>7}  agreement")
        compare_scores()
        compare_batches()


if __name__ == "__main__":
    main()

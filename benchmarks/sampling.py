"""`python -m benchmarks.sampling`: what a sample of targets costs, measured on the whole pool.

A batch is chosen with the cover of some targets only, and the cover F of the whole pool by that batch is compared with
that of the batch chosen with all targets. The loss is a share of F, and a share of the lead on random batches.
"""

from typing import Annotated

import torch
import typer
from torch import Tensor

from batchbalance import MaxHerding
from batchbalance.arguments.seeds import generator
from batchbalance.batches.cover import CoverProblem, cover, cover_value
from batchbalance.batches.targets import Targets, squared_length
from batchbalance.selection import select


def mixture(num_points: int, num_features: int, num_clusters: int, seed: int) -> Tensor:
    """Clusters of uneven size, each spread along 20 shared directions, and noise."""
    stream = generator(seed, "benchmark mixture")
    centres = torch.randn(num_clusters, num_features, generator=stream)
    shares = torch.rand(num_clusters, generator=stream).square()
    clusters = torch.multinomial(shares, num_points, replacement=True, generator=stream)
    directions = torch.randn(20, num_features, generator=stream) / 20**0.5
    along = torch.randn(num_points, 20, generator=stream) @ directions
    return centres[clusters] + along + 0.3 * torch.randn(num_points, num_features, generator=stream)


def losses(points: Tensor, batch_size: int, num_targets: list[int], seeds: int) -> list[tuple[int, float, float]]:
    """For each number of targets: the loss as a share of F, and of the lead on random batches; means over seeds."""
    length = squared_length(points, batch_size)
    every = Targets(points, torch.ones(len(points)), "gaussian", length)
    problem = CoverProblem(every, lambda rows: points[rows], torch.arange(len(points)), batch_size)
    best = cover_value(problem, cover(problem))
    whole, lead = float(best.coverage[-1]), float(best.coverage[-1]) - best.random_coverage
    found = []
    for num in num_targets:
        lost = 0.0
        for seed in range(seeds):
            strategy = MaxHerding(max_targets=num)
            chosen = select(embeddings=points, batch_size=batch_size, strategy=strategy, seed=seed).indices
            lost += (whole - float(every.similarity_bounds(points[chosen], slack=False).amax(dim=0).mean())) / seeds
        found.append((num, lost / whole, lost / lead))
    return found


def main(
    num_points: Annotated[int, typer.Option("--points")] = 12_000,
    num_features: Annotated[int, typer.Option("--features")] = 64,
    seeds: Annotated[int, typer.Option(help="Samples of targets.")] = 3,
) -> None:
    """Print the loss of F for several sizes of sample and batch."""
    points = mixture(num_points, num_features, 50, 0)
    for batch_size in (10, 100):
        for num, of_value, of_lead in losses(points, batch_size, [8_192, 4_096, 2_048, 1_024], seeds):
            typer.echo(f"B = {batch_size:3d}, {num:5,} targets: {of_value:7.3%} of F, {of_lead:7.2%} of the lead")


if __name__ == "__main__":
    typer.run(main)

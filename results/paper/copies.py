"""How many distinct images BatchBALD takes from a pool with every image three times.

    python results/paper/copies.py --data-dir DATA

A network is trained on 80 labels of MNIST with the paper's settings. Four times, 200 images are drawn from the pool,
each of them three times, and a batch of 10 is chosen with 100 draws.
"""

import argparse
from pathlib import Path

import torch
from analyses.trained import Setup

from batchbalance import BatchBald, Predictions
from batchbalance.arguments.seeds import generator
from batchbalance.lab.paper.experiments import experiment
from batchbalance.lab.strategies import ReleasedBatchBald
from batchbalance.strategies.pool import Pool

NUM_IMAGES, COPIES, BATCH, SEEDS = 200, 3, 10, 4


def main() -> None:
    """Print one line for each seed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data-dir", type=Path, required=True)
    torch.set_num_threads(1)
    paper = experiment("mnist").settings("paper", "b10")
    tables = {name: paper[name] for name in ("data", "split", "model", "training", "posterior", "edges")}
    setup = Setup(tables, 0, parser.parse_args().data_dir)
    order = torch.randperm(len(setup.splits.pool), generator=generator(0, "images"))
    pool = setup.splits.pool[order]
    model, _ = setup.train(torch.cat([setup.splits.initial, pool[:60]]))
    draws = setup.draws(model, "copies", num_draws=100)
    for seed in range(SEEDS):
        rows = pool[60 + seed * NUM_IMAGES : 60 + (seed + 1) * NUM_IMAGES]
        images = setup.predict(draws, rows).log_probs()
        copied = Predictions.from_log_probs(images.repeat(COPIES, 1, 1))
        every = torch.arange(copied.num_points)
        pool_of_copies = Pool({"predictions": copied}).to_choose(candidates=every, batch_size=BATCH, seed=seed)
        for strategy in (ReleasedBatchBald(num_samples=1_000), BatchBald()):
            distinct = len((strategy.choose(pool_of_copies).indices % NUM_IMAGES).unique())
            print(f"seed {seed}, {strategy.name}: {distinct} distinct images of {BATCH}")


if __name__ == "__main__":
    main()

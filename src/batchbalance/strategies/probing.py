"""The parts that a strategy reads, found by running it on a tiny pool."""

from functools import cache

import torch

from batchbalance.arguments.seeds import generator
from batchbalance.errors import MissingPartError
from batchbalance.predictions import Predictions
from batchbalance.strategies.contract import Strategy
from batchbalance.strategies.pool import Pool

NUM_POINTS, NUM_DRAWS = 12, 4
OWN_GOALS = ("weights", "targets")  # with these, coverage strategies need no other weights


@cache
def parts_read(strategy: Strategy) -> frozenset[str]:
    """Return the names of the arguments of ``select`` that a strategy reads if they are given."""
    read: set[str] = set()
    for pool in (_tiny_pool(), _tiny_pool().without(*OWN_GOALS)):
        _watch(strategy, pool)
        read |= pool.read
    if "ratio" in read:
        read.add("threshold")
    return frozenset("embeddings" if name == "draw_embeddings" else name for name in read)


@cache
def parts_needed(strategy: Strategy) -> frozenset[str]:
    """Return the arguments of ``select`` that a strategy requires, unless its weights are given."""
    made_of = {"predictions": ("predictions",), "embeddings": ("embeddings", "draw_embeddings")}
    return frozenset(
        name for name, parts in made_of.items() if not _watch(strategy, _tiny_pool().without(*OWN_GOALS, *parts))
    )


def _watch(strategy: Strategy, pool: Pool) -> bool:
    """Run a strategy; return whether it had all parts that it needs."""
    try:
        strategy.connected(pool)
        strategy.choose(pool)
    except MissingPartError:
        return False
    except (ValueError, RuntimeError):  # a user's strategy may require a pool of another size
        pass
    return True


def _tiny_pool() -> Pool:
    stream = generator(0, "probe")

    def logits(num_points: int) -> Predictions:
        return Predictions.from_logits(3 * torch.randn(num_points, NUM_DRAWS, 3, generator=stream))

    given = {
        "predictions": logits(NUM_POINTS),
        "reference": logits(6),
        "embeddings": torch.randn(NUM_POINTS, 2, generator=stream),
        "labelled_embeddings": torch.randn(2, 2, generator=stream),
        "weights": torch.ones(6),
        "targets": torch.randn(6, 2, generator=stream),
        "validation_error": 0.01,
        "ratio": 0.5,
        "pairs": "disjoint",
        "max_reference": 6,
    }
    by_draw = torch.randn(NUM_POINTS, NUM_DRAWS, 2, generator=stream)
    return Pool(given, {"draw_embeddings": lambda: by_draw}).to_choose(batch_size=2)

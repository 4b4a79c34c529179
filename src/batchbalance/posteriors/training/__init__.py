"""Networks and how they are trained: layers, optimisers, augmentation, one fit loop."""

from batchbalance.posteriors.training.fitting import KeptWeights, Recipe, TrainedNetwork, fit

__all__ = ["KeptWeights", "Recipe", "TrainedNetwork", "fit"]

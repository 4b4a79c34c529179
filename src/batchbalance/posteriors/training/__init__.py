"""Networks and their training: layers, optimisers, augmentation, one training loop."""

from batchbalance.posteriors.training.fitting import KeptWeights, Recipe, TrainedNetwork, fit

__all__ = ["KeptWeights", "Recipe", "TrainedNetwork", "fit"]

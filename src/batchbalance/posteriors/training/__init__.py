"""Networks and how they are trained: layers, optimisers, augmentation, one fit loop."""

from batchbalance.posteriors.training.fitting import Fit, Kept, Recipe, fit

__all__ = ["Fit", "Kept", "Recipe", "fit"]

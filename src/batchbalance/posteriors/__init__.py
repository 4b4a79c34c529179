"""Posterior draws: what turns a model and data into `Predictions`, one contract for all of them."""

from batchbalance.posteriors.contract import Posterior
from batchbalance.posteriors.mc_dropout import MCDropout

__all__ = ["MCDropout", "Posterior"]

"""Posterior draws: what turns a model and data into `Predictions`, one contract for all of them."""

from batchbalance.posteriors.contract import Posterior
from batchbalance.posteriors.csgmcmc import PRESETS, CyclicalSGMCMC, Schedule
from batchbalance.posteriors.ensemble import Committee, DeepEnsemble
from batchbalance.posteriors.head import BayesianHead
from batchbalance.posteriors.mc_dropout import MCDropout
from batchbalance.posteriors.pool import predicted_pool

__all__ = [
    "PRESETS",
    "BayesianHead",
    "Committee",
    "CyclicalSGMCMC",
    "DeepEnsemble",
    "MCDropout",
    "Posterior",
    "Schedule",
    "predicted_pool",
]

"""Posterior draws: each kind turns a model and data into `Predictions`, with the same interface."""

import os
from typing import Any

from batchbalance.arguments.registry import Registry
from batchbalance.errors import FileFormatError
from batchbalance.posteriors.committee import Committee, CommitteeOptions, EstimatorFit
from batchbalance.posteriors.contract import Posterior
from batchbalance.posteriors.csgmcmc import SCHEDULES, ChainOptions, CyclicalSGMCMC, Schedule
from batchbalance.posteriors.ensemble import DeepEnsemble, EnsembleOptions
from batchbalance.posteriors.function import FunctionPosterior
from batchbalance.posteriors.head import BayesianHead, HeadOptions
from batchbalance.posteriors.kinds import Fit, FitContext, Fitted, PosteriorFit, PosteriorOptions
from batchbalance.posteriors.last_layer import LastLayer
from batchbalance.posteriors.mc_dropout import MCDropout, MCDropoutOptions
from batchbalance.posteriors.saved import read_listing

__all__ = [
    "POSTERIORS",
    "SCHEDULES",
    "BayesianHead",
    "ChainOptions",
    "Committee",
    "CommitteeOptions",
    "CyclicalSGMCMC",
    "DeepEnsemble",
    "EnsembleOptions",
    "EstimatorFit",
    "Fit",
    "FitContext",
    "Fitted",
    "FunctionPosterior",
    "HeadOptions",
    "LastLayer",
    "MCDropout",
    "MCDropoutOptions",
    "Posterior",
    "PosteriorFit",
    "PosteriorOptions",
    "Schedule",
    "load_posterior",
    "posterior_options",
]

POSTERIORS: Registry[type[PosteriorOptions]] = Registry(
    "kind of posterior",
    "batchbalance.posteriors",
    {
        options.model_fields["kind"].default: options
        for options in (MCDropoutOptions, ChainOptions, EnsembleOptions, CommitteeOptions, HeadOptions)
    },
    lambda found: isinstance(found, type) and issubclass(found, PosteriorOptions),
    "a subclass of batchbalance.posteriors.PosteriorOptions",
)


def posterior_options(kind: str = "mc-dropout", **options: Any) -> PosteriorOptions:
    """Return the options of a kind of posterior by its name or path; the error for an unknown name suggests another."""
    return POSTERIORS.named(kind)(kind=kind, **options)


def load_posterior(directory: str | os.PathLike[str], network: Any = None) -> Posterior:
    """Read a saved posterior of any kind.

    Args:
        directory: the folder.
        network: for posteriors of networks, which save weights but no code: a network of the same architecture, or a
            function that builds one.

    Raises:
        FileFormatError: if the folder is damaged, not a saved posterior, or of an unknown kind.
    """
    kind = str(read_listing(directory)["kind"])
    known: dict[str, type[Posterior]] = {}
    classes: list[Any] = Posterior.__subclasses__()
    for found in classes:  # all subclasses so far, in this package or of a user; the list grows in the loop
        classes += found.__subclasses__()
        if hasattr(found, "kind"):
            known[found.kind] = found
    if kind not in known:
        raise FileFormatError(f"{directory} must hold a posterior of a known kind, got {kind!r}; import its package")
    return known[kind].load(directory, network)

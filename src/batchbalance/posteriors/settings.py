"""The kinds of posteriors as settings."""

from dataclasses import asdict
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from batchbalance.errors import UnknownNameError
from batchbalance.posteriors.csgmcmc import PRESETS, Schedule
from batchbalance.sections import Section, Whole, check_keys, fields_of


class MCDropoutSettings(Section):
    """Monte Carlo dropout; the test metrics are those of the mean of the first `test_draws` draws, or of all."""

    table = "[posterior]"
    kind: Literal["mc-dropout"] = "mc-dropout"
    num_draws: Whole = 100
    test_draws: Whole | None = None

    @model_validator(mode="after")
    def _enough_draws(self) -> "MCDropoutSettings":
        if self.test_draws is not None and self.test_draws > self.num_draws:
            raise ValueError(
                f"`test_draws` must be at most the {self.num_draws} draws there are, got {self.test_draws}"
            )
        return self


class ChainSettings(Section):
    """Cyclical SG-MCMC; `preset` fills the schedule, whose own keys go before it."""

    table = "[posterior]"
    kind: Literal["csg-mcmc"]
    schedule: Annotated[Schedule, fields_of("[posterior.schedule]", Schedule)] = Schedule()

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, given: Any) -> Any:
        if not isinstance(given, dict) or "preset" not in given:
            return check_keys(cls.table, given, [*cls.model_fields, "preset"])
        preset = given["preset"]
        if preset not in PRESETS:
            raise UnknownNameError("preset of csg-mcmc", str(preset), PRESETS)
        rest = {key: value for key, value in given.items() if key != "preset"}
        return {**rest, "schedule": {**asdict(PRESETS[preset]), **rest.get("schedule", {})}}


class EnsembleSettings(Section):
    """Networks trained from different starts."""

    table = "[posterior]"
    kind: Literal["deep-ensemble"]
    size: Whole = 5


class CommitteeSettings(Section):
    """Trees of a scikit-learn forest; inputs are flattened."""

    table = "[posterior]"
    kind: Literal["committee"]
    classifier: Literal["random-forest", "extra-trees"] = "random-forest"
    size: Whole = 100
    max_depth: Whole | None = None


class HeadSettings(Section):
    """A Bayesian classifier on the inputs as they are, embeddings of a pretrained network say."""

    table = "[posterior]"
    kind: Literal["bayesian-head"]
    method: Literal["laplace", "dropout"] = "laplace"
    num_draws: Whole = 100
    prior_precision: Annotated[float, Field(gt=0)] = 1.0
    hidden: tuple[Whole, ...] = (128,)
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.5


PosteriorSettings = MCDropoutSettings | ChainSettings | EnsembleSettings | CommitteeSettings | HeadSettings
KINDS = ("mc-dropout", "csg-mcmc", "deep-ensemble", "committee", "bayesian-head")
HAS_NETWORK = (MCDropoutSettings, ChainSettings, EnsembleSettings)

"""Deep ensembles as posteriors: networks trained from different starts."""

from dataclasses import asdict
from typing import Any, ClassVar

import torch
from torch import Tensor

from batchbalance.arguments.checks import check_whole
from batchbalance.arguments.sections import MAX_DRAWS, NumDraws
from batchbalance.arguments.seeds import derived_seed
from batchbalance.posteriors.kinds import FitContext, Fitted, PosteriorOptions
from batchbalance.posteriors.states import State, WeightDraws
from batchbalance.posteriors.training.fitting import KeptWeights, Labelled, ModelFactory, Recipe, copied_state, fit


class DeepEnsemble(WeightDraws):
    """Networks trained alike from different initial weights and orders (Lakshminarayanan et al. 2017).

    Args:
        model_factory: builds the network.
        size: S.
        recipe: how each member is trained.
        seed: each member has a seed derived from it.
        outputs: what the network gives: "logits" (log-probabilities too), or "probs" if it ends in a softmax.
        binary: the network gives one output, the logit (or probability) of the second of two classes.

    Attributes:
        kept: which weights of each member were kept; none before a fit, or of an ensemble that was loaded.
    """

    kind: ClassVar[str] = "deep-ensemble"

    def __init__(
        self,
        model_factory: ModelFactory,
        size: int = 5,
        recipe: Recipe | None = None,
        *,
        seed: int = 0,
        outputs: str = "logits",
        binary: bool = False,
    ) -> None:
        super().__init__(model_factory, seed, outputs, binary)
        self.size = check_whole("size", size, 1, MAX_DRAWS)
        self.recipe = recipe or Recipe()
        self.kept: tuple[KeptWeights, ...] = ()

    def fit(
        self,
        inputs: Any,
        labels: Tensor,
        *,
        num_classes: int,
        validation: Labelled | None = None,
        device: str | torch.device = "cpu",
        progress: bool = False,
    ) -> "DeepEnsemble":
        """Train every member; arguments as in `training.fit`. An interrupted run leaves the posterior as it was."""
        states: list[State] = []
        kept = []
        for member in range(self.size):
            trained = fit(
                self._model_factory,
                inputs,
                labels,
                self.recipe,
                num_classes=num_classes,
                validation=validation,
                seed=derived_seed(self._seed, "member", member),
                device=device,
                progress=progress,
            )
            states.append(copied_state(trained.model))
            kept.append(trained.kept)
        self._keep(trained.model, states)
        self.kept = tuple(kept)
        return self

    @classmethod
    def _from_options(cls, model_factory: ModelFactory, options: dict[str, Any]) -> "DeepEnsemble":
        reading = {key: options[key] for key in ("outputs", "binary") if key in options}
        return cls(model_factory, options["num_draws"], Recipe(**options["recipe"]), seed=options["seed"], **reading)

    def _options(self) -> dict[str, Any]:
        return {"recipe": asdict(self.recipe), "seed": self._seed}


class EnsembleOptions(PosteriorOptions):
    """Networks trained from different starts.

    Attributes:
        size: S.
    """

    has_network: ClassVar[bool] = True

    kind: str = "deep-ensemble"
    size: NumDraws = 5

    @property
    def uses_recipe(self) -> bool:
        """True: members are trained by a recipe."""
        return True

    def fit(self, inputs: Tensor, labels: Tensor, context: FitContext) -> Fitted:
        """Train every member; ε is the error of the mean prediction."""
        ensemble = DeepEnsemble(context.factory(inputs), self.size, context.recipe, seed=context.seed)
        ensemble.fit(
            inputs, labels, num_classes=context.num_classes, validation=context.validation, device=context.device
        )
        return self.fitted(ensemble, context, ensemble.kept)

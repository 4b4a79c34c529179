"""The arguments of `select`: which strategy they mean, whether they go together, and the pool they describe."""

from collections.abc import Sized
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from batchbalance.arguments.checks import Indices, check_device, check_embeddings, check_indices
from batchbalance.balance.evaluation import remaining_candidates
from batchbalance.balance.greedy import Executor
from batchbalance.predictions import Predictions
from batchbalance.strategies import AUTO, Strategy, auto_strategy, strategy_named


def resolved(
    strategy: Any, predictions: Any, given: dict[str, Any], has_labels: bool | None
) -> tuple[Strategy, str | None, list[str]]:
    """The strategy, why it was chosen, and the arguments that it does not use; the last two only for "auto"."""
    if strategy == AUTO:
        chosen, why = auto_strategy(
            has_predictions=predictions is not None,
            has_embeddings=given["embeddings"] is not None,
            has_labels=has_labels,
            has_pairs=not isinstance(predictions, Predictions) or predictions.num_draws > 1,
        )
        unused = [name for name, value in given.items() if value is not None and not _is_used(chosen, name)]
        return chosen, f"auto chose {chosen.name!r}: {why}", unused
    if isinstance(strategy, str):
        return strategy_named(strategy), None, []
    if not isinstance(strategy, Strategy):
        raise TypeError(f"`strategy` must be a name or a strategy object, got {strategy!r}")
    return strategy, None, []


def has_any_labels(labelled: Indices | None, labelled_embeddings: Any) -> bool | None:
    """Whether any point has a label; None if nobody said."""
    if labelled is None and labelled_embeddings is None:
        return None
    return any(isinstance(points, Sized) and len(points) > 0 for points in (labelled, labelled_embeddings))


def _is_used(strategy: Strategy, name: str) -> bool:
    return name in strategy.uses or (name == "max_reference" and "reference" in strategy.uses)


def check_given(strategy: Strategy, predictions: Any, given: dict[str, Any]) -> None:
    """Refuse arguments that the strategy does not use, and miss those that it needs."""
    if predictions is None and strategy.needs_predictions:
        raise ValueError(f"`predictions` must be given for strategy {strategy.name!r}, got none")
    for name, value in given.items():
        if value is not None and not _is_used(strategy, name):
            raise ValueError(f"`{name}` is not used by strategy {strategy.name!r}; leave it out")
        if value is None and name in strategy.needs:
            raise ValueError(f"`{name}` must be given for strategy {strategy.name!r}, got none")
    for other in ("validation_error", "ratio"):
        if given["threshold"] is not None and given[other] is not None:
            raise ValueError(f"`threshold` must not be given together with `{other}`; leave one out")


def check_executor(strategy: Strategy, executor: Executor | None, device: str | None) -> None:
    """Refuse an executor that the strategy has no use for, and a device beside one."""
    if executor is not None and not strategy.runs_on_executors:
        raise ValueError(f"`executor` is not used by strategy {strategy.name!r}; leave it out")
    if executor is not None and device is not None:
        raise ValueError(f"`device` is not used with `executor`, whose workers compute on CPUs, got {device!r}")


def _checked_predictions(name: str, given: Any) -> Predictions:
    if not isinstance(given, Predictions):
        raise TypeError(f"`{name}` must be Predictions, got {type(given).__name__}; see Predictions.from_probs")
    return given


def _placed(predictions: Predictions, device: str | None) -> Predictions:
    return predictions if device is None else predictions.to(_checked_device(device))


def _checked_device(device: str | None) -> torch.device:
    if device is None:
        return torch.device("cpu")
    return check_device("device", device)


def open_candidates(num_points: int, exclude: Indices | None, labelled: Int[Tensor, " l"]) -> Int[Tensor, " n"]:
    """The points that may be chosen."""
    excluded = check_indices("exclude", [] if exclude is None else exclude, num_points)
    candidates = remaining_candidates(num_points, torch.cat([excluded, labelled]))
    if not len(candidates):
        names = "`exclude` and `labelled`" if len(labelled) else "`exclude`"
        raise ValueError(f"{names} must leave at least one point to choose from, got all of them")
    return candidates


@dataclass(frozen=True, eq=False)
class Pool:
    """What is known of the points, checked, in one place."""

    predictions: Predictions | None
    embeddings: Tensor | None
    labelled_embeddings: Tensor | None
    num_points: int

    @classmethod
    def of(cls, given: Any, embeddings: Any, labelled: Any, device: str | None) -> "Pool":
        """Check and place them where the predictions are, or on the device."""
        predictions = None if given is None else _placed(_checked_predictions("predictions", given), device)
        num_draws, num_points = (None, None) if predictions is None else (predictions.num_draws, predictions.num_points)
        own = check_embeddings("embeddings", embeddings, num_draws, num_points)
        others = check_embeddings("labelled_embeddings", labelled, num_draws)
        if own is not None and others is not None and others.shape[-1] != own.shape[-1]:
            raise ValueError(
                f"`labelled_embeddings` must have the {own.shape[-1]} features of `embeddings`, got "
                f"{others.shape[-1]}; embed both with one network"
            )
        if num_points is None:
            if own is None:
                raise ValueError("`predictions` or `embeddings` must be given, got neither")
            num_points = len(own)
        where = _checked_device(device) if predictions is None else predictions.device
        own, others = (None if value is None else value.to(where) for value in (own, others))
        return cls(predictions, own, others, num_points)

    def same_draws(self, reference: Any, device: str | None) -> Predictions | None:
        """The reference set, if it holds the draws of the pool."""
        if reference is None or self.predictions is None:
            return None
        found = _placed(_checked_predictions("reference", reference), device)
        own = self.predictions
        if found.weights is None and own.weights is not None and found.num_draws == own.num_draws:
            found = found.with_weights(own.weights)  # weights belong to draws, not to points
        own.check_same_draws(found)
        return found

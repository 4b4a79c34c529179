"""Strategies for rare classes: `explore` until a first example is found, then `seek`."""

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar

import torch
from jaxtyping import Float, Int
from pydantic import BeforeValidator, Field
from torch import Tensor

from batchbalance.batches.coreset import k_center
from batchbalance.batches.distances import check_finite, directions
from batchbalance.errors import UnknownNameError
from batchbalance.predictions import Predictions
from batchbalance.scores.ranking import top_k
from batchbalance.strategies.baselines import EmbeddingStrategy
from batchbalance.strategies.contract import Choice, Strategy
from batchbalance.strategies.coverage import CoverStrategy, MaxHerding, UHerding
from batchbalance.strategies.pool import Pool

SHORTLIST = 3  # the likely part of a batch covers this many times as many of the most likely points
Sought = Annotated[
    tuple[int | str, ...], BeforeValidator(lambda given: given.split(",") if isinstance(given, str) else given)
]


class Explore(EmbeddingStrategy):
    """Search for a second class while all labels are of one: half of the batch is far from all labels, half random.

    Coverage chooses typical points first, which are of the frequent class. Points of other classes are farther from the
    labelled ones, by the angle from the centre of the pool. The random half does not depend on the embeddings.
    """

    name: ClassVar[str] = "explore"
    summary: ClassVar[str] = "half the points farthest from all labelled ones, half random; needs no predictions"
    copies: ClassVar[int] = 4

    def choose(self, pool: Pool) -> Choice:
        """Draw half of the batch, then choose farthest-first from all labelled and drawn points."""
        points, labelled = pool.mean_embeddings, pool.labelled_embeddings
        check_finite("embeddings", points)
        centre = points.mean(dim=0)
        count = pool.batch_size // 2
        order = torch.randperm(len(pool.candidates), generator=pool.generator("explore"))
        drawn = pool.candidates[order[:count].sort().values]
        known = [points[drawn.to(points.device)], *([] if labelled is None else [labelled.to(points)])]
        farthest, _ = k_center(
            directions(points, centre),
            pool.batch_size - count,
            candidates=without(pool.candidates, drawn),
            labelled=directions(torch.cat(known), centre),
        )
        return Choice(torch.cat([farthest, drawn]))


class Seek(Strategy):
    """Points that are likely of the named classes for part of the batch; the rest is chosen by `u-herding`.

    The likely part covers three times as many points of highest probability, weighted by it, so that it is diverse.
    Without predictions the whole batch is chosen by `max-herding`.

    Attributes:
        classes: the classes to look for, by name, or by number if the predictions name none. If omitted, the class
            of the smallest mean probability.
        share: the share of the batch that is likely of these classes.
    """

    name: ClassVar[str] = "seek"
    summary: ClassVar[str] = "part of the batch is likely of the named classes, the rest as u-herding"

    classes: Sought = ()
    share: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] = 0.5

    def flops(self, pool: Pool) -> float:
        """Return the operations of the coverage, and of a pass over the predictions."""
        passed = float(math.prod(pool.predictions.shape)) if pool.has("predictions") else 0.0
        return UHerding().flops(pool) + passed

    def in_pieces(self, pool: Pool) -> bool:
        """Return whether coverage runs in pieces."""
        return UHerding().in_pieces(pool)

    def memory_needed(self, pool: Pool) -> int:
        """Return the bytes that coverage needs."""
        return UHerding().memory_needed(pool)

    def choose(self, pool: Pool) -> Choice:
        """Choose the likely part first; the rest treats it as labelled."""
        if not pool.has("predictions"):
            found = MaxHerding().choose(pool)
            return replace(found, notes=(*found.notes, "no class is sought because there are no predictions yet"))
        columns = self.numbers(pool.predictions)
        likely = _probability(pool.predictions, columns).to("cpu", torch.float64)[pool.candidates]
        count = max(1, round(self.share * pool.batch_size))
        short = pool.candidates[top_k(likely, min(SHORTLIST * count, len(likely))).sort().values]
        alone = pool.without("labelled_embeddings", "weights", "targets").to_choose(
            candidates=short, batch_size=count, labelled=pool.labelled[:0]
        )
        sought = _Likely(columns=columns).choose(alone).indices
        rarest = f"seeking the rarest class by the predictions, {_told(pool.predictions, columns)}"
        notes = () if self.classes else (rarest,)
        if count == pool.batch_size:
            return Choice(sought, reasons=(self.name,) * count, notes=notes)
        left = pool.to_choose(
            candidates=without(pool.candidates, sought),
            batch_size=pool.batch_size - count,
            labelled=torch.cat([pool.labelled, sought]),
        )
        rest = UHerding().choose(left)
        reasons = (self.name,) * count + (UHerding.name,) * len(rest.indices)
        return Choice(torch.cat([sought, rest.indices]), reasons=reasons, notes=(*notes, *rest.notes))

    def numbers(self, predictions: Predictions) -> tuple[int, ...]:
        """Return the numbers of the classes to look for."""
        if not self.classes:
            return (int(_by_class(predictions).mean(dim=0).cpu().argmin()),)
        names = predictions.classes
        known: list[Any] = list(range(predictions.num_classes)) if names is None else list(names)
        return tuple(class_position(each, known) for each in self.classes)


class _Likely(CoverStrategy):
    """Coverage of the points that are likely of some classes."""

    name: ClassVar[str] = "seek"

    columns: tuple[int, ...]

    def weights(self, pool: Pool, rows: Int[Tensor, " T"]) -> Float[Tensor, " T"]:
        """Return the probability of the classes."""
        return _probability(pool.predictions.subset(rows), self.columns)


def class_position(name: int | str, known: Sequence[Any]) -> int:
    """Return the position of a class among all; names and whole numbers are compared as text."""
    texts = [str(each) for each in known]
    if str(name) not in texts:
        raise UnknownNameError("class to seek", str(name), texts)
    return texts.index(str(name))


def with_examples(
    strategy: Seek, known: Sequence[Any], seen: Collection[int], names: Sequence[str] | None = None
) -> tuple[Seek | None, str]:
    """Seek only classes that have a label, because a model has not learned the others.

    Args:
        strategy: the given strategy.
        known: all classes, as named in the strategy.
        seen: numbers of the classes that have labels.
        names: the names of the classes in messages; `known` if omitted.

    Returns:
        The strategy, or None if no class is left; and a sentence about the classes that are not sought yet, or "".
    """
    numbers = [class_position(each, known) for each in strategy.classes]
    missing = ", ".join(repr(str((names or known)[number])) for number in numbers if number not in seen)
    kept = tuple(name for name, number in zip(strategy.classes, numbers, strict=True) if number in seen)
    if not missing:
        return strategy, ""
    if kept:
        note = f"{missing} has no label yet and is not sought"
        return strategy.model_copy(update={"classes": kept}), note
    return None, f"{missing} has no label yet: the whole batch is chosen by the default strategy"


def without(candidates: Int[Tensor, " n"], taken: Int[Tensor, " m"]) -> Int[Tensor, " k"]:
    """Return the candidates that were not taken."""
    return candidates[~torch.isin(candidates, taken)]


def _probability(predictions: Predictions, columns: tuple[int, ...]) -> Float[Tensor, " N"]:
    """Return the mean probability over draws that each point is of one of some classes; the number of some labels."""
    mean = _by_class(predictions)
    return torch.stack([mean[:, each] for each in columns]).sum(dim=0)


def _by_class(predictions: Predictions) -> Float[Tensor, "N C"]:
    return predictions.mean_probs() if predictions.num_labels is None else predictions.label_probs()


def _told(predictions: Predictions, columns: tuple[int, ...]) -> str:
    return ", ".join(repr(c if predictions.classes is None else predictions.classes[c]) for c in columns)

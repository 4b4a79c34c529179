"""Strategies for rare classes: `explore` until there is a first example, `seek` from there on."""

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar

import torch
from jaxtyping import Float, Int
from pydantic import BeforeValidator, Field
from torch import Tensor

from batchbalance.arguments.seeds import generator
from batchbalance.batches.coreset import k_center
from batchbalance.batches.distances import check_finite, directions
from batchbalance.errors import UnknownNameError
from batchbalance.predictions import Predictions
from batchbalance.scores.ranking import top_k
from batchbalance.strategies.baselines import embedding_bytes
from batchbalance.strategies.contract import Choice, Problem, Strategy
from batchbalance.strategies.coverage import EMBEDDINGS, CoverStrategy, MaxHerding, UHerding

SHORTLIST = 3  # times as many of the most likely points as are sought: the batch is spread over these
Sought = Annotated[
    tuple[int | str, ...], BeforeValidator(lambda given: given.split(",") if isinstance(given, str) else given)
]


class Explore(Strategy):
    """Looks for a second class while all labels are of one: half of the batch is unlike all labels, half is random.

    Coverage asks for typical points first, which are of the frequent class. Points of other classes lie farther from
    the labelled ones, by the angle seen from the centre of the pool. The random half holds whatever the embeddings say.
    """

    name: ClassVar[str] = "explore"
    summary: ClassVar[str] = "half the points least like all labelled ones, half random; needs no predictions"
    uses: ClassVar[frozenset[str]] = EMBEDDINGS
    needs: ClassVar[frozenset[str]] = frozenset({"embeddings"})
    needs_predictions: ClassVar[bool] = False

    def memory_needed(self, problem: Problem) -> int:
        """The embeddings of all points, twice."""
        return 2 * embedding_bytes(problem)

    def choose(self, problem: Problem) -> Choice:
        """Draw half of the batch, then go farthest first from all labelled and drawn points."""
        points, labelled = problem.mean_embeddings, problem.mean_labelled_embeddings
        check_finite("embeddings", points)
        centre = points.mean(dim=0)
        count = problem.batch_size // 2
        order = torch.randperm(len(problem.candidates), generator=generator(problem.seed, "explore"))
        drawn = problem.candidates[order[:count].sort().values]
        known = [points[drawn.to(points.device)], *([] if labelled is None else [labelled.to(points)])]
        farthest, _ = k_center(
            directions(points, centre),
            problem.batch_size - count,
            candidates=without(problem.candidates, drawn),
            labelled=directions(torch.cat(known), centre),
        )
        return Choice(torch.cat([farthest, drawn]))


class Seek(Strategy):
    """Part of the batch is most likely of the named classes, the rest is chosen by `u-herding`.

    The likely part covers the three times as many points of highest probability, weighted by that: it is spread, and
    not the same point many times. Without predictions all of the batch is chosen by `max-herding`.

    Attributes:
        classes: the classes to look for, by name, or by number if the predictions name none. If omitted, the class
            of the smallest mean probability.
        share: of the batch that is likely of these classes.
    """

    name: ClassVar[str] = "seek"
    summary: ClassVar[str] = "part of the batch is most likely of the named classes, the rest as u-herding"
    uses: ClassVar[frozenset[str]] = EMBEDDINGS
    needs: ClassVar[frozenset[str]] = frozenset({"embeddings"})
    needs_predictions: ClassVar[bool] = False

    classes: Sought = ()
    share: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] = 0.5

    def flops(self, problem: Problem) -> float:
        """That of the coverage, and a pass over the predictions."""
        return UHerding().flops(problem) + (0.0 if problem.given is None else float(math.prod(problem.given.shape)))

    def in_pieces(self, problem: Problem) -> bool:
        """As coverage."""
        return UHerding().in_pieces(problem)

    def memory_needed(self, problem: Problem) -> int:
        """As coverage."""
        return UHerding().memory_needed(problem)

    def choose(self, problem: Problem) -> Choice:
        """Take the likely part first; the rest sees it as labelled."""
        if problem.given is None:
            found = MaxHerding().choose(problem)
            return replace(found, notes=(*found.notes, "there are no predictions yet: nothing is sought"))
        columns = self.numbers(problem.given)
        likely = _probability(problem.given, columns).to("cpu", torch.float64)[problem.candidates]
        count = max(1, round(self.share * problem.batch_size))
        short = problem.candidates[top_k(likely, min(SHORTLIST * count, len(likely))).sort().values]
        alone = replace(problem, candidates=short, batch_size=count, labelled=None, labelled_embeddings=None)
        sought = _Likely(columns=columns).choose(alone).indices
        notes = (
            () if self.classes else (f"seeking the rarest class by the predictions, {_told(problem.given, columns)}",)
        )
        if count == problem.batch_size:
            return Choice(sought, reasons=(self.name,) * count, notes=notes)
        before = problem.labelled if problem.labelled is not None else sought[:0]
        left = replace(
            problem,
            candidates=without(problem.candidates, sought),
            batch_size=problem.batch_size - count,
            labelled=torch.cat([before, sought]),
        )
        rest = UHerding().choose(left)
        reasons = (self.name,) * count + (UHerding.name,) * len(rest.indices)
        return Choice(torch.cat([sought, rest.indices]), reasons=reasons, notes=(*notes, *rest.notes))

    def numbers(self, predictions: Predictions) -> tuple[int, ...]:
        """The numbers of the classes to look for."""
        if not self.classes:
            return (int(predictions.mean_probs().mean(dim=0).cpu().argmin()),)
        names = predictions.classes
        known: list[Any] = list(range(predictions.num_classes)) if names is None else list(names)
        return tuple(class_position(each, known) for each in self.classes)


class _Likely(CoverStrategy):
    """Coverage of the points that are likely of some classes."""

    name: ClassVar[str] = "seek"
    needs_predictions: ClassVar[bool] = True

    columns: tuple[int, ...]

    def weights(self, problem: Problem, rows: Int[Tensor, " T"]) -> Float[Tensor, " T"]:
        """The probability of the classes."""
        return _probability(problem.predictions.subset(rows), self.columns)


def class_position(name: int | str, known: Sequence[Any]) -> int:
    """The place of a class among all; names and whole numbers match as text does."""
    texts = [str(each) for each in known]
    if str(name) not in texts:
        raise UnknownNameError("class to seek", str(name), texts)
    return texts.index(str(name))


def with_examples(
    strategy: Seek, known: Sequence[Any], seen: Collection[int], names: Sequence[str] | None = None
) -> tuple[Seek | None, str]:
    """Seek only classes that have a label: what a model says about others is not about them.

    Args:
        strategy: as it was given.
        known: all classes, as the strategy calls them.
        seen: numbers of the classes that have labels.
        names: what people call the classes; `known` if omitted.

    Returns:
        The strategy, None if no class is left; and a sentence about those that are not sought yet, "" for none.
    """
    numbers = [class_position(each, known) for each in strategy.classes]
    missing = ", ".join(repr(str((names or known)[number])) for number in numbers if number not in seen)
    kept = tuple(name for name, number in zip(strategy.classes, numbers, strict=True) if number in seen)
    if not missing:
        return strategy, ""
    if kept:
        note = f"{missing} has no label yet to learn from, and is not sought"
        return strategy.model_copy(update={"classes": kept}), note
    return None, f"{missing} has no label yet to learn from: all of the batch is chosen by the default"


def without(candidates: Int[Tensor, " n"], taken: Int[Tensor, " m"]) -> Int[Tensor, " k"]:
    """The candidates that were not taken."""
    return candidates[~torch.isin(candidates, taken)]


def _probability(predictions: Predictions, columns: tuple[int, ...]) -> Float[Tensor, " N"]:
    """The mean probability over draws that each point is of one of some classes."""
    mean = predictions.mean_probs()
    return torch.stack([mean[:, each] for each in columns]).sum(dim=0)


def _told(predictions: Predictions, columns: tuple[int, ...]) -> str:
    return ", ".join(repr(c if predictions.classes is None else predictions.classes[c]) for c in columns)

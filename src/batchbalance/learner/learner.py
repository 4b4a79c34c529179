"""`Learner`: which points to label next, for labelling by hand and for benchmarks."""

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from inspect import signature
from typing import Any, SupportsIndex

import numpy as np
import torch
from torch import Tensor, nn

from batchbalance.arguments.checks import as_tensor, check_whole
from batchbalance.arguments.seeds import generator
from batchbalance.balance.edges import EdgeSettings
from batchbalance.learner.engine import batch_seed, fit_seed, next_batch, sample_of
from batchbalance.learner.labels import Id, Label, plain
from batchbalance.learner.store import Known, Store
from batchbalance.posteriors import (
    POSTERIORS,
    EstimatorFit,
    Fit,
    Fitted,
    MCDropoutOptions,
    Posterior,
    PosteriorFit,
    PosteriorOptions,
)
from batchbalance.posteriors.inputs import Blocks, IndexedRows, is_table
from batchbalance.posteriors.training import Recipe
from batchbalance.posteriors.training.networks import Network
from batchbalance.predictions import Predictions
from batchbalance.selection import Selection
from batchbalance.selection.choosing import as_strategy
from batchbalance.strategies import AUTO, Strategy
from batchbalance.strategies.pool import Metric, Pool
from batchbalance.system.journal import Entry


class Learner:
    """An active learner: chooses the points to label next.

    Args:
        inputs: the unlabelled data (N, ...): a tensor, an array, or an object with a length that returns the inputs of
            a tensor of rows; for estimators also a DataFrame, a sparse matrix or a list of texts.
        classes: the possible labels, or their number C for the labels 0 to C − 1.
        model: the model to train. The options of a posterior, such as ``CommitteeOptions(size=50)``; a classifier
            with ``fit`` and ``predict_proba``, also a pipeline; a function that builds a network with dropout, called
            with `num_classes` and `input_shape` if it takes them; or a function of inputs, classes (int64) and a seed
            that returns a `Posterior`, a `Fitted` with the validation error, or None while there are too few labels.
        network: for posteriors of networks: the name of a network, or a function that builds it.
        recipe: how networks are trained; the defaults of `Recipe` if omitted.
        directory: the folder of questions and answers, created if missing; None keeps them in memory.
        ids: N distinct names of the points; 0 to N − 1 if omitted.
        strategy: a name or a strategy object. "auto" covers the inputs before any label, and then uses the strategy for
            predictions and embeddings; `selection.note` gives the reason.
        cold_start: the strategy while there are no labels, such as "max-herding"; `strategy` if omitted.
        edges: threshold or ratio, pairs, size of the reference set.
        reference: inputs of the reference set, where draws are compared; the candidates if omitted.
        candidates: choose from a random sample of this many points each time; None chooses from all.
        metric: how distances are measured, as in ``select``; "raw" for the columns of a table.
        multi_label: whether a point may have several labels, or none. `tell` then takes a list of labels for each.
        seed: random seed; the same seed, data and answers give the same questions.
        device: where to select; the device of the predictions if omitted.
        events: the initial events, if there is no directory.
        on_phase: called with "train", "predict" and "select" as they begin.

    Attributes:
        selection: the last batch chosen in this process, or None. Its indices are rows of `inputs`.
        error: ε for its threshold: on validation data, else by cross-validation; None if not needed.
        seconds: the duration of each phase of it.
    """

    def __init__(
        self,
        inputs: Any,
        classes: int | Iterable[Any],
        model: Any,
        *,
        network: str | Network | None = None,
        recipe: Recipe | None = None,
        directory: str | os.PathLike[str] | None = None,
        ids: Iterable[Any] | None = None,
        strategy: str | Strategy = AUTO,
        cold_start: str | Strategy | None = None,
        edges: EdgeSettings | None = None,
        reference: Any = None,
        candidates: SupportsIndex | None = None,
        metric: Metric = "auto",
        multi_label: bool = False,
        seed: SupportsIndex = 0,
        device: str | None = None,
        events: list[Entry] | None = None,
        on_phase: Callable[[str], None] | None = None,
    ) -> None:
        self._inputs = _as_inputs(inputs)
        named = _as_classes(classes)
        model = EstimatorFit(model, named) if _is_estimator(model) else model
        self._fit = as_fit(model, len(named), network=network, recipe=recipe, device=device)
        if isinstance(self._inputs, IndexedRows) and isinstance(self._fit, PosteriorFit):
            raise ValueError(
                f"`inputs` must be an array of numbers for this model, got a {type(inputs).__name__}; pass a "
                "classifier or pipeline as `model`, or `frame.to_numpy()` as inputs"
            )
        self._strategy = as_strategy(strategy)
        self._first = self._strategy if cold_start is None else as_strategy(cold_start)
        self._edges = edges or EdgeSettings()
        self._reference = None if reference is None else _as_inputs(reference)
        self._candidates = None if candidates is None else check_whole("candidates", candidates)
        self._metric, self._seed, self._device = metric, check_whole("seed", seed, 0), device
        self._on_phase = on_phase or (lambda _: None)
        self._cached: tuple[Any, Fitted | None] | None = None
        self.selection: Selection | None = None
        self.error: float | None = None
        self.seconds: dict[str, float] = {}
        self._has_begun = False
        self._store = Store(_as_ids(ids, len(self._inputs)), named, directory, events or [], several=multi_label)

    @property
    def labels(self) -> dict[Id, Any]:
        """The labels so far; a list for each point if it may have several."""
        ids, named = self._store.ids, self._store.named
        return {ids[row]: named(label) for row, label in sorted(self._store.known().labels.items())}

    @property
    def open_questions(self) -> list[Id]:
        """The points that were asked and have no label yet, oldest first."""
        return [self._store.ids[row] for row in self._store.known().asked]

    def __repr__(self) -> str:
        known = self._store.known()
        counts = f"{len(self._inputs):,} points, {len(known.labels):,} labels, {len(known.asked):,} open questions"
        return f"Learner({counts}, {AUTO if self._strategy is None else self._strategy.name!r})"

    def ask(self, n: SupportsIndex) -> list[Id]:
        """Return the ids of n points to label next.

        Open questions come first, oldest first. If fewer than n are open, the rest are chosen now, from points that are
        neither labelled nor asked. So asking again before `tell` returns the same points. Before the first label,
        strategies that need no predictions, such as the one of "auto", cover the inputs. Other strategies use the
        untrained network, and are random if there is none.

        Training and choosing take no lock. If another process asked or told in the meantime, points are chosen again.
        """
        wanted = check_whole("n", n)
        while True:
            known = self._store.known()
            rows = known.asked[:wanted]
            if len(rows) < wanted:
                chosen = self._choose(known, wanted - len(rows))
                if not self._store.add_question(chosen, known):
                    continue
                rows = rows + chosen
            return [self._store.ids[row] for row in rows]

    def tell(self, ids: Iterable[Any], labels: Iterable[Any], *, correct: bool = False) -> None:
        """Add labels of points, asked or not, in any order, for a whole batch or a part of it.

        Nothing is added unless all labels are valid. Telling the same label again changes nothing.

        Args:
            ids: the points.
            labels: one for each; a list for each if a point may have several, empty for none.
            correct: allow labels that differ from earlier ones, and replace these.
        """
        self._store.add_answers(ids, labels, correct=correct)

    def fitted(self) -> Fitted | None:
        """Return the posterior given all labels so far; without labels, that of the untrained network, or None."""
        return self._fitted(self._store.known())

    def _choose(self, known: Known, count: int) -> list[int]:
        """Return the rows to ask next."""
        taken = torch.zeros(len(self._inputs), dtype=torch.bool)
        taken[list(known.labels) + known.asked] = True
        rows = (~taken).nonzero()[:, 0]
        if count > len(rows):
            raise ValueError(
                f"`n` must be at most {len(known.asked) + len(rows)}, the open questions and the points never asked, "
                f"got {len(known.asked) + count}"
            )
        if self._candidates is not None and max(self._candidates, count) < len(rows):
            # Sampled from all points, so that strategies with different labels still choose from the same sample.
            order = torch.randperm(len(taken), generator=generator(self._seed, "candidates", known.round))
            rows = order[~taken[order]][: max(self._candidates, count)].sort().values
        counts = [0] * len(self._store.classes)
        for label in known.labels.values():
            for each in label if self._store.several else [label]:
                counts[each] += 1
        choice = {"batch_size": count, "seed": batch_seed(self._seed, known.round)}
        pool = self._pool(rows, known, self._fitted(known) if known.labels else None).to_choose(**choice)

        def untrained() -> Pool | None:
            fitted = None if known.labels else self._fitted(known)
            return None if fitted is None else self._pool(rows, known, fitted).to_choose(**choice)

        self._has_begun, started = False, time.perf_counter()
        self.seconds.pop("predict", None)
        strategy = self._strategy if known.labels else self._first
        chosen = next_batch(pool, strategy, self._store.classes, counts, untrained=untrained)
        self._begin("select")
        self.seconds["select"] = time.perf_counter() - started - self.seconds.get("predict", 0.0)
        self.selection = replace(chosen, choice=replace(chosen.choice, indices=rows[chosen.indices]))
        return [int(row) for row in self.selection.indices]

    def _pool(self, rows: Tensor, known: Known, fitted: Fitted | None) -> Pool:
        """Return the pool of some rows; without a model, the inputs serve as embeddings."""
        covering = torch.tensor(sorted(known.labels) + known.asked, dtype=torch.long)  # open questions will have labels
        is_tensor = not isinstance(self._inputs, IndexedRows)  # tables and texts have no embeddings here
        made: dict[str, Callable[[], Any]] = {}
        if fitted is None:
            if is_tensor and self._inputs[torch.zeros(1, dtype=torch.long)].is_floating_point():
                made["embeddings"] = lambda: self._flattened(rows)
                if len(covering):
                    made["labelled_embeddings"] = lambda: self._flattened(covering)
        else:
            made |= self._predicted(fitted, rows, covering, with_embeddings=is_tensor)
        return Pool(
            made={"metric": lambda: self._metric, **{name: self._timed_part(make) for name, make in made.items()}},
            num_points=len(rows),
            device=self._device,
        )

    def _flattened(self, rows: Tensor) -> Tensor:
        """Return inputs as embeddings."""
        return torch.cat([block.flatten(1) for block in Blocks(self._inputs, rows)])

    def _predicted(
        self, fitted: Fitted, rows: Tensor, covering: Tensor, *, with_embeddings: bool
    ) -> dict[str, Callable[[], Any]]:
        """Return functions that compute the parts of a pool that depend on a model."""
        posterior, edges, pool = fitted.posterior, self._edges, Blocks(self._inputs, rows)
        passed: list[Predictions] = []

        def predictions() -> Predictions:
            return self._named(passed[0] if passed else posterior.predict(pool))

        def embeddings() -> Tensor:
            found, hidden = posterior.predict_and_embed(pool)  # one pass computes both
            passed.append(found)
            return hidden

        def validation_error() -> float | None:
            self.error = fitted.error
            return self.error

        made: dict[str, Callable[[], Any]] = {
            "predictions": predictions,
            "pairs": lambda: edges.pairs,
            "max_reference": lambda: edges.max_reference,
        }
        if edges.threshold is not None:
            made["threshold"] = lambda: edges.threshold
        else:
            made |= {"ratio": lambda: edges.ratio, "validation_error": validation_error}
        if self._reference is not None:
            made["reference"] = partial(self._compared, posterior, self._reference)
        if with_embeddings:
            made |= {
                "embeddings": embeddings,
                "draw_embeddings": lambda: posterior.embed(pool, every_draw=True),
                "labelled_embeddings": lambda: posterior.embed(Blocks(self._inputs, covering)),
            }
        return made

    def _compared(self, posterior: Posterior, reference: Any) -> Predictions:
        """Return predictions of the reference set, or of a sample of it."""
        order = torch.randperm(len(reference), generator=generator(self._seed, "reference"))
        rows = order[: self._edges.max_reference].sort().values
        return self._named(posterior.predict(Blocks(reference, rows)))

    def _timed_part(self, make: Callable[[], Any]) -> Callable[[], Any]:
        """Count the time for computing a part of the pool as time for predicting."""

        def timed() -> Any:
            if not self._has_begun:
                self._on_phase("predict")
            started = time.perf_counter()
            found = make()
            self.seconds["predict"] = self.seconds.get("predict", 0.0) + time.perf_counter() - started
            self._begin("select")
            return found

        return timed

    def _begin(self, phase: str) -> None:
        if not self._has_begun:
            self._has_begun = True
            self._on_phase(phase)

    def _named(self, predictions: Predictions) -> Predictions:
        """Return predictions whose classes are the possible labels; a posterior may use these or their numbers."""
        named, found = self._store.classes, predictions.classes
        numbers = range(predictions.num_classes) if found is None else found
        if found != tuple(named) and set(numbers) <= set(range(len(named))):
            return predictions.with_classes([named[int(number)] for number in numbers])
        return predictions

    def _fitted(self, known: Known) -> Fitted | None:
        seed = fit_seed(self._seed, known.label_round)
        if not known.labels:
            self.seconds = {}
            untrained = getattr(self._fit, "untrained", None)
            start = torch.zeros(1, dtype=torch.long)
            return untrained(self._inputs[start], seed) if untrained else None
        rows = sorted(known.labels)  # the fit must not depend on the order of the labels
        told = torch.tensor([known.labels[row] for row in rows]) if not self._store.several else self._matrix(known)
        key = (known.label_round, rows, [known.labels[row] for row in rows])
        if self._cached is None or self._cached[0] != key:
            self.seconds = {}
            with self._timed("train"):
                result: Posterior | Fitted | None = self._fit(
                    self._inputs[torch.tensor(rows)], told, seed, **self._unlabelled(rows)
                )
            if not isinstance(result, Posterior | Fitted | None):
                raise TypeError(f"`model` must return a Posterior or a Fitted, got {type(result).__name__}")
            self._cached = key, Fitted(result) if isinstance(result, Posterior) else result
        return self._cached[1]

    def _matrix(self, known: Known) -> Tensor:
        """Return the labels of the labelled points in the order of rows, (n, L) of 0 and 1."""
        matrix = torch.zeros(len(known.labels), len(self._store.classes), dtype=torch.long)
        for number, row in enumerate(sorted(known.labels)):
            matrix[number, known.labels[row]] = 1
        return matrix

    def _unlabelled(self, labelled: list[int]) -> dict[str, Tensor]:
        """Return a sample of the unlabelled inputs, for a fit that uses them."""
        others = torch.ones(len(self._inputs), dtype=torch.bool)
        others[labelled] = False
        if not getattr(self._fit, "uses_unlabelled", False) or not bool(others.any()):
            return {}
        return {"unlabelled": self._inputs[sample_of(others.nonzero()[:, 0], self._seed)]}

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        self._on_phase(phase)
        started = time.perf_counter()
        yield
        self.seconds[phase] = time.perf_counter() - started


def as_fit(
    model: Any,
    num_classes: int,
    *,
    network: str | Network | None = None,
    recipe: Recipe | None = None,
    device: str | None = None,
) -> Fit:
    """Return the function that fits on labels, from any form of `model` that ``Learner`` accepts."""
    if isinstance(model, nn.Module):
        raise ValueError(
            f"`model` must build a network, got a built {type(model).__name__}; pass a function, not its result"
        )
    if isinstance(model, PosteriorOptions):
        return PosteriorFit(model, num_classes, network, recipe=recipe, device=device or "cpu")
    if isinstance(model, Posterior):
        wanted = f"posterior_options({model.kind!r})" if model.kind in POSTERIORS else "a function that fits one"
        raise ValueError(f"`model` must be options of a posterior, got a {type(model).__name__}; pass {wanted}")
    if not callable(model):
        raise TypeError(
            "`model` must be options of a posterior, a classifier, a function that builds a network, or a fit, got "
            f"{model!r}"
        )
    if network is not None:
        raise ValueError("`network` is for options of a posterior, got it together with a function; omit one of them")
    if isinstance(model, PosteriorFit) or _is_fit(model):
        if recipe is not None:
            raise ValueError("`recipe` is not used by your own fit function; omit it")
        return model  # type: ignore[no-any-return]
    return PosteriorFit(MCDropoutOptions(), num_classes, model, recipe=recipe, device=device or "cpu")


def _is_estimator(model: Any) -> bool:
    """Return whether a model is a scikit-learn classifier."""
    found = hasattr(model, "fit") and (hasattr(model, "predict_proba") or hasattr(model, "get_params"))
    if found and isinstance(model, type):
        raise ValueError(f"`model` must be a classifier, got the class {model.__name__}; pass an instance")
    return found


def _is_fit(function: Any) -> bool:
    """Return whether a function takes inputs, classes and a seed, and so is not a builder of networks."""
    parameters = signature(function)
    if isinstance(function, type) or {"num_classes", "input_shape"} & set(parameters.parameters):
        return False
    try:
        parameters.bind(None, None, None)
    except TypeError:
        return False
    return True


def _as_inputs(inputs: Any) -> Any:
    if is_table(inputs):
        return IndexedRows(inputs)
    if isinstance(inputs, Tensor | np.ndarray | list):
        inputs = as_tensor(inputs, "`inputs`")
        if inputs.ndim < 2:
            raise ValueError(f"`inputs` must be (N, ...), one row per point, got shape {tuple(inputs.shape)}")
    if not len(inputs):
        raise ValueError("`inputs` must hold at least one point, got none")
    return inputs


def _as_classes(classes: int | Iterable[Any]) -> list[Label]:
    named = list(range(classes)) if isinstance(classes, int) else [plain(label) for label in classes]
    if not named or len(set(named)) < len(named):
        raise ValueError(f"`classes` must be distinct labels, at least one, got {named}")
    return named


def _as_ids(ids: Iterable[Any] | None, num_points: int) -> list[Id]:
    names: list[Id] = list(range(num_points)) if ids is None else [plain(name) for name in ids]
    if len(names) != num_points or len(set(names)) != num_points:
        raise ValueError(
            f"`ids` must be {num_points} distinct names, one for each input, got {len(names)} with "
            f"{len(set(names))} distinct"
        )
    return names

"""`select`: predictions or embeddings in, the batch to label out. Its steps: prepare, connect, choose, evaluate."""

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, SupportsFloat, SupportsIndex

import torch
from jaxtyping import Float, Int
from torch import Tensor

from batchbalance import threads
from batchbalance.balance.edges import DEFAULT_RATIO, Edges, MaxReference, Pairs, annealed_threshold, subsample
from batchbalance.balance.evaluation import BatchEvaluation, batch_value, remaining_candidates
from batchbalance.balance.greedy import Continuation, Executor
from batchbalance.batches.cover import Cover
from batchbalance.checks import (
    Indices,
    check_bytes,
    check_device,
    check_embeddings,
    check_indices,
    check_unit,
    check_whole,
)
from batchbalance.errors import MissingExtraError
from batchbalance.machine import free_memory
from batchbalance.memory import FREE_SHARE, check_budget, streaming_bytes
from batchbalance.predictions import Label, Predictions
from batchbalance.scores import unsureness
from batchbalance.strategies import (
    AUTO,
    Choice,
    ConnectedStrategy,
    Problem,
    Random,
    Strategy,
    auto_strategy,
    strategy_named,
)

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, eq=False, repr=False)
class Selection:
    """A chosen batch, and what is known about it.

    Attributes:
        strategy: the strategy with its options.
        seed: the seed it ran with.
        choice: what the strategy chose.
        value: what the batch is worth; None for strategies that do not join draws by edges.
        edges: the pairs of draws that differ enough, for ``evaluate_batch`` on other batches; None like `value`.
        threshold_source: how τ came about; None like `value`.
        warnings: sentences worth reading before the batch is sent out.
        note: why `auto` chose this strategy; None if it was named.
        predicted: the most probable label of each chosen point, by the mean of draws; None if classes have no names.
    """

    strategy: Strategy
    seed: int
    choice: Choice
    value: BatchEvaluation | None = None
    edges: Edges | None = None
    threshold_source: str | None = None
    warnings: tuple[str, ...] = ()
    note: str | None = None
    predicted: tuple[Label, ...] | None = None

    @property
    def indices(self) -> Int[Tensor, " B"]:
        """(B,) points of the pool, in the order they were chosen."""
        return self.choice.indices

    @property
    def scores(self) -> Float[Tensor, " B"] | None:
        """(B,) what the strategy ranked or sampled the points by, if it has such a number."""
        return self.choice.scores

    @property
    def gains(self) -> Float[Tensor, " B"] | None:
        """(B,) what each point adds to Δ given those before it, float64."""
        return None if self.value is None else self.value.gains

    @property
    def gain_errors(self) -> Float[Tensor, " B"] | None:
        """(B,) Monte-Carlo standard error of each gain over draws; None with fewer than four draws."""
        return None if self.value is None else self.value.gain_errors

    @property
    def coverage(self) -> Float[Tensor, " B"] | None:
        """(B,) Δ / Δ_max after each pick: the expected share of edge weight discounted.

        Read it beside the next two only: label noise and random batches discount as well.
        """
        return None if self.value is None else self.value.coverage

    @property
    def random_coverage(self) -> float | None:
        """Mean coverage of 20 random batches of this size."""
        return None if self.value is None else self.value.random_coverage

    @property
    def null_coverage(self) -> Float[Tensor, " B"] | None:
        """(B,) coverage after each pick if every draw were the mean prediction."""
        return None if self.value is None else self.value.null_coverage

    @property
    def certificate(self) -> float | None:
        """The batch is worth at least this share of the best batch under these draws and pairs."""
        return None if self.value is None else self.value.certificate

    @property
    def cover(self) -> Cover | None:
        """What the batch covers in the space of embeddings, for strategies of coverage.

        Its gains, coverage and certificate are shares of the weighted pool; those beside it are of edge weight.
        """
        return self.choice.cover

    @property
    def num_edges(self) -> int | None:
        """Pairs that differ by more than the threshold."""
        return None if self.edges is None else self.edges.num_edges

    @property
    def num_pairs(self) -> int | None:
        """Pairs that were looked at."""
        return None if self.edges is None else self.edges.num_pairs

    @property
    def num_reference(self) -> int | None:
        """Points of the reference set that were compared."""
        return None if self.edges is None else self.edges.num_reference

    @property
    def threshold(self) -> float | None:
        """τ, the share of the reference set on which two draws must differ to count as different."""
        return None if self.edges is None else self.edges.threshold

    @property
    def continued_from(self) -> int | None:
        """The pick (from 0) from which on nothing meaningful in float64 was left to gain, or None."""
        return self.choice.continued_from

    @property
    def continuation(self) -> Continuation | None:
        """What was done from there on."""
        return self.choice.continuation

    @property
    def clustering_rounds(self) -> int | None:
        """How many rounds the clustering took (the paper's T), or None."""
        return self.choice.clustering_rounds

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers, lists and strings, ready for JSON."""
        plain: dict[str, Any] = {name: getattr(self, name) for name in PLAIN}
        return {
            "strategy": {"name": self.strategy.name, **self.strategy.model_dump()},
            **{name: _plain(value) for name, value in plain.items()},
            "cover": self.cover and {each.name: _plain(getattr(self.cover, each.name)) for each in fields(self.cover)},
            "warnings": list(self.warnings),
            "note": self.note,
            "predicted": self.predicted and list(self.predicted),
        }

    def to_frame(self) -> "pandas.DataFrame":
        """The batch as a table of pandas: a row for each point, a column for each number that is known of it."""
        try:
            import pandas
        except ImportError as error:
            raise MissingExtraError("a selection as a DataFrame", "pandas") from error
        columns: dict[str, Any] = {name: getattr(self, name) for name in COLUMNS}
        if self.cover is not None:
            columns |= {"cover_gain": self.cover.gains, "cover": self.cover.coverage}
        known = {COLUMNS.get(name, name): _plain(each) for name, each in columns.items() if each is not None}
        return pandas.DataFrame(known)

    def __repr__(self) -> str:
        first = ", ".join(map(str, self.indices[:3].tolist())) + (", …" if len(self.indices) > 3 else "")
        found = next((each for each in (self.value, self.cover) if each is not None), None)
        certified = "" if found is None or found.certificate is None else f", certificate {found.certificate:.2f}"
        warned = f", {len(self.warnings)} warnings" if self.warnings else ""
        return f"Selection({len(self.indices)} points by {self.strategy.name!r}: {first}{certified}{warned})"


# What there is of each point, and the column of ``to_frame`` that holds it.
COLUMNS = {
    "indices": "index", "scores": "score", "gains": "gain", "gain_errors": "gain_error", "coverage": "coverage",
    "null_coverage": "null_coverage",
}  # fmt: skip


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, Tensor) else value


PLAIN = (
    "indices", "seed", "scores", "gains", "gain_errors", "coverage", "random_coverage", "null_coverage", "certificate",
    "num_edges", "num_pairs", "num_reference", "threshold", "threshold_source", "continued_from", "continuation",
    "clustering_rounds",
)  # fmt: skip


def select(
    predictions: Predictions | None = None,
    batch_size: SupportsIndex | None = None,
    *,
    strategy: str | Strategy = AUTO,
    reference: Predictions | None = None,
    validation_error: SupportsFloat | None = None,
    threshold: SupportsFloat | None = None,
    ratio: SupportsFloat | None = None,
    pairs: Pairs | SupportsIndex | None = None,
    embeddings: Any = None,
    labelled_embeddings: Any = None,
    labelled: Indices | None = None,
    exclude: Indices | None = None,
    seed: SupportsIndex = 0,
    device: str | None = None,
    max_reference: MaxReference | None = None,
    memory_budget: int | str | None = None,
    progress: bool = False,
    executor: Executor | None = None,
) -> Selection:
    """Choose the batch of points to label next.

    Args:
        predictions: of the pool; not needed by "random", "coreset", "max-herding", "prob-cover" and "typiclust".
        batch_size: B, the number of points to choose.
        strategy: a name from ``batchbalance.STRATEGIES``, the path of a class of your own ("mypackage.module:Mine"),
            or a strategy object with its options, as in ``PowerBalance(beta=2)``. "auto" takes "u-herding" given
            predictions and embeddings, "max-herding" given embeddings alone or no labels yet (`labelled=[]`), and
            "batch-balance" given predictions alone; the result says which and why, and names what was not used.
        reference: predictions of the same draws on the set where draws are compared; the pool itself if omitted.
        validation_error: ε of the network with dropout off; τ = ratio · ε. Estimated from the pool if omitted.
        threshold: τ itself, instead of `validation_error`.
        ratio: τ / ε; 1/4 if omitted.
        pairs: which pairs of draws are looked at, as in ``connect``; "disjoint" if omitted.
        embeddings: (N, D) features of the pool, or (N, S, D) those of every draw; an array or tensor. Strategies of
            coverage read those of a memory-mapped file in blocks.
        labelled_embeddings: (L, D) or (L, S, D) features of points outside the pool that have labels.
        labelled: points of the pool that have labels. They are not chosen, and cover what is near them.
        exclude: points that must not be chosen, for any other reason. They cover nothing, and are not to be covered.
        seed: same seed, same batch.
        device: where to compute, such as "cuda"; where the predictions are if omitted.
        max_reference: a larger reference set is subsampled to this size, 10,000 if omitted; "all" keeps it whole.
        memory_budget: bytes, or a text such as "2GiB", to use besides the predictions; half of what is free if
            omitted. Predictions from a ``.npy`` file are read in chunks and may be larger. Never changes the batch.
        progress: show how far it is.
        executor: spreads the points of greedy strategies over other processes or machines, as ``RayExecutor`` of
            ``batchbalance.cluster`` does. Changes the batch only if it says so (`one_round`).
    """
    given = {
        "reference": reference, "validation_error": validation_error, "threshold": threshold, "ratio": ratio,
        "pairs": pairs, "max_reference": max_reference, "embeddings": embeddings,
        "labelled_embeddings": labelled_embeddings,
    }  # fmt: skip
    labels = _has_labels(labelled, labelled_embeddings)
    chosen_strategy, note, unused = _resolved(strategy, predictions is not None, given, labels)
    for name in unused:
        given[name] = None
    _check_given(chosen_strategy, predictions, given)
    _check_executor(chosen_strategy, executor, device)

    # Prepare.
    pool = _Pool.of(predictions, given["embeddings"], given["labelled_embeddings"], device)
    with_labels = check_indices("labelled", [] if labelled is None else labelled, pool.num_points)
    candidates = _candidates(pool.num_points, exclude, with_labels)
    budget = int(FREE_SHARE * free_memory()) if memory_budget is None else check_bytes("memory_budget", memory_budget)
    least = streaming_bytes(pool.predictions, pool.num_points)
    if memory_budget is not None:
        check_budget(budget, least)
    problem = Problem(
        pool.predictions,
        candidates,
        check_whole("batch_size", batch_size, 1, len(candidates), limit="the points that are left"),
        check_whole("seed", seed, 0),
        reference=pool.same_draws(given["reference"], device),
        embeddings=pool.embeddings,
        labelled_embeddings=pool.labelled_embeddings,
        labelled=with_labels,
        cache_bytes=max(0, budget - least),
        progress=progress,
        executor=executor,
    )

    # Connect, choose, evaluate.
    with threads.for_work(chosen_strategy.flops(problem), in_pieces=chosen_strategy.in_pieces(problem)):
        selection = _selected(chosen_strategy, problem, given, None if memory_budget is None else (budget, least))
    not_used = [f"`{name}` was not used: strategy {chosen_strategy.name!r} has no use for it" for name in unused]
    predicted = None
    if pool.predictions is not None and pool.predictions.classes is not None:
        predicted = tuple(pool.predictions.most_probable(selection.indices))
    return replace(selection, warnings=(*selection.warnings, *not_used), note=note, predicted=predicted)


def _selected(strategy: Strategy, problem: Problem, given: dict[str, Any], budget: tuple[int, int] | None) -> Selection:
    """The batch; `budget` is that of memory, and what of it a pass over the pool takes."""
    source = None
    if isinstance(strategy, ConnectedStrategy):
        tau, source = _threshold(problem, given["threshold"], given["validation_error"], given["ratio"])
        compared = problem.predictions if problem.reference is None else problem.reference
        pairs: Pairs | SupportsIndex = "disjoint" if given["pairs"] is None else given["pairs"]
        edges = strategy.connect(compared, tau, pairs, problem.seed, given["max_reference"])
        problem = replace(problem, edges=edges, reference=None)
    elif problem.reference is not None:
        problem = replace(problem, reference=subsample(problem.reference, given["max_reference"], problem.seed))
    if budget is not None:
        check_budget(*budget, strategy.name, strategy.memory_needed(problem))
    choice = _choose(strategy, problem)
    value = None
    if isinstance(strategy, ConnectedStrategy):
        value = batch_value(
            strategy.model(problem),
            choice.indices,
            problem.candidates,
            seed=problem.seed,
            upper_bound=choice.upper_bound,
        )
    warnings = choice.notes + _cover_notes(choice.cover) + _reference_notes(problem.edges)
    return Selection(strategy, problem.seed, choice, value, problem.edges, source, warnings)


def _resolved(
    strategy: Any, has_predictions: bool, given: dict[str, Any], has_labels: bool | None
) -> tuple[Strategy, str | None, list[str]]:
    """The strategy, why it was chosen, and the arguments that it does not use; the last two only for "auto"."""
    if strategy == AUTO:
        has_embeddings = given["embeddings"] is not None
        chosen, why = auto_strategy(
            has_predictions=has_predictions, has_embeddings=has_embeddings, has_labels=has_labels
        )
        unused = [name for name, value in given.items() if value is not None and not _is_used(chosen, name)]
        return chosen, f"auto chose {chosen.name!r}: {why}", unused
    if isinstance(strategy, str):
        return strategy_named(strategy), None, []
    if not isinstance(strategy, Strategy):
        raise TypeError(f"`strategy` must be a name or a strategy object, got {strategy!r}")
    return strategy, None, []


def _has_labels(labelled: Indices | None, labelled_embeddings: Any) -> bool | None:
    """Whether any point has a label; None if nobody said."""
    if labelled is None and labelled_embeddings is None:
        return None
    return any(points is not None and len(points) > 0 for points in (labelled, labelled_embeddings))


def _is_used(strategy: Strategy, name: str) -> bool:
    return name in strategy.uses or (name == "max_reference" and "reference" in strategy.uses)


def _check_given(strategy: Strategy, predictions: Any, given: dict[str, Any]) -> None:
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


def _check_executor(strategy: Strategy, executor: Executor | None, device: str | None) -> None:
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


def _candidates(num_points: int, exclude: Indices | None, labelled: Int[Tensor, " l"]) -> Int[Tensor, " n"]:
    """The points that may be chosen."""
    excluded = check_indices("exclude", [] if exclude is None else exclude, num_points)
    candidates = remaining_candidates(num_points, torch.cat([excluded, labelled]))
    if not len(candidates):
        names = "`exclude` and `labelled`" if len(labelled) else "`exclude`"
        raise ValueError(f"{names} must leave at least one point to choose from, got all of them")
    return candidates


@dataclass(frozen=True, eq=False)
class _Pool:
    """What is known of the points, checked, in one place."""

    predictions: Predictions | None
    embeddings: Tensor | None
    labelled_embeddings: Tensor | None
    num_points: int

    @classmethod
    def of(cls, given: Any, embeddings: Any, labelled: Any, device: str | None) -> "_Pool":
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


def _threshold(
    problem: Problem, threshold: SupportsFloat | None, validation_error: SupportsFloat | None, ratio: Any
) -> tuple[float, str]:
    """τ and how it came about."""
    ratio = DEFAULT_RATIO if ratio is None else ratio
    if threshold is not None:
        return check_unit("threshold", threshold), "given"
    if validation_error is not None:
        tau = annealed_threshold(validation_error, ratio)
        return tau, f"{float(ratio):g} × validation error {float(validation_error):.4g}"
    predictions, executor = problem.predictions, problem.executor
    if executor is not None and predictions.source.is_made_on_demand:
        raise ValueError(
            "`threshold` or `validation_error` must be given for a pool that workers predict, got neither: to estimate "
            "them, all of it would be predicted twice"
        )
    total = unsureness(predictions) if executor is None else executor.unsureness(predictions)
    estimate = min(1.0, max(0.0, total / predictions.num_points))
    source = (
        f"{float(ratio):g} × estimated error {estimate:.4g}, the mean of 1 − (largest mean probability) over the pool"
    )
    return annealed_threshold(estimate, ratio), source


def _choose(strategy: Strategy, problem: Problem) -> Choice:
    """The strategy's choice; a random one where there is nothing to distinguish."""
    edges = problem.edges
    if edges is None or edges.total_weight > 0:
        return strategy.choose(problem)
    if edges.num_edges:
        cause = f"all {edges.num_edges} edges join draws of weight 0"
        remedy = "give weight to draws that differ, or choose other pairs"
    else:
        cause = (
            f"none of {edges.num_pairs} pairs of draws differs on more than {edges.threshold:.2%} of the reference set"
        )
        remedy = "lower the threshold or ratio, or predict with more draws"
    note = f"{cause}, so every Δ is zero and the batch is random; {remedy}"
    return Choice(Random().choose(problem).indices, notes=(note,))


def _cover_notes(cover: Cover | None) -> tuple[str, ...]:
    if cover is None or cover.filled_from is None:
        return ()
    return (f"from pick {cover.filled_from + 1} on nothing was left to cover: the rest of the batch is random",)


def _reference_notes(edges: Edges | None) -> tuple[str, ...]:
    if edges is None or edges.num_reference == edges.num_reference_given:
        return ()
    return (
        f"draws were compared on {edges.num_reference:,} of {edges.num_reference_given:,} reference points; "
        "raise `max_reference` to use more",
    )

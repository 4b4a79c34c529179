"""`select`: predictions in, the batch to label out. Its steps are prepare, connect, choose, evaluate."""

from dataclasses import dataclass, replace
from typing import Any, SupportsFloat, SupportsIndex

from jaxtyping import Float, Int
from torch import Tensor

from batchbalance.balance.edges import DEFAULT_RATIO, Edges, MaxReference, Pairs, annealed_threshold, subsample
from batchbalance.balance.evaluation import BatchEvaluation, batch_value, remaining_candidates
from batchbalance.balance.greedy import Continuation, Executor
from batchbalance.checks import (
    Indices,
    check_bytes,
    check_device,
    check_embeddings,
    check_indices,
    check_unit,
    check_whole,
)
from batchbalance.machine import free_memory
from batchbalance.memory import FREE_SHARE, check_budget, streaming_bytes
from batchbalance.predictions import Predictions
from batchbalance.scores import unsureness
from batchbalance.strategies import Choice, ConnectedStrategy, Problem, Random, Strategy, strategy_named


@dataclass(frozen=True, eq=False)
class Selection:
    """A chosen batch, and what is known about it.

    Attributes:
        strategy: the strategy with its options.
        seed: the seed it ran with.
        choice: what the strategy chose.
        value: what the batch is worth; None for strategies that do not join draws by edges.
        edges: the pairs of draws that were told apart, for ``evaluate_batch`` on other batches; None like `value`.
        threshold_source: how τ came about; None like `value`.
        warnings: sentences worth reading before the batch is sent out.
    """

    strategy: Strategy
    seed: int
    choice: Choice
    value: BatchEvaluation | None = None
    edges: Edges | None = None
    threshold_source: str | None = None
    warnings: tuple[str, ...] = ()

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
        """τ, the share of the reference set on which two draws must differ to be told apart."""
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
            **{name: value.tolist() if isinstance(value, Tensor) else value for name, value in plain.items()},
            "warnings": list(self.warnings),
        }


PLAIN = (
    "indices", "seed", "scores", "gains", "gain_errors", "coverage", "random_coverage", "null_coverage", "certificate",
    "num_edges", "num_pairs", "num_reference", "threshold", "threshold_source", "continued_from", "continuation",
    "clustering_rounds",
)  # fmt: skip


def select(
    predictions: Predictions,
    batch_size: SupportsIndex,
    *,
    strategy: str | Strategy = "batch-balance",
    reference: Predictions | None = None,
    validation_error: SupportsFloat | None = None,
    threshold: SupportsFloat | None = None,
    ratio: SupportsFloat | None = None,
    pairs: Pairs | SupportsIndex | None = None,
    embeddings: Any = None,
    labelled_embeddings: Any = None,
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
        predictions: of the pool.
        batch_size: B.
        strategy: a name from ``batchbalance.STRATEGIES``, the path of a class of your own ("mypackage.module:Mine"),
            or a strategy object with its options, as in ``PowerBalance(beta=2)``.
        reference: predictions of the same draws on the set where draws are compared; the pool itself if left out.
        validation_error: ε of the network with dropout off; τ = ratio · ε. Estimated from the pool if left out.
        threshold: τ itself, instead of `validation_error`.
        ratio: τ / ε; 1/4 if left out.
        pairs: which pairs of draws are looked at, as in ``connect``; "disjoint" if left out.
        embeddings: (N, D) features of the pool, or (N, S, D) those of every draw; an array or tensor.
        labelled_embeddings: (L, D) or (L, S, D) features of the points that have labels already.
        exclude: points that must not be chosen, such as those that have labels.
        seed: same seed, same batch.
        device: where to compute, such as "cuda"; where the predictions are if left out.
        max_reference: a larger reference set is subsampled to this size, 10,000 if left out; "all" keeps it whole.
        memory_budget: bytes, or a text such as "2GiB", to take beside the predictions; half of what is free if left
            out. Predictions from a ``.npy`` file are read in chunks, so they may be larger. Never changes the batch.
        progress: show how far it is.
        executor: spreads the points of greedy strategies over other processes or machines, as ``RayExecutor`` of
            ``batchbalance.cluster`` does. Changes the batch only if it says so (`one_round`).
    """
    chosen_strategy = _checked_strategy(strategy)
    _check_given(
        chosen_strategy,
        {
            "reference": reference, "validation_error": validation_error, "threshold": threshold, "ratio": ratio,
            "pairs": pairs, "max_reference": max_reference, "embeddings": embeddings,
            "labelled_embeddings": labelled_embeddings,
        },
    )  # fmt: skip
    _check_executor(chosen_strategy, executor, device)

    # Prepare.
    predictions = _placed(_checked_predictions("predictions", predictions), device)
    candidates = _candidates(predictions, exclude)
    budget = int(FREE_SHARE * free_memory()) if memory_budget is None else check_bytes("memory_budget", memory_budget)
    if memory_budget is not None:
        check_budget(budget, predictions)
    problem = Problem(
        predictions,
        candidates,
        check_whole("batch_size", batch_size, 1, len(candidates), limit="the points that are left"),
        check_whole("seed", seed, 0),
        reference=None if reference is None else _same_draws(predictions, reference, device),
        cache_bytes=max(0, budget - streaming_bytes(predictions)),
        progress=progress,
        executor=executor,
        **_embeddings(predictions, embeddings, labelled_embeddings),
    )

    # Connect.
    source = None
    if isinstance(chosen_strategy, ConnectedStrategy):
        tau, source = _threshold(problem, threshold, validation_error, DEFAULT_RATIO if ratio is None else ratio)
        compared = predictions if problem.reference is None else problem.reference
        edges = chosen_strategy.connect(
            compared, tau, "disjoint" if pairs is None else pairs, problem.seed, max_reference
        )
        problem = replace(problem, edges=edges, reference=None)
    elif problem.reference is not None:
        problem = replace(problem, reference=subsample(problem.reference, max_reference, problem.seed))
    if memory_budget is not None:
        check_budget(budget, predictions, chosen_strategy.name, chosen_strategy.memory_needed(problem))

    # Choose.
    choice = _choose(chosen_strategy, problem)

    # Evaluate.
    value = None
    if isinstance(chosen_strategy, ConnectedStrategy):
        value = batch_value(
            chosen_strategy.model(problem),
            choice.indices,
            candidates,
            seed=problem.seed,
            upper_bound=choice.upper_bound,
        )
    warnings = choice.notes + _reference_notes(problem.edges)
    return Selection(chosen_strategy, problem.seed, choice, value, problem.edges, source, warnings)


def _checked_strategy(strategy: Any) -> Strategy:
    if isinstance(strategy, str):
        return strategy_named(strategy)
    if not isinstance(strategy, Strategy):
        raise TypeError(f"`strategy` must be a name or a strategy object, got {strategy!r}")
    return strategy


def _check_given(strategy: Strategy, given: dict[str, Any]) -> None:
    """Refuse arguments that the strategy does not use, and miss those that it needs."""
    for name, value in given.items():
        used = name in strategy.uses or (name == "max_reference" and "reference" in strategy.uses)
        if value is not None and not used:
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
    if device is None:
        return predictions
    return predictions.to(check_device("device", device))


def _candidates(predictions: Predictions, exclude: Indices | None) -> Int[Tensor, " n"]:
    """The points that may be chosen."""
    excluded = check_indices("exclude", [] if exclude is None else exclude, predictions.num_points)
    candidates = remaining_candidates(predictions.num_points, excluded)
    if not len(candidates):
        raise ValueError("`exclude` must leave at least one point to choose from, got all of them")
    return candidates


def _same_draws(predictions: Predictions, reference: Predictions, device: str | None) -> Predictions:
    """The reference set, if it holds the draws of the pool."""
    reference = _placed(_checked_predictions("reference", reference), device)
    if reference.weights is None and predictions.weights is not None and reference.num_draws == predictions.num_draws:
        reference = reference.with_weights(predictions.weights)  # weights belong to draws, not to points
    predictions.check_same_draws(reference)
    return reference


def _embeddings(predictions: Predictions, embeddings: Any, labelled: Any) -> dict[str, Any]:
    """The embeddings of the pool and of the labelled points, checked, where the predictions are."""
    own = check_embeddings("embeddings", embeddings, predictions.num_draws, predictions.num_points)
    others = check_embeddings("labelled_embeddings", labelled, predictions.num_draws)
    if own is not None and others is not None and others.shape[-1] != own.shape[-1]:
        raise ValueError(
            f"`labelled_embeddings` must have the {own.shape[-1]} features of `embeddings`, got "
            f"{others.shape[-1]}; embed both with one network"
        )
    return {
        name: None if value is None else value.to(predictions.device)
        for name, value in (("embeddings", own), ("labelled_embeddings", others))
    }


def _threshold(
    problem: Problem, threshold: SupportsFloat | None, validation_error: SupportsFloat | None, ratio: SupportsFloat
) -> tuple[float, str]:
    """τ and how it came about."""
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
    """The strategy's choice; a random one where there is nothing to tell apart."""
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


def _reference_notes(edges: Edges | None) -> tuple[str, ...]:
    if edges is None or edges.num_reference == edges.num_reference_given:
        return ()
    return (
        f"draws were compared on {edges.num_reference:,} of {edges.num_reference_given:,} reference points; "
        "raise `max_reference` to use more",
    )

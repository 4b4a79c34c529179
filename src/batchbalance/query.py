"""`select`: predictions in, the batch to label out."""

import operator
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, SupportsFloat, SupportsIndex

import torch
from jaxtyping import Float, Int
from torch import Tensor

from batchbalance.acquisition.balance import BalanceModel
from batchbalance.equivalence import MAX_REFERENCE, Edges, Pairs, annealed_threshold, check_unit, connect, subsample
from batchbalance.evaluation import BatchEvaluation, evaluate, remaining_candidates
from batchbalance.memory import FREE_SHARE, check_budget, free_memory, parse_bytes, streaming_bytes
from batchbalance.predictions import CHUNK_NUMBERS, Predictions, spans_of
from batchbalance.selection import Continuation, Executor
from batchbalance.strategies import Choice, ConnectedStrategy, Problem, Random, Strategy, strategy_named
from batchbalance.strategies.balance import BalanceStrategy
from batchbalance.validation import Indices, check_embeddings, check_indices

DEFAULT_RATIO = 0.25
DEFAULT_PAIRS: Pairs = "disjoint"


@dataclass(frozen=True, eq=False)
class Selection:
    """A chosen batch, and what is known about it.

    Fields from `gains` to `threshold_source` are None for strategies that do not join draws by edges.

    Attributes:
        indices: (B,) points of the pool, in the order they were chosen.
        strategy: the strategy with its options.
        seed: the seed it ran with.
        scores: (B,) what the strategy ranked or sampled the points by, if it has such a number.
        gains: (B,) what each point adds to Δ given those before it, float64.
        gain_errors: (B,) Monte-Carlo standard error of each gain over draws; None with fewer than four draws.
        coverage: (B,) Δ / Δ_max after each pick: the expected share of edge weight discounted. Read it beside the next
            two only: label noise and random batches discount as well.
        random_coverage: mean coverage of 20 random batches of this size.
        null_coverage: (B,) coverage after each pick if every draw were the mean prediction.
        certificate: the batch is worth at least this share of the best batch under these draws and pairs.
        edges: the pairs of draws that were told apart, for ``evaluate_batch`` on other batches.
        num_edges: pairs that differ by more than the threshold.
        num_pairs: pairs that were looked at.
        num_reference: points of the reference set that were compared.
        threshold: τ.
        threshold_source: how τ came about.
        continued_from: the pick (from 0) from which on nothing meaningful in float64 was left to gain, or None.
        continuation: what was done from there on.
        warnings: sentences worth reading before the batch is sent out.
    """

    indices: Int[Tensor, " B"]
    strategy: Strategy
    seed: int
    scores: Float[Tensor, " B"] | None = None
    gains: Float[Tensor, " B"] | None = None
    gain_errors: Float[Tensor, " B"] | None = None
    coverage: Float[Tensor, " B"] | None = None
    random_coverage: float | None = None
    null_coverage: Float[Tensor, " B"] | None = None
    certificate: float | None = None
    edges: Edges | None = None
    num_edges: int | None = None
    num_pairs: int | None = None
    num_reference: int | None = None
    threshold: float | None = None
    threshold_source: str | None = None
    continued_from: int | None = None
    continuation: Continuation | None = None
    warnings: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers, lists and strings, ready for JSON."""
        names = [field.name for field in fields(self) if field.name != "edges"]
        plain: dict[str, Any] = {name: getattr(self, name) for name in names}
        plain["strategy"] = {"name": self.strategy.name, **self.strategy.model_dump()}
        plain["warnings"] = list(self.warnings)
        return {name: value.tolist() if isinstance(value, Tensor) else value for name, value in plain.items()}


def select(
    predictions: Predictions,
    batch_size: SupportsIndex,
    *,
    strategy: str | Strategy = "batch-balance",
    reference: Predictions | None = None,
    validation_error: SupportsFloat | None = None,
    threshold: SupportsFloat | None = None,
    ratio: SupportsFloat = DEFAULT_RATIO,
    pairs: Pairs | SupportsIndex = DEFAULT_PAIRS,
    embeddings: Any = None,
    labelled_embeddings: Any = None,
    exclude: Indices | None = None,
    seed: int = 0,
    device: str | None = None,
    max_reference: int | None = MAX_REFERENCE,
    memory_budget: int | str | None = None,
    progress: bool = False,
    executor: Executor | None = None,
) -> Selection:
    """Choose the batch of points to label next.

    Args:
        predictions: of the pool.
        batch_size: B.
        strategy: a name from ``batchbalance.STRATEGIES``, or a strategy object with its options, as in
            ``PowerBalance(beta=2)``.
        reference: predictions of the same draws on the set where draws are compared; the pool itself if left out.
        validation_error: ε of the network with dropout off; τ = ratio · ε. Estimated from the pool if left out.
        threshold: τ itself, instead of `validation_error`.
        ratio: τ / ε.
        pairs: which pairs of draws are looked at, as in ``connect``.
        embeddings: (N, D) features of the pool, or (N, S, D) those of every draw; an array or tensor.
        labelled_embeddings: (L, D) or (L, S, D) features of the points that have labels already.
        exclude: points that must not be chosen, such as those that have labels.
        seed: same seed, same batch.
        device: where to compute, such as "cuda"; the CPU if left out.
        max_reference: a larger reference set is subsampled to this size; None keeps all of it.
        memory_budget: bytes, or a text such as "2GiB", to take beside the predictions; half of what is free if left
            out. Predictions from a ``.npy`` file are read in chunks, so they may be larger. Never changes the batch.
        progress: show how far it is.
        executor: spreads the points of greedy strategies over other processes or machines, as ``RayExecutor`` of
            ``batchbalance.distributed`` does. Changes the batch only if it says so (`one_round`).
    """
    chosen_strategy = strategy_named(strategy) if isinstance(strategy, str) else strategy
    num, candidates = _check_request(predictions, batch_size, exclude, chosen_strategy, device)
    given = {
        "reference": reference is not None,
        "validation_error": validation_error is not None,
        "threshold": threshold is not None,
        "ratio": ratio != DEFAULT_RATIO,
        "pairs": pairs != DEFAULT_PAIRS,
        "max_reference": max_reference != MAX_REFERENCE,
        "embeddings": embeddings is not None,
        "labelled_embeddings": labelled_embeddings is not None,
    }
    _refuse_unused(chosen_strategy, given)
    reference = None if reference is None else _same_draws(predictions, reference)
    features = check_embeddings("embeddings", embeddings, predictions.num_draws, predictions.num_points)
    labelled = check_embeddings("labelled_embeddings", labelled_embeddings, predictions.num_draws)
    if features is not None and labelled is not None and labelled.shape[-1] != features.shape[-1]:
        raise ValueError(
            f"`labelled_embeddings` must have the {features.shape[-1]} features of `embeddings`, got "
            f"{labelled.shape[-1]}; embed both with one network"
        )
    budget = int(FREE_SHARE * free_memory()) if memory_budget is None else parse_bytes(memory_budget)
    problem = Problem(
        predictions,
        candidates,
        num,
        seed,
        device,
        embeddings=features,
        labelled_embeddings=labelled,
        cache_bytes=max(0, budget - streaming_bytes(predictions)),
        progress=progress,
        executor=executor,
    )
    if executor is not None and not chosen_strategy.runs_on_executors:
        raise ValueError(f"`executor` is not used by strategy {chosen_strategy.name!r}; leave it out")
    if memory_budget is not None:
        check_budget(budget, predictions)
    if not isinstance(chosen_strategy, ConnectedStrategy):
        compared = None if reference is None else subsample(reference, max_reference, seed)
        problem = replace(problem, reference=compared)
        if memory_budget is not None:
            check_budget(budget, predictions, chosen_strategy.name, chosen_strategy.memory_needed(problem))
        choice = chosen_strategy.choose(problem)
        return Selection(choice.indices, chosen_strategy, seed, scores=choice.scores, warnings=choice.notes)

    if executor is not None and predictions.is_made_on_demand and threshold is None and validation_error is None:
        raise ValueError(
            "`threshold` or `validation_error` must be given for a pool that workers predict, got neither: to estimate "
            "them, all of it would be predicted twice"
        )
    tau, source = _threshold(predictions, threshold, validation_error, ratio, executor)
    compared_on = predictions if reference is None else reference
    edges = chosen_strategy.connect(compared_on, tau, pairs, seed, max_reference)
    reconnect = partial(connect, compared_on, tau, pairs, seed, max_reference=max_reference)
    problem = replace(problem, edges=edges, reconnect=reconnect)
    if memory_budget is not None:
        check_budget(budget, predictions, chosen_strategy.name, chosen_strategy.memory_needed(problem))
    choice = _choose(chosen_strategy, problem)
    offset = isinstance(chosen_strategy, BalanceStrategy) and chosen_strategy.offset
    model = BalanceModel(predictions, edges, offset=offset, device=device, cache_bytes=problem.cache_bytes)
    value = evaluate(model, choice.indices, candidates, seed=seed, upper_bound=choice.upper_bound)
    return _selection(chosen_strategy, seed, choice, value, edges, source)


def _choose(strategy: Strategy, problem: Problem) -> Choice:
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


def _selection(
    strategy: Strategy, seed: int, choice: Choice, value: BatchEvaluation, edges: Edges, source: str
) -> Selection:
    warnings = list(choice.notes)
    if edges.num_reference < edges.num_reference_given:
        warnings.append(
            f"draws were compared on {edges.num_reference:,} of {edges.num_reference_given:,} reference points; "
            "raise `max_reference` to use more"
        )
    return Selection(
        indices=choice.indices,
        strategy=strategy,
        seed=seed,
        scores=choice.scores,
        gains=value.gains,
        gain_errors=value.gain_errors,
        coverage=value.coverage,
        random_coverage=value.random_coverage,
        null_coverage=value.null_coverage,
        certificate=value.certificate,
        edges=edges,
        num_edges=edges.num_edges,
        num_pairs=edges.num_pairs,
        num_reference=edges.num_reference,
        threshold=edges.threshold,
        threshold_source=source,
        continued_from=choice.continued_from,
        continuation=choice.continuation,
        warnings=tuple(warnings),
    )


def _check_request(
    predictions: Predictions, batch_size: SupportsIndex, exclude: Indices | None, strategy: Strategy, device: str | None
) -> tuple[int, Tensor]:
    if not isinstance(predictions, Predictions):
        raise TypeError(
            f"`predictions` must be Predictions, got {type(predictions).__name__}; see Predictions.from_probs"
        )
    if not isinstance(strategy, Strategy):
        raise TypeError(f"`strategy` must be a name or a strategy object, got {strategy!r}")
    if isinstance(batch_size, bool) or not isinstance(batch_size, SupportsIndex) or operator.index(batch_size) < 1:
        raise ValueError(f"`batch_size` must be a whole number of at least 1, got {batch_size!r}")
    batch_size = operator.index(batch_size)
    excluded = check_indices("exclude", [] if exclude is None else exclude, predictions.num_points)
    candidates = remaining_candidates(predictions.num_points, excluded)
    if batch_size > len(candidates):
        raise ValueError(f"`batch_size` must be at most the {len(candidates)} points that are left, got {batch_size}")
    if device is not None:
        try:
            torch.zeros(1, device=device).item()
        except (RuntimeError, AssertionError, NotImplementedError) as error:
            raise ValueError(f"`device` must be one that torch can use here, got {device!r}: {error}") from error
    return batch_size, candidates


def _refuse_unused(strategy: Strategy, given: dict[str, bool]) -> None:
    for name, is_given in given.items():
        used = name in strategy.uses or (name == "max_reference" and "reference" in strategy.uses)
        if is_given and not used:
            raise ValueError(f"`{name}` is not used by strategy {strategy.name!r}; leave it out")
        if not is_given and name in strategy.needs:
            raise ValueError(f"`{name}` must be given for strategy {strategy.name!r}, got none")
    if given["threshold"] and (given["validation_error"] or given["ratio"]):
        other = "validation_error" if given["validation_error"] else "ratio"
        raise ValueError(f"`threshold` must not be given together with `{other}`; leave one out")


def _threshold(
    predictions: Predictions,
    threshold: SupportsFloat | None,
    validation_error: SupportsFloat | None,
    ratio: SupportsFloat,
    executor: Executor | None,
) -> tuple[float, str]:
    """τ and how it came about."""
    if threshold is not None:
        return check_unit("threshold", threshold), "given"
    if validation_error is not None:
        tau = annealed_threshold(validation_error, ratio)
        return tau, f"{float(ratio):g} × validation error {float(validation_error):.4g}"
    total = unsureness(predictions) if executor is None else executor.unsureness(predictions)
    estimate = min(1.0, max(0.0, total / predictions.num_points))
    source = (
        f"{float(ratio):g} × estimated error {estimate:.4g}, the mean of 1 − (largest mean probability) over the pool"
    )
    return annealed_threshold(estimate, ratio), source


def unsureness(predictions: Predictions, rows: Int[Tensor, " n"] | None = None) -> float:
    """The sum over points of 1 − (largest mean probability): how many errors the mean prediction expects to make."""
    total = 0.0
    numbers = predictions.num_draws * predictions.num_classes
    num = predictions.num_points if rows is None else len(rows)
    for span in spans_of(num, CHUNK_NUMBERS // numbers):
        chunk = predictions.log_probs(span if rows is None else rows[span])
        means = torch.einsum("s,nsc->nc", predictions.draw_weights.to(chunk), chunk.exp())
        total += float((1 - means.amax(dim=1)).double().sum())
    return total


def _same_draws(predictions: Predictions, reference: Predictions) -> Predictions:
    if not isinstance(reference, Predictions):
        raise TypeError(f"`reference` must be Predictions, got {type(reference).__name__}")
    if reference.weights is None and predictions.weights is not None and reference.num_draws == predictions.num_draws:
        reference = replace(reference, weights=predictions.weights)  # weights belong to draws, not to points
    predictions.check_same_draws(reference)
    return reference

"""`select`: predictions or embeddings in, the batch to label out. Its steps: prepare, connect, choose, evaluate."""

from dataclasses import replace
from typing import Any, SupportsFloat, SupportsIndex

from batchbalance.arguments.checks import Indices, check_bytes, check_indices, check_unit, check_whole
from batchbalance.balance.edges import DEFAULT_RATIO, Edges, MaxReference, Pairs, annealed_threshold, subsample
from batchbalance.balance.evaluation import batch_value
from batchbalance.balance.greedy import Executor
from batchbalance.batches.cover import Cover
from batchbalance.predictions import Predictions
from batchbalance.scores import unsureness
from batchbalance.selection.arguments import (
    Pool,
    check_executor,
    check_given,
    has_any_labels,
    open_candidates,
    resolved,
)
from batchbalance.selection.budget import FREE_SHARE, check_budget, streaming_bytes
from batchbalance.selection.result import Selection
from batchbalance.strategies import AUTO, Choice, ConnectedStrategy, Problem, Random, Strategy
from batchbalance.system import threads
from batchbalance.system.memory import free_memory


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
    labels = has_any_labels(labelled, labelled_embeddings)
    chosen_strategy, note, unused = resolved(strategy, predictions, given, labels)
    for name in unused:
        given[name] = None
    check_given(chosen_strategy, predictions, given)
    check_executor(chosen_strategy, executor, device)

    # Prepare.
    pool = Pool.of(predictions, given["embeddings"], given["labelled_embeddings"], device)
    with_labels = check_indices("labelled", [] if labelled is None else labelled, pool.num_points)
    candidates = open_candidates(pool.num_points, exclude, with_labels)
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
    said = _error_notes(problem, given["validation_error"])
    warnings = choice.notes + said + _cover_notes(choice.cover) + _reference_notes(problem.edges)
    return Selection(strategy, problem.seed, choice, value, problem.edges, source, warnings)


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


def _error_notes(problem: Problem, validation_error: SupportsFloat | None) -> tuple[str, ...]:
    """Say that an error looks like an accuracy: it is worse than guessing, or far above what the pool expects."""
    if validation_error is None:
        return ()
    error, predictions = float(validation_error), problem.predictions
    if error > 1 - 1 / predictions.num_classes + 1e-9:
        found = f"is worse than guessing among {predictions.num_classes} classes"
    elif error > 0.5 and problem.executor is None and error > 0.5 + unsureness(predictions) / predictions.num_points:
        found = "is far above what the predictions themselves expect"
    else:
        return ()
    return (f"a validation error of {error:.4g} {found}; if it is an accuracy, give 1 − {error:.4g} instead",)


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

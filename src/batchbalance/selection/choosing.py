"""`select`: predictions or embeddings in, the batch to label out. Its steps: prepare, connect, choose, evaluate."""

from collections.abc import Sized
from dataclasses import replace
from typing import Any, SupportsFloat, SupportsIndex

from batchbalance.arguments.checks import Indices, check_bytes, check_indices, check_whole
from batchbalance.balance.edges import Edges, MaxReference, Pairs
from batchbalance.balance.evaluation import batch_value
from batchbalance.balance.greedy import Executor
from batchbalance.batches.cover import Cover
from batchbalance.errors import MissingPartError
from batchbalance.predictions import Predictions
from batchbalance.scores import unsureness
from batchbalance.selection.budget import check_budget, streaming_bytes
from batchbalance.selection.result import Selection
from batchbalance.strategies import AUTO, Choice, ConnectedStrategy, Random, Strategy, auto_strategy, strategy_named
from batchbalance.strategies.pool import Metric, Pool, open_candidates
from batchbalance.system import threads


def select(
    predictions: Any = None,
    batch_size: SupportsIndex | None = None,
    *,
    pool: Any = None,
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
    weights: Any = None,
    targets: Any = None,
    metric: Metric | None = None,
) -> Selection:
    """Choose the batch of points to label next.

    Args:
        predictions: `Predictions` of the pool; or what ``predict_proba`` of one model returns, (N, C); or a posterior
            together with `pool`. Not needed by "random", "coreset", "max-herding", "prob-cover" and "typiclust".
        batch_size: B, the number of points to choose.
        pool: the inputs that a posterior predicts, and embeds if the strategy reads embeddings and none are given. If
            it is a DataFrame, `labelled` and `exclude` may be labels of its index.
        strategy: a name from ``batchbalance.STRATEGIES``, the path of a class of your own ("mypackage.module:Mine"),
            or a strategy object with its options, as in ``PowerBalance(beta=2)``. "auto" chooses "u-herding" for
            predictions and embeddings, "max-herding" for embeddings alone, given weights, or no labels yet
            (`labelled=[]`), and "batch-balance" for predictions alone; `selection.note` gives the reason.
        reference: predictions of the same draws on the set where draws are compared; the pool itself if omitted.
        validation_error: ε of the network with dropout off; τ = ratio · ε. Estimated from the pool if omitted.
        threshold: τ, instead of `validation_error`.
        ratio: τ / ε; 1/4 if omitted.
        pairs: which pairs of draws are compared, as in ``connect``; "disjoint" if omitted.
        embeddings: (N, D) features of the pool, or (N, S, D) for every draw; an array or tensor. Coverage
            strategies read a memory-mapped file in blocks.
        labelled_embeddings: (L, D) or (L, S, D) features of points outside the pool that have labels.
        labelled: points of the pool that have labels. They are not chosen, and cover the points near them.
        exclude: points that must not be chosen for another reason. They neither cover other points nor are covered.
        seed: random seed; the same seed gives the same batch.
        device: where to compute, such as "cuda"; the device of the predictions if omitted.
        max_reference: a larger reference set is subsampled to this size, 10,000 if omitted; "all" keeps it whole.
        memory_budget: bytes, or a string such as "2GiB", to use besides the predictions; if omitted, caches use at most
            1 GiB. Predictions from a ``.npy`` file are read in chunks and may be larger. Never changes the batch.
        progress: show progress.
        executor: distributes the points of greedy strategies over processes or machines, such as ``RayExecutor`` of
            ``batchbalance.cluster``. Does not change the batch.
        weights: (N,) for coverage strategies: non-negative weights of the covered points, instead of the strategy's
            own. Any measure of uncertainty can be used, and predictions are not needed. One for each of `targets` if
            those are given.
        targets: (M, D) for coverage strategies: the points to cover instead of the pool, in the space of
            `embeddings`.
        metric: how distances between embeddings are measured. "unit" centres rows with the pool and scales them to
            unit length, as suits linear heads. "raw" uses rows unchanged, for columns of a table. "auto", the default,
            is "unit" for 32 or more features, else "raw".

    Arguments that the strategy does not use are named in `selection.warnings`.
    """
    for other, value in (("validation_error", validation_error), ("ratio", ratio)):
        if threshold is not None and value is not None:
            raise ValueError(f"`threshold` must not be given together with `{other}`; omit one of them")
    if executor is not None and device is not None:
        raise ValueError(f"`device` is not used with `executor`, whose workers compute on CPUs, got {device!r}")
    found = _predicted(predictions, pool)
    made = {} if pool is None or embeddings is not None else {"embeddings": lambda: predictions.embed(pool)}
    index = getattr(pool, "index", None)
    given = {
        "predictions": found, "embeddings": embeddings, "labelled_embeddings": labelled_embeddings,
        "reference": reference, "validation_error": validation_error, "threshold": threshold, "ratio": ratio,
        "pairs": pairs, "max_reference": max_reference, "weights": weights, "targets": targets,
        "metric": metric,
    }  # fmt: skip
    labelled, exclude = (_positions(name, x, index) for name, x in (("labelled", labelled), ("exclude", exclude)))
    points = Pool(given, made, device=device)
    points = prepared(points, batch_size, labelled, exclude, seed=seed, progress=progress, executor=executor)
    has_labels = None if labelled is None and labelled_embeddings is None else has_any(labelled, labelled_embeddings)
    chosen, note = as_strategy(strategy), None
    if chosen is None:
        chosen, why = auto_strategy(points, has_labels=has_labels)
        if has_labels is False and points.has("embeddings"):
            points = points.without("predictions")  # not informative without labels
        note = f"auto chose {chosen.name!r}: {why}"
    selection = replace(choose_from(points, chosen, memory_budget=memory_budget), note=note)
    if index is not None and hasattr(index, "get_indexer"):
        selection = replace(selection, names=tuple(index[selection.indices.numpy()]))
    return selection


def _predicted(given: Any, pool: Any) -> Predictions | None:
    """Return predictions from the forms that `select` accepts."""
    is_posterior = hasattr(given, "predict") and hasattr(given, "embed")
    if pool is not None:
        if not is_posterior:
            raise TypeError(
                f"`pool` must be given together with a posterior, got {type(given).__name__}; wrap a fitted model, as "
                "in Committee.from_sklearn(model), or give predictions and omit `pool`"
            )
        return given.predict(pool)  # type: ignore[no-any-return]
    if given is None or isinstance(given, Predictions):
        return given
    if is_posterior or hasattr(given, "predict_proba"):
        name = type(given).__name__
        how = f"select({name}, …, pool=X), or {name}.predict(X)" if is_posterior else f"{name}.predict_proba(X)"
        raise TypeError(f"`predictions` must be Predictions, got a {name}; give it the pool: {how}")
    if getattr(given, "ndim", 0) == 2:
        return Predictions.from_probs(getattr(given, "values", given), "nc")
    raise TypeError(f"`predictions` must be Predictions, got {type(given).__name__}; see Predictions.from_probs")


def _positions(name: str, given: Any, index: Any) -> Any:
    """Return positions in the pool; labels of a pandas index become positions if the pool has that index."""
    if not hasattr(given, "get_indexer"):
        return given
    if not hasattr(index, "get_indexer"):
        raise TypeError(
            f"`{name}` must be positions from 0 on, got a pandas index; give df.index.get_indexer({name}), where df "
            "has the rows of the pool"
        )
    found = index.get_indexer(given)
    if (found < 0).any():
        raise ValueError(f"`{name}` must be in the index of `pool`, got {given[found < 0][0]!r}")
    return found


def prepared(
    pool: Pool,
    batch_size: SupportsIndex | None,
    labelled: Indices | None,
    exclude: Indices | None,
    *,
    seed: SupportsIndex,
    progress: bool = False,
    executor: Executor | None = None,
) -> Pool:
    """Return a pool with the candidates and the batch size, as in ``select``."""
    with_labels = check_indices("labelled", [] if labelled is None else labelled, pool.num_points)
    excluded = check_indices("exclude", [] if exclude is None else exclude, pool.num_points)
    candidates = open_candidates(pool.num_points, excluded, with_labels)
    return pool.to_choose(
        candidates=candidates,
        labelled=with_labels,
        batch_size=check_whole("batch_size", batch_size, 1, len(candidates), limit="the points that are left"),
        seed=check_whole("seed", seed, 0),
        progress=progress,
        executor=executor,
    )


def as_strategy(strategy: Any) -> Strategy | None:
    """Return a strategy object, or the strategy of a name; None for "auto"."""
    if isinstance(strategy, Strategy):
        return strategy
    if not isinstance(strategy, str):
        raise TypeError(f"`strategy` must be a name or a strategy object, got {strategy!r}")
    return None if strategy == AUTO else strategy_named(strategy)


def has_any(*points: Any) -> bool:
    """Return whether any of some sets of points, which may be None, is not empty."""
    return any(isinstance(each, Sized) and len(each) > 0 for each in points)


def choose_from(pool: Pool, strategy: Strategy, *, memory_budget: int | str | None = None) -> Selection:
    """Choose `pool.batch_size` of the candidates of a pool; raise MissingPartError if the strategy lacks a part."""
    if pool.executor is not None and not strategy.runs_on_executors:
        raise ValueError(f"`executor` is not used by strategy {strategy.name!r}; omit it")
    try:
        return _chosen(pool, strategy, memory_budget)
    except MissingPartError as error:
        raise MissingPartError(error.part, error.remedy, strategy.name) from None


def _chosen(pool: Pool, strategy: Strategy, memory_budget: int | str | None) -> Selection:
    budget, least = None if memory_budget is None else check_bytes("memory_budget", memory_budget), 0
    if budget is not None:
        least = streaming_bytes(pool.at_hand("predictions"), pool.num_points)
        check_budget(budget, least)
        pool = pool.to_choose(cache_bytes=budget - least)
    with threads.for_work(strategy.flops(pool), in_pieces=strategy.in_pieces(pool)):
        edges = strategy.connected(pool)
        if budget is not None:
            check_budget(budget, least, strategy.name, strategy.memory_needed(pool))
        choice = _choose(strategy, pool, edges)
        value = None
        if edges is not None and isinstance(strategy, ConnectedStrategy):
            value = batch_value(
                strategy.model(pool),
                choice.indices,
                pool.candidates,
                seed=pool.seed,
                upper_bound=choice.upper_bound,
            )
    warnings = (*choice.notes, *_error_notes(pool), *_cover_notes(choice.cover), *_reference_notes(edges))
    unread = tuple(f"`{name}` was ignored: strategy {strategy.name!r} does not use it" for name in pool.unread())
    source = None if edges is None else pool.threshold_source
    predictions = pool.at_hand("predictions")
    predicted = None
    if predictions is not None and predictions.classes is not None and predictions.num_labels is None:
        predicted = tuple(predictions.most_probable(choice.indices))
    return Selection(strategy, pool.seed, choice, value, edges, source, (*warnings, *unread), predicted=predicted)


def _error_notes(pool: Pool) -> tuple[str, ...]:
    """Warn if an error looks like an accuracy: it is worse than guessing, or far above the estimate from the pool."""
    if "validation_error" not in pool.given or "validation_error" not in pool.read:
        return ()
    error, predictions = float(pool.given["validation_error"]), pool.predictions
    num_classes = predictions.questions.num_classes
    if error > 1 - 1 / num_classes + 1e-9:
        found = f"is worse than guessing among {num_classes} classes"
    elif error > 0.5 and pool.executor is None and error > 0.5 + unsureness(predictions) / predictions.num_points:
        found = "is far above what the predictions themselves expect"
    else:
        return ()
    return (f"a validation error of {error:.4g} {found}; if it is an accuracy, give 1 − {error:.4g} instead",)


def _choose(strategy: Strategy, pool: Pool, edges: Edges | None) -> Choice:
    """Return the strategy's choice, or a random one if no draws can be distinguished."""
    if edges is None or edges.total_weight > 0:
        return strategy.choose(pool)
    if edges.num_edges:
        cause = f"all {edges.num_edges} edges join draws of weight 0"
        remedy = "give weight to draws that differ, or choose other pairs"
    else:
        cause = (
            f"none of {edges.num_pairs} pairs of draws differs on more than {edges.threshold:.2%} of the reference set"
        )
        remedy = "lower the threshold or ratio, or predict with more draws"
    note = f"{cause}, so every Δ is zero and the batch is random; {remedy}"
    return Choice(Random().choose(pool).indices, notes=(note,))


def _cover_notes(cover: Cover | None) -> tuple[str, ...]:
    if cover is None or cover.filled_from is None:
        return ()
    return (f"from pick {cover.filled_from + 1} on, nothing was left to cover: the rest of the batch is random",)


def _reference_notes(edges: Edges | None) -> tuple[str, ...]:
    if edges is None or edges.num_reference == edges.num_reference_given:
        return ()
    return (
        f"draws were compared on {edges.num_reference:,} of {edges.num_reference_given:,} reference points; "
        "raise `max_reference` to use more",
    )

"""`auto`: the choice of a strategy by the available data. Results and records name the strategy that it chose."""

from batchbalance.strategies.baselines import Margin, Random
from batchbalance.strategies.connected import BatchBalance
from batchbalance.strategies.contract import Strategy
from batchbalance.strategies.coverage import MaxHerding, UHerding
from batchbalance.strategies.pool import Pool

AUTO = "auto"


def auto_strategy(pool: Pool, *, has_labels: bool | None = None) -> tuple[Strategy, str]:
    """Return the strategy for the available data about a pool, and the reason.

    Args:
        pool: the pool.
        has_labels: whether any point has a label; None if unknown.
    """
    has_embeddings, has_predictions = pool.has("embeddings"), pool.has("predictions")
    if not has_embeddings and not has_predictions:
        return Random(), "there are neither predictions nor embeddings"
    if not has_embeddings:
        predictions = pool.at_hand("predictions")
        if predictions is not None and predictions.num_draws == 1:
            return Margin(), "there are predictions of one model and no embeddings"
        return BatchBalance(), "there are predictions and no embeddings"
    if pool.has("weights"):
        return MaxHerding(), "there are embeddings and weights"
    if not has_predictions:
        return MaxHerding(), "there are embeddings and no predictions"
    if has_labels is False:
        return MaxHerding(), "there are no labels yet, so predictions are not informative; it covers the embeddings"
    return UHerding(), "there are predictions and embeddings"

"""`auto`: the strategy for what is known. It is no strategy itself; results and records name the one it stands for."""

from batchbalance.strategies.baselines import Margin, Random
from batchbalance.strategies.connected import BatchBalance
from batchbalance.strategies.contract import Strategy
from batchbalance.strategies.coverage import MaxHerding, UHerding
from batchbalance.strategies.pool import Pool

AUTO = "auto"


def auto_strategy(pool: Pool, *, has_labels: bool | None = None) -> tuple[Strategy, str]:
    """Return the strategy for what is known about a pool, and why.

    Args:
        pool: what is known about the points.
        has_labels: whether any point has a label; None if unknown.
    """
    has_embeddings, has_predictions = pool.has("embeddings"), pool.has("predictions")
    if not has_embeddings and not has_predictions:
        return Random(), "there are no predictions yet, and the points have no distances"
    if not has_embeddings:
        predictions = pool.at_hand("predictions")
        if predictions is not None and predictions.num_draws == 1:
            return Margin(), "there are predictions of one model and no embeddings"
        return BatchBalance(), "there are predictions and no embeddings"
    if pool.has("weights"):
        return MaxHerding(), "there are embeddings and own weights"
    if not has_predictions:
        return MaxHerding(), "there are embeddings and no predictions"
    if has_labels is False:
        return MaxHerding(), "there are no labels yet, so that predictions tell nothing; it covers the embeddings"
    return UHerding(), "there are predictions and embeddings"

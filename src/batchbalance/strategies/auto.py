"""`auto`: the strategy for what is known. It is no strategy itself; results and records name the one it stands for."""

from batchbalance.strategies.baselines import Margin
from batchbalance.strategies.connected import BatchBalance
from batchbalance.strategies.contract import Strategy
from batchbalance.strategies.coverage import MaxHerding, UHerding

AUTO = "auto"


def auto_strategy(
    *, has_predictions: bool, has_embeddings: bool, has_labels: bool | None, has_pairs: bool = True
) -> tuple[Strategy, str]:
    """The strategy for what is known, and why.

    Args:
        has_predictions: predictions of the pool are given.
        has_embeddings: embeddings of the pool are given.
        has_labels: whether any point has a label; None if nobody said.
        has_pairs: whether the predictions have more than one draw.
    """
    if not has_embeddings and not has_predictions:
        raise ValueError("`predictions` or `embeddings` must be given, got neither")
    if not has_embeddings and not has_pairs:
        return Margin(), "there are predictions of one model and no embeddings"
    if not has_embeddings:
        return BatchBalance(), "there are predictions and no embeddings"
    if not has_predictions:
        return MaxHerding(), "there are embeddings and no predictions"
    if has_labels is False:
        return MaxHerding(), "there are no labels yet, so that predictions tell nothing; it covers the embeddings"
    return UHerding(), "there are predictions and embeddings"

"""`select`: predictions or embeddings in, the batch to label out."""

from batchbalance.selection.choosing import select
from batchbalance.selection.result import Selection

__all__ = ["Selection", "select"]

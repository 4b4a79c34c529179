"""Encoders: from images, texts and tables to embeddings.

``embed("photos/", output="e.npy")`` embeds a folder; ``encoder`` returns an encoder by name.
"""

from batchbalance.encoders.contract import Encoder, FittedEncoder
from batchbalance.encoders.embedding import DEFAULTS, Embeddings, embed, encoder
from batchbalance.encoders.items import Items, open_items
from batchbalance.system.ids import read_ids

__all__ = [
    "DEFAULTS",
    "Embeddings",
    "Encoder",
    "FittedEncoder",
    "Items",
    "embed",
    "encoder",
    "open_items",
    "read_ids",
]

"""Encoders: from images, texts and tables to embeddings.

``embed("photos/", output="e.npy")`` is the whole of it; ``encoder`` gives an encoder by name.
"""

from batchbalance.encoders.contract import Encoder, FittedEncoder
from batchbalance.encoders.embedding import Embeddings, embed
from batchbalance.encoders.ids import id_of, ids_path, read_ids
from batchbalance.encoders.items import Items, open_items
from batchbalance.encoders.named import DEFAULTS, encoder

__all__ = [
    "DEFAULTS",
    "Embeddings",
    "Encoder",
    "FittedEncoder",
    "Items",
    "embed",
    "encoder",
    "id_of",
    "ids_path",
    "open_items",
    "read_ids",
]

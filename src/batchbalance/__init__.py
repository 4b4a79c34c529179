"""batchbalance: which unlabelled examples should be labelled next?"""

from batchbalance.equivalence import Edges, annealed_threshold, connect, hamming_distances
from batchbalance.predictions import Predictions

__version__ = "0.1.0"
__all__ = ["Edges", "Predictions", "annealed_threshold", "connect", "hamming_distances"]

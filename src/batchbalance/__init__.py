"""batchbalance: which unlabelled examples should be labelled next?"""

from batchbalance.acquisition.balance import balance_scores, information, joint_balance
from batchbalance.equivalence import Edges, annealed_threshold, connect, hamming_distances
from batchbalance.errors import (
    BatchBalanceError,
    DrawMismatchError,
    FileFormatError,
    MissingExtraError,
    UnknownNameError,
)
from batchbalance.evaluation import BatchEvaluation, evaluate_batch
from batchbalance.predictions import Predictions
from batchbalance.query import Selection, select
from batchbalance.strategies import (
    STRATEGIES,
    Balance,
    BatchBalance,
    ClusterBalance,
    EnumeratedBalance,
    GreedyBalance,
    PartitionBalance,
    PowerBalance,
    Random,
    SampledBalance,
    StochasticBalance,
    Strategy,
)

__version__ = "0.1.0"
__all__ = [
    "STRATEGIES",
    "Balance",
    "BatchBalance",
    "BatchBalanceError",
    "BatchEvaluation",
    "ClusterBalance",
    "DrawMismatchError",
    "Edges",
    "EnumeratedBalance",
    "FileFormatError",
    "GreedyBalance",
    "MissingExtraError",
    "PartitionBalance",
    "PowerBalance",
    "Predictions",
    "Random",
    "SampledBalance",
    "Selection",
    "StochasticBalance",
    "Strategy",
    "UnknownNameError",
    "annealed_threshold",
    "balance_scores",
    "connect",
    "evaluate_batch",
    "hamming_distances",
    "information",
    "joint_balance",
    "select",
]

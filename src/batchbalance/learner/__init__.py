"""`Learner`: asks for labels and learns from the answers."""

from batchbalance.learner.learner import Learner

__all__ = ["Learner"]

"""Ask and tell."""

from batchbalance.learner.learner import Learner

__all__ = ["Learner"]

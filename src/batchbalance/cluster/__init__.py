"""The same work on a Ray cluster: greedy selection over shards, and the trials of a comparison (extra ``ray``).

Trials are not imported here, so that workers that select do not load the lab.
"""

from batchbalance.cluster.shards import RayExecutor

__all__ = ["RayExecutor"]

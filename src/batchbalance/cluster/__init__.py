"""Work on a Ray cluster: greedy selection over shards, and the trials of a comparison (extra ``ray``).

Trials are not imported here, so that workers for selection do not import the lab.
"""

from batchbalance.cluster.shards import RayExecutor

__all__ = ["RayExecutor"]

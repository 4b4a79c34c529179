"""The same work on a Ray cluster: greedy selection over shards, and the trials of a comparison (extra ``ray``)."""

from batchbalance.cluster.shards import RayExecutor
from batchbalance.cluster.trials import run_tasks_on_ray

__all__ = ["RayExecutor", "run_tasks_on_ray"]

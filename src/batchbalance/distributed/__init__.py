"""The same work on a Ray cluster: greedy selection over shards, and the trials of a comparison (extra ``ray``)."""

from batchbalance.distributed.shards import RayExecutor
from batchbalance.distributed.trials import run_tasks_on_ray

__all__ = ["RayExecutor", "run_tasks_on_ray"]

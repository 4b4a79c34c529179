"""Batches chosen without edges between draws: BatchBALD, CoreSet, BADGE, Cluster-Margin."""

from batchbalance.batches.badge import badge
from batchbalance.batches.batch_bald import batch_bald
from batchbalance.batches.cluster_margin import cluster_margin
from batchbalance.batches.coreset import k_center

__all__ = ["badge", "batch_bald", "cluster_margin", "k_center"]

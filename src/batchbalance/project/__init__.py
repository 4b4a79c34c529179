"""A project: label your own data from the first item to the last."""

from batchbalance.project.batch import Batch
from batchbalance.project.project import Project

__all__ = ["Batch", "Project"]

"""The benchmark: every line is two things timed in one run on the same input, with its peak memory.

Nothing here is needed to select; `batchbalance bench` and `make bench` run it.
"""

from batchbalance.bench.growth import Growth, plot_growth
from batchbalance.bench.report import Line, Measured, Report
from batchbalance.bench.runner import run_benchmark

__all__ = ["Growth", "Line", "Measured", "Report", "plot_growth", "run_benchmark"]

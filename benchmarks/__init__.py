"""The benchmark: every line is two things timed in one run on the same input, with its peak memory.

Nothing here is needed to select; `make bench` and `python -m benchmarks` run it.
"""

from benchmarks.growth import Growth, plot_growth
from benchmarks.report import Line, Measured, Report
from benchmarks.runner import run_benchmark

__all__ = ["Growth", "Line", "Measured", "Report", "plot_growth", "run_benchmark"]

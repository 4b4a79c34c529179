"""Reports on runs: ``compare`` computes the comparison, ``write_report`` writes tables and plots to files."""

from batchbalance.lab.report.comparisons import PairedComparison, Report, Summary, compare
from batchbalance.lab.report.notes import notes
from batchbalance.lab.report.pages import write_report
from batchbalance.lab.report.tables import ReportTable, overview, tables

__all__ = [
    "PairedComparison",
    "Report",
    "ReportTable",
    "Summary",
    "compare",
    "notes",
    "overview",
    "tables",
    "write_report",
]

"""Runs into tables and plots: ``compare`` finds what runs show, ``write_report`` puts it into files."""

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

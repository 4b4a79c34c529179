"""Runs into tables and plots: ``compare`` finds what runs show, ``write_report`` puts it into files."""

from batchbalance.report.comparisons import Comparison, Report, Summary, compare
from batchbalance.report.notes import notes
from batchbalance.report.pages import write_report
from batchbalance.report.tables import Table, overview, tables

__all__ = ["Comparison", "Report", "Summary", "Table", "compare", "notes", "overview", "tables", "write_report"]

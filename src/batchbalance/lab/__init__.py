"""Experiments: data sets, trials, durable records, reports, and the paper's experiments by name."""

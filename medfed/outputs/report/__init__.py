"""The report: one self-contained HTML page that shows finished runs and comparisons."""

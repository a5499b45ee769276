"""The report: one self-contained HTML page that shows finished runs and comparisons.

The Python modules prepare texts and tables; the templates in `templates/` hold the HTML.
"""

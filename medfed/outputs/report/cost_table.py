"""What the methods of a comparison cost, as a table of the page."""

from __future__ import annotations

from medfed.outputs.report.blocks import Cell, table_block
from medfed.outputs.report.markup import Markup, tag
from medfed.outputs.report.run_data import Comparison
from medfed.outputs.run_folder import RunFolder
from medfed.outputs.tables.cost import HEAD, NOTE, cost_rows, mean_cost, read_cost


def section(comparison: Comparison) -> list[Markup]:
    """A line a method, the mean over its runs; none for runs named one by one, perhaps of several machines."""
    if not comparison.is_a_folder:
        return []
    runs = comparison.runs
    costs = {run.method: mean_cost([read_cost(RunFolder(other.path)) for other in runs if other.method == run.method])
             for run in runs}  # fmt: skip
    _, *body = cost_rows(costs)
    rows = [[method, *(Cell(text, None if text == "-" else float(text)) for text in texts)] for method, *texts in body]
    caption = "A client's seconds and bytes in a round, and what it does once"
    table = table_block(caption, runs[0].data_label, ["method", *HEAD.values()], rows)
    return [table, tag("ul", tag("li", f"{NOTE}."), class_="notes")]

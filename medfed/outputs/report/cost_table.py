"""The table of a comparison that shows what each method costs."""

from __future__ import annotations

from medfed.outputs.report.elements import Cell, Table, rows_of_cells
from medfed.outputs.report.run_data import Comparison
from medfed.outputs.run_folder import RunFolder
from medfed.outputs.tables.cost import HEAD, NOTE, Cost, cost_rows, mean_cost, read_cost


def cost_table(comparison: Comparison) -> Table | None:
    """Return a table of what each method costs in time and transferred bytes, averaged over its runs.

    Args:
        comparison: the runs that are compared.

    Returns:
        A table with one row per method. None if the user named the runs of the comparison one by one, and not a folder
        that `medfed.evaluate` wrote. The times of such runs are not compared, because they may be from several
        machines.
    """
    if not comparison.is_a_folder:
        return None
    by_method: dict[str, list[Cost]] = {}
    for run in comparison.runs:
        by_method.setdefault(run.method, []).append(read_cost(RunFolder(run.path)))
    costs = {method: mean_cost(of_method) for method, of_method in by_method.items()}
    _, *rows = cost_rows(costs)
    body = [[method, *(Cell(text, None if text == "-" else float(text)) for text in texts)] for method, *texts in rows]
    caption = "Seconds and bytes of a client in a round, and of what it does once"
    label, head = comparison.runs[0].data_label, ["method", *HEAD.values()]
    return Table(caption, label, head, rows_of_cells(body), notes=[f"{NOTE}."])

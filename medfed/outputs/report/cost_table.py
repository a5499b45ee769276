"""The table of a comparison that shows what each method costs."""

from __future__ import annotations

from medfed.outputs.report.elements import Cell, Table, rows_of_cells
from medfed.outputs.report.run_data import Comparison
from medfed.outputs.tables.cost import HEAD, NOTE, PARTS, cost_rows


def cost_table(comparison: Comparison) -> Table | None:
    """Mean time and bytes of each method; None for runs that the user named one by one."""
    if not (costs := comparison.costs()):
        return None
    head = HEAD | PARTS
    _, *rows = cost_rows(costs, head)
    body = [
        [
            method,
            *(
                text if name == "sent" else Cell(text, None if text == "-" else float(text))
                for name, text in zip(head, texts, strict=True)
            ),
        ]
        for method, *texts in rows
    ]
    caption = "Seconds and bytes of a client in a round, and of what it does once"
    label, columns = comparison.runs[0].data_label, ["method", *head.values()]
    return Table(
        caption, label, columns, rows_of_cells(body), text_columns=(0, columns.index(HEAD["sent"])), notes=[f"{NOTE}."]
    )

"""Heat maps: a table of scores in which better scores have a stronger colour."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from medfed.outputs.figures.figure import BLUE, PALE, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CELL_IN = (0.78, 0.39)  # width and height
CHARACTER_IN = 0.095  # approximate width of a character
MIN_OPACITY, MAX_OPACITY = 0.06, 0.6  # the number above can be read in light and dark mode


def heat_map_figure(
    rows: Sequence[str], columns: Sequence[str], values: Sequence[Sequence[float | None]], higher_is_better: bool
) -> Figure | None:
    """Draw a table of numbers (two decimals) with stronger colours for better ones; None if no number is known."""
    known = [value for line in values for value in line if value is not None]
    if not known:
        return None
    from matplotlib.patches import Rectangle

    low, high = min(known), max(known)
    left, top = (CHARACTER_IN * max(map(len, names)) for names in (rows, columns))
    figure = new_figure(left + CELL_IN[0] * len(columns) + 0.75 * top + 0.2, 0.62 * top + CELL_IN[1] * len(rows) + 0.35)
    axes = figure.subplots()
    for y, line in enumerate(values):
        for x, value in enumerate(line):
            share = 0.5 if value is None or high == low else (value - low) / (high - low)
            share = share if higher_is_better else 1 - share
            opacity = 0.0 if value is None else MIN_OPACITY + share * (MAX_OPACITY - MIN_OPACITY)
            axes.add_patch(Rectangle((x + 0.02, y + 0.04), 0.96, 0.92, facecolor=(BLUE, opacity), edgecolor=PALE))
            axes.text(x + 0.5, y + 0.5, "-" if value is None else f"{value:.2f}", ha="center", va="center", fontsize=11)
    axes.set(xlim=(0, len(columns)), ylim=(len(rows), 0))
    axes.xaxis.tick_top()
    axes.set_xticks([x + 0.5 for x in range(len(columns))], columns, rotation=38, ha="left", rotation_mode="anchor")
    axes.set_yticks([y + 0.5 for y in range(len(rows))], rows)
    axes.tick_params(labelsize=11, length=0)
    axes.spines[:].set_visible(False)
    return figure

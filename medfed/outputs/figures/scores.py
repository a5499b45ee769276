"""Scores of a comparison as a figure: bars for each site, or lines over the values of a varied setting."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from medfed.outputs.figures.figure import LINES, new_figure, save_png, style_axes
from medfed.outputs.tables.comparison_data import Block, Cell, Table

MAX_LEGEND_COLUMNS = 3
CHARACTERS_PER_INCH = 13  # of a legend's text, with room for the sample beside it
BAR_SPACE = 0.8  # of the distance between two groups
HATCHES = {"-": "", "--": "///", ":": "..."}  # of bars, by the dashes of lines: both tell equal colours apart


def save_score_bars(table: Table, block: Block, path: str | Path, title: str) -> None:
    """Write a group of bars for each site (and the average), one bar for each method; error bars are SD over seeds."""
    several = len(table.sites) > 1
    groups = [*table.sites, "average"] if several else list(table.sites)
    series = [(line.method, (*line.cells, line.average) if several else line.cells) for line in block.lines]
    _save(groups, series, block, path, title, bars=True)


def save_score_lines(table: Table, block: Block, path: str | Path, title: str) -> None:
    """Write one line for each method and site over the varied setting's values (rows labelled `METHOD, KEY=VALUE`). A
    method without the setting is a horizontal line."""
    values = list(dict.fromkeys(line.method.partition(", ")[2] for line in block.lines if ", " in line.method))
    methods = list(dict.fromkeys(line.method.partition(", ")[0] for line in block.lines))
    cells = {line.method: line.cells for line in block.lines}
    series = []
    for place, site in enumerate(table.sites):
        for method in methods:
            own = [cells.get(f"{method}, {value}", cells.get(method)) for value in values]
            series.append((f"{method}, {site}", tuple(row[place] if row else None for row in own)))
    ticks = [value.rpartition("=")[2] for value in values]
    key = values[0].rpartition("=")[0] if values else ""
    _save(ticks, series, block, path, title, bars=False, key=key)


def _save(
    ticks: Sequence[str],
    series: Sequence[tuple[str, Sequence[Cell | None]]],
    block: Block,
    path: str | Path,
    title: str,
    bars: bool,
    key: str = "",
) -> None:
    """Write a figure of bars or points: one tick per site, one series per method; None leaves a gap."""
    figure = new_figure(max(6.0, 1.2 * len(ticks)), 4.2)
    axes = figure.subplots()
    width = BAR_SPACE / max(len(series), 1)
    for index, (name, cells) in enumerate(series):
        colour, dash = LINES[index % len(LINES)]
        points = [(place, cell.mean, cell.sd or 0.0) for place, cell in enumerate(cells) if cell]
        x, y, errors = ([point[column] for point in points] for column in range(3))
        yerr = errors if any(errors) else None
        if bars:
            offset = (index + 0.5) * width - BAR_SPACE / 2
            axes.bar(
                [place + offset for place in x],
                y,
                width * 0.9,
                yerr=yerr,
                color=colour,
                label=name,
                hatch=HATCHES[dash],
                edgecolor="white",
            )
        else:
            axes.errorbar(x, y, yerr=yerr, color=colour, linestyle=dash, marker="o", markersize=4, label=name)
    axes.set_xticks(range(len(ticks)), ticks)
    axes.set_ylabel(f"{block.name} ({block.unit})" if block.unit else block.name)
    axes.set_xlabel(key)
    style_axes(axes)
    longest = max((len(name) for name, _ in series), default=1)
    n_columns = int(figure.get_figwidth() * CHARACTERS_PER_INCH / (longest + 6))
    figure.legend(loc="outside lower center", ncols=max(1, min(MAX_LEGEND_COLUMNS, n_columns)), fontsize=9)
    save_png(figure, path, title)

"""Scores of a comparison as a figure: bars for each site, or lines over the values of a varied setting."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from medfed.outputs.figures.figure import LINES, new_figure, style_axes
from medfed.results.statistics import AVERAGE

MAX_LEGEND_COLUMNS = 3
CHARACTERS_PER_INCH = 13  # of a legend's text, with room for the sample beside it
BAR_SPACE = 0.8  # of the distance between two groups
HATCHES = {"-": "", "--": "///", ":": "..."}  # of bars, by the dashes of lines: both tell equal colours apart


def score_bars(scores: pd.DataFrame, label: str, title: str) -> Figure:
    """A group of bars for each site (and the average), one bar for each row; error bars are the SD over seeds.

    `scores` has the columns `row`, `site`, `mean` and `sd`; `label` names the metric.
    """
    if scores.site.nunique() == 2:  # an average of one site says nothing new
        scores = scores[scores.site != AVERAGE]
    return _draw(scores.assign(series=scores.row, tick=scores.site), label, title)


def score_lines(scores: pd.DataFrame, label: str, title: str) -> Figure:
    """A line for each method and site over the values of the varied setting, which rows name as `METHOD, KEY=VALUE`. A
    method without the setting is a horizontal line."""
    scores = scores[scores.site != AVERAGE]
    parts = scores.row.str.partition(", ")
    table = scores.assign(series=parts[0] + ", " + scores.site, tick=parts[2])
    varied = table[table.tick != ""]
    fixed = table[table.tick == ""].drop(columns="tick").merge(varied[["tick"]].drop_duplicates(), how="cross")
    key = "" if varied.empty else varied.tick.iloc[0].rpartition("=")[0]
    table = pd.concat([varied, fixed])
    return _draw(table.assign(tick=table.tick.str.rpartition("=")[2]), label, title, key)


def _draw(scores: pd.DataFrame, label: str, title: str, key: str | None = None) -> Figure:
    """Draw the columns `mean` and `sd` of each `series` at each `tick`: bars, or lines over the setting `key`."""
    ticks, series = list(dict.fromkeys(scores.tick)), dict(list(scores.groupby("series", sort=False)))
    figure = new_figure(max(6.0, 1.2 * len(ticks)), 4.2, title)
    axes = figure.subplots()
    width, places = BAR_SPACE / max(len(series), 1), np.arange(len(ticks))
    for index, (name, group) in enumerate(series.items()):
        values = group.set_index("tick")[["mean", "sd"]].reindex(ticks)
        colour, dash = LINES[index % len(LINES)]
        errors = values.sd.fillna(0) if values.sd.any() else None
        if key is None:
            x, hatch = places + (index + 0.5) * width - BAR_SPACE / 2, HATCHES[dash]
            axes.bar(x, values["mean"], width * 0.9, yerr=errors, color=colour, label=name, hatch=hatch, edgecolor="w")
        else:
            axes.errorbar(places, values["mean"], errors, color=colour, ls=dash, marker="o", markersize=4, label=name)
    axes.set_xticks(places, ticks)
    axes.set(xlabel=key or "", ylabel=label)
    style_axes(axes)
    n_columns = int(figure.get_figwidth() * CHARACTERS_PER_INCH / (max(map(len, series), default=1) + 6))
    figure.legend(loc="outside lower center", ncols=max(1, min(MAX_LEGEND_COLUMNS, n_columns)), fontsize=9)
    return figure

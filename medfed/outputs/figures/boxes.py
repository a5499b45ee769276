"""Box plots of the scores of each case."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from medfed.outputs.figures.figure import BLACK, SEEN, UNSEEN, add_legend, new_figure, save_png, style_axes
from medfed.tasks.scoring import BoxPlotValue, Scoring

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def save_site_boxes(rows: Sequence[Mapping], scoring: Scoring, path: str | Path, data_label: str) -> None:
    """Draw the scores of every case by site, seen sites first; crosses are missed organs and false alarms.

    The distance of a failure is the diagonal of the image: where there are any, distances above 1 are on a logarithmic
    scale.
    """
    structures = list(dict.fromkeys(map(scoring.structure_of, rows))) or ["no case"]
    sites = sorted({(row["role"], row["site"]) for row in rows})
    measures = scoring.box_plot_values(rows)
    width = max(7.5, 3.2 + 1.5 * len(sites)) / 2 * max(2, len(measures))
    figure = new_figure(width, 0.7 + 3.1 * len(structures))
    panels = figure.subplots(len(structures), len(measures), squeeze=False)
    for line, structure in zip(panels, structures):
        of_structure = [row for row in rows if scoring.structure_of(row) == structure]
        for axes, measure in zip(line, measures, strict=True):
            counts = []
            for place, (role, site) in enumerate(sites):
                known = [r for r in of_structure if r["site"] == site and measure.value(r) is not None]
                counts.append(len(known))
                _box(axes, place, known, measure, [scoring.has_cross(row) for row in known], role)
            names = [f"{site}\n{role}, n={count}" for (role, site), count in zip(sites, counts)]
            axes.set_xticks(range(len(sites)), names, fontsize=8)
            axes.set(ylabel=measure.title, xlim=(-0.6, max(len(sites), 1) - 0.4))
            axes.set_title(structure, fontsize=10)
            style_axes(axes)
            _scale(axes, measure, [measure.value(row) for row in of_structure if scoring.has_cross(row)])
    add_legend(figure, [("s", SEEN, "seen"), ("s", UNSEEN, "unseen"), ("x", BLACK, "missed or false alarm")])
    save_png(figure, path, f"Scores of each case by site ({data_label})")


def _scale(axes: Axes, measure: BoxPlotValue, failures: Sequence[float | None]) -> None:
    from matplotlib.ticker import ScalarFormatter

    known = [value for value in failures if value is not None]
    if measure.limits:
        low, high = measure.limits
        axes.set_ylim(low - 0.04 * (high - low), high + 0.04 * (high - low))
    elif measure.is_distance:
        if known:
            axes.set_yscale("symlog", linthresh=1)
            axes.yaxis.set_major_formatter(ScalarFormatter())
        axes.set_ylim(0, 2 * max(known) if known else None)


def _box(
    axes: Axes, place: int, rows: Sequence[Mapping], measure: BoxPlotValue, crossed: Sequence[bool], role: str
) -> None:
    """A box at x = place, and its cases spread from left to right in the order of the rows."""
    if not rows:
        return
    colour = UNSEEN if role == "unseen" else SEEN
    values = np.array([measure.value(row) for row in rows], dtype=float)
    axes.boxplot(
        values, positions=[place], widths=0.6, showfliers=False, patch_artist=True, manage_ticks=False,
        boxprops={"facecolor": colour + "33", "edgecolor": colour}, medianprops={"color": colour, "linewidth": 2},
        whiskerprops={"color": colour}, capprops={"color": colour},
    )  # fmt: skip
    across = place + np.linspace(-0.22, 0.22, len(values) + 2)[1:-1]
    good = ~np.array(crossed, dtype=bool)
    axes.plot(across[good], values[good], "o", color=colour, markersize=3, alpha=0.7)
    axes.plot(across[~good], values[~good], "x", color=BLACK, markersize=5)

"""Box plots of the scores of each case: of a run by site, and of a comparison by row."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import ScalarFormatter

from medfed.metrics.mask_metric import ABSENT, FALSE_ALARM, MISSED
from medfed.metrics.metric import DISTANCE, PROBABILITY
from medfed.outputs.figures.figure import (
    BLACK,
    NO_ROLE,
    ROLE_COLOURS,
    TRAINED_HERE,
    add_legend,
    new_figure,
    site_label,
    style_axes,
)
from medfed.results.scores import IN_VOXELS_OF_FILE
from medfed.results.statistics import limits_of
from medfed.tasks.scoring import CASES, Scoring

ROLES = ("seen", TRAINED_HERE, "validation", "unseen", NO_ROLE)
WIDTH_IN, ROW_IN, AXIS_IN = 5.0, 0.56, 0.6  # width of a panel; height of a box and of the axis below
MIN_BOX = 3  # values; a box of fewer would suggest a distribution
MAX_POINTS = 60  # of a box that shows all its cases; of more, only those outside the whiskers
LOG_TICKS = (0, 1, 3, 10, 30, 100, 300, 1000, 3000, 10000)
WIDE = 12  # times the median: a largest value above this makes the axis logarithmic


class Panel(NamedTuple):
    """The boxes of one structure and metric: `values` has the columns box, role, value and failed."""

    title: str
    label: str
    values: pd.DataFrame
    limits: tuple[float, float] | None  # of the axis; None: of the values, on a logarithmic axis if they differ widely


def site_boxes(scores: pd.DataFrame, scoring: Scoring, data_label: str) -> Figure:
    """One panel per structure and metric, one box per site: sites that trained, then validation, then unseen sites."""
    boxes = [site_label(site, role) for site, role in zip(scores.site, scores.role)]
    panels = _panels(scores.assign(box=boxes), scoring)
    sites = scores.assign(box=boxes, place=scores.role.map(ROLES.index)).sort_values(["place", "site"])
    figure = _draw(panels, list(sites.box.unique()), f"Scores of each case by site ({data_label})")
    roles = [role for role in ROLES if role and (scores.role == role).any()]
    add_legend(figure, [*(("s", ROLE_COLOURS[role], role) for role in roles), ("x", BLACK, "missed or false alarm")])
    return figure


def comparison_figure(scores: pd.DataFrame, scoring: Scoring, data_label: str) -> Figure:
    """The unseen cases of all seeds: one line of panels per unseen site, and one box for each `row`."""
    unseen = scores[scores.role == "unseen"]
    panels = [panel for line in _panels(unseen.assign(box=unseen.row), scoring, main=True) for panel in line]
    lines = []
    for site in sorted(unseen.site.unique()):
        titles = [", ".join(filter(None, [site, panel.title])) for panel in panels]
        of_site = [panel.values[panel.values.site == site] for panel in panels]
        lines.append([p._replace(title=title, values=values) for p, title, values in zip(panels, titles, of_site)])
    return _draw(lines if panels else [], list(scores.row.unique()), f"Scores of each unseen case ({data_label})")


def _panels(scores: pd.DataFrame, scoring: Scoring, main: bool = False) -> list[list[Panel]]:
    """One line of panels per structure; with `main`, only of the first metric and those of `evaluation.metrics`."""
    if not scoring.has_structures:
        own = scores[scores.metric == PROBABILITY + scores.status].assign(failed=False)
        return [[Panel("", "predicted probability of the true class", own, _cut((0.0, 1.0), own.value))]]
    scores = scores.assign(failed=scores.status.isin([MISSED, FALSE_ALARM]))
    lines: dict[str, list[Panel]] = {structure: [] for structure in scores.structure.unique()}
    for metric in scoring.metrics_in(CASES):
        own = scores[(scores.metric == metric.name) & (scores.status != ABSENT)]
        units = own.unit.unique()
        is_distance = metric.unit == DISTANCE or metric.name == IN_VOXELS_OF_FILE
        is_main = metric.name in (scoring.metrics[0].name, *scoring.chosen)
        if len(units) != 1 or (main and not is_main) or (is_distance and own.value.isna().any()):
            continue
        label = f"{metric.label} ({units[0]})" if units[0] else metric.label
        limits = limits_of(metric, units[0]) if metric.limits else None
        for structure, line in lines.items():
            values = own[(own.structure == structure) & own.value.notna()]
            line.append(Panel(structure, label, values, _cut(limits, values.value)))
    return [line for line in lines.values() if line]


def _cut(limits: tuple[float, float] | None, values: pd.Series) -> tuple[float, float] | None:
    """Raise the lower limit in fifths of the range towards the smallest value: 73 gives (60, 100)."""
    if limits is None or values.empty:
        return limits
    fifth = (limits[1] - limits[0]) / 5
    n_empty = math.floor(round((values.min() - limits[0]) / fifth, 6))
    return limits[0] + fifth * min(max(n_empty, 0), 4), limits[1]


def _draw(lines: Sequence[Sequence[Panel]], boxes: Sequence[str], title: str) -> Figure:
    """Draw lines of panels with the same boxes from top to bottom."""
    lines = lines or [[Panel("", "no case", pd.DataFrame(columns=["box", "role", "value", "failed"]), None)]]
    with_titles = len(lines) * len(lines[0]) > 1
    height = (ROW_IN * max(1, len(boxes)) + AXIS_IN + 0.3 * with_titles) * len(lines) + 0.9
    figure = new_figure(WIDTH_IN * len(lines[0]), height, title)
    for line, line_axes in zip(lines, figure.subplots(len(lines), len(lines[0]), squeeze=False)):
        for panel, axes in zip(line, line_axes):
            _draw_panel(axes, panel, boxes)
            axes.set_title(panel.title if with_titles else "", fontsize=10)
    return figure


def _draw_panel(axes: Axes, panel: Panel, boxes: Sequence[str]) -> None:
    values = panel.values.value.to_numpy(float)
    low, high = panel.limits or (min([0.0, *values]), max([1.0, *values]))
    label, margin = panel.label, 0.02 * (high - low)
    if panel.limits is None and len(values) and high > WIDE * max(float(np.median(values)), 1.0):
        axes.set_xscale("symlog", linthresh=1)
        axes.set_xticks([tick for tick in LOG_TICKS if low <= tick <= high])
        axes.xaxis.set_major_formatter(ScalarFormatter())
        label, margin = f"{label} (logarithmic)", 0.1 * high
    else:
        axes.locator_params(axis="x", nbins=6)
    axes.set(xlim=(low - (margin if low or panel.limits else 0), high + margin), ylim=(len(boxes), 0), yticks=[])
    axes.set_xlabel(label)
    for place, box in enumerate(boxes):
        own = panel.values[panel.values.box == box]
        text = f"{box}, n={len(own)}"
        axes.text(0, place + 0.26, text, fontsize=11, va="center", transform=axes.get_yaxis_transform())
        if len(own):
            _draw_box(axes, place + 0.66, own)
    style_axes(axes, grid="x")
    axes.spines["left"].set_visible(False)


def _draw_box(axes: Axes, y: float, own: pd.DataFrame) -> None:
    """One box with Tukey's whiskers, its cases as points, and a cross for each failure."""
    colour, many = ROLE_COLOURS[own.role.iloc[0]], len(own) > MAX_POINTS
    circle: dict[str, Any] = {"marker": "o", "markersize": 3.5, "alpha": 0.75, "markeredgewidth": 0, "linestyle": ""}
    if len(own) >= MIN_BOX:
        axes.boxplot(
            own.value.to_numpy(float),
            positions=[y],
            widths=0.36,
            orientation="horizontal",
            showfliers=many,
            showcaps=False,
            patch_artist=True,
            manage_ticks=False,
            boxprops={"facecolor": colour + "29", "edgecolor": colour},
            medianprops={"color": colour, "linewidth": 2.5},
            whiskerprops={"color": colour},
            flierprops={**circle, "markerfacecolor": colour},
        )
    across = y + (np.arange(len(own)) % 5 - 2) * 0.05  # five lines, so that points of equal values do not overlap
    failed = own.failed.to_numpy(bool)
    if not many and not failed.all():  # an empty line would count in the layout as a point at the figure's corner
        axes.plot(own.value[~failed], across[~failed], color=colour, **circle)
    if failed.any():
        axes.plot(own.value[failed], across[failed], "x", color=BLACK, markersize=5)

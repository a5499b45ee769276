"""Box plots of the scores of each case: of a run as a PNG file, and of runs and comparisons as SVG in the report."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from medfed.metrics.mask_metric import ABSENT, FALSE_ALARM, MISSED
from medfed.metrics.metric import DISTANCE, PROBABILITY
from medfed.outputs.figures.figure import (
    BLACK,
    NO_ROLE,
    TRAINED_HERE,
    add_legend,
    new_figure,
    role_colour,
    save_png,
    site_label,
    style_axes,
)
from medfed.results.scores import IN_VOXELS_OF_FILE, is_probability
from medfed.results.statistics import limits_of
from medfed.tasks.scoring import CASES, Scoring

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

ROLES = ("seen", TRAINED_HERE, "validation", "unseen", NO_ROLE)
WIDTH_IN, ROW_IN, AXIS_IN = 5.0, 0.56, 0.6  # width of a panel; height of a group and of the axis below
MIN_BOX = 3  # values; a box of fewer would suggest a distribution
MAX_OUTLIERS = 30  # of a group that has more cases than `max_points`
LOG_TICKS = (0, 1, 3, 10, 30, 100, 300, 1000, 3000, 10000)
WIDE = 12  # times the median: a largest value above this makes the axis logarithmic
Limits = tuple[float, float] | None


@dataclass(frozen=True)
class BoxGroup:
    """One box of a box plot, with one value per case."""

    name: str  # the text above the box; the number of values is added
    values: tuple[float, ...]
    role: str  # "seen" (the site trained), "validation" or "unseen"; decides the colour
    failed: tuple[bool, ...]  # whether each case is a failure, drawn as a cross


@dataclass(frozen=True)
class BoxPanel:
    """Several boxes, from top to bottom, on a common axis. `limits` are its ends; None computes them from the values,
    with a logarithmic axis if the range is wide. A figure with a single panel does not show its title."""

    label: str
    groups: tuple[BoxGroup, ...]
    limits: Limits = None
    title: str = ""


@dataclass(frozen=True)
class BoxMeasure:
    """A quantity that box plots show for every image, such as Dice or HD95.

    Args:
        metric: its name; "" for the predicted probability of the true class.
        limits: (low, high) of the axis; None adapts the axis to the values.
        is_main: whether it is the task's first metric, or one of `evaluation.metrics`.
    """

    title: str
    metric: str
    limits: Limits
    is_main: bool = True

    def of(self, scores: pd.DataFrame) -> pd.DataFrame:
        """The rows of this quantity whose value is known."""
        is_own = scores.metric == (self.metric or PROBABILITY + scores.status)
        return scores[is_own & scores.value.notna()]


def box_measures(scores: pd.DataFrame, scoring: Scoring) -> list[BoxMeasure]:
    """Dice, HD95 and the metrics under `evaluation.metrics`, or the probability of the true class.

    A distance is left out if an image with the structure lacks it, or if the images have it in different units.
    """
    if not scoring.has_structures:
        return [BoxMeasure("predicted probability of the true class", "", (0.0, 1.0))]
    measures = []
    for metric in scoring.metrics_in(CASES):
        own = scores[(scores.metric == metric.name) & (scores.status != ABSENT)]
        units = own.unit.unique()
        is_distance = metric.unit == DISTANCE or metric.name == IN_VOXELS_OF_FILE
        if len(units) == 1 and (own.value.notna().all() or not is_distance):
            low, high = limits_of(metric, units[0])
            title = f"{metric.label} ({units[0]})" if units[0] else metric.label
            is_main = metric.name in (scoring.metrics[0].name, *scoring.chosen)
            measures.append(BoxMeasure(title, metric.name, (low, high) if metric.limits else None, is_main))
    return measures


def save_site_boxes(scores: pd.DataFrame, scoring: Scoring, path: str | Path, data_label: str) -> None:
    """Write box plots of the scores of every case: one panel per structure and metric, one box per site."""
    measures = box_measures(scores, scoring) or [BoxMeasure("no case", scoring.metrics[0].name, None)]
    structures = list(scores.structure.unique()) or ["no case"]
    figure = box_figure([[site_panel(scores, name, measure) for measure in measures] for name in structures])
    roles = [role for role in ROLES if (scores.role == role).any()]
    entries = [("s", role_colour(role), role) for role in roles if role]
    add_legend(figure, [*entries, ("x", BLACK, "missed or false alarm")])
    save_png(figure, path, f"Scores of each case by site ({data_label})")


def site_panel(scores: pd.DataFrame, structure: str, measure: BoxMeasure) -> BoxPanel:
    """The boxes of one structure and metric, one per site: sites that trained, then validation sites, then unseen
    sites."""
    sites = sorted({(ROLES.index(role), site) for role, site in zip(scores.role, scores.site)})
    own = measure.of(scores[scores.structure == structure])
    groups = [box_group(site_label(site, ROLES[k]), own[own.site == site], ROLES[k]) for k, site in sites]
    return BoxPanel(measure.title, tuple(groups), cut_limits(measure.limits, groups), structure)


def box_group(name: str, scores: pd.DataFrame, role: str) -> BoxGroup:
    """The box of these values; those of missed structures and false alarms are failures."""
    failed = scores.status.isin([MISSED, FALSE_ALARM]) & ~is_probability(scores)
    return BoxGroup(name, tuple(scores.value), role, tuple(failed))


def cut_limits(limits: Limits, groups: Sequence[BoxGroup]) -> Limits:
    """Raise the lower limit of an axis in fifths of the range towards the smallest value: 73 gives (60, 100)."""
    values = [value for group in groups for value in group.values]
    if limits is None or not values:
        return limits
    fifth = (limits[1] - limits[0]) / 5
    n_empty = math.floor(round((min(values) - limits[0]) / fifth, 6))
    return limits[0] + fifth * min(max(n_empty, 0), 4), limits[1]


def box_figure(panels: Sequence[Sequence[BoxPanel]], max_points: int | None = None) -> Figure:
    """Draw box plots with single values as points; all rows have the same number of panels. Whiskers are Tukey's; one
    or two values have no box. A box with more than `max_points` values shows at most 30 points, all outside the
    whiskers."""
    n_groups = max(1, *(len(panel.groups) for line in panels for panel in line))
    with_titles = sum(map(len, panels)) > 1
    height = (ROW_IN * n_groups + AXIS_IN + 0.3 * with_titles) * len(panels) + 0.6 * with_titles
    figure = new_figure(WIDTH_IN * len(panels[0]), height)
    for line, line_axes in zip(panels, figure.subplots(len(panels), len(panels[0]), squeeze=False)):
        for panel, axes in zip(line, line_axes):
            _draw_panel(axes, panel, max_points)
            if with_titles:
                axes.set_title(panel.title, fontsize=10)
    return figure


def _draw_panel(axes: Axes, panel: BoxPanel, max_points: int | None) -> None:
    """Draw all boxes of a panel, on a logarithmic axis if the values differ widely."""
    from matplotlib.ticker import ScalarFormatter

    values = [value for group in panel.groups for value in group.values]
    low, high = panel.limits or (min([0.0, *values]), max([1.0, *values]))
    label, margin = panel.label, 0.02 * (high - low)
    if panel.limits is None and values and high > WIDE * max(float(np.median(values)), 1.0):
        axes.set_xscale("symlog", linthresh=1)
        axes.set_xticks([tick for tick in LOG_TICKS if low <= tick <= high])
        axes.xaxis.set_major_formatter(ScalarFormatter())
        label, margin = f"{label} (logarithmic)", 0.1 * high
    else:
        axes.locator_params(axis="x", nbins=6)
    axes.set(xlim=(low - (margin if low or panel.limits else 0), high + margin), ylim=(len(panel.groups), 0), yticks=[])
    axes.set_xlabel(label)
    for place, group in enumerate(panel.groups):
        axes.text(
            0,
            place + 0.26,
            f"{group.name}, n={len(group.values)}",
            fontsize=11,
            va="center",
            transform=axes.get_yaxis_transform(),
        )
        if group.values:
            _draw_group(axes, place + 0.66, group, max_points)
    style_axes(axes, grid="x")
    axes.spines["left"].set_visible(False)


def _draw_group(axes: Axes, y: float, group: BoxGroup, max_points: int | None) -> None:
    """Draw one box with its values as points; of more than `max_points`, outliers only."""
    values, failed, colour = np.array(group.values, dtype=float), np.array(group.failed), role_colour(group.role)
    shown = np.arange(len(values))
    whiskers = _draw_box(axes, y, values, colour) if len(values) >= MIN_BOX else []
    if whiskers and max_points is not None and len(values) > max_points:
        ends = np.concatenate([line.get_xdata() for line in whiskers])
        outside = np.flatnonzero((values < ends.min()) | (values > ends.max()))
        shown = outside[np.linspace(0, len(outside) - 1, min(len(outside), MAX_OUTLIERS)).round().astype(int)]
    across = y + (shown % 5 - 2) * 0.05  # five lines, so that points of equal values do not overlap
    good = ~failed[shown]
    circle, cross = {"markersize": 3.5, "alpha": 0.75, "markeredgewidth": 0}, {"markersize": 5}
    for which, marker, marker_colour, style in ((good, "o", colour, circle), (~good, "x", BLACK, cross)):
        if which.any():  # an empty line would count in the layout as a point at the figure's corner
            axes.plot(values[shown][which], across[which], marker, color=marker_colour, **style)


def _draw_box(axes: Axes, y: float, values: np.ndarray, colour: str) -> list[Line2D]:
    """Return the lines of the whiskers."""
    plot = axes.boxplot(
        values,
        positions=[y],
        widths=0.36,
        orientation="horizontal",
        showfliers=False,
        showcaps=False,
        patch_artist=True,
        manage_ticks=False,
        boxprops={"facecolor": colour + "29", "edgecolor": colour},
        medianprops={"color": colour, "linewidth": 2.5},
        whiskerprops={"color": colour},
    )
    return plot["whiskers"]

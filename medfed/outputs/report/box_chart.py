"""Box plots, a line a group, as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from medfed.outputs.report.markup import Markup, tag
from medfed.outputs.report.scales import WIDTH, Scale, drawing, line, padded, px, text, tick_text

ROW, BOX, MARGIN, FOOT = 40, 14, 8, 34
MOST_POINTS = 60  # cases drawn one by one; of more, those outside the whiskers
MOST_OUTLIERS = 30


@dataclass(frozen=True)
class Group:
    """The values of a box, its name, its colour class, and which values are failures (drawn as crosses)."""

    name: str
    values: Sequence[float]
    colour: str
    failed: Sequence[bool] = ()


def box_chart(groups: Sequence[Group], title: str, axis: str, limits: tuple[float, float] | None = None) -> Markup:
    """Median, quartiles, whiskers to the last value within 1.5 boxes (Tukey), and single values.

    Args:
        limits: of the axis; None for those of the values, on a logarithmic scale where they span a wide range.
    """
    values = [value for group in groups for value in group.values]
    low, high = limits or padded(values or [0.0, 1.0], at_least=(0.0, 1.0))
    wide = limits is None and bool(values) and high > 12 * max(float(np.median(values)), 1.0)
    height = MARGIN + ROW * len(groups) + FOOT
    scale = Scale(low, high, MARGIN, WIDTH - MARGIN - 6, wide)
    bottom = height - FOOT
    grid = [line(scale(tick), MARGIN, scale(tick), bottom, "grid") for tick in scale.ticks()]
    labels = [text(scale(tick), bottom + 13, tick_text(tick), "tick", "middle") for tick in scale.ticks()]
    rows = [_row(group, scale, MARGIN + ROW * place) for place, group in enumerate(groups)]
    name = text(WIDTH / 2, height - 5, axis + (" (logarithmic)" if wide else ""), "axis", "middle")
    return drawing(title, WIDTH, height, *grid, *rows, *labels, name)


def _row(group: Group, scale: Scale, top: float) -> Markup:
    name = text(MARGIN, top + 11, f"{group.name}, n={len(group.values)}", "name")
    if not len(group.values):
        return tag("g", name)
    values = np.asarray(group.values, dtype=float)
    failed = np.asarray(group.failed, dtype=bool) if len(group.failed) else np.zeros(len(values), dtype=bool)
    q1, median, q3 = np.percentile(values, (25, 50, 75))
    inside = values[(values >= q1 - 1.5 * (q3 - q1)) & (values <= q3 + 1.5 * (q3 - q1))]
    first, last, middle = float(inside.min()), float(inside.max()), top + 25
    box = tag("rect", x=px(scale(q1)), y=px(middle - BOX / 2), width=px(max(scale(q3) - scale(q1), 0.5)),
              height=px(BOX), class_="box")
    parts = [
        line(scale(first), middle, scale(q1), middle, "whisker"),
        line(scale(q3), middle, scale(last), middle, "whisker"),
        box,
        line(scale(median), middle - BOX / 2, scale(median), middle + BOX / 2, "median"),
    ]
    shown = np.ones(len(values), dtype=bool)
    if len(values) > MOST_POINTS:
        outside = np.flatnonzero((values < first) | (values > last))
        kept = outside[np.linspace(0, len(outside) - 1, min(len(outside), MOST_OUTLIERS)).round().astype(int)]
        shown[:] = False
        shown[kept] = True
    across = middle + (np.arange(len(values)) % 5 - 2) * 2.0
    marks = [
        _cross(scale(value), y) if bad else tag("circle", cx=px(scale(value)), cy=px(y), r="1.8")
        for value, y, bad in zip(values[shown], across[shown], failed[shown])
    ]
    return tag("g", name, *parts, *marks, class_=group.colour)


def _cross(x: float, y: float) -> Markup:
    a, b, c, d = px(x - 2.5), px(x + 2.5), px(y - 2.5), px(y + 2.5)
    return tag("path", d=f"M{a} {c}L{b} {d}M{a} {d}L{b} {c}", class_="failed")

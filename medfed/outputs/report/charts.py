"""The charts of a run and of a comparison, drawn from their numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from statistics import fmean
from typing import Any

from medfed.outputs.report.blocks import figure_block, legend
from medfed.outputs.report.box_chart import Group, box_chart
from medfed.outputs.report.curve_chart import MOST_NAMED, Curve, coloured, curve_chart, swatch
from medfed.outputs.report.heat_chart import heat_chart
from medfed.outputs.report.markup import Markup, join, tag
from medfed.outputs.report.run_data import ROLES, Comparison, Run, structures_of
from medfed.outputs.tables.table import block_title
from medfed.tasks.scoring import BoxPlotValue, Scoring

MEASURES = (
    ("train_loss", "training loss"),
    ("validation_score", "validation score"),
    ("boundary_distance", "feature distance, boundary to background"),  # where it was measured
)
BOXES = (
    "Box: median and quartiles; whiskers: the last case within 1.5 boxes; points: cases (of many, those outside the "
    "whiskers); crosses: missed or false alarms."
)
Limits = tuple[float, float] | None


def boxes_of_run(run: Run) -> list[Markup]:
    """A chart per structure and metric, a box per site."""
    sites = sorted({(ROLES.index(row["role"]), row["site"]) for row in run.rows})
    found = []
    for structure in structures_of([run]):
        of_structure = [row for row in run.rows if run.scoring.structure_of(row) == structure]
        for measure in run.scoring.box_plot_values(run.rows):
            groups = []
            for role, site in sites:
                rows = [row for row in of_structure if row["site"] == site]
                groups.append(_group(f"{site} ({ROLES[role]})", rows, measure, run.scoring, ROLES[role]))
            caption = f"{_named(run, structure, measure)} of each case by site, {run.method}"
            found.append(_boxes(caption, groups, measure.title, measure.limits, run))
    return found


def boxes_of_comparison(comparison: Comparison) -> list[Markup]:
    """A chart per unseen site, structure and main metric, a box per method, over all seeds."""
    first, found = comparison.runs[0], []
    methods = list(dict.fromkeys(run.method for run in comparison.runs))
    sites = sorted({run.unseen for run in comparison.runs})
    measures = [measure for measure in first.scoring.box_plot_values(first.rows) if measure.is_main]
    for structure, measure in product(structures_of([first]), measures):
        by_site = {
            site: [
                _group(method, _unseen_rows(comparison, method, site, structure), measure, first.scoring, "unseen")
                for method in methods
            ]
            for site in sites
        }
        limits = measure.limits
        if limits:  # one scale for all sites, from a fifth down
            values = [value for groups in by_site.values() for group in groups for value in group.values]
            limits = (math.floor(5 * min(values, default=0.0)) / 5, limits[1])
        for site, groups in by_site.items():
            caption = f"{_named(first, structure, measure)} of each case at the unseen site {site}, all seeds"
            found.append(_boxes(caption, groups, measure.title, limits, first))
    return found


def _named(run: Run, structure: str, measure: BoxPlotValue) -> str:
    return f"{structure}: {measure.title}" if run.scoring.has_structures else measure.title


def _unseen_rows(comparison: Comparison, method: str, site: str, structure: str) -> list[dict]:
    runs = [run for run in comparison.runs if (run.method, run.unseen) == (method, site)]
    return [
        row
        for run in runs
        for row in run.rows
        if row["role"] == "unseen" and run.scoring.structure_of(row) == structure
    ]


def curves_of_run(run: Run) -> list[Markup]:
    """Training loss and validation score by round: the mean, a curve a site, or of many sites the band they fill."""
    found = []
    for key, name in MEASURES:
        columns = sorted({column for row in run.history for column in row if column.startswith(f"{key}/")})
        named = coloured([column.partition("/")[2] for column in columns])
        sites = [Curve(site, _points(run.history, f"{key}/{site}"), class_) for site, class_ in named.items()]
        mean = Curve("mean over sites", _points(run.history, key), "mean")
        validating = Curve("validation site", _points(run.history, "validation_site_score"), "unseen d1")
        alone = [validating] if key == "validation_score" and validating.points else []
        ends = run.summary.get(key) if key == "boundary_distance" else None
        alone += [
            Curve(f"{site}, took no part", [(run.summary["selected_round"], value)], f"unseen d{place}")
            for place, (site, value) in enumerate((ends or {}).items())
        ]
        many = len(sites) > MOST_NAMED
        shown = [*([] if many else sites), *alone, mean]
        entries = [(swatch(curve.class_), curve.name) for curve in shown]
        entries += [(swatch("band-line"), f"from the lowest to the highest of {len(sites)} clients")] if many else []
        found.append(_curves(f"{name.capitalize()}, {run.method}", name, shown, sites if many else [], entries, run))
    return [figure for figure in found if figure]


def curves_of_comparison(comparison: Comparison) -> list[Markup]:
    """The mean curve of each method over its runs."""
    methods = list(dict.fromkeys(run.method for run in comparison.runs))
    found = []
    for key, name in MEASURES:
        shown = [
            Curve(method, _mean_points([run.history for run in comparison.runs if run.method == method], key), class_)
            for method, class_ in coloured(methods).items()
        ]
        entries = [(swatch(curve.class_), curve.name) for curve in shown]
        found.append(_curves(f"{name.capitalize()} by method, mean over its runs", name, shown, [], entries,
                             comparison.runs[0]))
    return [figure for figure in found if figure]


def heat_maps(comparison: Comparison) -> list[Markup]:
    """A heat map a structure and measure of the unseen sites."""
    found = []
    for role, table in comparison.tables:
        for block in table.blocks if len(table.sites) > 1 else ():
            title = f"Method by {role} site: {block_title(block)}"
            if drawn := heat_chart(table, block, title):
                frame = tag("div", drawn, class_="scroll", tabindex="0", role="region", aria_label=title)
                caption = f"{title}; the stronger the colour, the better, from the worst to the best of this figure"
                found.append(figure_block(caption, comparison.runs[0].data_label, frame, class_="heatmap"))
    return found


def _group(name: str, rows: Sequence[dict], measure: BoxPlotValue, scoring: Scoring, colour: str) -> Group:
    values = [(measure.value(row), scoring.has_cross(row)) for row in rows]
    known = [(value, failed) for value, failed in values if value is not None]
    return Group(name, [value for value, _ in known], colour, [failed for _, failed in known])


def _boxes(caption: str, groups: Sequence[Group], axis: str, limits: Limits, run: Run) -> Markup:
    caption = caption[:1].upper() + caption[1:]
    return figure_block(caption, run.data_label, box_chart(groups, caption, axis, limits), class_="chart")


def _curves(
    caption: str, axis: str, shown: Sequence[Curve], band: Sequence[Curve], entries: Sequence[Any], run: Run
) -> Markup | None:
    drawn = curve_chart([curve for curve in shown if curve.points], caption, axis, band)
    listed = legend([entry for entry, curve in zip(entries, [*shown, None]) if curve is None or curve.points])
    return drawn and figure_block(caption, run.data_label, drawn, join(listed), class_="chart")


def _points(history: Sequence[dict], key: str) -> list[tuple[float, float]]:
    known = (row for row in history if isinstance(row.get(key), (int, float)))
    return [(row["round"], row[key]) for row in known if math.isfinite(row[key])]


def _mean_points(histories: Sequence[Sequence[dict]], key: str) -> list[tuple[float, float]]:
    by_round: dict[float, list[float]] = {}
    for history in histories:
        for number, value in _points(history, key):
            by_round.setdefault(number, []).append(value)
    return [(number, fmean(by_round[number])) for number in sorted(by_round)]

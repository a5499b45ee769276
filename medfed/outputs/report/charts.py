"""The charts of the page: figures of a run or a comparison as SVG, with captions and legends."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

import pandas as pd
from markupsafe import Markup

from medfed.outputs.figures.boxes import (
    BoxMeasure,
    BoxPanel,
    box_figure,
    box_group,
    box_measures,
    cut_limits,
    site_panel,
)
from medfed.outputs.figures.curves import CurvePanel, comparison_panels, curve_figure, run_panels
from medfed.outputs.figures.figure import GREY
from medfed.outputs.figures.svg import COLOURS, to_svg
from medfed.outputs.report.elements import Chart, LegendEntry
from medfed.outputs.report.run_data import Comparison, Run, structures_of
from medfed.tasks.scoring import Scoring

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_POINTS = 60  # cases of a box that are drawn; of more cases only those outside the whiskers
BOX_NOTE = (
    "A box shows the median and the quartiles; its whiskers end at the last case within 1.5 times the length of the "
    f"box. Points are cases; in a group of more than {MAX_POINTS}, only the cases outside the whiskers. Crosses are "
    "missed structures and false alarms. An axis may begin above 0."
)
DASHES = {"-": "", "--": "5 3", ":": "1.5 2.5"}  # line styles of matplotlib as SVG


def run_boxes(run: Run, prefix: str) -> list[Chart]:
    """One chart per structure and metric, with one box per site; `prefix`, unique on the page, begins the ids."""
    return site_boxes(run.scores, run.scoring, prefix, run.method, run.data_label)


def site_boxes(scores: pd.DataFrame, scoring: Scoring, prefix: str, model: str, data_label: str) -> list[Chart]:
    """Like `run_boxes`, from scores of images; `model` is the name of the method or model for the captions."""
    charts: list[Chart] = []
    for structure, measure in product(scores.structure.unique(), box_measures(scores, scoring)):
        panel = site_panel(scores, structure, measure)
        caption = f"{_score_name(scoring, structure, measure)} of each case by site, {model}"
        charts.append(_chart(box_figure([[panel]], MAX_POINTS), f"{prefix}-boxes-{len(charts)}", caption, data_label))
    return charts


def comparison_boxes(comparison: Comparison, prefix: str) -> list[Chart]:
    """One chart per unseen site, structure and metric, with one box per method; the cases are those of all seeds.
    Charts of the same metric have equal axes, if the metric has fixed limits such as 0 and 100 %."""
    first = comparison.drawn[0]
    charts: list[Chart] = []
    methods = list(dict.fromkeys(run.method for run in comparison.drawn))
    measures = [measure for measure in box_measures(first.scores, first.scoring) if measure.is_main]
    for structure, measure in product(structures_of([first]), measures):
        by_site = {
            site: tuple(
                box_group(method, measure.of(_unseen_scores(comparison, method, site, structure)), "unseen")
                for method in methods
            )
            for site in sorted({run.unseen for run in comparison.runs})
        }
        limits = cut_limits(measure.limits, [group for groups in by_site.values() for group in groups])
        for site, groups in by_site.items():
            figure = box_figure([[BoxPanel(measure.title, groups, limits)]], MAX_POINTS)
            name = _score_name(first.scoring, structure, measure)
            caption = f"{name} of each case at the unseen site {site}, all seeds"
            charts.append(_chart(figure, f"{prefix}-boxes-{len(charts)}", caption, first.data_label))
    return charts


def run_curves(run: Run, prefix: str) -> list[Chart]:
    """One chart per recorded measure, such as training loss and validation score."""
    distances = run.summary.get("boundary_distance") or {}
    ends = {site: (run.summary["selected_round"], distance) for site, distance in distances.items()}
    return [
        _curve_chart(panel, f"{prefix}-curves-{place}", f"{panel.label.capitalize()}, {run.method}", run)
        for place, panel in enumerate(run_panels(run.history, ends))
        if not panel.is_empty
    ]


def comparison_curves(comparison: Comparison, prefix: str) -> list[Chart]:
    """Each method's training curve, averaged over its runs; one chart per recorded measure."""
    histories: dict[str, list[list[dict]]] = {}
    for run in comparison.drawn:
        histories.setdefault(run.method, []).append(run.history)
    return [
        _curve_chart(
            panel,
            f"{prefix}-curves-{place}",
            f"{panel.label.capitalize()} by method, mean over its runs",
            comparison.runs[0],
        )
        for place, panel in enumerate(comparison_panels(histories))
        if not panel.is_empty
    ]


def _chart(figure: Figure, prefix: str, caption: str, data_label: str) -> Chart:
    """A figure as SVG inside the page; `prefix`, unique on the page, begins the ids."""
    caption = caption[:1].upper() + caption[1:]
    return Chart(caption, data_label, Markup(to_svg(figure, prefix, caption)))


def _curve_chart(panel: CurvePanel, prefix: str, caption: str, run: Run) -> Chart:
    """The curves of one measure of a run, with their legend."""
    entries = [
        LegendEntry(curve.name, COLOURS[curve.colour], curve.width, DASHES[curve.dash]) for curve in panel.curves
    ]
    if panel.clients:
        entries.append(LegendEntry(panel.band_name, COLOURS[GREY], 8, opacity=0.3))
    svg = Markup(to_svg(curve_figure([panel], with_legend=False), prefix, caption))
    return Chart(caption, run.data_label, svg, entries)


def _score_name(scoring: Scoring, structure: str, measure: BoxMeasure) -> str:
    """Such as "cup: Dice (%)", or the title alone for a task without structures."""
    return f"{structure}: {measure.title}" if scoring.has_structures else measure.title


def _unseen_scores(comparison: Comparison, method: str, site: str, structure: str) -> pd.DataFrame:
    """The scores of a method's unseen cases at one site, of all seeds and one structure."""
    runs = [run.scores for run in comparison.runs if (run.method, run.unseen) == (method, site)]
    scores = pd.concat(runs) if runs else comparison.runs[0].scores.head(0)
    return scores[(scores.role == "unseen") & (scores.structure == structure)]

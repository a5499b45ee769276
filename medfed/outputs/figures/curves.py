"""Training curves: of a run as a PNG file, and of runs and comparisons as SVG in the report."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from medfed.outputs.figures.figure import BLACK, GREY, LINES, VERMILION, new_figure, save_png, style_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_NAMED = 12  # curves that a legend can name; more clients are drawn as one band, lowest to highest
MAX_MARKED = 30  # points of a curve that are marked
MEASURES = {  # column of history.csv: the label of the axis
    "train_loss": "training loss",
    "validation_score": "validation score",
    "boundary_distance": "feature distance, boundary to background",
    "live_triplets": "share of live triplets",
}
TOTALS = {"live_triplets": "triplets"}  # a column that is drawn as a share: the column with the total
PANEL_IN = (5.0, 3.2)  # 360 units wide in SVG, so that texts of 10 units can be read on a phone
Points = Sequence[tuple[float, float]]
History = Sequence[Mapping]


@dataclass(frozen=True)
class Curve:
    """One curve of a panel. `dash` is a line style of matplotlib; `width` is in points."""

    name: str
    points: Points
    colour: str
    dash: str = "-"
    width: float = 1.3


@dataclass(frozen=True)
class CurvePanel:
    """The curves of one measured value; many `clients` are drawn as one band from the lowest to the highest value."""

    label: str
    curves: tuple[Curve, ...]
    clients: tuple[Points, ...] = ()

    @property
    def is_empty(self) -> bool:
        return not self.curves and not self.clients

    @property
    def band_name(self) -> str:
        """Name in the legend of the grey band that shows the lowest and the highest value of many clients."""
        return f"lowest to highest of {len(self.clients)} clients"


def save_training_curves(
    history: History, path: str | Path, data_label: str, ends: Mapping[str, tuple[int, float]] | None = None
) -> None:
    """Write a run's training curves (`run_panels`); panels of values that were not measured are left out."""
    loss, score, *optional = run_panels(history, ends or {})
    panels = [loss, score, *(panel for panel in optional if not panel.is_empty)]
    save_png(curve_figure(panels, with_legend=True), path, f"Training ({data_label})")


def save_unseen_curves(history: History, scores: History, path: str | Path, data_label: str) -> None:
    """Write the scores of the unseen site by round, which were measured after training; no file without any value.

    This is Figure 7 (a) of ELCFS for one method, with a second panel for the scores. Because the figure looks at the
    target, its title says that it must not choose a round, a setting or a method. `scores` has one dict per round and
    unseen site, with `round`, `site`, `score` and optionally `boundary_distance`.
    """
    panels = []
    for key, column in (("score", "validation_score"), ("boundary_distance", "boundary_distance")):
        curves = [Curve("mean over sites that train", _points(history, column), BLACK, "-", 2.4)]
        sites = list(dict.fromkeys(row["site"] for row in scores))
        for site, dash in zip(sites, ("-", "--", ":")):
            points = _points([row for row in scores if row["site"] == site], key)
            curves.append(Curve(f"{site}, unseen, after training", points, VERMILION, dash))
        panels.append(CurvePanel(MEASURES[column], tuple(curve for curve in curves if curve.points)))
    shown = [panel for panel in panels if not panel.is_empty]
    if not shown:
        return
    title = f"The unseen site by round, measured after training:\nmust not choose anything ({data_label})"
    save_png(curve_figure(shown, with_legend=True), path, title)


def run_panels(history: History, ends: Mapping[str, tuple[int, float]]) -> list[CurvePanel]:
    """Four panels of a run: training loss, validation score, boundary distance, share of live triplets (FISC).

    A panel has one curve per site and one for the mean; for more than 12 sites or clients, a band replaces the single
    curves. `history` has the rows of `history.csv`; `ends` has, for a site that did not train, (round, boundary
    distance).
    """
    panels = []
    for key, label in MEASURES.items():
        columns = sorted({column for row in history for column in row if column.startswith(f"{key}/")})
        by_site = {column.partition("/")[2]: _points(history, column) for column in columns}
        clients = tuple(by_site.values()) if len(by_site) > MAX_NAMED else ()
        curves = [] if clients else _coloured(by_site)
        if key == "validation_score":
            validation = _points(history, "validation_site_score")
            curves.append(Curve("validation site", validation, VERMILION, "--", 2.0))
        if key == "boundary_distance":
            for (site, end), dash in zip(ends.items(), ("-", "--")):
                curves.append(Curve(f"{site}, did not train", [end], VERMILION, dash))
        curves.append(Curve(f"mean over {'clients' if clients else 'sites'}", _points(history, key), BLACK, "-", 2.4))
        panels.append(CurvePanel(label, tuple(curve for curve in curves if curve.points), clients))
    return panels


def comparison_panels(histories: Mapping[str, Sequence[History]]) -> list[CurvePanel]:
    """The four panels of `run_panels` with one curve per method: the mean over its runs (one history each)."""
    panels = []
    for key, label in MEASURES.items():
        means = {method: _mean_points([_points(run, key) for run in runs]) for method, runs in histories.items()}
        panels.append(CurvePanel(label, tuple(curve for curve in _coloured(means) if curve.points)))
    return panels


def curve_figure(panels: Sequence[CurvePanel], with_legend: bool) -> Figure:
    """Draw panels side by side; an empty one shows "none recorded". The HTML report has its own legends."""
    figure = new_figure(PANEL_IN[0] * len(panels), PANEL_IN[1] + 0.6 * with_legend)
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels):
        _draw(axes, panel)
        if panel.is_empty:
            axes.text(0.5, 0.5, "none recorded", ha="center", va="center", transform=axes.transAxes)
        elif with_legend:
            axes.legend(fontsize=8, frameon=False)
    return figure


def _draw(axes: Axes, panel: CurvePanel) -> None:
    """Draw the curves of a panel, and the range of the clients as a band."""
    from matplotlib.ticker import MaxNLocator

    by_round: dict[float, list[float]] = {}
    for points in panel.clients:
        for number, value in points:
            by_round.setdefault(number, []).append(value)
    if by_round:
        rounds = sorted(by_round)
        low, high = ([end(by_round[number]) for number in rounds] for end in (min, max))
        axes.fill_between(rounds, low, high, color=GREY, alpha=0.25, linewidth=0, label=panel.band_name)
    for curve in panel.curves:
        marker = "o" if len(curve.points) <= MAX_MARKED else ""
        axes.plot(
            *zip(*curve.points),
            color=curve.colour,
            linestyle=curve.dash,
            linewidth=curve.width,
            marker=marker,
            markersize=4 if len(curve.points) > 1 else 7,
            markeredgewidth=0,
            label=curve.name,
        )
    axes.set(xlabel="round", ylabel=panel.label.replace(", ", ",\n"))
    rounds = [number for points in (*panel.clients, *(curve.points for curve in panel.curves)) for number, _ in points]
    if rounds:  # less than a round on both sides, so that no round 0 stands on the axis
        margin = min(max(0.02 * (max(rounds) - min(rounds)), 0.2), 0.5)
        axes.set_xlim(min(rounds) - margin, max(rounds) + margin)
    axes.xaxis.set_major_locator(MaxNLocator(nbins="auto", steps=[1, 2, 2.5, 5, 10], integer=True, min_n_ticks=1))
    style_axes(axes)


def _coloured(points: Mapping[str, Points]) -> list[Curve]:
    """Give each name a colour, and from the seventh name on also another dash."""
    styles = LINES * (len(points) // len(LINES) + 1)
    return [Curve(name, values, colour, dash) for (name, values), (colour, dash) in zip(points.items(), styles)]


def _points(history: History, key: str) -> list[tuple[float, float]]:
    """(round, value) of a column; for a column in `TOTALS`, the value is the share of the total."""
    measure, slash, site = key.partition("/")
    points = [(row["round"], row[key]) for row in history if isinstance(row.get(key), (int, float))]
    if measure in TOTALS:
        totals = dict(_points(history, TOTALS[measure] + slash + site))
        points = [(number, value / totals[number]) for number, value in points if totals.get(number)]
    return [(number, value) for number, value in points if math.isfinite(value)]


def _mean_points(curves: Sequence[Points]) -> list[tuple[float, float]]:
    """The (round, mean value) of several curves."""
    by_round: dict[float, list[float]] = {}
    for number, value in (point for points in curves for point in points):
        by_round.setdefault(number, []).append(value)
    return [(number, fmean(by_round[number])) for number in sorted(by_round)]

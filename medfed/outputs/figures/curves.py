"""Training curves of a run and of a comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from medfed.outputs.figures.figure import BLACK, GREY, LINES, VERMILION, new_figure, style_axes

MAX_NAMED = 12  # curves that a legend can name; more clients are drawn as one band, lowest to highest
MAX_MARKED = 30  # points of a curve that are marked
MEASURES = {  # column of history.csv: the label of the axis
    "train_loss": "training loss",
    "validation_score": "validation score",
    "boundary_distance": "feature distance,\nboundary to background",
    "live_triplets": "share of live triplets",
}
TOTALS = {"live_triplets": "triplets"}  # a column that is drawn as a share: the column with the total
ALWAYS = ("train_loss", "validation_score")  # have a panel even without values
PANEL_IN = (5.0, 3.8)
History = Sequence[Mapping[str, Any]]  # the rows of history.csv, one for each round
Lines = list[tuple[str, pd.Series, dict[str, Any]]]  # (name, values by round, style)
Panels = dict[str, tuple[Lines, list[pd.Series]]]  # by measure: curves, and the values of clients for the band


def training_curves(history: History, data_label: str) -> Figure:
    """A run's values by round, one panel for each: a curve per site and their mean, or a band for many sites."""
    panels: Panels = {}
    for key in MEASURES:
        columns = sorted({column for row in history for column in row if column.startswith(f"{key}/")})
        sites = {column.partition("/")[2]: _values(history, column) for column in columns}
        clients = list(sites.values()) if len(sites) > MAX_NAMED else []
        lines = [] if clients else _coloured(sites)
        if key == "validation_score":
            validation = _values(history, "validation_site_score")
            lines.append(("validation site", validation, {"color": VERMILION, "ls": "--", "lw": 2.0}))
        name = f"mean over {'clients' if clients else 'sites'}"
        panels[key] = [*lines, (name, _values(history, key), {"color": BLACK, "lw": 2.4})], clients
    return _draw(panels, f"Training ({data_label})", ALWAYS)


def unseen_curves(history: History, scores: History, data_label: str) -> Figure:
    """The scores of the unseen site by round, which were measured after training: Figure 7 (a) of ELCFS."""
    panels: Panels = {}
    for key, column in (("validation_score", "score"), ("boundary_distance", "boundary_distance")):
        lines = [("mean over sites that train", _values(history, key), {"color": BLACK, "lw": 2.4})]
        for site, dash in zip(dict.fromkeys(row["site"] for row in scores), ("-", "--", ":")):
            own = _values([row for row in scores if row["site"] == site], column)
            lines.append((f"{site}, unseen, after training", own, {"color": VERMILION, "ls": dash}))
        panels[key] = lines, []
    title = f"The unseen site by round, measured after training:\nmust not choose anything ({data_label})"
    return _draw(panels, title)


def comparison_curves(histories: Mapping[str, Sequence[History]], data_label: str) -> Figure:
    """One curve for each row of a comparison: the mean over its runs, of which each has a history."""
    panels: Panels = {}
    for key in MEASURES:
        runs = {row: pd.concat([_values(run, key) for run in of_row]) for row, of_row in histories.items()}
        panels[key] = _coloured({row: values.groupby(level=0).mean() for row, values in runs.items()}), []
    return _draw(panels, f"Training, mean over the runs ({data_label})", ALWAYS)


def _values(history: History, key: str) -> pd.Series:
    """The known values of a column by round; of a column in `TOTALS`, their shares of the total."""
    values = pd.Series({row["round"]: row.get(key) for row in history}, dtype=float)
    measure, slash, site = key.partition("/")
    if total := TOTALS.get(measure):
        values = values / _values(history, total + slash + site).replace(0, float("nan"))
    return values[values.abs() < float("inf")]


def _coloured(values: Mapping[str, pd.Series]) -> Lines:
    """Give each name a colour, and from the seventh name on also another dash."""
    styles = LINES * (len(values) // len(LINES) + 1)
    return [(name, own, {"color": colour, "ls": dash}) for (name, own), (colour, dash) in zip(values.items(), styles)]


def _draw(panels: Panels, title: str, always: Sequence[str] = ()) -> Figure:
    """Draw the panels with values, and those of `always`: lines, and the range of clients as a band."""
    shown = {
        key: ([line for line in lines if len(line[1])], [own for own in clients if len(own)])
        for key, (lines, clients) in panels.items()
    }
    shown = {key: panel for key, panel in shown.items() if any(panel) or key in always}
    figure = new_figure(PANEL_IN[0] * max(1, len(shown)), PANEL_IN[1], title)
    for axes, (key, (lines, clients)) in zip(figure.subplots(1, max(1, len(shown)), squeeze=False)[0], shown.items()):
        if clients:
            band = pd.concat(clients).groupby(level=0).agg(["min", "max"])
            name = f"lowest to highest of {len(clients)} clients"
            axes.fill_between(band.index, band["min"], band["max"], color=GREY, alpha=0.25, linewidth=0, label=name)
        for name, values, style in lines:
            marks = {"marker": "o" if len(values) <= MAX_MARKED else "", "ms": 4 if len(values) > 1 else 7, "mew": 0}
            label = f" {name}" if name.startswith("_") else name  # Matplotlib leaves names with "_" out of the legend
            axes.plot(values.index, values, label=label, **{"lw": 1.3, **style, **marks})
        axes.set(xlabel="round", ylabel=MEASURES[key])
        _style_rounds(axes, pd.concat([*clients, *(values for _, values, _ in lines)] or [pd.Series()]).index)
        if lines or clients:
            axes.legend(fontsize=8, edgecolor="none")
        else:
            axes.text(0.5, 0.5, "none recorded", ha="center", va="center", transform=axes.transAxes)
    return figure


def _style_rounds(axes: Axes, rounds: pd.Index) -> None:
    """Whole numbers on the axis of rounds, which ends less than a round before and after the curves."""
    if len(rounds):
        margin = min(max(0.02 * (rounds.max() - rounds.min()), 0.2), 0.5)
        axes.set_xlim(rounds.min() - margin, rounds.max() + margin)
    axes.xaxis.set_major_locator(MaxNLocator(nbins="auto", steps=[1, 2, 2.5, 5, 10], integer=True, min_n_ticks=1))
    style_axes(axes)

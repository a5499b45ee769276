"""Training curves of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from medfed.outputs.figures.figure import BLACK, LINES, UNSEEN, new_figure, save_png, style_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_NAMED = 12  # curves that a legend can name; of more clients all are grey


def save_training_curves(
    history: Sequence[Mapping], path: str | Path, data_label: str, ends: Mapping[str, tuple[int, float]] | None = None
) -> None:
    """Training loss and validation score by round, mean over sites, with a thin line a site where there is one.

    Where it was measured also how far the features of outlines are from those of the background beside them.

    That of a validation site is dashed and in the colour of what took no part.

    Args:
        history: rows {round, train_loss, validation_score (None where not validated)}, and `train_loss/SITE` and
            `validation_score/SITE` where known; `validation_site_score` where there is a validation site; likewise
            `boundary_distance`.
        ends: (round, boundary distance) of each site that took no part: a point, as it is measured once.
    """
    shown = [("train_loss", "training loss"), ("validation_score", "validation score")]
    if any(row.get("boundary_distance") is not None for row in history):
        shown.append(("boundary_distance", "feature distance, boundary to background"))
    figure = new_figure(4.75 * len(shown), 3.8)
    for axes, (key, name) in zip(figure.subplots(1, len(shown)), shown):
        sites = sorted({column for row in history for column in row if column.startswith(f"{key}/")})
        if len(sites) > MAX_NAMED:
            for column in sites:
                _curve(axes, history, column, color="#999999", linewidth=0.5, alpha=0.5)
        else:
            for column, (colour, dash) in zip(sites, LINES * (len(sites) // len(LINES) + 1)):
                _curve(axes, history, column, color=colour, linestyle=dash, linewidth=1, label=column.partition("/")[2])
        over = f"clients (grey: {len(sites)})" if len(sites) > MAX_NAMED else "sites"
        _curve(axes, history, key, color=BLACK, linewidth=2, label=f"mean over {over}")
        if key == "validation_score":
            alone = {"color": UNSEEN, "linestyle": "--", "linewidth": 2, "label": "validation site"}
            _curve(axes, history, "validation_site_score", **alone)
        for (site, end), marker in zip((ends or {}).items() if key == "boundary_distance" else (), "D*"):
            axes.plot(*end, marker, color=UNSEEN, markersize=8, label=f"{site}, took no part")
        axes.set(xlabel="round", ylabel=name)
        axes.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
        style_axes(axes)
        if axes.lines:
            axes.legend(fontsize=8, frameon=False)
        else:
            axes.text(0.5, 0.5, "none recorded", ha="center", va="center", transform=axes.transAxes)
    save_png(figure, path, f"Training ({data_label})")


def _curve(axes: Axes, history: Sequence[Mapping], key: str, **style: Any) -> None:
    points = [(row["round"], row[key]) for row in history if row.get(key) is not None]
    if points:
        axes.plot(*zip(*points), marker="o" if len(points) <= 30 else "", markersize=3, **style)

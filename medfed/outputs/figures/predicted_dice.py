"""The predicted Dice of cases without labels, the risk-coverage curve, and the distance of the images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from medfed.outputs.figures.figure import BLUE, GREY, PALE, VERMILION, new_figure, save_png, style_axes

MAX_FACTS = 13


def save_predicted_dice(
    rows: Sequence[Mapping[str, Any]],
    entry: Mapping[str, Any],
    distances: Sequence[Mapping[str, Any]],
    path: Path,
    title: str,
) -> None:
    """Write three panels for one structure: predicted Dice, risk-coverage curve, and facts about the images.

    The first shows the predicted Dice of each case with its interval, in ascending order, and the true Dice if known.
    The second shows the mean of 1 - Dice over the cases with the highest agreement. The third shows where the
    hospital's images are in the range of the sites' images.

    Args:
        rows: one row for each case, with "predicted_dice", "low", "high", and possibly "true_dice".
        entry: the entry of the structure in `summary.json`.
        distances: the comparison of the images in `summary.json`.
    """
    figure = new_figure(13.5, 4.2)
    cases, curve, facts = figure.subplots(1, 3)
    known = sorted((row for row in rows if row["predicted_dice"] is not None), key=lambda row: row["predicted_dice"])
    positions = range(len(known))
    intervals = [(index, row["low"], row["high"]) for index, row in enumerate(known) if row["low"] is not None]
    if intervals:
        cases.vlines(*zip(*intervals), color=PALE, linewidth=2)
    cases.plot(positions, [row["predicted_dice"] for row in known], ".", color=BLUE, label="predicted")
    if true := [(index, row["true_dice"]) for index, row in enumerate(known) if row.get("true_dice") is not None]:
        cases.plot(*zip(*true), "x", color=VERMILION, markersize=5, label="true")
    cases.set(xlabel="cases, lowest prediction first", ylabel="Dice", ylim=(-0.03, 1.03), xticks=[])
    if known:
        cases.legend(fontsize=8, loc="lower right")
    curves = [("predicted", entry["risk_coverage"], BLUE)]
    curves += [("true", entry["check"]["risk_coverage"], VERMILION)] if "check" in entry else []
    for label, points, colour in curves:
        if points:
            curve.step(
                [0.0, *(point[0] for point in points)],
                [points[0][1], *(point[1] for point in points)],
                where="pre",
                color=colour,
                label=label,
            )
    curve.set(xlabel="coverage (fraction of cases, highest agreement first)", ylabel="mean of 1 - Dice", xlim=(0, 1))
    curve.set_ylim(bottom=0)
    if any(points for _, points, _ in curves):
        curve.legend(fontsize=8)
    _draw_facts(facts, distances[:MAX_FACTS])
    for axes in (cases, curve):
        style_axes(axes)
    save_png(figure, path, title)


def _draw_facts(axes: Any, distances: Sequence[Mapping[str, Any]]) -> None:
    """Draw the hospital's mean of each fact on the range of the sites, which is scaled to 0 to 1."""
    axes.axvspan(0, 1, color=PALE)
    for height, row in enumerate(reversed(distances)):
        width = row["high"] - row["low"]
        place = (row["mean"] - row["low"]) / width if width > 0 else 0.5
        axes.plot(min(max(place, -1.0), 2.0), height, "o", color=GREY if row["inside"] else VERMILION)
    axes.set_yticks(range(len(distances)), [row["name"] for row in reversed(distances)], fontsize=8)
    axes.set(xlim=(-1.1, 2.1), xticks=[0, 1], xticklabels=["lowest", "highest"], xlabel="range of the sites' images")
    style_axes(axes, "x")

"""Classified images of the unseen site, each with its class and the predicted class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from medfed.outputs.figures.figure import (
    GREEN,
    VERMILION,
    add_legend,
    as_array,
    figure_with_panels,
    new_figure,
    save_png,
    shorten_name,
    show_image,
)
from medfed.results.scores import predictions

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def select_confident(scores: pd.DataFrame, n: int = 5) -> list[Any]:
    """The unseen site's rows of `predictions` with the most confident ones: up to `n` right, then `n` wrong ones."""
    images = predictions(scores[scores.role == "unseen"])
    ranked = images.sort_values(["confidence", "site", "image"], ascending=[False, True, True])
    return [row for correct in (True, False) for row in ranked[ranked.correct == correct].head(n).itertuples()]


def save_confident_examples(
    cases: Sequence[Mapping], path: str | Path, data_label: str, sites: str = "the unseen site"
) -> None:
    """Write images with their predictions: right ones in the upper row, wrong ones in the lower row. A case has `row`
    (from `select_confident`) and `image` (C, H, W) in [0, 1]; `sites` is part of the title."""
    groups = [[case for case in cases if case["row"].correct == correct] for correct in (True, False)]
    figure = new_figure(1.0 + 2.1 * max(3, *map(len, groups)), 6.0)
    panels = figure.subplots(2, max(1, *map(len, groups)), squeeze=False)
    for line, group, name in zip(panels, groups, ("right", "wrong")):
        for axes in line:
            axes.set_axis_off()
        for axes, case in zip(line, group):
            _example(axes, case)
        title = f"most confident\n{name}" if group else f"none {name}"
        line[0].text(-0.12, 0.5, title, transform=line[0].transAxes, rotation=90, ha="right", va="center", fontsize=10)
    save_png(figure, path, f"Most confident predictions at {sites} ({data_label})")


def save_common_examples(cases: Sequence[Mapping], path: str | Path, data_label: str) -> None:
    """Write classified images that are the same for every method (`select_common_cases`), in the given order, with
    green or red frames for right or wrong predictions. `cases` as in `save_confident_examples`."""
    figure, panels = figure_with_panels(len(cases), 2.4)
    for axes, case in zip(panels, cases):
        _example(axes, case)
    frames = [("s", GREEN, "right prediction"), ("s", VERMILION, "wrong prediction")]
    add_legend(figure, frames)
    save_png(figure, path, f"Images chosen without regard to scores ({data_label})")


def _example(axes: Axes, case: Mapping) -> None:
    """Draw an image with its true and its predicted class, framed in green if they agree."""
    row = case["row"]
    axes.set_axis_on()
    show_image(axes, as_array(case["image"]))
    axes.spines[:].set(color=GREEN if row.correct else VERMILION, linewidth=2.5)
    predicted = f"{row.predicted} {100 * row.confidence:.1f} %"
    lines = (shorten_name(row.site), shorten_name(row.image), f"is {row.label}", f"predicted {predicted}")
    axes.set_title("\n".join(lines), fontsize=8)

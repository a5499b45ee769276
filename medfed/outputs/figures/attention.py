"""Attention maps: where the network's attention lies in the images that it classified."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from medfed.outputs.figures.figure import as_array, new_figure, save_png, show_image


def save_attention_maps(cases: Sequence[Mapping], path: str | Path, data_label: str) -> None:
    """Write images and, below each image, a map of where the network's attention lies (1 is average attention).

    Zero padding changes the scores at the border even for an image of constant colour; include such an image as a case,
    because its map shows only this effect.

    Args:
        cases: one dict per image, with `title`, `image` (C, H, W) in [0, 1], and `scores` (h, w): the attention on each
            cell of a coarser grid of h x w cells, at least 0, with the sum 1.
    """
    scores = [as_array(case["scores"]) for case in cases]
    relative = [score * score.size for score in scores]
    reach = max(1e-6, *(np.abs(share - 1).max() for share in relative))
    figure = new_figure(0.8 + 2.1 * len(cases), 5.2)
    panels = figure.subplots(2, len(cases), squeeze=False)
    for column, case, share in zip(panels.T, cases, relative, strict=True):
        image = as_array(case["image"])
        for axes in column:
            show_image(axes, image)
        extent = (-0.5, image.shape[2] - 0.5, image.shape[1] - 0.5, -0.5)
        heat_map = column[1].imshow(
            share, extent=extent, cmap="PuOr_r", vmin=1 - reach, vmax=1 + reach, alpha=0.6, interpolation="nearest"
        )
        column[0].set_title(case["title"], fontsize=8)
    figure.colorbar(heat_map, ax=list(panels[1]), shrink=0.8, label="score, relative to equal attention")
    rows, columns = scores[0].shape
    save_png(figure, path, f"Where the attention lies, {rows} x {columns} cells ({data_label})")

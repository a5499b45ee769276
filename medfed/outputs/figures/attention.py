"""Where a network's attention looks, over the images that it classified."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from medfed.outputs.figures.figure import as_array, new_figure, save_png, show_image


def save_attention_maps(cases: Sequence[Mapping], path: str | Path, data_label: str) -> None:
    """Each image as it is, and below it its scores: 1 is what every position would get if all counted alike.

    A network sees the zeros that pad its maps, and cells at the border stand out by that alone. So one of the cases
    should be an even image: what it has is of no content.

    Args:
        cases: mappings with `title`, `image` (C, H, W) in [0, 1], and `scores` (h, w), at least 0 and of sum 1.
    """
    scores = [as_array(case["scores"]) for case in cases]
    shares = [found * found.size for found in scores]
    reach = max(1e-6, *(np.abs(share - 1).max() for share in shares))
    figure = new_figure(0.8 + 2.1 * len(cases), 5.2)
    panels = figure.subplots(2, len(cases), squeeze=False)
    for column, case, share in zip(panels.T, cases, shares, strict=True):
        image = as_array(case["image"])
        for axes in column:
            show_image(axes, image)
        extent = (-0.5, image.shape[2] - 0.5, image.shape[1] - 0.5, -0.5)
        drawn = column[1].imshow(share, extent=extent, cmap="PuOr_r", vmin=1 - reach, vmax=1 + reach, alpha=0.6,
                                 interpolation="nearest")  # fmt: skip
        column[0].set_title(case["title"], fontsize=8)
    figure.colorbar(drawn, ax=list(panels[1]), shrink=0.8, label="score, relative to an even one")
    rows, columns = scores[0].shape
    save_png(figure, path, f"Where attention looks, a map of {rows} x {columns} cells ({data_label})")

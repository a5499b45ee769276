"""A sheet of images in each other's styles, by which a person judges a style codec."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from medfed.outputs.figures.figure import new_figure, save_png


def save_codec_examples(contents: Sequence, reconstructions: Sequence, styles: Sequence, styled: Sequence[Sequence],
                path: str | Path, data_label: str) -> None:
    """Write a PNG: a row a content, a column a style; the images as they are and encoded and decoded stand on the left.

    Args:
        contents, reconstructions: N images (C, H, W) in [0, 1]; the second at alpha = 0.
        styles: M images.
        styled: N rows of M images.
        data_label: what the images are; in the title.
    """
    figure = new_figure(1.5 * (len(styles) + 2) + 0.2, 1.55 * (len(contents) + 1) + 0.5)
    panels = figure.subplots(len(contents) + 1, len(styles) + 2, squeeze=False)
    rows = [[None, None, *styles], *([a, b, *c] for a, b, c in zip(contents, reconstructions, styled, strict=True))]
    for line, images in zip(panels, rows, strict=True):
        for axes, image in zip(line, images, strict=True):
            axes.set_axis_off()
            if image is not None:
                axes.imshow(_rgb(image), interpolation="nearest")
    for axes, title in zip(panels[1], ("image", "alpha = 0")):
        axes.set_title(title, fontsize=8)
    for axes in panels[0, 2:]:
        axes.set_title("style", fontsize=8)
    save_png(figure, path, f"Images in other styles ({data_label})")


def _rgb(image: Any) -> np.ndarray:
    """(C, H, W) to (H, W, 3)."""
    pixels = np.moveaxis(np.asarray(image), 0, -1).clip(0, 1)
    return pixels.repeat(3, axis=-1) if pixels.shape[-1] == 1 else pixels

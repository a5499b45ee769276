"""Images in the styles of other images, to check a style codec by eye."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from medfed.outputs.figures.figure import new_figure, save_png


def save_codec_examples(
    contents: Sequence,
    reconstructions: Sequence,
    styles: Sequence,
    styled: Sequence[Sequence],
    path: str | Path,
    data_label: str,
) -> None:
    """Write a PNG file with a grid of restyled images: one row per content image, one column per style image.

    The first column shows the content images. The second column shows their reconstructions by the style codec (the
    encoder and decoder that change the style of an image). The style images are in the row above the grid.

    Args:
        contents: N images (C, H, W) in [0, 1].
        reconstructions: N images (C, H, W): the content images, encoded and decoded without a change of style (with the
            strength alpha = 0).
        styles: M images (C, H, W) in [0, 1].
        styled: N rows of M images (C, H, W): the content image of the row in the style of the column's image.
        path: the PNG file to write.
        data_label: which data the figure shows, for example "synthetic phantom data"; part of the title.
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
    """Convert an image (C, H, W) with one or three channels to (H, W, 3) in [0, 1]."""
    pixels = np.moveaxis(np.asarray(image), 0, -1).clip(0, 1)
    return pixels.repeat(3, axis=-1) if pixels.shape[-1] == 1 else pixels

"""Figures of styles: an image in the styles of other sites, one image per site in every style, and histograms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from medfed.outputs.figures.figure import (
    LINES,
    as_array,
    new_figure,
    save_png,
    show_image,
    style_axes,
    to_display_orientation,
)

N_BINS = 64  # of a histogram of intensities
GAP = 0.06  # between two images of a grid, as a fraction of their width


def save_style_gallery(
    original: Any, styled: Mapping[str, object], path: str | Path, data_label: str, axes: str | None = None
) -> None:
    """Write an image (C, H, W) in [0, 1], and by title the same image in other styles with the difference below."""
    images = {"original": original} | dict(styled)
    arrays = {name: to_display_orientation(as_array(image), axes) for name, image in images.items()}
    first = arrays["original"]
    low, high = min(0.0, *(a.min() for a in arrays.values())), max(1.0, first.max())
    changes = {name: (array - first).mean(axis=0) for name, array in arrays.items()}
    reach = max(1e-6, *(np.abs(change).max() for change in changes.values()))
    figure = new_figure(1.0 + 2.2 * len(arrays), 0.7 + 2 * 2.1 * first.shape[1] / first.shape[2])
    panels = figure.subplots(2, len(arrays), squeeze=False)
    for column, (name, array) in zip(panels.T, arrays.items()):
        show_image(column[0], (array - low) / (high - low))
        difference = column[1].imshow(changes[name], cmap="PuOr_r", vmin=-reach, vmax=reach)
        column[0].set_title(name, fontsize=10)
        column[1].set_axis_off()
    panels[1, 0].clear()
    panels[1, 0].set_axis_off()
    name = "difference" if len(first) == 1 else "difference,\nmean over channels"
    panels[1, 0].text(0.95, 0.5, name, ha="right", va="center", fontsize=9)
    figure.colorbar(difference, ax=list(panels[1]), shrink=0.8, label="change of intensity")
    save_png(figure, path, f"One image in the styles of other sites ({data_label})")


def save_style_grid(
    images_by_site: Mapping[str, tuple[object, Mapping[str, object]]],
    path: str | Path,
    data_label: str,
    axes: str | None = None,
) -> None:
    """Write one image of each source site in every style: one row per image, the original on the left. Values are
    (image (C, H, W) in [0, 1], {site: the image in its style}); a missing style leaves a white place."""
    sites = sorted({name for _, styled in images_by_site.values() for name in styled})
    lines = [[image, *(styled.get(name) for name in sites)] for image, styled in images_by_site.values()]
    grid, rows, columns = _tiled(
        [
            [None if image is None else to_display_orientation(as_array(image), axes).clip(0, 1) for image in line]
            for line in lines
        ]
    )
    figure = new_figure(max(6.5, 1.0 + 1.9 * (1 + len(sites))), 0.7 + 1.9 * len(images_by_site))
    panel = figure.subplots()
    show_image(panel, grid)
    panel.set_xticks(columns, ["original", *(f"as at {name}" for name in sites)])
    panel.set_yticks(rows, list(images_by_site), rotation=90, va="center")
    panel.tick_params(length=0, labelsize=9, labeltop=True, labelbottom=False)
    panel.spines[:].set_visible(False)
    save_png(figure, path, f"Each site's image in every style ({data_label})")


def _tiled(lines: Sequence[Sequence[np.ndarray | None]]) -> tuple[np.ndarray, list[float], list[float]]:
    """Join lines of images (C, H, W) to one image with white gaps (None: a white place), because many panels draw
    slowly. Also return the middles of lines and columns, in pixels."""
    channels, height, width = next(image for line in lines for image in line if image is not None).shape
    gap = max(1, round(GAP * width))
    tops, lefts = ([k * (size + gap) for k in range(n)] for size, n in ((height, len(lines)), (width, len(lines[0]))))
    joined = np.ones((channels, tops[-1] + height, lefts[-1] + width), np.float32)
    for top, line in zip(tops, lines):
        for left, image in zip(lefts, line):
            if image is not None:
                joined[:, top : top + height, left : left + width] = image
    return joined, [top + (height - 1) / 2 for top in tops], [left + (width - 1) / 2 for left in lefts]


def save_histograms(images_by_site: Mapping[str, tuple], path: str | Path, data_label: str) -> None:
    """Write histograms of the intensities (means over channels) of each site, before and after an exchange of styles.

    After Figure 3 of CCST (Chen et al., Federated Domain Generalization for Image Recognition via Cross-Client Style
    Transfer, WACV 2023, https://arxiv.org/abs/2210.00912). Each site has images before and after, (N, C, H, W).
    """
    intensities = {site: [as_array(images).mean(axis=1) for images in pair] for site, pair in images_by_site.items()}
    values = [image for pair in intensities.values() for image in pair]
    low, high = min(image.min() for image in values), max(image.max() for image in values)
    edges = np.linspace(low, max(high, low + 1e-6), N_BINS + 1)
    figure = new_figure(9.5, 3.9)
    panels = figure.subplots(1, 2, sharex=True, sharey=True)
    for axes, which, name in zip(panels, (0, 1), ("before the exchange of styles", "after the exchange of styles")):
        for (site, pair), (colour, dash) in zip(intensities.items(), LINES * (len(intensities) // len(LINES) + 1)):
            share = np.histogram(pair[which], edges)[0] / pair[which].size
            axes.stairs(100 * share, edges, color=colour, linestyle=dash, linewidth=1.4, label=site)
        axes.set(xlabel="intensity", ylabel="pixels (%)" if not which else "")
        axes.set_title(name, fontsize=10)
        style_axes(axes)
    panels[1].legend(fontsize=8, frameon=False)
    save_png(figure, path, f"Intensities of the training images by site ({data_label})")

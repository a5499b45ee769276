"""Figures of styles: images in the styles of other sites, histograms, and a map of restyled copies by t-SNE.

`interpolation_map` is Figure 6 (a) of ELCFS (Liu et al., "FedDG", CVPR 2021, https://arxiv.org/abs/2103.06030). The
paper does not say which numbers of an image enter the t-SNE; here, those of `describe_style` do, standardised over the
original images.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from medfed.outputs.figures.figure import (
    LINES,
    PURPLE,
    add_legend,
    as_array,
    new_figure,
    style_axes,
    tiled,
    to_display_orientation,
    to_pixels,
)

N_BINS = 64  # of a histogram of intensities
GAP = 0.06  # between two images of a grid, as a fraction of their width
RINGS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192)  # inner radii, in cycles per field of view
MIN_AMPLITUDE = 1e-5  # of images in [0, 1]
PERPLEXITY, STEPS = 30, 300
Images = Any  # (N, C, H, W) in [0, 1], a tensor or an array


def style_grid(
    images_by_site: Mapping[str, tuple[Any, Mapping[str, Any]]], data_label: str, axes: Sequence[str] | None
) -> Figure:
    """One line for each site with its image (C, H, W) in [0, 1], and the image in the style of each other site."""
    sites = sorted({name for _, styled in images_by_site.values() for name in styled})
    lines: list[list[np.ndarray | None]] = []
    for image, styled in images_by_site.values():
        shown = to_pixels(to_display_orientation(as_array(image), axes))
        height, width = shown.shape[:2]
        others = (as_array(styled[name]) if name in styled else None for name in sites)
        lines.append([shown, *(None if i is None else to_pixels(to_display_orientation(i, axes)) for i in others)])
    gap = max(1, round(GAP * width))
    joined, tops, middles = tiled(lines, (gap, gap))
    size_in = max(6.5, 1.0 + 1.9 * (1 + len(sites))), 0.7 + 1.9 * len(lines)
    figure = new_figure(*size_in, f"Each site's image in every style ({data_label})")
    panel = figure.subplots()
    panel.imshow(joined, interpolation="nearest")
    panel.set_xticks(middles, ["original", *(f"as at {name}" for name in sites)])
    panel.set_yticks([top + height / 2 for top in tops], list(images_by_site), rotation=90, va="center")
    panel.tick_params(length=0, labelsize=9, labeltop=True, labelbottom=False)
    panel.spines[:].set_visible(False)
    return figure


def histograms(images_by_site: Mapping[str, tuple[Images, Images]], data_label: str) -> Figure:
    """Intensities (means over channels) of each site before and after an exchange of styles, after Figure 3 of CCST."""
    intensities = {site: [as_array(images).mean(axis=1) for images in pair] for site, pair in images_by_site.items()}
    values = [image for pair in intensities.values() for image in pair]
    low, high = min(image.min() for image in values), max(image.max() for image in values)
    edges = np.linspace(low, max(high, low + 1e-6), N_BINS + 1)
    figure = new_figure(9.5, 3.9, f"Intensities of the training images by site ({data_label})")
    panels = figure.subplots(1, 2, sharex=True, sharey=True)
    for which, (axes, name) in enumerate(zip(panels, ("before", "after"))):
        for (site, pair), (colour, dash) in zip(intensities.items(), LINES * (len(intensities) // len(LINES) + 1)):
            share = np.histogram(pair[which], edges)[0] / pair[which].size
            axes.stairs(100 * share, edges, color=colour, linestyle=dash, linewidth=1.4, label=site)
        axes.set(xlabel="intensity", ylabel="" if which else "pixels (%)")
        axes.set_title(f"{name} the exchange of styles", fontsize=10)
        style_axes(axes)
    panels[1].legend(fontsize=8, frameon=False)
    return figure


def interpolation_map(site: str, images: Images, panels: Mapping[str, Mapping[str, Images]], data_label: str) -> Figure:
    """One site's images and, by title and style, their copies with one rule for the mixing ratio, by t-SNE."""
    from sklearn.manifold import TSNE

    original = describe_style(as_array(images))
    copies = [(title, name, own) for title, styled in panels.items() for name, own in styled.items()]
    described = np.stack([original, *(describe_style(as_array(own)) for *_, own in copies)])
    spread = original.std(axis=0)
    varies = spread > 1e-9
    points = (described - original.mean(axis=0))[..., varies] / spread[varies]
    joined = points.reshape(-1, points.shape[-1]).astype(np.float32)
    tsne = TSNE(perplexity=min(PERPLEXITY, (len(joined) - 1) / 3), init="pca", max_iter=STEPS, random_state=0)
    first, *others = tsne.fit_transform(joined).reshape(*points.shape[:2], 2)
    colours = dict(zip(dict.fromkeys(name for _, name, _ in copies), cycle(c for c, _ in LINES if c != PURPLE)))
    figure = new_figure(5.25 * len(panels), 5.6, f"Restyled copies of one site's images, by t-SNE ({data_label})")
    for axes, title in zip(figure.subplots(1, len(panels), sharex=True, sharey=True), panels):
        for (own_title, name, _), places in zip(copies, others):
            if own_title == title:
                axes.scatter(*places.T, s=20, facecolors="none", edgecolors=colours[name], alpha=0.85)
        axes.scatter(*first.T, s=20, color=PURPLE, alpha=0.85)
        axes.set_title(title, fontsize=10)
        axes.set(xticks=[], yticks=[])
    named = [("o", colour, f"as at {name}") for name, colour in colours.items()]
    add_legend(figure, [("o", PURPLE, f"images of {site}"), *named])
    return figure


def describe_style(images: np.ndarray) -> np.ndarray:
    """Describe images (N, C, H, W) in [0, 1] by numbers (N, D) that depend on appearance, not on shapes."""
    n, channels, height, width = images.shape
    amplitude = np.abs(np.fft.fft2(images)) / (height * width)
    cycles = [np.fft.fftfreq(size, 1 / size) for size in (height, width)]
    ring = np.digitize(np.hypot(cycles[0][:, None], cycles[1]).round(), RINGS) - 1
    rings = [amplitude[..., ring == k].mean(axis=-1) for k in range(len(RINGS)) if (ring == k).any()]
    flat = images.reshape(n, channels, -1)
    parts = [np.log(np.stack(rings, axis=-1) + MIN_AMPLITUDE), flat.mean(-1)[..., None], flat.std(-1)[..., None]]
    parts.append(np.moveaxis(np.quantile(flat, (0.1, 0.5, 0.9), axis=-1), 0, -1))
    joint = np.einsum("nap,nbp->nab", *[flat - flat.mean(-1, keepdims=True)] * 2) / flat.shape[-1]
    rows, columns = np.triu_indices(channels, 1)
    return np.concatenate([part.reshape(n, -1) for part in (*parts, joint[:, rows, columns])], axis=1)

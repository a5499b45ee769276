"""Figures of styles: images in the styles of other sites, histograms, and maps by t-SNE.

In a map, images of similar appearance are close together. `interpolation_map` is Figure 6 (a) of ELCFS (Liu et al.,
"FedDG", CVPR 2021, https://arxiv.org/abs/2103.06030). The paper does not say which numbers of an image enter the t-SNE;
here, those of `describe_style` do, standardised over the original images.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from medfed.outputs.figures.figure import (
    BLACK,
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
MARKERS = ("o", "s", "^")  # of the names 1 to 6, 7 to 12, 13 to 18 of a map
Images = Any  # (N, C, H, W) in [0, 1], a tensor or an array
Group = tuple[str, Images, Sequence, bool]  # name in the legend, images, their patients, and whether they are restyled


def style_gallery(original: Any, styled: Mapping[str, Any], data_label: str, axes: Sequence[str] | None) -> Figure:
    """An image (C, H, W) in [0, 1], and by title the same image in other styles with the difference below; `axes` as in
    `to_display_orientation`."""
    images = {"original": original, **styled}
    arrays = {name: to_display_orientation(as_array(image), axes) for name, image in images.items()}
    first = arrays["original"]
    low, high = min(0.0, *(a.min() for a in arrays.values())), max(1.0, first.max())
    changes = {name: (array - first).mean(axis=0) for name, array in arrays.items()}
    reach = max(1e-6, *(np.abs(change).max() for change in changes.values()))
    gap = max(1, round(GAP * first.shape[2]))
    height_in = 0.9 + 2 * 2.1 * first.shape[1] / first.shape[2]
    figure = new_figure(1.0 + 2.2 * len(arrays), height_in, f"One image in the styles of other sites ({data_label})")
    panels = figure.subplots(2, 1)
    shown, _, middles = tiled([[to_pixels((array - low) / (high - low)) for array in arrays.values()]], (0, gap))
    panels[0].imshow(shown, interpolation="nearest")
    for middle, name in zip(middles, arrays):
        panels[0].text(middle, -gap, name, fontsize=10, ha="center")
    differences = tiled([[None, *list(changes.values())[1:]]], (0, gap))[0]
    drawn = panels[1].imshow(differences, cmap="PuOr_r", vmin=-reach, vmax=reach, interpolation="nearest")
    name = "difference" if len(first) == 1 else "difference,\nmean over channels"
    panels[1].text(middles[0], first.shape[1] / 2, name, ha="center", va="center", fontsize=9)
    for axes_of_line in panels:
        axes_of_line.set_axis_off()
    figure.colorbar(drawn, ax=panels[1], shrink=0.8, label="change of intensity")
    return figure


def style_grid(
    images_by_site: Mapping[str, tuple[Any, Mapping[str, Any]]], data_label: str, axes: Sequence[str] | None
) -> Figure:
    """One image (C, H, W) in [0, 1] of each source site, and by site the image in its style: one line per image, the
    original on the left; a missing style leaves a white place."""
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
    """Histograms of the intensities (means over channels) of each site, before and after an exchange of styles.

    After Figure 3 of CCST (Chen et al., Federated Domain Generalization for Image Recognition via Cross-Client Style
    Transfer, WACV 2023, https://arxiv.org/abs/2210.00912).
    """
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


def style_map(sites: Mapping[str, tuple[Images, Images, Sequence]], data_label: str) -> Figure:
    """The (images, a restyled copy of each, patients) of all sites: first the originals, then also the copies."""
    originals = [(name, images, patients, False) for name, (images, _, patients) in sites.items()]
    copies = [(name, restyled, patients, True) for name, (_, restyled, patients) in sites.items()]
    panels = {"before the exchange": originals, "with the restyled copies": [*originals, *copies]}
    return _map(panels, [colour for colour, _ in LINES], f"Styles of the training images, by t-SNE ({data_label})")


def interpolation_map(
    site: str, images: Images, patients: Sequence, panels: Mapping[str, Mapping[str, Images]], data_label: str
) -> Figure:
    """One site's images and, by title and style, their copies with one rule for the mixing ratio. With a fixed ratio,
    the copies of each style form a distribution of their own; with a random ratio, they fill the space between."""
    groups = {
        title: [(f"images of {site}", images, patients, False)]
        + [(f"as at {name}", copies, patients, True) for name, copies in styled.items()]
        for title, styled in panels.items()
    }
    others = [colour for colour, dash in LINES if dash == "-" and colour != PURPLE]
    return _map(groups, [PURPLE, *others], f"Restyled copies of one site's images, by t-SNE ({data_label})")


def _map(panels: Mapping[str, Sequence[Group]], colours: Sequence[str], title: str) -> Figure:
    """One panel for each title, all by the same t-SNE; it gives the percentage of images whose most similar image of
    another patient has the same name."""
    from sklearn.manifold import TSNE

    points = {id(images): describe_style(as_array(images)) for groups in panels.values() for _, images, *_ in groups}
    first = next(iter(panels.values()))
    originals = np.concatenate([points[id(images)] for _, images, _, is_restyled in first if not is_restyled])
    mean, spread = originals.mean(axis=0), originals.std(axis=0)
    varies = spread > 1e-9
    points = {key: np.where(varies, (own - mean) / np.where(varies, spread, 1), 0) for key, own in points.items()}
    joined = np.concatenate(list(points.values()), dtype=np.float32)
    tsne = TSNE(perplexity=min(PERPLEXITY, (len(joined) - 1) / 3), init="pca", max_iter=STEPS, random_state=0)
    ends = np.cumsum([len(own) for own in points.values()])[:-1]
    places = dict(zip(points, np.split(tsne.fit_transform(joined), ends)))
    styles = dict(zip(dict.fromkeys(name for name, *_ in first), zip(cycle(colours), np.repeat(MARKERS, 6))))
    figure = new_figure(5.25 * len(panels), 5.6, title)
    for axes, (name, groups) in zip(figure.subplots(1, len(panels), sharex=True, sharey=True), panels.items()):
        labels = np.array([label for label, _, patients, _ in groups for _ in patients])
        shown = np.concatenate([points[id(images)] for _, images, *_ in groups])
        share = site_separability(shown, labels, [patient for _, _, patients, _ in groups for patient in patients])
        chance = sum(np.mean(labels == label) ** 2 for label in styles)
        neighbours = f"nearest neighbour of the same colour: {100 * share:.0f} % (chance {100 * chance:.0f} %)"
        axes.set_title(f"{name}\n{neighbours}", fontsize=10)
        axes.set(xticks=[], yticks=[])
        for label, images, _, is_restyled in sorted(groups, key=lambda group: not group[3]):
            colour, marker = styles[label]
            face = "none" if is_restyled else colour
            x, y = places[id(images)].T
            axes.scatter(x, y, s=20, facecolors=face, edgecolors=colour, marker=marker, linewidths=1.0, alpha=0.85)
    add_legend(figure, [(m, colour, name) for name, (colour, m) in styles.items()] + [("$\\circ$", BLACK, "restyled")])
    return figure


def describe_style(images: np.ndarray) -> np.ndarray:
    """Describe images (N, C, H, W) in [0, 1] by numbers (N, D) that depend on appearance, not on shapes. For each
    channel: the logarithm of the mean Fourier amplitude in up to 16 rings of frequencies, mean, standard deviation, and
    10th, 50th and 90th percentile of the pixels. Covariances between channels follow."""
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


def site_separability(points: np.ndarray, labels: np.ndarray, patients: Sequence) -> float:
    """Fraction of images whose most similar image of another patient has the same label, by Euclidean distance of
    `points` (N, D)."""
    patient_ids = np.unique([str(patient) for patient in patients], return_inverse=True)[1]
    distance = ((points[:, None] - points[None]) ** 2).sum(axis=-1)
    distance[patient_ids[:, None] == patient_ids[None]] = np.inf
    return float((labels[distance.argmin(axis=1)] == labels).mean())

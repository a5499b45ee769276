"""Maps of image styles by t-SNE, in which images of similar appearance are close together.

`save_interpolation_map` is Figure 6 (a) of ELCFS (Liu et al., "FedDG", CVPR 2021, https://arxiv.org/abs/2103.06030).
The paper does not say which numbers of an image enter the t-SNE; here, those of `describe_style` do, standardised over
the original images. scikit-learn computes the t-SNE; the nearest neighbours are computed before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

import numpy as np

from medfed.outputs.figures.figure import BLACK, LINES, PURPLE, add_legend, as_array, new_figure, save_png

RINGS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192)  # inner radii, in cycles per field of view
MIN_AMPLITUDE = 1e-5  # of images in [0, 1]
PERPLEXITY, STEPS = 30, 500
MARKERS = ("o", "s", "^")  # of sites 1 to 6, 7 to 12, 13 to 18


@dataclass(frozen=True)
class RestyledImages:
    """Images of a site, (N, C, H, W) in [0, 1], and by name of a style the same N images in it."""

    images: object
    styled: Mapping[str, object]
    patients: Sequence

    def one_style_per_image(self) -> np.ndarray:
        """One restyled copy of each image, (N, C, H, W), in the styles in turn."""
        styles = [as_array(images) for images in self.styled.values()]
        return np.stack([styles[place % len(styles)][place] for place in range(len(self.patients))])


def save_style_map(sites: Mapping[str, RestyledImages], path: str | Path, data_label: str) -> None:
    """Write a map of the original images of all sites, and one with a restyled copy of each. A panel's title gives the
    percentage of images whose most similar image of another patient is from the same site."""
    names = list(sites)
    labels = np.concatenate([[place] * len(sites[name].patients) for place, name in enumerate(names)])
    patients = [(name, patient) for name in names for patient in sites[name].patients]
    before = [describe_style(as_array(sites[name].images)) for name in names]
    after = [describe_style(sites[name].one_style_per_image()) for name in names]
    points = _scaled(np.concatenate(before), np.concatenate(before + after))
    n, places = len(labels), _embedded(points)
    figure = new_figure(10.5, 5.6)
    panels = figure.subplots(1, 2, sharex=True, sharey=True)
    shares = (
        site_separability(points[:n], labels, patients),
        site_separability(points, np.tile(labels, 2), patients * 2),
    )
    chance = float((np.bincount(labels) / n) @ (np.bincount(labels) / n))
    for axes, title, share in zip(panels, ("before the exchange", "with the restyled copies"), shares):
        neighbours = f"nearest neighbour of the same site: {100 * share:.0f} % (chance {100 * chance:.0f} %)"
        axes.set_title(f"{title}\n{neighbours}", fontsize=10)
        axes.set(xticks=[], yticks=[])
    styles = list(zip(range(len(names)), cycle(colour for colour, _ in LINES), np.repeat(MARKERS, 6)))
    for place, colour, marker in styles:
        own = np.flatnonzero(labels == place)
        panels[0].scatter(*places[own].T, s=22, color=colour, marker=marker, linewidths=0)
        panels[1].scatter(*places[own].T, s=22, color=colour, marker=marker, linewidths=0, alpha=0.3)
        panels[1].scatter(*places[own + n].T, s=22, facecolors="none", edgecolors=colour, marker=marker, linewidths=1.2)
    entries = [(marker, colour, names[place]) for place, colour, marker in styles]
    add_legend(figure, [*entries, ("$\\circ$", BLACK, "restyled")])
    save_png(figure, path, f"Styles of the training images, by t-SNE ({data_label})")


def save_interpolation_map(site: str, panels: Mapping[str, RestyledImages], path: str | Path, data_label: str) -> None:
    """Write one site's images and their restyled copies, one panel for each mixing ratio; Figure 6 (a) of ELCFS. With a
    fixed ratio, the copies of each style form a distribution of their own; with a random ratio, they fill the space
    between."""
    first = next(iter(panels.values()))
    names, n = list(first.styled), len(first.patients)
    labels, patients = np.repeat(np.arange(1 + len(names)), n), [*first.patients] * (1 + len(names))
    originals = describe_style(as_array(first.images))
    copies = [describe_style(as_array(panel.styled[name])) for panel in panels.values() for name in names]
    points = _scaled(originals, np.concatenate([originals, *copies]))
    n_copies, places = n * len(names), _embedded(points)
    figure = new_figure(5.25 * len(panels), 5.6)
    others = [(marker, colour) for marker in MARKERS for colour, dash in LINES if dash == "-" and colour != PURPLE]
    styles = [("o", PURPLE), *(style for style, _ in zip(cycle(others), names))]
    for number, (axes, title) in enumerate(zip(figure.subplots(1, len(panels), sharex=True, sharey=True), panels)):
        shown = np.r_[:n, n + number * n_copies : n + (number + 1) * n_copies]
        share = 100 * site_separability(points[shown], labels, patients)
        chance = f"(chance {100 / len(styles):.0f} %)"
        axes.set_title(f"{title}\nnearest neighbour of the same colour: {share:.0f} % {chance}", fontsize=10)
        axes.set(xticks=[], yticks=[])
        for label, (marker, colour) in reversed(list(enumerate(styles))):  # the originals come last, above the copies
            axes.scatter(*places[shown][labels == label].T, s=20, color=colour, marker=marker, linewidths=0, alpha=0.85)
    entries = [f"images of {site}", *(f"as at {name}" for name in names)]
    add_legend(figure, [(marker, colour, text) for (marker, colour), text in zip(styles, entries)])
    save_png(figure, path, f"Restyled copies of one site's images, by t-SNE ({data_label})")


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
    pairs = joint[:, rows, columns]
    return np.concatenate([part.reshape(n, -1) for part in (*parts, pairs)], axis=1)


def site_separability(points: np.ndarray, labels: np.ndarray, patients: Sequence) -> float:
    """Fraction of images whose most similar image of another patient is from the same site, by Euclidean distance of
    `points` (N, D); `labels` (N,) are the sites."""
    patient_ids = np.unique([str(patient) for patient in patients], return_inverse=True)[1]
    distance = ((points[:, None] - points[None]) ** 2).sum(axis=-1)
    distance[patient_ids[:, None] == patient_ids[None]] = np.inf
    nearest = distance.argmin(axis=1)
    return float((labels[nearest] == labels).mean())


def _scaled(of: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Scale points to mean 0 and standard deviation 1 over `of`; columns that do not vary in `of` become 0."""
    spread = of.std(axis=0)
    return np.where(spread > 1e-9, (points - of.mean(axis=0)) / np.where(spread > 1e-9, spread, 1), 0)


def _embedded(points: np.ndarray) -> np.ndarray:
    """The t-SNE of the points, (N, 2); the same for the same points."""
    from sklearn.manifold import TSNE

    perplexity = min(PERPLEXITY, (len(points) - 1) / 3)
    tsne = TSNE(perplexity=perplexity, init="pca", max_iter=STEPS, random_state=0)
    return tsne.fit_transform(points.astype(np.float32))

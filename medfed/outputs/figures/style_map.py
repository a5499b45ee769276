"""A map of image styles (t-SNE; ELCFS, Figure 6): do sites lie apart, and does the exchange bring them together?

An image is described by numbers that know its look and not its shapes: of each channel the log amplitude of its
spectrum, averaged over rings of frequencies (brightness, contrast, sharpness and noise, without phase), its mean,
spread and three percentiles, and of colours how the channels go together. Each number has mean 0 and spread 1 over the
images as they are. scikit-learn, an optional extra, lays them out in the plane; nearest neighbours are taken before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

import numpy as np

from medfed.outputs.figures.figure import BLACK, LINES, add_legend, as_array, new_figure, save_png

RINGS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192)  # where each begins, cycles per field of view
FAINTEST = 1e-5  # amplitude, of images in [0, 1]
PERPLEXITY, STEPS = 30, 500
MARKERS = ("o", "s", "^")  # of sites 1 to 6, 7 to 12, 13 to 18


@dataclass(frozen=True)
class RestyledImages:
    """Images of a site before and after an exchange.

    images: (N, C, H, W) in [0, 1], as they are.
    styled: the same in other styles, by style.
    patients: the patient of each image.
    """

    images: object
    styled: Mapping[str, object]
    patients: Sequence

    def one_style_per_image(self) -> np.ndarray:
        """(N, C, H, W): each image in one of the styles, which take turns."""
        styles = [as_array(images) for images in self.styled.values()]
        return np.stack([styles[place % len(styles)][place] for place in range(len(self.patients))])


def save_style_map(sites: Mapping[str, RestyledImages], path: str | Path, data_label: str) -> None:
    """Two panels of one map: images as they are, a colour a site; and these, pale, with their restyled copies.

    Above each how often the image nearest in style, of another person, is of the same site.
    """
    names = list(sites)
    labels = np.concatenate([[place] * len(sites[name].patients) for place, name in enumerate(names)])
    people = [(name, person) for name in names for person in sites[name].patients]
    before = [describe_style(as_array(sites[name].images)) for name in names]
    after = [describe_style(sites[name].one_style_per_image()) for name in names]
    points = _scaled(np.concatenate(before), np.concatenate(before + after))
    n, places = len(labels), _embedded(points)
    figure = new_figure(10.5, 5.6)
    panels = figure.subplots(1, 2, sharex=True, sharey=True)
    shares = site_separability(points[:n], labels, people), site_separability(points, np.tile(labels, 2), people * 2)
    chance = float((np.bincount(labels) / n) @ (np.bincount(labels) / n))
    for axes, what, share in zip(panels, ("before the exchange", "together with their restyled copies"), shares):
        told = f"the nearest in style is of the same site: {100 * share:.0f} % (chance {100 * chance:.0f} %)"
        axes.set_title(f"{what}\n{told}", fontsize=10)
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


def describe_style(images: np.ndarray) -> np.ndarray:
    """(N, C, H, W) in [0, 1] to (N, D): what an image looks like, without where what is."""
    n, channels, height, width = images.shape
    amplitude = np.abs(np.fft.fft2(images)) / (height * width)
    cycles = [np.fft.fftfreq(size, 1 / size) for size in (height, width)]
    ring = np.digitize(np.hypot(cycles[0][:, None], cycles[1]).round(), RINGS) - 1
    rings = [amplitude[..., ring == k].mean(axis=-1) for k in range(len(RINGS)) if (ring == k).any()]
    flat = images.reshape(n, channels, -1)
    found = [np.log(np.stack(rings, axis=-1) + FAINTEST), flat.mean(-1)[..., None], flat.std(-1)[..., None]]
    found.append(np.moveaxis(np.quantile(flat, (0.1, 0.5, 0.9), axis=-1), 0, -1))
    joint = np.einsum("nap,nbp->nab", *[flat - flat.mean(-1, keepdims=True)] * 2) / flat.shape[-1]
    rows, columns = np.triu_indices(channels, 1)
    pairs = joint[:, rows, columns]
    return np.concatenate([part.reshape(n, -1) for part in (*found, pairs)], axis=1)


def site_separability(points: np.ndarray, labels: np.ndarray, people: Sequence) -> float:
    """The share of points whose nearest, of those of other people, has their label. 1: sites can be told by style."""
    of_whom = np.unique([str(person) for person in people], return_inverse=True)[1]
    distance = ((points[:, None] - points[None]) ** 2).sum(axis=-1)
    distance[of_whom[:, None] == of_whom[None]] = np.inf
    nearest = distance.argmin(axis=1)
    return float((labels[nearest] == labels).mean())


def _scaled(of: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Mean 0 and spread 1 over `of`; what does not vary there stays 0."""
    spread = of.std(axis=0)
    return np.where(spread > 1e-9, (points - of.mean(axis=0)) / np.where(spread > 1e-9, spread, 1), 0)


def _embedded(points: np.ndarray) -> np.ndarray:
    """(N, 2), the same each time."""
    from sklearn.manifold import TSNE

    perplexity = min(PERPLEXITY, (len(points) - 1) / 3)
    tsne = TSNE(perplexity=perplexity, init="pca", max_iter=STEPS, random_state=0)
    return tsne.fit_transform(points.astype(np.float32))

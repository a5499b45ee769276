"""Confusion matrices by site."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from medfed.metrics.metric import PROBABILITY
from medfed.outputs.figures.figure import BLACK, figure_with_panels, save_png, scores_by_site, site_label
from medfed.results.scores import predictions


def save_confusion_matrices(scores: pd.DataFrame, path: str | Path, data_label: str) -> None:
    """Write one confusion matrix of image numbers per site: rows are true classes, whose shares are the colours."""
    from sklearn.metrics import confusion_matrix

    sites = scores_by_site(scores)
    classes = [name.removeprefix(PROBABILITY) for name in scores.metric.unique()]
    size = max(3.0, 0.5 * len(classes) + 1.6)
    figure, panels = figure_with_panels(len(sites), size)
    matrix = None
    for axes, ((role, site), of_site) in zip(panels, sites.items()):
        images = predictions(of_site)
        counts = confusion_matrix(images.label, images.predicted, labels=classes)
        shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
        matrix = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
        for (row_, column), n in np.ndenumerate(counts):
            if n:
                dark = shares[row_, column] > 0.55
                axes.text(column, row_, n, ha="center", va="center", fontsize=7, color="white" if dark else BLACK)
        axes.set_xticks(range(len(classes)), classes, rotation=90, fontsize=7)
        axes.set_yticks(range(len(classes)), classes, fontsize=7)
        axes.set(xlabel="predicted", ylabel="true")
        axes.set_title(f"{site_label(site, role)}, n={len(images)}", fontsize=9)
    if matrix is not None:
        figure.colorbar(matrix, ax=panels, shrink=0.7, label="share of the true class")
    save_png(figure, path, f"True class by predicted class ({data_label})")

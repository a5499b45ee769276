"""Reliability diagrams and ROC curves by site."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from medfed.metrics.class_metric import compute_class_metric, one_vs_rest, probability_bins
from medfed.metrics.classes.auroc import AreaUnderROC
from medfed.metrics.classes.ece import ExpectedCalibrationError
from medfed.metrics.metric import PROBABILITY
from medfed.outputs.figures.figure import (
    BLACK,
    LINES,
    figure_with_panels,
    new_figure,
    role_colour,
    save_png,
    scores_by_site,
    site_label,
    style_axes,
)
from medfed.results.scores import probabilities_and_labels


def save_reliability_diagrams(scores: pd.DataFrame, path: str | Path, data_label: str) -> None:
    """Write one panel per site with the accuracy by confidence (probability of the predicted class, 15 bins) and the
    expected calibration error. The area of a point grows with the number of images in its bin."""
    sites = scores_by_site(scores)
    figure, panels = figure_with_panels(len(sites), 2.6)
    for axes, ((role, site), of_site) in zip(panels, sites.items()):
        probabilities, labels, _ = probabilities_and_labels(of_site)
        by_bin = pd.DataFrame({"confidence": probabilities.max(1), "share": probabilities.argmax(1) == labels})
        bins = by_bin.groupby(probability_bins(by_bin.confidence))
        (confidence, share), n = bins.mean().to_numpy().T, bins.size().to_numpy()
        axes.plot([0, 1], [0, 1], linestyle="--", color="#888888", linewidth=1)
        axes.vlines(confidence, np.minimum(confidence, share), np.maximum(confidence, share), color="#BBBBBB")
        axes.plot(confidence, share, color=role_colour(role), linewidth=1)
        axes.scatter(confidence, share, s=10 + 150 * n / n.sum(), color=role_colour(role), alpha=0.8, zorder=3)
        ece = compute_class_metric(ExpectedCalibrationError(), probabilities, labels)
        axes.set_title(f"{site_label(site, role)}, n={len(labels)}\nECE {100 * (ece or 0.0):.1f} %", fontsize=9)
        axes.set(xlim=(-0.03, 1.03), ylim=(-0.03, 1.03), aspect="equal", xlabel="confidence", ylabel="accuracy")
        style_axes(axes)
    save_png(figure, path, f"Accuracy by confidence ({data_label})")


def save_roc_curves(scores: pd.DataFrame, path: str | Path, data_label: str) -> None:
    """Write one ROC curve per site, with AUROC; with more than two classes, it is the average of one-vs-rest curves."""
    sites, names = scores_by_site(scores), scores.metric.unique()
    figure = new_figure(6.4, 6.0)
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1], linestyle="--", color="#888888", linewidth=1)
    for ((role, site), of_site), (colour, dash) in zip(sites.items(), LINES * (len(sites) // len(LINES) + 1)):
        probabilities, labels, _ = probabilities_and_labels(of_site)
        area = compute_class_metric(AreaUnderROC(), probabilities, labels)
        label = f"{site_label(site, role)}: " + ("one class only" if area is None else f"{100 * area:.1f} %")
        style: dict[str, Any] = (
            {"color": BLACK, "linewidth": 2.2} if role == "unseen" else {"color": colour, "linewidth": 1.3}
        )
        axes.plot(*macro_roc_curve(probabilities, labels), linestyle=dash, label=label, **style)
    title = (
        f"positive: {names[1].removeprefix(PROBABILITY)}"
        if len(names) == 2
        else "mean over classes, each against the rest"
    )
    axes.set(xlabel="false positive rate", ylabel="true positive rate", xlim=(-0.01, 1.01), ylim=(-0.01, 1.01))
    axes.set_aspect("equal")
    axes.set_title(title, fontsize=10)
    axes.legend(title="AUROC", fontsize=8, title_fontsize=9, loc="lower right")
    style_axes(axes)
    save_png(figure, path, f"ROC by site ({data_label})")


def macro_roc_curve(probabilities: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The false and the true positive rates of the ROC curve whose area is the metric AUROC; empty for one class only.

    With more than two classes, the true positive rates of the classes' curves against all other classes are averaged at
    each false positive rate. Both ends of every vertical step are kept, so that the area equals AUROC.
    """
    from sklearn.metrics import roc_curve

    curves = [roc_curve(hit, score, drop_intermediate=False)[:2] for score, hit in one_vs_rest(probabilities, labels)]
    if not curves:
        return np.empty(0), np.empty(0)
    places = np.unique(np.concatenate([false for false, _ in curves]))
    low = np.mean([np.interp(-places, -false[::-1], true[::-1]) for false, true in curves], axis=0)
    high = np.mean([np.interp(places, false, true) for false, true in curves], axis=0)
    return places.repeat(2), np.stack([low, high], axis=1).ravel()

"""Figures of classification: reliability, ROC and confusion by site, and classified images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from medfed.metrics.class_metric import compute_class_metric, one_vs_rest, probability_bins
from medfed.metrics.classes.auroc import AreaUnderROC
from medfed.metrics.classes.ece import ExpectedCalibrationError
from medfed.metrics.metric import PROBABILITY
from medfed.outputs.figures.figure import (
    BLACK,
    GREEN,
    LINES,
    ROLE_COLOURS,
    VERMILION,
    add_legend,
    as_array,
    figure_with_panels,
    new_figure,
    shorten_name,
    show_image,
    site_label,
    style_axes,
)
from medfed.results.scores import predictions, probabilities_and_labels

Example = tuple[Any, np.ndarray]  # a row of `predictions`, and its image (C, rows, columns) in [0, 1]


def reliability(scores: pd.DataFrame, data_label: str) -> Figure:
    """One panel per site with the accuracy by confidence, and the calibration error; points grow with the images."""
    from sklearn.calibration import CalibrationDisplay

    sites = _by_site(scores)
    figure, panels = figure_with_panels(len(sites), 2.6, f"Accuracy by confidence ({data_label})")
    for axes, ((role, site), of_site) in zip(panels, sites.items()):
        probabilities, labels, _ = probabilities_and_labels(of_site)
        confidence = probabilities.max(1)
        table = pd.DataFrame({"confidence": confidence, "accuracy": probabilities.argmax(1) == labels})
        by_bin = table.groupby(probability_bins(confidence))
        bins, n = by_bin.mean().astype(float), by_bin.size()
        display = CalibrationDisplay(bins.accuracy, bins.confidence, confidence)
        display.plot(ax=axes, color=ROLE_COLOURS[role], linewidth=1, marker="", ref_line=True)
        axes.scatter(bins.confidence, bins.accuracy, 10 + 150 * n / n.sum(), ROLE_COLOURS[role], alpha=0.8, zorder=3)
        axes.legend().set_visible(False)
        ece = compute_class_metric(ExpectedCalibrationError(), probabilities, labels)
        axes.set_title(f"{site_label(site, role)}, n={len(labels)}\nECE {100 * (ece or 0.0):.1f} %", fontsize=9)
        axes.set(xlim=(-0.03, 1.03), ylim=(-0.03, 1.03), aspect="equal", xlabel="confidence", ylabel="accuracy")
        style_axes(axes)
    return figure


def roc(scores: pd.DataFrame, data_label: str) -> Figure:
    """One ROC curve per site, with AUROC; with more than two classes, it is the average of one-vs-rest curves."""
    from sklearn.metrics import RocCurveDisplay

    sites, names = _by_site(scores), scores.metric.unique()
    figure = new_figure(6.4, 6.0, f"ROC by site ({data_label})")
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1], linestyle="--", color="#888888", linewidth=1)
    for ((role, site), of_site), (colour, dash) in zip(sites.items(), LINES * (len(sites) // len(LINES) + 1)):
        probabilities, labels, _ = probabilities_and_labels(of_site)
        area = compute_class_metric(AreaUnderROC(), probabilities, labels)
        name = f"{site_label(site, role)}: " + ("one class only" if area is None else f"{100 * area:.1f} %")
        style = {"color": BLACK, "linewidth": 2.2} if role == "unseen" else {"color": colour, "linewidth": 1.3}
        false, true = macro_roc_curve(probabilities, labels)
        RocCurveDisplay(fpr=false, tpr=true).plot(ax=axes, name=name, curve_kwargs={"linestyle": dash, **style})
    mean = "mean over classes, each against the rest"
    axes.set_title(mean if len(names) > 2 else f"positive: {names[1].removeprefix(PROBABILITY)}", fontsize=10)
    axes.set(xlabel="false positive rate", ylabel="true positive rate", xlim=(-0.01, 1.01), ylim=(-0.01, 1.01))
    axes.legend(title="AUROC", fontsize=8, title_fontsize=9, loc="lower right")
    style_axes(axes)
    return figure


def macro_roc_curve(probabilities: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The false and the true positive rates of the ROC curve whose area is AUROC; empty for one class only."""
    from sklearn.metrics import roc_curve

    curves = [roc_curve(hit, score, drop_intermediate=False)[:2] for score, hit in one_vs_rest(probabilities, labels)]
    if not curves:
        return np.empty(0), np.empty(0)
    places = np.unique(np.concatenate([false for false, _ in curves]))
    low = np.mean([np.interp(-places, -false[::-1], true[::-1]) for false, true in curves], axis=0)
    high = np.mean([np.interp(places, false, true) for false, true in curves], axis=0)
    return places.repeat(2), np.stack([low, high], axis=1).ravel()


def confusion(scores: pd.DataFrame, data_label: str) -> Figure:
    """One confusion matrix of image numbers per site: rows are true classes, whose shares are the colours."""
    from sklearn.metrics import ConfusionMatrixDisplay, confusion_matrix

    sites = _by_site(scores)
    classes = [name.removeprefix(PROBABILITY) for name in scores.metric.unique()]
    size = max(3.0, 0.5 * len(classes) + 1.6)
    figure, panels = figure_with_panels(len(sites), size, f"True class by predicted class ({data_label})")
    for axes, ((role, site), of_site) in zip(panels, sites.items()):
        images = predictions(of_site)
        counts = confusion_matrix(images.label, images.predicted, labels=classes)
        shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
        display = ConfusionMatrixDisplay(shares, display_labels=classes)
        colours = {"cmap": "Blues", "colorbar": False, "im_kw": {"vmin": 0, "vmax": 1}}
        display.plot(ax=axes, xticks_rotation="vertical", text_kw={"fontsize": 7}, **colours)
        for text, n in zip(display.text_.flat, counts.flat):
            text.set_text(n or "")
        axes.tick_params(labelsize=7)
        axes.set(xlabel="predicted", ylabel="true")
        axes.set_title(f"{site_label(site, role)}, n={len(images)}", fontsize=9)
    if panels:
        figure.colorbar(display.im_, ax=panels, shrink=0.7, label="share of the true class")
    return figure


def confident_examples(cases: Sequence[Example], data_label: str, sites: str = "the unseen site") -> Figure:
    """Images with their predictions: right ones in the upper line, wrong ones in the lower line."""
    groups = [[case for case in cases if case[0].correct == correct] for correct in (True, False)]
    longest, title = max(map(len, groups)), f"Most confident predictions at {sites} ({data_label})"
    figure = new_figure(1.0 + 2.1 * max(3, longest), 6.0, title)
    panels = figure.subplots(2, max(1, longest), squeeze=False)
    for line, group, name in zip(panels, groups, ("right", "wrong")):
        for axes in line:
            axes.set_axis_off()
        for axes, case in zip(line, group):
            _draw_example(axes, *case)
        text = f"most confident\n{name}" if group else f"none {name}"
        line[0].text(-0.12, 0.5, text, transform=line[0].transAxes, rotation=90, ha="right", va="center", fontsize=10)
    return figure


def common_examples(cases: Sequence[Example], data_label: str) -> Figure:
    """Images that are the same for every method (`select_common_cases`), with the frames of `confident_examples`."""
    figure, panels = figure_with_panels(len(cases), 2.4, f"Images chosen without regard to scores ({data_label})")
    for axes, case in zip(panels, cases):
        _draw_example(axes, *case)
    add_legend(figure, [("s", GREEN, "right prediction"), ("s", VERMILION, "wrong prediction")])
    return figure


def attention_maps(cases: Sequence[tuple[str, Any, Any]], data_label: str) -> Figure:
    """Images and, below, where the network's attention lies: (title, image (C, H, W), scores (h, w) of sum 1)."""
    rows, columns = as_array(cases[0][2]).shape
    relative = [as_array(scores) * rows * columns for *_, scores in cases]
    reach = max(1e-6, *(np.abs(share - 1).max() for share in relative))
    title = f"Where the attention lies, {rows} x {columns} cells ({data_label})"
    figure = new_figure(0.8 + 2.1 * len(cases), 5.2, title)
    panels = figure.subplots(2, len(cases), squeeze=False)
    for column, (name, image, _), share in zip(panels.T, cases, relative):
        for axes in column:
            show_image(axes, as_array(image))
        extent = (*column[1].get_xlim(), *column[1].get_ylim())
        style = {"cmap": "PuOr_r", "alpha": 0.6, "interpolation": "nearest"}
        heat_map = column[1].imshow(share, extent=extent, vmin=1 - reach, vmax=1 + reach, **style)
        column[0].set_title(name, fontsize=8)
    figure.colorbar(heat_map, ax=list(panels[1]), shrink=0.8, label="score, relative to equal attention")
    return figure


def _by_site(scores: pd.DataFrame) -> Mapping[tuple[str, str], pd.DataFrame]:
    """The scores by (role, site), sorted by role ("seen", "unseen", "validation") and then by name."""
    return {(str(role), str(site)): own for (role, site), own in scores.groupby(["role", "site"])}


def _draw_example(axes: Axes, row: Any, image: np.ndarray) -> None:
    """Draw an image with its true and its predicted class, framed in green if they agree."""
    axes.set_axis_on()
    show_image(axes, image)
    axes.spines[:].set(color=GREEN if row.correct else VERMILION, linewidth=2.5)
    predicted = f"{row.predicted} {100 * row.confidence:.1f} %"
    lines = (shorten_name(row.site), shorten_name(row.image), f"is {row.label}", f"predicted {predicted}")
    axes.set_title("\n".join(lines), fontsize=8)

"""Pictures of classified images by hospital: calibration, ROC, confusion, telling images, and grey levels.

Rows are those of `medfed.metrics.classification_summary`. As in `medfed.outputs.figures.segmentation`, each
function writes one PNG, the same bytes for the same input; `data_label` says in every title what the data are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from medfed.metrics import classification
from medfed.metrics.classification_summary import arrays, classes_of
from medfed.outputs.figures.figure import (
    BLACK,
    GREEN,
    LINES,
    SEEN,
    UNSEEN,
    VERMILION,
    as_array,
    legend,
    save,
    sheet,
    show,
    tidy,
)  # fmt: skip

N_COLUMNS = 5
N_LEVELS = 64  # bins of a grey-level histogram
Site = tuple[str, str]  # (role, name)
LONGEST_NAME = 26  # characters above a picture


def reliability(rows: Sequence[Mapping], path: str | Path, data_label: str) -> None:
    """Accuracy against confidence in 15 bins, a panel a hospital: on the dashed line, confidence can be trusted.

    The area of a point grows with the images in its bin. ECE stands in every panel's title.
    """
    sites = _by_site(rows)
    figure, panels = _panels(len(sites), 2.6)
    for axes, ((role, site), found) in zip(panels, sites.items()):
        probabilities, labels = arrays(found)
        confidence, share, n = classification.reliability_curve(probabilities, labels)
        axes.plot([0, 1], [0, 1], linestyle="--", color="#888888", linewidth=1)
        axes.vlines(confidence, np.minimum(confidence, share), np.maximum(confidence, share), color="#BBBBBB")
        axes.plot(confidence, share, color=_colour(role), linewidth=1)
        axes.scatter(confidence, share, s=10 + 150 * n / n.sum(), color=_colour(role), alpha=0.8, zorder=3)
        ece = classification.expected_calibration_error(probabilities, labels)
        axes.set_title(f"{site} ({role}), n={len(found)}\nECE {100 * ece:.1f} %", fontsize=9)
        axes.set(xlim=(-0.03, 1.03), ylim=(-0.03, 1.03), aspect="equal", xlabel="confidence", ylabel="accuracy")
        tidy(axes)
    save(figure, path, f"Can its confidence be trusted? ({data_label})")


def roc(rows: Sequence[Mapping], path: str | Path, data_label: str) -> None:
    """A ROC curve a hospital with its AUROC; unseen ones thick. Of more than two classes the mean over one-vs-rest."""
    sites, classes = _by_site(rows), classes_of(rows)
    figure = sheet(6.4, 6.0)
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1], linestyle="--", color="#888888", linewidth=1)
    for ((role, site), found), (colour, dash) in zip(sites.items(), LINES * (len(sites) // len(LINES) + 1)):
        curve, area = classification.macro_roc_curve(*arrays(found)), classification.auroc(*arrays(found))
        said = f"{site} ({role}): " + ("one class only" if area is None else f"{100 * area:.1f} %")
        style = {"color": BLACK, "linewidth": 2.2} if role == "unseen" else {"color": colour, "linewidth": 1.3}
        axes.plot(*(curve or ([], [])), linestyle=dash, label=said, **style)
    what = f"positive: {classes[1]}" if len(classes) == 2 else "mean over classes, one against the rest"
    axes.set(xlabel="false positive rate", ylabel="true positive rate", xlim=(-0.01, 1.01), ylim=(-0.01, 1.01))
    axes.set_aspect("equal")
    axes.set_title(what, fontsize=10)
    axes.legend(title="AUROC", fontsize=8, title_fontsize=9, loc="lower right")
    tidy(axes)
    save(figure, path, f"ROC by hospital ({data_label})")


def confusion(rows: Sequence[Mapping], path: str | Path, data_label: str) -> None:
    """What each class was taken for, a panel a hospital: shares of the true class, with the number of images."""
    sites, classes = _by_site(rows), classes_of(rows)
    size = max(3.0, 0.5 * len(classes) + 1.6)
    figure, panels = _panels(len(sites), size)
    drawn = None
    for axes, ((role, site), found) in zip(panels, sites.items()):
        counts = np.zeros((len(classes), len(classes)), dtype=int)
        for row in found:
            counts[classes.index(row["label"]), classes.index(row["predicted"])] += 1
        shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
        drawn = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
        for (row_, column), n in np.ndenumerate(counts):
            if n:
                dark = shares[row_, column] > 0.55
                axes.text(column, row_, n, ha="center", va="center", fontsize=7, color="white" if dark else BLACK)
        axes.set_xticks(range(len(classes)), classes, rotation=90, fontsize=7)
        axes.set_yticks(range(len(classes)), classes, fontsize=7)
        axes.set(xlabel="predicted", ylabel="true")
        axes.set_title(f"{site} ({role}), n={len(found)}", fontsize=9)
    if drawn is not None:
        figure.colorbar(drawn, ax=panels, shrink=0.7, label="share of the true class")
    save(figure, path, f"What each class is taken for ({data_label})")


def telling(rows: Sequence[Mapping], n: int = 5) -> list[dict]:
    """The rows of the unseen images to show: up to `n` most confident right ones, then as many wrong ones."""
    unseen = [dict(row) for row in rows if row["role"] == "unseen"]
    ranked = sorted(unseen, key=lambda row: (-_confidence(row), row["site"], row["patient"]))
    return [row for correct in (1, 0) for row in [row for row in ranked if row["correct"] == correct][:n]]


def examples(cases: Sequence[Mapping], path: str | Path, data_label: str) -> None:
    """Images, those told right above those told wrong, each with what it is and what it was taken for.

    Args:
        cases: {row (one of `telling`), image (C, H, W) in [0, 1]}.
    """
    groups = [[case for case in cases if case["row"]["correct"] == correct] for correct in (1, 0)]
    figure = sheet(1.0 + 2.1 * max(3, *map(len, groups)), 6.0)
    panels = figure.subplots(2, max(1, *map(len, groups)), squeeze=False)
    for line, group, name in zip(panels, groups, ("right", "wrong")):
        for axes in line:
            axes.set_axis_off()
        for axes, case in zip(line, group):
            _example(axes, case)
        said = f"most confident\n{name}" if group else f"none {name}"
        line[0].text(-0.12, 0.5, said, transform=line[0].transAxes, rotation=90, ha="right", va="center", fontsize=10)
    save(figure, path, f"Telling images of the unseen site ({data_label})")


def same_examples(cases: Sequence[Mapping], path: str | Path, data_label: str) -> None:
    """Images that no score chose, in the order given: those of two methods differ in words and frames alone.

    Args:
        cases: as `examples`.
    """
    figure, panels = _panels(len(cases), 2.4)
    for axes, case in zip(panels, cases):
        _example(axes, case)
    frames = [("s", GREEN, "told right"), ("s", VERMILION, "told wrong")]
    legend(figure, frames)
    save(figure, path, f"The same images of the unseen site for every method ({data_label})")


def _example(axes, case: Mapping) -> None:
    row = case["row"]
    axes.set_axis_on()
    show(axes, as_array(case["image"]))
    axes.spines[:].set(color=GREEN if row["correct"] else VERMILION, linewidth=2.5)
    told = f"{row['predicted']} {100 * _confidence(row):.1f} %"
    axes.set_title(f"{row['site']}\n{_short(row['patient'])}\nis {row['label']}\ntaken for {told}", fontsize=8)


def histograms(images_by_site: Mapping[str, tuple], path: str | Path, data_label: str) -> None:
    """Grey levels of each site before and after an exchange of styles (CCST, Figure 3): closer lines are alike.

    Args:
        images_by_site: site: (before, after), each (N, C, H, W); channels are averaged.
    """
    grey = {site: [as_array(images).mean(axis=1) for images in pair] for site, pair in images_by_site.items()}
    values = [image for pair in grey.values() for image in pair]
    low, high = min(image.min() for image in values), max(image.max() for image in values)
    edges = np.linspace(low, max(high, low + 1e-6), N_LEVELS + 1)
    figure = sheet(9.5, 3.9)
    panels = figure.subplots(1, 2, sharex=True, sharey=True)
    for axes, which, name in zip(panels, (0, 1), ("before", "after")):
        for (site, pair), (colour, dash) in zip(grey.items(), LINES * (len(grey) // len(LINES) + 1)):
            share = np.histogram(pair[which], edges)[0] / pair[which].size
            axes.stairs(100 * share, edges, color=colour, linestyle=dash, linewidth=1.4, label=site)
        axes.set(xlabel="grey level", ylabel="pixels (%)" if not which else "")
        axes.set_title(name, fontsize=10)
        tidy(axes)
    panels[1].legend(fontsize=8, frameon=False)
    save(figure, path, f"Grey levels by site, before and after ({data_label})")


def _short(name: str) -> str:
    """The end of a long name, where names of patches differ."""
    return name if len(name) <= LONGEST_NAME else f"…{name[-LONGEST_NAME:]}"


def _by_site(rows: Sequence[Mapping]) -> dict[Site, list[Mapping]]:
    """Seen sites first, each with its rows."""
    found: dict[Site, list[Mapping]] = {}
    for row in sorted(rows, key=lambda row: (row["role"], row["site"])):
        found.setdefault((row["role"], row["site"]), []).append(row)
    return found


def _panels(n: int, size_in: float):
    """A figure with `n` panels in lines of five, and those panels."""
    n_columns = min(N_COLUMNS, max(n, 1))
    n_lines = max(math.ceil(n / n_columns), 1)
    figure = sheet(max(6.0, size_in * n_columns), (size_in + 0.5) * n_lines + 0.5)
    panels = list(figure.subplots(n_lines, n_columns, squeeze=False).flat)
    for axes in panels[n:]:
        axes.set_visible(False)
    return figure, panels[:n]


def _confidence(row: Mapping) -> float:
    return row[f"p_{row['predicted']}"]


def _colour(role: str) -> str:
    return UNSEEN if role == "unseen" else SEEN

"""Scores of predictors that look at no image. A comparison whose FedAvg is not above them has no result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from medfed.api import Comparison
from medfed.datasets.base import Dataset
from medfed.metrics.trivial import ALL_FOREGROUND, NO_FOREGROUND, constant_dice, mean_mask, small_mask
from medfed.outputs.tables.comparison_row import BASELINE
from medfed.tasks.scoring import ALL

Masks = Mapping[str, Sequence[np.ndarray]]  # (S, H, W, D) masks of 0 and 1 by site


@dataclass(frozen=True)
class Trivial:
    """The score of the best trivial predictor.

    Args:
        score: mean over the unseen sites, in percent.
        name: what the predictor does, such as "every pixel is foreground".
    """

    score: float
    name: str


def trivial_scores(comparison: Comparison) -> dict[str, Trivial]:
    """Return the score of the best trivial predictor for each structure; key "all" for classification.

    For classification, it is the most frequent class of the unseen site. For masks, it is the best of an empty mask, a
    mask of all pixels, and the mean mask of the source sites at the threshold with the best Dice there. Each predictor
    is scored by Dice, the mean over the cases, on a grid of 64 x 64 pixels for each slice.

    Args:
        comparison: a comparison with at least one finished run.
    """
    sites = list(dict.fromkeys(fold.site for fold in comparison.plan.folds))
    dataset = comparison.plan.folds[0].config.data.ensure_available()
    if dataset.structures:
        return trivial_dice(read_masks(dataset), dataset.structures, sites)
    labels: dict[str, list[str]] = {}
    for run in comparison.runs:
        labels |= {run.config.federation.unseen_site: [r["label"] for r in run.scores if r["role"] == "unseen"]}
    return {ALL: trivial_accuracy(list(labels.values()))}


def trivial_accuracy(labels: Sequence[Sequence[str]]) -> Trivial:
    """Return the accuracy of the predictor that gives the most frequent class of each unseen site.

    Args:
        labels: the true classes of the images of each unseen site.
    """
    shares = [Counter(of_site).most_common(1)[0][1] / len(of_site) for of_site in labels]
    return Trivial(100 * fmean(shares), "the most frequent class of each unseen site")


def trivial_dice(masks: Masks, structures: Sequence[str], unseen: Sequence[str]) -> dict[str, Trivial]:
    """Return the Dice of the best of three trivial predictors for each structure: empty, all pixels, mean mask.

    Args:
        masks: masks (S, H, W, D) of each site, all with the same H and W.
        structures: names of the S structures.
        unseen: names of the unseen sites. The mean mask of an unseen site is that of all other sites.
    """
    best = {}
    for index, name in enumerate(structures):
        own = {site: [mask[index].astype(np.float64) for mask in of_site] for site, of_site in masks.items()}
        scores: dict[str, list[float]] = {NO_FOREGROUND: [], ALL_FOREGROUND: [],
                                          "the mean mask of the source sites": []}  # fmt: skip
        for site in unseen:
            sources = [mask for other, of_site in own.items() if other != site for mask in of_site]
            predictions = (np.zeros(1), np.ones(1), mean_mask(sources))
            for values, prediction in zip(scores.values(), predictions, strict=True):
                values.append(fmean(constant_dice(prediction, mask) for mask in own[site]))
        label = max(scores, key=lambda key: fmean(scores[key]))
        best[name] = Trivial(100 * fmean(scores[label]), label)
    return best


def read_masks(dataset: Dataset) -> dict[str, list[np.ndarray]]:
    """Read the masks of all cases, resized to 64 x 64 pixels for each slice.

    Args:
        dataset: a dataset with masks that is on the disk.

    Returns:
        For each site, a list of masks (S, 64, 64, D) of 0 and 1.
    """
    masks: dict[str, list[np.ndarray]] = {}
    for site in dataset.site_names():
        volumes = (dataset.read_mask(case, []).as_tensor() for case in dataset.cases(site))
        masks[site] = [small_mask(volume) for volume in volumes]
    return masks


def baseline_score(comparison: Comparison, structure: str, metric: str) -> float | None:
    """Return the average of FedAvg over the unseen sites; the best of its rows if a setting is varied.

    Args:
        comparison: the comparison.
        structure: name of the structure; "all" for classification.
        metric: column of the table: "dice" or "accuracy".

    Returns:
        The score in percent; None if no run of FedAvg is finished, or the table has no such column.
    """
    blocks = [b for b in comparison.tables.unseen.blocks if (b.structure, b.metric) == (structure, metric)]
    lines = [line for block in blocks for line in block.lines if line.method.partition(",")[0] == BASELINE]
    means = [[cell.mean for cell in line.cells if cell] for line in lines]
    return max((fmean(values) for values in means if values), default=None)

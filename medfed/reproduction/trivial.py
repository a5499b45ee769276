"""Scores of predictors that look at no image. A comparison whose FedAvg is not above them has no result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from medfed.api import Comparison
from medfed.datasets.base import Dataset
from medfed.metrics.trivial import ALL_FOREGROUND, NO_FOREGROUND, constant_dice, mean_mask, small_mask
from medfed.outputs.tables.comparison_data import Table
from medfed.outputs.tables.comparison_row import BASELINE
from medfed.tasks.scoring import ALL

CHECKED = ("dice", "accuracy")  # metrics in which FedAvg must be above the trivial predictor
Masks = Mapping[str, Sequence[np.ndarray]]  # (S, H, W, D) masks of 0 and 1 by site


@dataclass(frozen=True)
class Trivial:
    """The score of the best trivial predictor: mean over the sites, in percent, and its name ("every pixel is
    foreground")."""

    score: float
    name: str


def planned_sites(comparison: Comparison, role: str) -> list[str]:
    """The sites that are "unseen" or "validation" in a run of the comparison, whether it is finished or not."""
    return list(dict.fromkeys(getattr(fold.config.federation, f"{role}_site") for fold in comparison.plan.folds))


def trivial_scores(comparison: Comparison, roles: Iterable[str]) -> dict[str, dict[str, Trivial]]:
    """The best trivial predictor for each role and structure ("all" for classification), over all sites of the role.

    FedAvg must be finished at all these sites. For classification, it is the most frequent class of the site. For
    masks, it is the best of an empty mask, a mask of all pixels, and the mean mask of the other sites at the threshold
    with the best Dice there, scored by Dice, the mean over the cases, on a grid of 64 x 64 pixels for each slice.
    """
    dataset = comparison.plan.folds[0].config.data.ensure_available()
    if dataset.structures:
        masks = read_masks(dataset)
        return {role: trivial_dice(masks, dataset.structures, planned_sites(comparison, role)) for role in roles}
    scores = {}
    for role in roles:
        labels: dict[str, list[str]] = {}
        for run in comparison.runs:
            labels |= {
                getattr(run.config.federation, f"{role}_site"): [r["label"] for r in run.scores if r["role"] == role]
            }
        scores[role] = {ALL: trivial_accuracy(list(labels.values()))}
    return scores


def trivial_accuracy(labels: Sequence[Sequence[str]]) -> Trivial:
    """The accuracy of predicting the most frequent class of each site."""
    shares = [Counter(of_site).most_common(1)[0][1] / len(of_site) for of_site in labels]
    return Trivial(100 * fmean(shares), "the most frequent class of each site")


def trivial_dice(masks: Masks, structures: Sequence[str], left_out: Sequence[str]) -> dict[str, Trivial]:
    """The Dice of the best of three trivial predictors for each structure: empty, all pixels, mean mask.

    `masks` has masks (S, H, W, D) of each site, all with the same H and W. The mean mask of a left-out site, which does
    not train, is that of all other sites.
    """
    best = {}
    for index, name in enumerate(structures):
        own = {site: [mask[index].astype(np.float64) for mask in of_site] for site, of_site in masks.items()}
        scores: dict[str, list[float]] = {
            NO_FOREGROUND: [],
            ALL_FOREGROUND: [],
            "the mean mask of the source sites": [],
        }
        for site in left_out:
            sources = [mask for other, of_site in own.items() if other != site for mask in of_site]
            predictions = (np.zeros(1), np.ones(1), mean_mask(sources))
            for values, prediction in zip(scores.values(), predictions, strict=True):
                values.append(fmean(constant_dice(prediction, mask) for mask in own[site]))
        label = max(scores, key=lambda key: fmean(scores[key]))
        best[name] = Trivial(100 * fmean(scores[label]), label)
    return best


def read_masks(dataset: Dataset) -> dict[str, list[np.ndarray]]:
    """The masks of all cases by site, (S, 64, 64, D) of 0 and 1; each slice is resized."""
    masks: dict[str, list[np.ndarray]] = {}
    for site in dataset.site_names():
        volumes = (dataset.read_mask(case, []).as_tensor() for case in dataset.cases(site))
        masks[site] = [small_mask(volume) for volume in volumes]
    return masks


def baseline_score(table: Table, structure: str, sites: Sequence[str]) -> tuple[str, float] | None:
    """The metric ("dice" or "accuracy") and the average of FedAvg over some sites, in percent. The best of its rows if
    a setting is varied; None without a row, or if one has no score at one of the sites."""
    for block in table.blocks:
        if block.structure == structure and block.metric in CHECKED:
            lines = [line for line in block.lines if line.method.partition(",")[0] == BASELINE]
            of_sites = [dict(zip(table.sites, line.cells, strict=True)) for line in lines]
            rows = [[cells.get(site) for site in sites] for cells in of_sites]
            means = [[cell.mean for cell in row if cell] for row in rows]
            if means and all(len(row) == len(sites) for row in means):
                return block.metric, max(map(fmean, means))
    return None

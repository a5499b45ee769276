"""One value of each patient, from the scores of the images: the input of all statistics.

A site's score is the mean of the patients' values. For masks, a patient's value is the mean over the patient's images.
A metric of classification belongs to a set of images; there, the value is the patient's share of it (`jackknife`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from medfed.metrics.class_metric import ClassMetric, compute_class_metric, jackknife_values
from medfed.metrics.mask_metric import ABSENT, FALSE_ALARM, MISSED, OK
from medfed.metrics.metric import Metric
from medfed.results.scores import PROBABILITY

GROUP = ["role", "site", "structure"]
VALUES = [*GROUP, "metric", "unit", "patient", "value", "score"]


def patient_values(scores: pd.DataFrame, metrics: Mapping[str, Metric]) -> pd.DataFrame:
    """The values of the patients of one run, from its scores; columns `VALUES`.

    `score` is the score of the patient alone, for paired tests; NaN for a metric that has none, such as AUROC. A metric
    without values of patients has one row for the site, whose `patient` is "". A value is NaN if the metric is unknown
    for one of the patient's images, or if the images of a site have different units.
    """
    is_probability = scores.metric.str.startswith(PROBABILITY)
    parts = [_mask_values(scores[~is_probability])] if not is_probability.all() else []
    parts += [_class_values(scores[is_probability], metrics)] if is_probability.any() else []
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=VALUES)


def failures(scores: pd.DataFrame, dice_below: float) -> pd.DataFrame:
    """The failed fraction, in percent, of each patient's images, as values of the metrics "low_dice", "missed" and
    "false_alarm"; empty without masks.

    "low_dice": the Dice is below `dice_below`, in (0, 1], of the images with the structure in the true or predicted
    mask; "missed": the predicted mask is empty, of the images with the structure; "false_alarm": it is not, of the
    images without.
    """
    dice = scores[scores.metric == "dice"]
    has = dice.status.isin([OK, MISSED])
    kinds = {
        "low_dice": (dice.status != ABSENT, dice.value < 100 * dice_below),
        "missed": (has, dice.status == MISSED),
        "false_alarm": (~has, dice.status == FALSE_ALARM),
    }
    parts = [dice[possible].assign(metric=kind, value=100.0 * failed) for kind, (possible, failed) in kinds.items()]
    table = pd.concat(parts).groupby([*GROUP, "metric", "unit", "patient"]).value.mean().reset_index()
    return table.assign(score=table.value)


def _mask_values(scores: pd.DataFrame) -> pd.DataFrame:
    """Means over images; an image in which neither mask has the structure does not count."""
    scores = scores[scores.status != ABSENT]
    n_images = scores.groupby(GROUP).image.transform("nunique")
    n_of_unit = scores.groupby([*GROUP, "metric", "unit"]).image.transform("nunique")
    scores = scores.assign(value=scores.value.where(n_of_unit == n_images))
    groups = scores.groupby([*GROUP, "metric", "unit", "patient"]).value
    table = groups.mean().where(groups.count() == groups.size()).reset_index()
    return table.assign(score=table.value)


def _class_values(scores: pd.DataFrame, metrics: Mapping[str, Metric]) -> pd.DataFrame:
    """The values of all metrics whose code is at hand, for each role and site."""
    computable = [metric for metric in metrics.values() if isinstance(metric, ClassMetric)]
    parts = [
        _site_values(of_site, computable).assign(**dict(zip(GROUP, key))) for key, of_site in scores.groupby(GROUP)
    ]
    return pd.concat(parts, ignore_index=True)[VALUES] if parts else pd.DataFrame(columns=VALUES)


def probabilities_and_labels(scores: pd.DataFrame) -> tuple[np.ndarray, np.ndarray, pd.Index]:
    """Probabilities (N, K) in [0, 1], class numbers (N,), and the patient of each image, from rows of probabilities."""
    wide = scores.pivot(index=["patient", "image", "status"], columns="metric", values="value")
    wide = wide[list(dict.fromkeys(scores.metric))]
    classes = [name.removeprefix(PROBABILITY) for name in wide.columns]
    labels = wide.index.get_level_values("status").map(classes.index)
    return wide.to_numpy(), labels.to_numpy(), wide.index.get_level_values("patient")


def _site_values(scores: pd.DataFrame, metrics: list[ClassMetric]) -> pd.DataFrame:
    """The jackknife values of the patients of one site, or, of a metric that has none, its value over all images."""
    probabilities, labels, patients = probabilities_and_labels(scores)
    patient_of, names = pd.factorize(patients, sort=True)
    correct = probabilities.argmax(axis=1) == labels
    parts = []
    for metric in metrics:
        of_patients: Any = names
        values = jackknife_values(metric, probabilities, labels, patient_of)
        own = np.bincount(patient_of, correct) / np.bincount(patient_of) if metric.name == "accuracy" else np.nan
        if np.isnan(values).any():
            score = compute_class_metric(metric, probabilities, labels)
            of_patients, values, own = [""], np.array([score], dtype=np.float64), np.nan
        scale, names_of = 100.0 if metric.unit == "%" else 1.0, {"metric": metric.name, "unit": metric.unit}
        parts.append(pd.DataFrame({"patient": of_patients, "value": scale * values, "score": scale * own, **names_of}))
    return pd.concat(parts, ignore_index=True)

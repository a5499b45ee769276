"""The table of scores, one row for each value of each test image: in memory, as `cases.csv`, and as values of patients.

A site's score is the mean of the patients' values. For masks, a patient's value is the mean over the patient's images.
A metric of classification belongs to a set of images; there, the value is the patient's share of it (`jackknife`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from medfed.core.files import write_atomically
from medfed.metrics.class_metric import ClassMetric, compute_class_metric, jackknife_values
from medfed.metrics.mask_metric import ABSENT, FALSE_ALARM, MISSED, OK
from medfed.metrics.metric import DISTANCE, PERCENT_OF_DIAGONAL, PROBABILITY, Metric, metric_columns
from medfed.results.statistics import limits_of
from medfed.tasks.scoring import FALSE_ALARM_SHARE, LOW_DICE, MISSED_SHARE

IDENTITY = ("method", "preset", "seed", "unseen", "trained_at")  # of the run; varied settings are further columns
COLUMNS = ("role", "site", "patient", "image", "structure", "metric", "value", "unit", "status")
IN_VOXELS_OF_FILE = "hd95_pooled_vx"  # without a voxel size it has no mean: the sizes of the images may differ
ROLES = ("seen", "unseen", "validation")
ALL = "all"  # the structure of a task without structures
GROUP = ["role", "site", "structure"]
VALUES = [*GROUP, "metric", "unit", "patient", "value", "score"]


def table_of(rows: Sequence[Mapping], metrics: Sequence[Metric]) -> pd.DataFrame:
    """The scores of test images (dicts) as a table; fractions in percent, a probability has its class as `status`."""
    wide = pd.DataFrame(rows)
    if "label" in wide:
        wide = wide.assign(structure=ALL, status=wide.label)
        columns: dict[str, tuple[Any, pd.Series]] = {
            name: ("", wide[name]) for name in wide if name.startswith(PROBABILITY)
        }
    else:
        relative = [column for metric in metrics for column in metric_columns(metric) if column in wide]
        relative = [key for key in relative if key.endswith("_percent_of_diagonal")]
        has_mm = ~wide[relative].notna().any(axis=1) if len(wide) else None
        columns = {metric.name: _values_and_unit(wide, metric, has_mm) for metric in metrics if len(wide)}
    parts = [wide.assign(metric=name, value=value, unit=unit) for name, (unit, value) in columns.items()]
    table = pd.concat(parts)[list(COLUMNS)] if parts else pd.DataFrame(columns=COLUMNS)
    return table.sort_values(["role", "site", "image", "structure"], kind="stable", ignore_index=True)


def is_probability(scores: pd.DataFrame) -> pd.Series:
    return scores.metric.astype(str).str.startswith(PROBABILITY)


def write_scores(path: Path, scores: pd.DataFrame, run: Mapping[str, Any]) -> None:
    """Write `cases.csv` with the columns of the run first; no digit is lost, and an unknown value is an empty cell."""
    if (is_repeated := scores.duplicated(["site", "image", "structure", "metric"])).any():
        row = scores[is_repeated].iloc[0]
        raise ValueError(f"{row.site}/{row.image}, {row.structure}, {row.metric}: two values; expected one")
    table = pd.concat([pd.DataFrame([run] * len(scores), columns=list(run)), scores[list(COLUMNS)]], axis=1)
    write_atomically(path, table.to_csv(index=False, lineterminator="\n"))


def read_scores(path: Path) -> pd.DataFrame:
    """Read what `write_scores` wrote, with the same bits."""
    table = pd.read_csv(path, dtype=str, keep_default_na=False)
    values = [float(text or "nan") for text in table.value]
    return table.assign(value=values, seed=pd.to_numeric(table.seed)).astype({"value": float})


def _values_and_unit(wide: pd.DataFrame, metric: Metric, has_mm: pd.Series) -> tuple[str | np.ndarray, pd.Series]:
    """The unit and the values of a metric of masks, in the printed unit; `has_mm`: the voxel size is known."""
    values = [wide[column].astype(float) for column in metric_columns(metric)]
    if metric.unit == DISTANCE:
        return np.where(has_mm, "mm", PERCENT_OF_DIAGONAL), values[0].fillna(values[1])
    if metric.name == IN_VOXELS_OF_FILE:
        return metric.unit, values[0].where(has_mm)
    return metric.unit, values[0] * (100 if metric.unit == "%" else 1)


def patient_values(scores: pd.DataFrame, metrics: Mapping[str, Metric]) -> pd.DataFrame:
    """The values of the patients of one run, NaN if unknown for an image or if a site has several units.

    `score` is that of the patient alone, for paired tests. A metric without values of patients has the patient "".
    """
    of_class = is_probability(scores)
    parts = [_mask_values(scores[~of_class])] if not of_class.all() else []
    parts += [_class_values(scores[of_class], metrics)] if of_class.any() else []
    if not parts:
        return pd.DataFrame(columns=VALUES).astype({"value": float, "score": float})
    return pd.concat(parts, ignore_index=True)


def absent_values(scores: pd.DataFrame, values: pd.DataFrame, metrics: Mapping[str, Metric]) -> pd.DataFrame:
    """The best values for patients in whose images neither mask has the structure; they are not in `values`."""
    masks = scores[~is_probability(scores)]
    is_absent = (masks.status == ABSENT).groupby([masks[key] for key in (*GROUP, "metric", "patient")]).all()
    units = values[[*GROUP, "metric", "unit"]].drop_duplicates()
    table = is_absent.index[is_absent].to_frame(index=False).merge(units)
    best = [
        limits_of(metrics[name], unit)[metrics[name].higher_is_better] for name, unit in zip(table.metric, table.unit)
    ]
    table = table.assign(value=best, score=best)
    return table[np.isfinite(table.value.astype(float))]


def failures(scores: pd.DataFrame, dice_below: float) -> pd.DataFrame:
    """The failed share, in percent, of each patient's images for which a failure is possible, as values of metrics."""
    dice = scores[scores.metric == "dice"]
    has = dice.status.isin([OK, MISSED])
    kinds = {
        LOW_DICE: (dice.status != ABSENT, dice.value < 100 * dice_below),  # of images with a true or predicted mask
        MISSED_SHARE: (has, dice.status == MISSED),  # the prediction is empty, of images with the structure
        FALSE_ALARM_SHARE: (~has, dice.status == FALSE_ALARM),  # it is not, of images without
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


def predictions(scores: pd.DataFrame) -> pd.DataFrame:
    """One row for each classified image: `label` (its class), `predicted`, `confidence` in [0, 1], `correct`."""
    keys = ["role", "site", "patient", "image"]
    if scores.empty:
        return pd.DataFrame(columns=[*keys, "label", "predicted", "confidence", "correct"])
    wide = scores.pivot(index=[*keys, "status"], columns="metric", values="value")[scores.metric.unique()]
    table = wide.index.to_frame(index=False).rename(columns={"status": "label"})
    table["predicted"] = wide.idxmax(axis=1).str.removeprefix(PROBABILITY).to_numpy()
    return table.assign(confidence=wide.max(axis=1).to_numpy(), correct=table.predicted == table.label)


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

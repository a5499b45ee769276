"""Compare predicted with true Dice, where a hospital has labels after all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np
import scipy.stats

from medfed.functional.dice_prediction import risk_coverage

MIN_CASES = 3  # fewer cases have no correlation
Row = dict[str, Any]


def check_predictions(rows: Sequence[Mapping[str, Any]], constant: float | None, failure_dice: float) -> Row:
    """Compare the predicted Dice of one structure with its true Dice.

    Args:
        rows: one dict per case with "predicted_dice", "low", "high", "agreement" and "true_dice". `true_dice` is None
            if neither the reference nor the mask shows the structure; such cases are left out. `agreement` is None if
            the mask is empty, and `predicted_dice` then and if there is no calibration.
        constant: the mean Dice of the calibration, with which every case is predicted for comparison; None if there is
            no calibration.
        failure_dice: a lower true Dice is a failure.

    Returns:
        "n" (cases with a mask and a true Dice), "mean_true", "pearson" and "spearman" (correlation of agreement and
        true Dice), "mae" (mean absolute error of the prediction), "mae_constant" (that of `constant`), "in_interval"
        (fraction of the true Dice within the interval), and the counts "n_failures" (of all cases), "n_misses"
        (failures that were predicted as none), "n_false_warnings" (the reverse) and "n_empty" (empty masks though the
        structure is there, which are failures and no misses). Also "aurc" (the area under the risk-coverage curve by
        agreement, with the risk 1 - Dice), "aurc_random" and "aurc_best", and the curve itself as "risk_coverage".
        Numbers that are not defined are None.
    """
    scored = [row for row in rows if row["true_dice"] is not None]
    used = [row for row in scored if row["agreement"] is not None]
    true, agreement = ([row[key] for row in used] for key in ("true_dice", "agreement"))
    result: Row = {
        "n": len(used),
        "mean_true": fmean(true) if used else None,
        "pearson": _correlation(scipy.stats.pearsonr, agreement, true),
        "spearman": _correlation(scipy.stats.spearmanr, agreement, true),
        "n_failures": sum(row["true_dice"] < failure_dice for row in scored),
        "n_empty": len(scored) - len(used),
        **dict.fromkeys(("mae", "mae_constant", "in_interval", "n_misses", "n_false_warnings")),
    }
    if used and constant is not None:
        predicted = [row["predicted_dice"] for row in used]
        is_failure, is_warned = ([value < failure_dice for value in values] for values in (true, predicted))
        result |= {
            "mae": _mean_error(predicted, true),
            "mae_constant": _mean_error([constant] * len(true), true),
            "in_interval": fmean(inside) if (inside := _inside(used)) else None,
            "n_misses": sum(failed and not warned for failed, warned in zip(is_failure, is_warned, strict=True)),
            "n_false_warnings": sum(
                warned and not failed for failed, warned in zip(is_failure, is_warned, strict=True)
            ),
        }
    confidence = [-1.0 if row["agreement"] is None else row["agreement"] for row in scored]
    risk = [1 - row["true_dice"] for row in scored]
    curve = risk_coverage(confidence, risk)
    return result | {
        "risk_coverage": curve,
        "aurc": area(curve),
        "aurc_random": fmean(risk) if risk else None,
        "aurc_best": area(risk_coverage([-value for value in risk], risk)),
    }


def _inside(rows: Sequence[Mapping[str, Any]]) -> list[bool]:
    return [row["low"] <= row["true_dice"] <= row["high"] for row in rows if row["low"] is not None]


def area(curve: Sequence[tuple[float, float]]) -> float | None:
    """Return the area under a risk-coverage curve as a step function: its mean risk over all coverages.

    Args:
        curve: (coverage, risk), with ascending coverage up to 1; None is returned if it is empty.
    """
    starts = [0.0, *(coverage for coverage, _ in curve)]
    return sum((coverage - start) * risk for start, (coverage, risk) in zip(starts, curve)) if curve else None


def _mean_error(predicted: Sequence[float], true: Sequence[float]) -> float:
    return fmean(abs(value - other) for value, other in zip(predicted, true, strict=True))


def _correlation(function: Any, agreement: Sequence[float], true: Sequence[float]) -> float | None:
    """Return the correlation; None with fewer than 3 cases, or if all numbers of a sequence are equal."""
    if len(true) < MIN_CASES or np.ptp(true) < 1e-12 or np.ptp(agreement) < 1e-12:
        return None
    return float(function(agreement, true)[0])

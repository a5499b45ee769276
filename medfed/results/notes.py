"""Sentences about runs: synthetic data, computation, models that did not learn, and adaptation to test images."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from medfed.metrics.mask_metric import ABSENT
from medfed.results.scores import ALL, patient_values
from medfed.results.statistics import limits_of, mean_over_sites
from medfed.results.text_tables import interval, number
from medfed.tasks.factory import scoring_of
from medfed.tasks.scoring import Scoring

PHANTOM = "SYNTHETIC PHANTOM DATA: says nothing about hospitals"
TRANSDUCTIVE = {  # what was done with unlabelled test images, by the name of the technique
    "tent": "the network was adapted to each site's test images (Tent), without their labels; the prediction for an "
    "image depends on the other images of its batch and on all batches before it",
    "batch_stats": "at sites that did not train, BatchNorm used the statistics of each batch of test images",
    "window": "at sites that did not train, the low-frequency amplitudes of each test image were changed towards the "
    "federation's mean window, without its label; transductive in a weak sense: the prediction for an image depends on "
    "this image and on no other test image",
    "style": "at sites that did not train, each test image was redrawn in the federation's mean style, without its "
    "label; transductive in a weak sense: the prediction for an image depends on this image and on no other test image",
}
ADAPTATIONS = {"tent": "Tent", "window": "window match", "style": "style match"}
NOT_STATED = "not stated"  # the data of a federation of hospitals, whose coordinator has no images
NO_IMAGES = "A federation of hospitals: its coordinator has no images and no scores of them"
DECIMALS = 4  # of scores in percent; smaller changes count as none


def data_label(data: str) -> str:
    """First line of every table of results: whether the images are synthetic ("phantom") or "real"."""
    return {"phantom": PHANTOM, NOT_STATED: NO_IMAGES}.get(data, f"{data} data")


def computation_notes(summary: Mapping[str, Any]) -> list[str]:
    """Clauses for a run that was not deterministic, or whose network computed in bfloat16; else empty."""
    notes = ["NOT DETERMINISTIC: the same config and seed give other weights each time"]
    return notes * (summary.get("deterministic") is False) + ["trained in bf16"] * (summary.get("precision") == "bf16")


def did_not_learn(summary: Mapping[str, Any]) -> str:
    """Why the model of a run did not learn, as a clause; "" if it learned, or if the summary does not say it."""
    learning = summary.get("learning") or {}
    if learning.get("learned", True):
        return ""
    metric = scoring_of(summary).metrics[0].label
    images = f"on the {learning['images']} images of the source sites"
    if learning["score"] is None or math.isnan(learning["score"]):
        return f"DID NOT LEARN: {images}, the {metric} of the model is not a number; train with a lower learning rate"
    others = {"trivial": f"a trivial prediction ({learning['trivial_prediction']})", "start": "its initial weights"}
    better = [
        f"{what} {100 * learning[key]:.2f} %" for key, what in others.items() if learning[key] >= learning["score"]
    ]
    return (
        f"DID NOT LEARN: {images}, the model has {metric} "
        f"{100 * learning['score']:.2f} %, {' and '.join(better)}; train for more rounds or on more images"
    )


def adaptation_of(technique: str, scoring: Scoring, adapted: pd.DataFrame, unadapted: pd.DataFrame) -> dict[str, Any]:
    """The entry "adaptation" of `summary.json`: how a technique changes the main metric, in %, at the unseen site.

    A case in which neither mask contains the structure has the best score, so false alarms that the adaptation causes
    or removes count; patients for whom this holds in both are left out.
    """
    without, with_it = (_of_patients(table, scoring) for table in (unadapted, adapted))
    pair = pd.DataFrame({"without": without.score, "adapted": with_it.score})[without.is_known | with_it.is_known]
    effects = []
    for structure, patients in pair.dropna().groupby("structure", sort=False):
        means = patients.groupby("site").mean().mean()
        change = (patients.adapted - patients.without).droplevel("structure")
        _, low, high = mean_over_sites(change)
        change = change.round(DECIMALS)
        ends = {"low": None if math.isnan(low) else low, "high": None if math.isnan(high) else high}
        worse = {"n_worse": int((change < 0).sum()), "largest_loss": float(max(0, -change.min()))}
        effects.append({"structure": structure, "n_patients": len(change), **means.to_dict(), **ends, **worse})
    return {"by": technique, "metric": scoring.metrics[0].name, "effects": effects}


def _of_patients(table: pd.DataFrame, scoring: Scoring) -> pd.DataFrame:
    """By structure, site and patient: `score` in percent, and `is_known`, whether a mask contains the structure."""
    metric = scoring.metrics[0]
    if scoring.has_structures:
        own = table[table.metric == metric.name]
        is_absent = own.status == ABSENT
        own = own.assign(score=own.value.where(~is_absent, limits_of(metric, metric.unit)[1]), is_known=~is_absent)
    else:
        own = patient_values(table, {metric.name: metric}).assign(is_known=True)
    return own.groupby(["structure", "site", "patient"], sort=False).agg({"score": "mean", "is_known": "any"})


def adaptation_notes(summaries: Sequence[Mapping[str, Any]]) -> list[str]:
    """What an adaptation changed in these runs of one row, for each technique and structure, without full stops."""
    known = [summary for summary in summaries if summary.get("adaptation")]
    effects = [
        {"by": ADAPTATIONS[run["adaptation"]["by"]], "site": run.get("unseen_site")} | effect
        for run in known
        for effect in run["adaptation"]["effects"]
    ]
    if not effects:
        return []
    notes, metric = [], scoring_of(known[0]).metrics[0]
    digits, unit = metric.decimals, " points" if metric.unit == "%" else ""
    for (by, structure), own in pd.DataFrame(effects).groupby(["by", "structure"], sort=False):
        name = metric.label if structure == ALL else f"{structure}, {metric.label}"
        ends = interval(own.low.iloc[0], own.high.iloc[0], digits) if len(own) == 1 and own.low.notna().all() else ""
        change = f"{number((own.adapted - own.without).mean(), digits, '+')}{unit}{ends}"
        scores = f"{number(own.without.mean(), digits)} without, {number(own.adapted.mean(), digits)} with"
        runs = f" (in {len(own)} runs; a patient counts once in each)" * (len(own) > 1)
        harm = f"{own.n_worse.sum()} of {own.n_patients.sum()} patients became worse{runs}"
        loss = f", by up to {number(own.largest_loss.max(), digits)}{unit}" * bool(own.n_worse.sum())
        sites = ", ".join(sorted(set(own.site)))
        notes.append(f"{by} at {sites}: {name}: mean change {change} ({scores}); {harm}{loss}")
    return notes

"""Gain and harm, patient by patient, of an adaptation to the unlabelled images of the unseen site.

The same weights score the unseen site with and without the adaptation (`evaluation.tent`, `evaluation.match`); the
scores without it are in `cases_without_adaptation.csv`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from scipy import stats

from medfed.metrics.mask_metric import ABSENT
from medfed.metrics.metric import Metric
from medfed.results.scores import ALL, patient_values
from medfed.results.statistics import LEVEL, limits_of, mean_over_sites
from medfed.results.text_tables import interval, number
from medfed.tasks.factory import scoring_of
from medfed.tasks.scoring import Scoring

TRANSDUCTIVE = {  # what was done with unlabelled test images, by the name of the technique
    "tent": "the network was adapted to each site's test images (Tent), without their labels; the prediction for an "
    "image depends on the other images of its batch and on all batches before it",
    "batch_stats": "at sites that did not train, BatchNorm used the statistics of each batch of test images",
    "nearest": "sites that did not train used the source site's BatchNorm that is nearest to their unlabelled test "
    "images",
    "window": "at sites that did not train, the low-frequency amplitudes of each test image were changed towards the "
    "federation's mean window, without its label; transductive in a weak sense: the prediction for an image depends on "
    "this image and on no other test image",
    "style": "at sites that did not train, each test image was redrawn in the federation's mean style, without its "
    "label; transductive in a weak sense: the prediction for an image depends on this image and on no other test image",
}
NAMES = {"tent": "Tent", "window": "window match", "style": "style match"}
INTERVALS = (
    "a mean change gives each site the same weight; [] after it: Student t over patients; [] after a share of "
    "patients: exact binomial interval (Clopper and Pearson); both 95 %"
)
DECIMALS = 4  # of scores in percent; smaller changes count as none


def effects_of(
    scoring: Scoring, adapted: Sequence[pd.DataFrame], unadapted: Sequence[pd.DataFrame]
) -> list[dict[str, Any]]:
    """How an adaptation changes the main metric, in percent, at the unseen sites, for each structure.

    One table of scores for each run; a patient's score is averaged over the runs. A case in which neither mask contains
    the structure has the best score, so false alarms that the adaptation causes or removes count; patients for whom
    this holds in both are left out.

    Returns:
        `without` and `adapted`, means over sites with equal weights; `low` and `high`, the 95 % interval of the mean
        change; `n_worse` of `n_patients` whose score fell, with the 95 % interval `worse_low` to `worse_high` of their
        share; `worst_patient` (SITE/PATIENT) with the largest loss from `worst_without` to `worst_adapted`.
    """
    metric = scoring.metrics[0]
    without, with_it = (_of_patients(runs, metric, scoring.has_structures) for runs in (unadapted, adapted))
    pair = pd.DataFrame({"without": without.score, "adapted": with_it.score})[without.is_known | with_it.is_known]
    groups = pair.dropna().groupby("structure", sort=False)
    return [_effect(str(name), of_structure.droplevel("structure").sort_index()) for name, of_structure in groups]


def _of_patients(runs: Sequence[pd.DataFrame], metric: Metric, has_structures: bool) -> pd.DataFrame:
    """By structure, site and patient: `score` in percent, and `is_known`, whether a mask contains the structure."""
    parts = []
    for run, table in enumerate(runs):
        if has_structures:
            own = table[table.metric == metric.name]
            is_absent = own.status == ABSENT
            own = own.assign(score=own.value.where(~is_absent, limits_of(metric, metric.unit)[1]), is_known=~is_absent)
        else:
            own = patient_values(table, {metric.name: metric}).assign(is_known=True)
        parts.append(own.assign(run=run))
    keys, how = ["structure", "site", "patient"], {"score": "mean", "is_known": "any"}
    of_runs = pd.concat(parts).groupby([*keys, "run"], sort=False).agg(how)
    return of_runs.groupby(keys, sort=False).agg(how)


def _effect(structure: str, patients: pd.DataFrame) -> dict[str, Any]:
    means = patients.groupby("site").mean().mean()
    change = patients.adapted - patients.without
    _, low, high = mean_over_sites(change)
    change = change.round(DECIMALS)
    n, n_worse = len(change), int((change < 0).sum())
    share = stats.binomtest(n_worse, n).proportion_ci(LEVEL, method="exact")
    worst = change.idxmin()
    of_worst = patients.loc[worst] if n_worse else {"without": None, "adapted": None}
    return {
        "structure": structure,
        "n_patients": n,
        "without": float(means.without),
        "adapted": float(means.adapted),
        "low": None if pd.isna(low) else low,
        "high": None if pd.isna(high) else high,
        "n_worse": n_worse,
        "worse_low": float(share.low),
        "worse_high": float(share.high),
        "worst_patient": "/".join(worst) if n_worse else None,
        "worst_without": of_worst["without"],
        "worst_adapted": of_worst["adapted"],
    }


def adaptation_of(technique: str, scoring: Scoring, adapted: pd.DataFrame, unadapted: pd.DataFrame) -> dict[str, Any]:
    """The entry "adaptation" of `summary.json`: the technique, the metric's name, and the effects."""
    effects = effects_of(scoring, [adapted], [unadapted])
    return {"by": technique, "metric": scoring.metrics[0].name, "effects": effects}


def adaptation_notes(summary: Mapping[str, Any], with_patient: bool = True) -> list[str]:
    """Sentences about gain and harm in one run; `with_patient` names the patient with the largest loss."""
    if not (adaptation := summary.get("adaptation")):
        return []
    begin = f"{NAMES[adaptation['by']]} at {summary.get('unseen_site')}: "
    metric = scoring_of(summary).metrics[0]
    sentences = [begin + _text(effect, metric, with_patient) for effect in adaptation["effects"]]
    return [*sentences, INTERVALS] if sentences else []


def comparison_adaptation_notes(runs: Sequence[Any]) -> list[str]:
    """Sentences about gain and harm in the `ScoredRun`s of a comparison, without full stops."""
    notes = []
    for label in sorted({run.row.label for run in runs if run.unadapted is not None}):
        of_row = [run for run in runs if run.unadapted is not None and run.row.label == label]
        scoring, name = scoring_of(of_row[0].summary), NAMES[of_row[0].summary["adaptation"]["by"]]
        adapted = [run.scores[run.scores.role == "unseen"] for run in of_row]
        effects = effects_of(scoring, adapted, [run.unadapted for run in of_row])
        notes += [f"{label}: {name}: {_text(effect, scoring.metrics[0], True)}" for effect in effects]
    return [*notes, INTERVALS] if notes else []


def _text(effect: Mapping[str, Any], metric: Metric, with_patient: bool) -> str:
    """The effect as a sentence; `with_patient` names the patient with the largest loss."""
    digits, unit = metric.decimals, " points" if metric.unit == "%" else ""
    n, n_worse, without, adapted = (effect[name] for name in ("n_patients", "n_worse", "without", "adapted"))
    of = metric.label if effect["structure"] == ALL else f"{effect['structure']}, {metric.label}"
    ends = "" if effect["low"] is None else interval(effect["low"], effect["high"], digits)
    text = (
        f"{of}: mean change {number(adapted - without, digits, '+')}{unit}{ends} over {n} patients "
        f"({number(without, digits)} without, {number(adapted, digits)} with); {n_worse} of {n} became worse "
        f"({n_worse / n:.0%} [{effect['worse_low']:.0%}, {effect['worse_high']:.0%}])"
    )
    if not n_worse:
        return text
    patient, begin, end = effect["worst_patient"], effect["worst_without"], effect["worst_adapted"]
    who = f"{patient}, " if with_patient else ""
    loss = f"{number(begin - end, digits)}{unit} ({who}from {number(begin, digits)} to {number(end, digits)})"
    return f"{text}; the largest loss is {loss}"

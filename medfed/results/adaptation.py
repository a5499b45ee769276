"""Gain and harm, patient by patient, of an adaptation to the unlabelled images of the unseen site.

The same weights score the unseen site with and without the adaptation (`evaluation.tent`, `evaluation.match`); the
scores without it are in `cases_without_adaptation.csv`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pandas as pd
from scipy import stats

from medfed.metrics.mask_metric import ABSENT
from medfed.metrics.metric import Metric
from medfed.results.scores import ALL, patient_values
from medfed.results.statistics import LEVEL, limits_of, mean_over_sites
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


@dataclass(frozen=True)
class Effect:
    """How an adaptation changes the main metric, in percent, at the unseen sites, for one structure.

    Means are over sites with equal weights; the intervals are at 95 %. `low` and `high` are of the mean change,
    `worse_low` and `worse_high` of the share of patients whose score fell. `worst_patient` is SITE/PATIENT.
    """

    structure: str
    n_patients: int
    without: float
    adapted: float
    low: float | None
    high: float | None
    n_worse: int
    worse_low: float
    worse_high: float
    worst_patient: str | None
    worst_without: float | None
    worst_adapted: float | None


def effects_of(scoring: Scoring, adapted: Sequence[pd.DataFrame], unadapted: Sequence[pd.DataFrame]) -> list[Effect]:
    """Compare the scores of the same patients with and without an adaptation, by main metric and structure.

    One table of scores for each run; a patient's score is averaged over the runs. A case in which neither mask contains
    the structure has the best score, so false alarms that the adaptation causes or removes count; patients for whom
    this holds in both are left out.
    """
    metric = scoring.metrics[0]
    without, with_it = (_of_patients(runs, metric, scoring.has_structures) for runs in (unadapted, adapted))
    pair = pd.DataFrame({"without": without.score, "adapted": with_it.score})[without.is_known | with_it.is_known]
    groups = pair.dropna().groupby("structure", sort=False)
    return [_effect(str(name), of_structure.droplevel("structure")) for name, of_structure in groups]


def _of_patients(runs: Sequence[pd.DataFrame], metric: Metric, has_structures: bool) -> pd.DataFrame:
    """By structure, site and patient: `score` in percent, and `is_known`, whether a mask contains the structure."""
    parts = []
    for run, table in enumerate(runs):
        if not has_structures:
            own = patient_values(table, {metric.name: metric}).assign(value=lambda values: values.score, is_known=True)
        else:
            own = table[table.metric == metric.name]
            is_absent = own.status == ABSENT
            best = limits_of(metric, metric.unit)[1]
            own = own.assign(value=own.value.where(~is_absent, best), is_known=~is_absent)
        parts.append(own.assign(run=run))
    keys = ["structure", "site", "patient"]
    of_runs = pd.concat(parts).groupby([*keys, "run"], sort=False).agg({"value": "mean", "is_known": "any"})
    of_patients = of_runs.groupby(keys, sort=False).agg({"value": "mean", "is_known": "any"})
    return of_patients.rename(columns={"value": "score"})


def _effect(structure: str, patients: pd.DataFrame) -> Effect:
    """Mean change of the patients' scores by the adaptation, its interval, and how many patients it harms."""
    patients = patients.sort_index()
    without, adapted = (float(patients[name].groupby("site").mean().mean()) for name in ("without", "adapted"))
    change = patients.adapted - patients.without
    _, low, high = mean_over_sites(change)
    change = change.round(DECIMALS)
    n, n_worse = len(change), int((change < 0).sum())
    share = stats.binomtest(n_worse, n).proportion_ci(LEVEL, method="exact")
    worst = change.idxmin()
    of_worst = patients.loc[worst] if n_worse else {"without": None, "adapted": None}
    return Effect(
        structure,
        n,
        without,
        adapted,
        None if pd.isna(low) else low,
        None if pd.isna(high) else high,
        n_worse,
        float(share.low),
        float(share.high),
        "/".join(worst) if n_worse else None,
        of_worst["without"],
        of_worst["adapted"],
    )


def adaptation_of(technique: str, scoring: Scoring, adapted: pd.DataFrame, unadapted: pd.DataFrame) -> dict[str, Any]:
    """The entry "adaptation" of `summary.json`: the technique, the metric's name, and the fields of each `Effect`."""
    effects = [asdict(effect) for effect in effects_of(scoring, [adapted], [unadapted])]
    return {"by": technique, "metric": scoring.metrics[0].name, "effects": effects}


def adaptation_notes(summary: Mapping[str, Any], with_patient: bool = True) -> list[str]:
    """Sentences about gain and harm in one run; `with_patient` names the patient with the largest loss."""
    if not (adaptation := summary.get("adaptation")):
        return []
    effects = [Effect(**effect) for effect in adaptation["effects"]]
    name, site = NAMES[adaptation["by"]], summary.get("unseen_site")
    sentences = [f"{name} at {site}: {_text(effect, scoring_of(summary), with_patient)}" for effect in effects]
    return [*sentences, INTERVALS] if sentences else []


def comparison_adaptation_notes(runs: Sequence[Any]) -> list[str]:
    """Sentences about gain and harm in the `ScoredRun`s of a comparison, without full stops."""
    notes = []
    for label in sorted({run.row.label for run in runs if run.unadapted is not None}):
        of_row = [run for run in runs if run.unadapted is not None and run.row.label == label]
        scoring, name = scoring_of(of_row[0].summary), NAMES[of_row[0].summary["adaptation"]["by"]]
        adapted = [run.scores[run.scores.role == "unseen"] for run in of_row]
        unadapted = [run.unadapted for run in of_row]
        notes += [
            f"{label}: {name}: {_text(effect, scoring, True)}" for effect in effects_of(scoring, adapted, unadapted)
        ]
    return [*notes, INTERVALS] if notes else []


def _text(effect: Effect, scoring: Scoring, with_patient: bool) -> str:
    """The effect as a sentence; `with_patient` names the patient with the largest loss."""
    metric = scoring.metrics[0]
    unit = " points" if metric.unit == "%" else ""

    def number(value: float, sign: str = "") -> str:
        return f"{value:{sign}.{metric.decimals}f}"

    of = metric.label if effect.structure == ALL else f"{effect.structure}, {metric.label}"
    n, n_worse = effect.n_patients, effect.n_worse
    ends = "" if effect.low is None or effect.high is None else f" [{number(effect.low)}, {number(effect.high)}]"
    text = (
        f"{of}: mean change {number(effect.adapted - effect.without, '+')}{unit}{ends} over {n} patients "
        f"({number(effect.without)} without, {number(effect.adapted)} with); {n_worse} of {n} became worse "
        f"({n_worse / n:.0%} [{effect.worse_low:.0%}, {effect.worse_high:.0%}])"
    )
    if effect.worst_without is None or effect.worst_adapted is None:
        return text
    patient = f"{effect.worst_patient}, " if with_patient else ""
    return (
        f"{text}; the largest loss is {number(effect.worst_without - effect.worst_adapted)}{unit} "
        f"({patient}from {number(effect.worst_without)} to {number(effect.worst_adapted)})"
    )

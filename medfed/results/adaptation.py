"""Gain and harm, patient by patient, of an adaptation to the unlabelled images of the unseen site.

The same weights score the unseen site with and without the adaptation (`evaluation.tent`, `evaluation.match`); the
scores without it are in `cases_without_adaptation.csv`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from scipy import stats

from medfed.metrics.intervals import LEVEL, METHOD_OF_DIFFERENCES, estimate_average, estimate_mean, interval
from medfed.tasks.factory import scoring_of
from medfed.tasks.scoring import ALL, Scoring

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
    f"a mean change gives each site the same weight; [] after it: {METHOD_OF_DIFFERENCES}; [] after a share of "
    "patients: exact binomial interval (Clopper and Pearson); both 95 %"
)
DECIMALS = 6  # of scores in cases.csv; smaller changes count as none


@dataclass(frozen=True)
class Effect:
    """How an adaptation changes the main metric at the unseen sites, for one structure ("all" for classification).

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


def effects_of(scoring: Scoring, adapted: Sequence[dict], unadapted: Sequence[dict]) -> list[Effect]:
    """Compare the scores of the same patients with and without an adaptation, by main metric and structure.

    A patient's score is averaged over the runs. A case in which neither mask contains the structure has the best score,
    so false alarms that the adaptation causes or removes count; patients for whom this holds in both are left out.
    """
    structures = dict.fromkeys(map(scoring.structure_of, adapted))
    effects = []
    for structure in structures:
        pair = [[row for row in rows if scoring.structure_of(row) == structure] for rows in (unadapted, adapted)]
        if changed := _patients(scoring, *pair):
            effects.append(_effect(structure, changed))
    return effects


def _patients(scoring: Scoring, unadapted: Sequence[dict], adapted: Sequence[dict]) -> dict[tuple, tuple[float, float]]:
    """(score without, score with the adaptation) of each patient, by (site, patient)."""
    column = scoring.columns[0]
    known = [scoring.patient_scores(rows, column.key) for rows in (unadapted, adapted)]
    filled = [scoring.patient_scores(rows, column.key, column.limits[1]) for rows in (unadapted, adapted)]
    return {patient[:2]: (filled[0][patient], filled[1][patient]) for patient in sorted({*known[0], *known[1]})}


def _effect(structure: str, patients: Mapping[tuple, tuple[float, float]]) -> Effect:
    """Mean change of the patients' scores by the adaptation, its interval, and how many patients it harms."""
    sites: dict[str, list[tuple[float, float]]] = {}
    for (site, _), scores in patients.items():
        sites.setdefault(site, []).append(scores)
    without, adapted = (fmean(fmean(pair[k] for pair in pairs) for pairs in sites.values()) for k in (0, 1))
    low, high = interval(estimate_average([estimate_mean([a - w for w, a in pairs]) for pairs in sites.values()]))
    change = {patient: round(a - w, DECIMALS) for patient, (w, a) in patients.items()}
    n_worse = sum(value < 0 for value in change.values())
    share = stats.binomtest(n_worse, len(change)).proportion_ci(LEVEL, method="exact")
    worst = min(change, key=lambda patient: change[patient])
    loss = ("/".join(worst), *patients[worst]) if n_worse else (None, None, None)
    return Effect(
        structure, len(change), without, adapted, low, high, n_worse, float(share.low), float(share.high), *loss
    )


def adaptation_of(
    technique: str, scoring: Scoring, adapted: Sequence[dict], unadapted: Sequence[dict]
) -> dict[str, Any]:
    """The entry "adaptation" of `summary.json`: the technique, the metric's key, and the fields of each `Effect`."""
    effects = [asdict(effect) for effect in effects_of(scoring, adapted, unadapted)]
    return {"by": technique, "metric": scoring.columns[0].key, "effects": effects}


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
    for label in sorted({run.row.label for run in runs if run.unadapted}):
        of_row = [run for run in runs if run.unadapted and run.row.label == label]
        scoring, name = scoring_of(of_row[0].summary), NAMES[of_row[0].summary["adaptation"]["by"]]
        adapted = [row for run in of_row for row in run.cases if row["role"] == "unseen"]
        unadapted = [row for run in of_row for row in run.unadapted]
        notes += [
            f"{label}: {name}: {_text(effect, scoring, True)}" for effect in effects_of(scoring, adapted, unadapted)
        ]
    return [*notes, INTERVALS] if notes else []


def _text(effect: Effect, scoring: Scoring, with_patient: bool) -> str:
    """The effect as a sentence; `with_patient` names the patient with the largest loss."""
    column = scoring.columns[0]
    metric, scale = column.metric, column.scale
    unit = " points" if column.unit == "%" else ""

    def number(value: float, sign: str = "") -> str:
        """A score in the unit of its column; `sign` "+" also shows the sign of a gain."""
        return f"{scale * value:{sign}.{metric.decimals}f}"

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

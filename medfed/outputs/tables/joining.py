"""What joining a federation gives a site, and what it costs not to pool the images: paired differences by patient.

    gain from joining      federated method - model that the site trained alone (`local`)
    cost of not pooling    model of all images in one place (`pooled`) - federated method

Both are computed on each site's own test images, in the runs in which it trained, and on its images when it was the
unseen site. At the unseen site, a patient's score of `local` is the mean over the sites' models. The intervals are
about new patients of these sites, scored by these trained models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from medfed.metrics.intervals import estimate_mean, interval
from medfed.metrics.metric import Column
from medfed.outputs.tables.comparison_row import LOCAL, POOLED, ComparisonRow
from medfed.outputs.tables.local_runs import score_of_models, values_of_patients
from medfed.tasks.scoring import ALL, COMPARISON, Scoring

OWN_TEST, UNSEEN = "own test", "unseen"  # which images of a hospital
ROLE_OF = {OWN_TEST: "seen", UNSEEN: "unseen"}
ALL_SITES = "all"
GAIN, COST = "gain from joining", "cost of not pooling"


@dataclass(frozen=True)
class ScoredRun:
    """One run of a comparison with all rows of its `cases.csv`."""

    row: ComparisonRow
    unseen: str
    seed: int
    cases: Sequence[dict]


@dataclass(frozen=True)
class PairedMean:
    """Mean of the differences of `n` patients, in the unit of the table, with its 95 % interval."""

    mean: float
    n: int
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class RowDifference:
    """The difference of two rows of a comparison for one structure, one metric and one kind of images."""

    structure: str
    metric: str
    unit: str  # the difference of two percentages is in percentage points
    higher_is_better: bool  # whether a positive difference is better for `first`
    meaning: str  # "gain from joining" or "cost of not pooling"
    first: str
    second: str  # label of the row whose scores are subtracted from those of `first`
    images: str  # "own test" or "unseen"
    by_site: Mapping[str, PairedMean]  # under "all" over the patients of all sites


@dataclass(frozen=True)
class Joining:
    """The differences between the federated rows of a comparison and the rows `local` and `pooled`.

    Args:
        titles: (structure, column of the main metric, its title) of the parts that are printed.
        models: (structure, label, site of training, scores in percent or mm by site) of the models of `local` in the
            main metric: at the site of training the own test images, at the other sites the images of the unseen site.
    """

    data: str
    sites: tuple[str, ...]
    titles: tuple[tuple[str, str, str], ...]
    differences: tuple[RowDifference, ...]
    models: tuple[tuple[str, str, str, Mapping[str, float]], ...]


def paired_mean(differences: Sequence[float]) -> PairedMean:
    """Mean of one difference per patient, with its interval; patients of several sites are one sample."""
    low, high = interval(estimate_mean(differences))
    return PairedMean(fmean(differences), len(differences), low, high)


def build_joining(runs: Sequence[ScoredRun], scoring: Scoring, structures: Sequence[str], data: str) -> Joining | None:
    """Compare, patient by patient, the federated rows with `local` and `pooled` of the same settings, unseen site and
    seed. None without such a row."""
    rows = list(dict.fromkeys(ComparisonRow(run.row.method, run.row.varied) for run in runs))
    pairs = [
        (row, other)
        for row in rows
        for kind in (LOCAL, POOLED)
        for other in rows
        if other.arrangement == kind and other.is_reference_of(row)
    ]
    columns = scoring.columns_in(COMPARISON)
    differences = []
    for structure in structures:
        for row, other in pairs:
            meaning, labels = COST, (other.label, row.label)
            if other.arrangement == LOCAL:
                meaning, labels = GAIN, (row.label, other.label)
            for column in columns:
                for images in (OWN_TEST, UNSEEN):
                    by_site = _paired(runs, labels, scoring, structure, column, images)
                    if by_site:
                        differences.append(
                            RowDifference(
                                structure,
                                column.key,
                                column.unit,
                                column.metric.higher_is_better,
                                meaning,
                                *labels,
                                images,
                                by_site,
                            )
                        )
    if not differences:
        return None
    sites = sorted({site for one in differences for site in one.by_site} - {ALL_SITES})
    main = scoring.columns_in(COMPARISON)[0]
    titles = [
        (name, main.key, main.metric.label if name == ALL else f"{name}: {main.metric.label}") for name in structures
    ]
    models = [model for structure in structures for model in _models(runs, scoring, structure, main)]
    return Joining(data, tuple(sites), tuple(titles), tuple(differences), tuple(models))


def _paired(
    runs: Sequence[ScoredRun], labels: tuple[str, str], scoring: Scoring, structure: str, column: Column, images: str
) -> dict[str, PairedMean]:
    """Mean difference of the rows `labels` by site and over "all" sites; empty without common patients."""
    own = [[run for run in runs if run.row.label == label] for label in labels]
    common = set.intersection(*({(run.unseen, run.seed) for run in of_row} for of_row in own))
    first, second = (
        _cases_by_site([run for run in of_row if (run.unseen, run.seed) in common], scoring, structure, images)
        for of_row in own
    )
    by_site: dict[str, list[float]] = {}
    for site in sorted(first.keys() & second.keys()):
        a, b = (values_of_patients(scoring, cases[site], column.key) for cases in (first, second))
        if patients := [patient for patient in a if patient in b]:
            by_site[site] = [column.scale * (a[patient] - b[patient]) for patient in patients]
    means = {site: paired_mean(values) for site, values in by_site.items()}
    return means | {ALL_SITES: paired_mean([value for values in by_site.values() for value in values])} if means else {}


def _cases_by_site(
    runs: Sequence[ScoredRun], scoring: Scoring, structure: str, images: str
) -> dict[str, list[list[dict]]]:
    """For each site, one list of rows for each run that scored it; `images` is "own test" or "unseen"."""
    by_site: dict[str, list[list[dict]]] = {}
    for run in runs:
        of_run: dict[str, list[dict]] = {}
        for case in run.cases:
            if case["role"] == ROLE_OF[images] and scoring.structure_of(case) == structure:
                of_run.setdefault(case["site"], []).append(case)
        for site, cases in of_run.items():
            by_site.setdefault(site, []).append(cases)
    return by_site


def _models(
    runs: Sequence[ScoredRun], scoring: Scoring, structure: str, column: Column
) -> list[tuple[str, str, str, Mapping[str, float]]]:
    """Scores of each model of `local` at every site, as means over the seeds; see `Joining.models`."""
    scores: dict[tuple[str, str], dict[str, list[float]]] = {}
    for run in runs:
        for site in (run.row.trained_at, run.unseen) if run.row.trained_at else ():
            role = ROLE_OF[UNSEEN if site == run.unseen else OWN_TEST]
            rows = [case for case in run.cases if case["role"] == role and scoring.structure_of(case) == structure]
            if (score := score_of_models(scoring, rows, column.key)) is not None:
                of_model = scores.setdefault((run.row.label, run.row.trained_at), {})
                of_model.setdefault(site, []).append(column.scale * score)
    return [
        (structure, label, at, {site: fmean(values) for site, values in of_model.items()})
        for (label, at), of_model in sorted(scores.items())
    ]

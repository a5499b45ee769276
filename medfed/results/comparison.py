"""A comparison of methods as tables of scores and paired differences, with what a reader must know about its runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

import pandas as pd

from medfed.core.errors import UserError
from medfed.metrics.metric import Metric
from medfed.results.notes import TRANSDUCTIVE, adaptation_notes, computation_notes, did_not_learn
from medfed.results.row import BASELINE, LOCAL, ComparisonRow, is_compared, is_federated
from medfed.results.run_scores import run_scores_of
from medfed.results.scores import VALUES, absent_values, failures, patient_values
from medfed.results.statistics import (
    AVERAGE,
    MIN_PATIENTS,
    differences,
    failure_shares,
    ranks,
    site_scores,
)
from medfed.tasks.factory import scoring_of
from medfed.tasks.scoring import COMPARISON

GAIN, COST = "gain from joining", "cost of not pooling"
TRIVIAL = "trivial"  # begins the label of the row of a prediction that ignores the image
Key = tuple[str, str, int]  # label, unseen site and seed of a run


@dataclass(frozen=True)
class ScoredRun:
    """A finished run of a comparison: its row, its `summary.json`, and the values of its patients."""

    row: ComparisonRow
    summary: Mapping[str, Any]
    values: pd.DataFrame  # of `patient_values`
    failed: pd.DataFrame | None = None  # of `failures`; None for a task without masks
    scores: pd.DataFrame | None = None  # of the images
    absent: pd.DataFrame | None = None  # of `absent_values`

    @classmethod
    def of(cls, row: ComparisonRow, summary: Mapping[str, Any], scores: pd.DataFrame) -> ScoredRun:
        """The run with these scores of images."""
        scoring = scoring_of(summary)
        failed = failures(scores, scoring.failure_dice) if scoring.failure_dice else None
        values = patient_values(scores, scoring.by_name)
        absent = absent_values(scores, values, scoring.by_name) if scoring.has_structures else None
        if not scoring.has_structures:  # metrics of classification whose code is not at hand
            values = pd.concat([values, _stored(summary, {*scoring.by_name} - {*values.metric})], ignore_index=True)
        return cls(row, summary, values, failed, scores, absent)

    @property
    def key(self) -> Key:
        return self.row.label, self.summary["unseen_site"], self.summary["seed"]


@dataclass(frozen=True)
class Comparison:
    """The tables of a comparison."""

    data: str  # "phantom" (synthetic images) or "real"
    selection: str  # the rule that selected the round of every run
    baseline: str
    seeds: tuple[int, ...]
    rows: tuple[str, ...]  # labels in order: the baseline, the compared methods, references
    metrics: Mapping[str, Metric]
    shown: tuple[str, ...]  # the metrics of tables; the first is the main metric
    on_screen: tuple[str, ...]  # of these, the first two and those of `evaluation.metrics`
    # As `site_scores` returns them, with the column `rank`, a row "trivial: ..." for a prediction that ignores the
    # image, and the shares of failures as metrics.
    scores: pd.DataFrame
    # As `statistics.differences` returns them. `kind` is "method" (against the baseline or FedAvg of equal effort),
    # "effort" (against the baseline of less effort), GAIN (against `local`) or COST (of `pooled` against the method).
    differences: pd.DataFrame
    compared: tuple[str, ...]  # labels of the rows that are ranked
    missing: tuple[str, ...]  # the planned runs that are not finished, in words
    not_learned: tuple[str, ...]  # labels of rows with a model that did not learn
    notes: tuple[str, ...]  # sentences about the runs
    dice_below: float | None = None  # a lower Dice of a patient counts as a failure; None without masks

    def sites(self, role: str = "unseen") -> list[str]:
        """The names of the sites of a role, sorted."""
        return sorted(set(self.scores.site[self.scores.role == role]) - {AVERAGE})

    @cached_property
    def blocks(self) -> dict[tuple[str, str, str, str], list[Any]]:
        """The lines of `scores` of each structure, metric, unit and role."""
        groups = self.scores.groupby(["structure", "metric", "unit", "role"], sort=False)
        return {key: list(block.itertuples()) for key, block in groups}

    def differences_of(self, block: tuple, kinds: Sequence[str], sites: Sequence[str]) -> list[Any]:
        """The lines of `differences` of a block, in the order of kinds and then of rows."""
        table = self.differences
        if table.empty:
            return []
        structure, metric, unit, role = block
        own = table[(table.structure == structure) & (table.metric == metric) & (table.unit == unit)]
        own = own[(own.role == role) & own.kind.isin(kinds) & own.site.isin(sites)]
        return sorted(own.itertuples(), key=lambda line: (kinds.index(line.kind), self.rows.index(line.row)))

    @property
    def structures(self) -> list[str]:
        """The structures, in the order of the table; ["all"] for classification."""
        return list(dict.fromkeys(self.scores.structure))


def compare_runs(
    runs: Sequence[ScoredRun],
    baseline: str = BASELINE,
    planned: Collection[Key] = frozenset(),
    notes: Sequence[str] = (),
) -> Comparison:
    """Compare finished runs with those of the method `baseline` in rows with the same varied settings.

    `planned` is empty if every row was planned at every site with every seed. UserError if they cannot share a table.
    """
    _check(runs)
    scorings = [scoring_of(run.summary) for run in runs]
    metrics = {metric.name: metric for scoring in scorings for metric in scoring.metrics}
    shown = tuple(dict.fromkeys(metric.name for scoring in scorings for metric in scoring.metrics_in(COMPARISON)))
    rows = {run.row.label: run.row for run in sorted(runs, key=lambda run: _place(run.row, baseline))}
    copies = _copies(runs, baseline)
    not_learned = sorted({run.row.label for run in runs if did_not_learn(run.summary)})
    values = pd.concat([_of_run(run, run.values) for run in runs], ignore_index=True)
    if not values.value.notna().any():
        raise UserError("no test image has a score, so there is no table; look at the cases.csv of the runs")
    absent = [_of_run(run, run.absent) for run in runs if run.absent is not None and len(run.absent)]
    scores = site_scores(pd.concat([values, *_trivial(runs, metrics)], ignore_index=True), metrics)
    compared = [label for label in rows if (is_compared(label) or label == baseline) and label not in copies]
    scores["rank"] = ranks(scores, compared, metrics)
    failed = [_of_run(run, run.failed) for run in runs if run.failed is not None]
    shares = [failure_shares(pd.concat(failed, ignore_index=True))] if failed else []
    scores = pd.concat([scores, *shares])
    of_images = (name for run in runs if run.scores is not None for name in run.scores.structure.unique())
    places = scores.structure.map(list(dict.fromkeys([*of_images, *scores.structure])).index)
    scores = scores.iloc[places.argsort(kind="stable")].reset_index(drop=True)
    about_runs = [*_notes(runs, values, copies, not_learned), *_below_trivial(scores, metrics[shown[0]])]
    return Comparison(
        data=runs[0].summary["data"],
        selection=runs[0].summary["selection"],
        baseline=baseline,
        seeds=tuple(sorted({run.key[2] for run in runs})),
        rows=tuple(rows),
        metrics=metrics,
        shown=shown,
        on_screen=tuple(dict.fromkeys([*shown[:2], *(name for scoring in scorings for name in scoring.chosen)])),
        scores=scores.astype({"n_seeds": "Int64", "n_patients": "Int64"}),
        differences=differences(
            values,
            _pairs(rows, baseline, copies),
            metrics,
            not_learned,
            pd.concat(absent, ignore_index=True) if absent else None,
        ),
        compared=tuple(compared),
        missing=tuple(_missing(runs, planned)),
        not_learned=tuple(not_learned),
        notes=(*about_runs, *notes),
        dice_below=runs[0].summary.get("failure_dice"),
    )


def _stored(summary: Mapping[str, Any], names: Collection[str]) -> pd.DataFrame:
    """The scores of the sites in some metrics, as values without patients."""
    table = run_scores_of(summary)
    own = table[table.metric.isin(names) & (table.site != AVERAGE)]
    return own.assign(value=own["mean"], patient="", score=float("nan"))[VALUES]


def _check(runs: Sequence[ScoredRun]) -> None:
    if not runs:
        raise UserError("there is no finished run for a table; finish at least one run first")
    keys = {"task": "task", "data": "data", "selection": "selection", "failure_dice": "the limit of a failure"}
    for key, words in keys.items():
        if len(values := sorted({str(run.summary.get(key)) for run in runs})) > 1:
            raise UserError(
                f"the runs differ in {words} ({' and '.join(map(repr, values))}), so they cannot be in one table; make "
                "one table for each value"
            )
    counts = Counter((*run.key, run.row.trained_at) for run in runs)
    if repeated := [key for key, n in counts.items() if n > 1]:
        label, site, seed, _ = repeated[0]
        raise UserError(f"method {label}, unseen site {site}, seed {seed} comes twice; remove one of the runs")


def _of_run(run: ScoredRun, table: pd.DataFrame) -> pd.DataFrame:
    """Add the columns that tell the runs apart."""
    label, unseen, seed = run.key
    return table.assign(row=label, trained_at=run.row.trained_at, unseen=unseen, seed=seed)


def _place(row: ComparisonRow, baseline: str) -> tuple:
    """Where a row stands in a table: the baseline, methods, FedAvg of equal effort, rows without a federation."""
    label = row.label
    return not is_federated(label), not is_compared(label), label != row.baseline_label(baseline)


def _pairs(rows: Mapping[str, ComparisonRow], baseline: str, copies: Collection[str]) -> pd.DataFrame:
    """The rows whose difference is shown; see `Comparison.differences`."""
    pairs = []
    for label, row in rows.items():
        base = row.baseline_label(baseline)
        if is_compared(label) and label not in (base, *copies):
            minus = row.equal_effort or base
            pairs += [("method", label, minus, True)] * (minus in rows)
            pairs += [("effort", label, base, False)] * (minus != base and base in rows)
    for row, other in product(rows.values(), rows.values()):
        if other.is_reference_of(row) and "@steps=" not in row.label:
            is_local = other.arrangement == LOCAL
            names = (row.label, other.label) if is_local else (other.label, row.label)
            pairs.append((GAIN if is_local else COST, *names, False))
    return pd.DataFrame(pairs, columns=["kind", "row", "minus", "tested"])


def _copies(runs: Sequence[ScoredRun], baseline: str) -> dict[str, str]:
    """Rows whose runs have all the configs of another row, by that row, as if a method takes no more steps."""
    configs: dict[str, list[tuple]] = {}
    for run in sorted(runs, key=lambda run: _place(run.row, baseline)):
        if is_federated(run.row.label):
            configs.setdefault(run.row.label, []).append((*run.key[1:], run.summary.get("config_sha256")))
    first: dict[tuple, str] = {}
    copies = {}
    for label, of_row in configs.items():
        content = tuple(sorted(of_row, key=str))
        if all(sha256 is not None for *_, sha256 in of_row) and first.setdefault(content, label) != label:
            copies[label] = first[content]
    return copies


def _trivial(runs: Sequence[ScoredRun], metrics: Collection[str]) -> list[pd.DataFrame]:
    """The scores of the sites by a prediction that ignores the image, as values of one more row."""
    federated = [run for run in runs if run.summary.get("trivial") and is_federated(run.row.label)]
    names = {run.summary["trivial"]["prediction"] for run in federated}
    label = f"{TRIVIAL}: {names.pop() if len(names) == 1 else 'the best at the source sites'}"
    values = [_of_run(run, _stored(run.summary["trivial"], metrics)) for run in federated]
    return [table.assign(row=label) for table in values]


def _below_trivial(scores: pd.DataFrame, metric: Metric) -> list[str]:
    """A sentence about rows not better than the trivial prediction at the unseen sites, with their structures."""
    own = scores[(scores.role == "unseen") & (scores.metric == metric.name) & (scores.site == AVERAGE)]
    is_trivial = own.row.str.startswith(TRIVIAL)
    of_trivial = own[is_trivial].set_index("structure")["mean"]
    others = own[~is_trivial]
    gain = (others["mean"] - others.structure.map(of_trivial)) * (1 if metric.higher_is_better else -1)
    below = others[gain <= 0].groupby("row", sort=False).structure.agg(", ".join)
    is_named = own.structure.nunique() > 1
    names = [f"{row} ({of_row})" if is_named else row for row, of_row in below.items()]
    sentence = f"not better than a prediction that ignores the image, at the unseen sites: {', '.join(names)}"
    return [sentence] * bool(names)


def _missing(runs: Sequence[ScoredRun], planned: Collection[Key]) -> list[str]:
    """Sentences about planned runs without scores."""
    found = {run.key for run in runs}
    known = {label for label, *_ in found}
    every = product(*(sorted(set(names)) for names in zip(*found)))
    missing = sorted({*(planned or every)} - found)
    texts = list(
        dict.fromkeys(
            f"{label}, unseen {site}, seed {seed}" if label in known else f"{label} (at no site)"
            for label, site, seed in missing
        )
    )
    for label, site, seed in sorted({run.key for run in runs if run.row.trained_at}):
        of_fold = [run for run in runs if run.key[1:] == (site, seed)]
        sources = {name for run in of_fold for name in run.summary.get("source_sites", ())}
        names = sorted(sources - {run.row.trained_at for run in of_fold if run.row.label == label})
        texts += [f"{label} at {name}, unseen {site}, seed {seed}, so it is no part of the mean" for name in names]
    return texts


def _notes(
    runs: Sequence[ScoredRun], values: pd.DataFrame, copies: Mapping[str, str], not_learned: Sequence[str]
) -> list[str]:
    """What a reader must know about the runs."""
    notes = []
    if not_learned:
        counts = []
        for label in not_learned:
            of_row = [bool(did_not_learn(run.summary)) for run in runs if run.row.label == label]
            counts.append(f"{label} ({sum(of_row)} of {len(of_row)} runs)")
        why = "a trivial prediction or the initial weights are as good on the source sites"
        notes.append(f"DID NOT LEARN: {', '.join(counts)}: {why}")
    notes += [f"{row}: the same training as {other}, so it is not tested" for row, other in copies.items()]
    absent = {run.row.equal_effort for run in runs} - {run.row.label for run in runs} - {""}
    notes += [f"{label} was not run, so methods of that effort have no verdict" for label in sorted(absent)]
    adapted = sorted({(run.row.label, name) for run in runs for name in run.summary.get("transductive_by", ())})
    notes += [f"{label}: TRANSDUCTIVE ({by}): {TRANSDUCTIVE.get(by, by)}" for label, by in adapted]
    for label in dict.fromkeys(label for label, _ in adapted):
        summaries = [run.summary for run in runs if run.row.label == label]
        notes += [f"{label}: {note}" for note in adaptation_notes(summaries)]
    notes += dict.fromkeys(note for run in runs for note in computation_notes(run.summary))
    own = values[(values.role != "seen") & (values.patient != "")]
    n_patients = own.groupby(["site", "structure"], sort=False).patient.nunique()
    several = own.structure.nunique() > 1
    few = [
        f"{site} ({structure}: {n})" if several else f"{site} ({n})"
        for (site, structure), n in n_patients.items()
        if n < MIN_PATIENTS
    ]
    if few:
        notes.append(f"fewer than {MIN_PATIENTS} patients, so no interval and nothing decided: {', '.join(few)}")
    images: dict[tuple, set[frozenset[str]]] = {}
    for run in runs:
        if run.scores is not None:
            for site, names in run.scores[run.scores.role != "seen"].groupby("site").image:
                images.setdefault((site, *run.key[1:]), set()).add(frozenset(names))
    if differ := sorted({site for (site, *_), of_runs in images.items() if len(of_runs) > 1}):
        notes.append(f"the runs do not score the same images, so their means cannot be compared: {', '.join(differ)}")
    return notes

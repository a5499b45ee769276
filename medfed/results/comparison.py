"""A comparison of methods as tables of scores and paired differences, with what a reader must know about its runs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

import pandas as pd

from medfed.core.errors import UserError
from medfed.metrics.metric import Metric
from medfed.results.adaptation import TRANSDUCTIVE, comparison_adaptation_notes
from medfed.results.notes import computation_notes, did_not_learn
from medfed.results.row import BASELINE, LOCAL, ComparisonRow, is_compared, is_federated
from medfed.results.run_scores import run_scores_of
from medfed.results.scores import VALUES, failures, patient_values
from medfed.results.statistics import (
    AVERAGE,
    BLOCK,
    METRIC,
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
    unadapted: pd.DataFrame | None = None  # scores of the unseen site, without an adaptation to its images

    @classmethod
    def of(
        cls,
        row: ComparisonRow,
        summary: Mapping[str, Any],
        scores: pd.DataFrame,
        unadapted: pd.DataFrame | None = None,
    ) -> ScoredRun:
        """The run with these scores of images."""
        scoring = scoring_of(summary)
        failed = failures(scores, scoring.failure_dice) if scoring.failure_dice else None
        values = patient_values(scores, scoring.by_name)
        without_code = {*scoring.by_name} - {*values.metric} if not scoring.has_structures else set()
        values = pd.concat([values, *_stored(summary, without_code)], ignore_index=True)
        return cls(row, summary, values, failed, scores, unadapted)

    @property
    def key(self) -> Key:
        return self.row.label, self.summary["unseen_site"], self.summary["seed"]


@dataclass(frozen=True)
class Comparison:
    """The tables of a comparison.

    Args:
        data: "phantom" (synthetic images) or "real".
        selection: the rule that selected the round of every run.
        rows: labels in the order of the tables: the baseline first, then the compared methods, then references.
        shown: names of the metrics that tables show; the first is the main metric.
        on_screen: of these, the metrics that a terminal shows: the first two, and those of `evaluation.metrics`.
        scores: as `site_scores` returns them, with the column `rank`, a row "trivial: ..." for a prediction that
            ignores the image, and the shares of failures as the metrics "low_dice", "missed" and "false_alarm".
        differences: as `statistics.differences` returns them. `kind` is "method" (against the baseline or FedAvg of
            equal effort), "effort" (against the baseline of less effort), "gain from joining" (against `local`), or
            "cost of not pooling" (of `pooled` against the method).
        compared: labels of the rows that are ranked.
        missing: the planned runs that are not finished, in words.
        notes: sentences about the runs, such as models that did not learn.
        dice_below: the Dice below which a structure of a patient counts as a failure; None without masks.
    """

    data: str
    selection: str
    baseline: str
    seeds: tuple[int, ...]
    rows: tuple[str, ...]
    metrics: Mapping[str, Metric]
    shown: tuple[str, ...]
    on_screen: tuple[str, ...]
    scores: pd.DataFrame
    differences: pd.DataFrame
    compared: tuple[str, ...]
    missing: tuple[str, ...]
    not_learned: tuple[str, ...]
    notes: tuple[str, ...]
    dice_below: float | None = None

    def sites(self, role: str = "unseen") -> list[str]:
        """The names of the sites of a role, sorted."""
        return sorted(set(self.scores.site[self.scores.role == role]) - {AVERAGE})

    @cached_property
    def difference_at(self) -> dict[tuple, Any]:
        """The rows of `differences` by structure, metric, unit, role, row, site and kind."""
        keys = ("structure", "metric", "unit", "role", "row", "site", "kind")
        return {tuple(getattr(line, key) for key in keys): line for line in self.differences.itertuples()}

    @cached_property
    def blocks(self) -> dict[tuple, pd.DataFrame]:
        """The scores by row and site, for each structure, metric, unit and role."""
        groups = self.scores.groupby(["structure", "metric", "unit", "role"], sort=False)
        return {key: block.set_index(["row", "site"]) for key, block in groups}

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
    """Compare the finished runs of a comparison.

    Args:
        baseline: the method with which all others are compared, in rows with the same varied settings.
        planned: label, unseen site and seed of each planned run; empty: every row at every site with every seed.
        notes: further sentences for the reader.

    Raises:
        UserError: if there are no runs, if one occurs twice, or if they differ in the task, in the data (phantom or
            real), in the rule of the selected round, or in the limit of a failure.
    """
    _check(runs)
    scorings = [scoring_of(run.summary) for run in runs]
    metrics = {metric.name: metric for scoring in scorings for metric in scoring.metrics}
    shown = dict.fromkeys(metric.name for scoring in scorings for metric in scoring.metrics_in(COMPARISON))
    of_patients = pd.concat([_of_run(run, run.values) for run in runs], ignore_index=True)
    failed = [_of_run(run, run.failed) for run in runs if run.failed is not None]
    rows = {run.row.label: run.row for run in runs}
    copies = _copies(runs, baseline)
    not_learned = sorted({run.row.label for run in runs if did_not_learn(run.summary)})
    if not of_patients.value.notna().any():
        raise UserError("no test image has a score, so there is no table; look at the cases.csv of the runs")
    scores = site_scores(of_patients, metrics)
    compared = [label for label in rows if (is_compared(label) or label == baseline) and label not in copies]
    scores["rank"] = ranks(scores, compared, metrics)
    shares = [failure_shares(pd.concat(failed, ignore_index=True))] if failed else []
    scores = pd.concat([scores, *_trivial(runs, scores, metrics), *shares])
    of_images = (name for run in runs if run.scores is not None for name in run.scores.structure.unique())
    places = scores.structure.map(list(dict.fromkeys([*of_images, *scores.structure])).index)
    scores = scores.iloc[places.argsort(kind="stable")].reset_index(drop=True)
    scores = scores.astype({"n_seeds": "Int64", "n_patients": "Int64"})
    pairs = _pairs(rows, baseline, copies)
    order = sorted(rows, key=lambda label: _place(rows[label], baseline))
    seeds = tuple(sorted({run.key[2] for run in runs}))
    return Comparison(
        runs[0].summary["data"],
        runs[0].summary["selection"],
        baseline,
        seeds,
        tuple(order),
        metrics,
        tuple(shown),
        tuple(dict.fromkeys([*list(shown)[:2], *(name for scoring in scorings for name in scoring.chosen)])),
        scores,
        differences(of_patients, pairs, metrics, not_learned),
        tuple(compared),
        tuple(_missing(runs, planned)),
        tuple(not_learned),
        (*_notes(runs, of_patients, copies, not_learned), *_below_trivial(scores, metrics[next(iter(shown))]), *notes),
        runs[0].summary.get("failure_dice"),
    )


def _stored(summary: Mapping[str, Any], names: Collection[str]) -> list[pd.DataFrame]:
    """The scores of the sites in metrics of classification whose code is not at hand."""
    table = run_scores_of(summary)
    own = table[table.metric.isin(names) & (table.site != AVERAGE)]
    return [own.assign(value=own["mean"], patient="")[VALUES[:-1]]] if len(own) else []


def _check(runs: Sequence[ScoredRun]) -> None:
    if not runs:
        raise UserError("there is no finished run for a table; finish at least one run first")
    values = {
        "task": [run.summary["task"] for run in runs],
        "data": [run.summary["data"] for run in runs],
        "selection": [run.summary["selection"] for run in runs],
        "the limit of a failure": [str(run.summary.get("failure_dice")) for run in runs],
    }
    for key, found in values.items():
        if len(set(found)) > 1:
            raise UserError(
                f"the runs differ in {key} ({' and '.join(map(repr, sorted(set(found))))}), so they cannot be in one "
                "table; make one table for each value"
            )
    keys = [(*run.key, run.row.trained_at) for run in runs]
    if twice := [key for key in keys if keys.count(key) > 1]:
        label, site, seed, _ = twice[0]
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
    """Rows whose runs all have the configs of another row, by that row: `fedavg@steps=ccst` is a copy of `fedavg` if
    CCST takes no more steps."""
    configs: dict[str, dict[tuple, str | None]] = {}
    for run in runs:
        fold = (*run.key[1:], run.row.trained_at)
        configs.setdefault(run.row.label, {})[fold] = run.summary.get("config_sha256")
    first: dict[tuple, str] = {}
    copies: dict[str, str] = {}
    rows = {run.row.label: run.row for run in runs}
    for label in sorted(configs, key=lambda label: _place(rows[label], baseline)):
        content = tuple(sorted(configs[label].items()))
        if is_federated(label) and None not in configs[label].values():
            if content in first:
                copies[label] = first[content]
            first.setdefault(content, label)
    return copies


def _trivial(runs: Sequence[ScoredRun], scores: pd.DataFrame, metrics: Mapping[str, Metric]) -> list[pd.DataFrame]:
    """The scores of a prediction that ignores the image, as means over the federated runs, without intervals."""
    of_federated = [
        run.summary["trivial"] for run in runs if run.summary.get("trivial") and is_federated(run.row.label)
    ]
    tables = [run_scores_of(trivial) for trivial in of_federated]
    if not any(map(len, tables)):
        return []
    names = {trivial["prediction"] for trivial in of_federated}
    every = pd.concat(tables)
    every = every[(every.site != AVERAGE) & every.metric.isin(metrics)]
    table = every.groupby([*BLOCK, "site"])["mean"].mean().reset_index()
    n_sites = scores[scores.site != AVERAGE].groupby(METRIC).site.nunique()
    averages = table.groupby(BLOCK)["mean"].agg(["mean", "size"]).reset_index()
    known = averages[METRIC].apply(tuple, axis=1).map(n_sites) == averages["size"]
    averages = averages[known].assign(site=AVERAGE).drop(columns="size")
    prediction = names.pop() if len(names) == 1 else "the best at the source sites"
    return [pd.concat([table, averages]).assign(row=f"{TRIVIAL}: {prediction}")]


def _below_trivial(scores: pd.DataFrame, metric: Metric) -> list[str]:
    """A sentence about the rows that are not better than the trivial prediction at the unseen sites, on average."""
    own = scores[(scores.role == "unseen") & (scores.metric == metric.name) & (scores.site == AVERAGE)]
    is_trivial = own.row.str.startswith(TRIVIAL)
    of_trivial = own[is_trivial].set_index("structure")["mean"]
    others = own[~is_trivial]
    gain = (others["mean"] - others.structure.map(of_trivial)) * (1 if metric.higher_is_better else -1)
    names = list(dict.fromkeys(others.row[gain <= 0]))
    sentence = f"not better than a prediction that ignores the image, at the unseen sites: {', '.join(names)}"
    return [sentence] * bool(names)


def _missing(runs: Sequence[ScoredRun], planned: Collection[Key]) -> list[str]:
    """Sentences about planned runs without scores."""
    found = {run.key for run in runs}
    every = product(*(sorted(set(names)) for names in zip(*found)))
    missing = sorted(set(planned or every) - found)
    texts = []
    for label in dict.fromkeys(label for label, _, _ in missing):
        if label not in {key[0] for key in found}:
            texts.append(f"{label} (at no site)")
            continue
        sites: dict[str, list[str]] = {}
        for _, site, seed in (key for key in missing if key[0] == label):
            sites.setdefault(site, []).append(str(seed))
        texts += [f"{label}, unseen {site}, seed{'s' * (len(s) > 1)} {', '.join(s)}" for site, s in sites.items()]
    for label, site, seed in sorted({run.key for run in runs if run.row.trained_at}):
        of_fold = [run for run in runs if run.key[1:] == (site, seed)]
        models = [run.row for run in of_fold if run.row.label == label]
        federated = [run.summary for run in of_fold if models[0].is_reference_of(run.row)]
        sources = {name for summary in federated for name in summary.get("source_sites", ())}
        names = sorted(sources - {row.trained_at for row in models})
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
    for row, other in copies.items():
        notes.append(f"{row}: the same training as {other}, so it is neither ranked nor tested")
    absent = {run.row.equal_effort for run in runs if run.row.equal_effort} - {run.row.label for run in runs}
    notes += [f"{label} was not run, so methods of that effort have no verdict" for label in sorted(absent)]
    for label, by in sorted({(run.row.label, name) for run in runs for name in run.summary.get("transductive_by", ())}):
        notes.append(f"{label}: TRANSDUCTIVE ({by}): {TRANSDUCTIVE.get(by, by)}")
    notes += comparison_adaptation_notes(runs)
    notes += dict.fromkeys(note for run in runs for note in computation_notes(run.summary))
    unseen = values[(values.role != "seen") & (values.patient != "")]
    n_patients = unseen.groupby("site").patient.nunique()
    if few := [f"{site} ({n})" for site, n in n_patients.items() if n < MIN_PATIENTS]:
        notes.append(f"fewer than {MIN_PATIENTS} patients, so no interval and no verdict: {', '.join(few)}")
    images: dict[str, set[frozenset[str]]] = {}
    for run in runs:
        for site, names in (
            run.scores[run.scores.role != "seen"].groupby("site").image if run.scores is not None else ()
        ):
            images.setdefault(site, set()).add(frozenset(names))
    if differ := sorted(site for site, of_runs in images.items() if len(of_runs) > 1):
        notes.append(f"the runs do not score the same images, so their means cannot be compared: {', '.join(differ)}")
    return notes
